//! Bars of a matrix's results in the terminal, for `make demo`: reads a second by pattern and system. Below
//! them, the ratios of latency, processor time and misses to the baseline.

use crate::format::{RED, UNDONE};
use crate::raw::Run;
use std::fmt::Write;

/// Length of the longest bar, columns.
const BAR_COLUMNS: f64 = 40.0;
/// Metric, its title, and whether more is better.
const FIGURES: [(&str, &str, bool); 4] = [
    ("iops", "reads a second", true),
    ("p99_us", "99th percentile", false),
    ("cpu_us_per_op", "processor time a read", false),
    ("miss_ratio", "misses", false),
];

/// The bars, in the order of `patterns`. The first system is the baseline; a metric by which another one
/// loses is red.
pub(super) fn bars(patterns: &[String], systems: &[String], runs: &[Run], colours: bool) -> String {
    let counts = |run: &&Run| run.refused.is_none();
    let iops = |run: &Run| run.metrics.get("iops").copied().unwrap_or(0.0);
    let most = runs.iter().filter(counts).map(iops).fold(1.0, f64::max);
    let mut out = String::from("\nreads a second; longer is better\n");
    for pattern in patterns {
        let _ = writeln!(out, "\n{pattern}");
        let of = |system: &String| {
            runs.iter().filter(counts).find(|run| run.pattern == *pattern && run.system == *system)
        };
        let sides: Vec<(&String, &Run)> = systems.iter().filter_map(|name| Some((name, of(name)?))).collect();
        for (name, run) in &sides {
            let bar = "\u{2588}".repeat(((iops(run) / most * BAR_COLUMNS).round() as usize).max(1));
            let _ = writeln!(out, "  {name:<11}{bar} {:.0}", iops(run));
        }
        for (name, run) in sides.iter().skip(1) {
            let ratios = FIGURES.iter().filter_map(|figure| ratio(figure, sides[0].1, run, colours));
            let _ = writeln!(out, "  {:<11}{}", format!("{name}:"), ratios.collect::<Vec<_>>().join(", "));
        }
    }
    out
}

/// A run's metric as a multiple of the baseline's.
fn ratio(
    (key, name, more_is_better): &(&str, &str, bool),
    plain: &Run,
    ours: &Run,
    colours: bool,
) -> Option<String> {
    let (plain, ours) = (*plain.metrics.get(*key)?, *ours.metrics.get(*key)?);
    if plain <= 0.0 {
        return None;
    }
    let loses = if *more_is_better { ours < plain } else { ours > plain };
    let (red, undone) = if loses && colours { (RED, UNDONE) } else { ("", "") };
    let word = if loses { " (loses)" } else { "" };
    Some(format!("{red}{name} x{:.2}{word}{undone}", ours / plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losing_figure_is_red() {
        let run = |system: &str, iops: f64, p99: f64| Run {
            system: system.into(),
            pattern: "zipf:0.8".into(),
            metrics: [("iops".to_owned(), iops), ("p99_us".to_owned(), p99)].into(),
            ..Run::default()
        };
        let runs = [run("terrace", 2500.0, 400.0), run("kernel", 1000.0, 300.0)];
        let told = |colours| bars(&["zipf:0.8".into()], &["kernel".into(), "terrace".into()], &runs, colours);
        let text = told(true);
        assert!(text.contains("reads a second x2.50,"), "{text}");
        assert!(text.contains(&format!("{RED}99th percentile x1.33 (loses){UNDONE}")), "{text}");
        assert!(!told(false).contains('\x1b'));
        let lines: Vec<&str> = text.lines().filter(|line| line.contains('\u{2588}')).collect();
        assert!(lines[0].starts_with("  kernel") && lines[1].ends_with(" 2500"), "{text}");
    }
}
