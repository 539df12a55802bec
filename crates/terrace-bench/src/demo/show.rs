//! The result of the built-in comparison: bars in the terminal, and a page. A figure by which terrace loses is red.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::time::Duration;
use terrace_output::plot::palette;
use terrace_output::plot::panel::{self, Bar, Group, Mean};
use terrace_output::plot::picture::Swatch;
use terrace_output::plot::text::escaped;

/// Escapes of a terminal.
pub const RED: &str = "\x1b[31m";
pub const UNDONE: &str = "\x1b[0m";
const SYSTEMS: [&str; 2] = ["page cache", "terrace"];
/// Columns of the longest bar.
const BAR_COLUMNS: f64 = 40.0;
const BAR_PROGRESS: usize = 24;
/// Longest time that the line of progress knows of, seconds.
const PROGRESS_S: f64 = 235.0;

/// Numbers of fio and the meters for one measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Reads a second.
    pub iops: f64,
    /// 99th percentile of their latency.
    pub p99_us: Option<f64>,
    /// Processor time of all, a read.
    pub cpu_us: Option<f64>,
    /// Read from devices.
    pub device_mib: Option<f64>,
}

/// A pattern on both sides.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// As fio names it.
    pub pattern: String,
    /// The page cache.
    pub plain: Measured,
    /// terrace.
    pub ours: Measured,
}

/// One figure of both sides.
struct Figure {
    name: &'static str,
    plain: f64,
    ours: f64,
    more_is_better: bool,
}

impl Figure {
    fn loses(&self) -> bool {
        if self.more_is_better { self.ours < self.plain } else { self.ours > self.plain }
    }

    fn ratio(&self) -> f64 {
        self.ours / self.plain
    }
}

impl Cell {
    /// Output of both sides.
    fn figures(&self) -> Vec<Figure> {
        let both = |name, of: fn(&Measured) -> Option<f64>, more_is_better| {
            let (plain, ours) = (of(&self.plain)?, of(&self.ours)?);
            (plain > 0.0).then_some(Figure { name, plain, ours, more_is_better })
        };
        let all = [
            both("reads a second", |m| Some(m.iops), true),
            both("99th percentile, us", |m| m.p99_us, false),
            both("processor time a read, us", |m| m.cpu_us, false),
            both("read from the device, MiB", |m| m.device_mib, false),
        ];
        all.into_iter().flatten().collect()
    }
}

/// A share in per cent.
pub fn share(ratio: f64) -> String {
    format!("{:.0} %", 100.0 * ratio)
}

/// The line of progress.
pub fn progress(what: &str, doing: &str, left: Duration) -> String {
    let done = (1.0 - left.as_secs_f64() / PROGRESS_S).clamp(0.0, 1.0);
    let filled = (done * BAR_PROGRESS as f64) as usize;
    let (seconds, bar) = (left.as_secs(), "#".repeat(filled) + &"-".repeat(BAR_PROGRESS - filled));
    format!("[{bar}] {what}: {doing}; at most {}:{:02} left", seconds / 60, seconds % 60)
}

/// Bars of reads a second, and a line of the other figures.
pub fn bars(cells: &[Cell]) -> String {
    drawn(cells, io::stdout().is_terminal())
}

fn drawn(cells: &[Cell], colours: bool) -> String {
    let most = cells.iter().flat_map(|cell| [cell.plain.iops, cell.ours.iops]).fold(1.0, f64::max);
    let mut out = String::from("\nreads a second; longer is better\n");
    for cell in cells {
        let _ = writeln!(out, "\n{}", cell.pattern);
        for (system, measured) in SYSTEMS.iter().zip([&cell.plain, &cell.ours]) {
            let columns = (measured.iops / most * BAR_COLUMNS).round() as usize;
            let _ = writeln!(out, "  {system:<11}{} {:.0}", "\u{2588}".repeat(columns.max(1)), measured.iops);
        }
        let figures = cell.figures();
        let told = figures.iter().map(|figure| {
            let loses = figure.loses();
            let (red, undone) = if loses && colours { (RED, UNDONE) } else { ("", "") };
            let word = if loses { " (loses)" } else { "" };
            format!(
                "{red}{} x{:.2}{word}{undone}",
                figure.name.trim_end_matches(", us").trim_end_matches(", MiB"),
                figure.ratio()
            )
        });
        let _ = writeln!(out, "  terrace:   {}", told.collect::<Vec<_>>().join(", "));
    }
    out
}

const STYLE: &str = "body{max-width:60rem;margin:2rem auto;padding:0 1rem;font:16px/1.5 system-ui,sans-serif}table{border-collapse:collapse}\
    th,td{padding:.3rem .8rem;text-align:right;border-bottom:1px solid #ccc}th:first-child,td:first-child{text-align:left}\
    .loses{color:#c00;font-weight:bold}figure{margin:1rem 0}";

/// The page: one file without anything from elsewhere.
pub fn page(cells: &[Cell], limit_mib: u64, file_mib: u64) -> String {
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>terrace: demonstration</title>\n<style>{STYLE}{}</style>\n\
         </head>\n<body>\n<h1>terrace against the kernel's page cache</h1>\n<p>fio reads 4 KiB pages of {file_mib} MiB of this machine's texts, \
         programs and logs; programs and cache have {limit_mib} MiB on either side. One run of each: see bench/README.md for a measurement.</p>\n",
        palette::style_sheet()
    );
    let systems: Vec<String> = SYSTEMS.iter().map(ToString::to_string).collect();
    let picture = panel::bars("reads a second".to_owned(), "reads a second", &groups(cells))
        .framed(Swatch::Bar, &systems);
    let _ = writeln!(out, "<figure>{}</figure>\n<table>", picture.inline_svg());
    out.push_str("<thead><tr><th>pattern</th><th>figure</th><th>page cache</th><th>terrace</th><th>ratio</th></tr></thead>\n<tbody>\n");
    for cell in cells {
        for figure in cell.figures() {
            let class = if figure.loses() { " class=\"loses\"" } else { "" };
            let _ = writeln!(
                out,
                "<tr><td>{}</td><td>{}</td><td>{:.1}</td><td>{:.1}</td><td{class}>{:.2}</td></tr>",
                escaped(&cell.pattern),
                figure.name,
                figure.plain,
                figure.ours,
                figure.ratio()
            );
        }
    }
    out.push_str("</tbody></table>\n<p>A red ratio: terrace loses.</p>\n</body>\n</html>\n");
    out
}

fn groups(cells: &[Cell]) -> Vec<Group> {
    let bar = |(system, measured): (usize, &Measured)| {
        let value = Some(Mean { mean: measured.iops, interval: None, runs: 1 });
        Bar { system, name: SYSTEMS[system].to_owned(), value }
    };
    let group = |cell: &Cell| Group {
        label: cell.pattern.clone(),
        bars: [&cell.plain, &cell.ours].into_iter().enumerate().map(bar).collect(),
    };
    cells.iter().map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells() -> Vec<Cell> {
        let side =
            |iops: f64, p99: f64| Measured { iops, p99_us: Some(p99), cpu_us: Some(10.0), device_mib: None };
        vec![Cell { pattern: "zipf:0.8".to_owned(), plain: side(1000.0, 300.0), ours: side(2500.0, 400.0) }]
    }

    #[test]
    fn losing_figure_is_red_in_both_outputs() {
        let text = drawn(&cells(), true);
        assert!(text.contains("reads a second x2.50,"), "{text}");
        assert!(text.contains(&format!("{RED}99th percentile x1.33 (loses){UNDONE}")), "{text}");
        assert!(!drawn(&cells(), false).contains('\x1b'));
        let page = page(&cells(), 512, 1024);
        assert!(page.contains("<td class=\"loses\">1.33</td>") && page.contains("<td>2.50</td>"), "{page}");
        roxmltree::Document::parse_with_options(
            &page,
            roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() },
        )
        .unwrap();
    }

    #[test]
    fn progress_tells_the_time_that_is_left() {
        let line = progress("terrace, random", "warming", Duration::from_secs(95));
        assert!(line.contains("at most 1:35 left") && line.starts_with("[##########"), "{line}");
    }
}
