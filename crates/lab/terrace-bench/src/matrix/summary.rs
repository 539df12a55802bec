//! Tables of a finished matrix: README.md beside the raw results, and means by cell and system for the
//! terminal.

use super::spec::{LoadKind, Spec, SystemSpec};
use super::targets::{self, TargetResult};
use crate::compare::cells::grouped;
use crate::compare::{Compare, Format, compare, show, sources};
use crate::format::{markdown_table, short};
use crate::raw::{Results, Run};
use std::fs;
use std::io;
use std::path::Path;

/// Writes the matrix's README.md into `out`, which has raw.jsonl.
///
/// # Errors
/// Files that cannot be written.
pub(super) fn write(
    file: &Path,
    spec: &Spec,
    out: &Path,
    results: &Results,
    evaluated: &[TargetResult],
) -> io::Result<()> {
    let raw = out.join("raw.jsonl");
    let held = if evaluated.is_empty() {
        String::new()
    } else {
        format!("## Targets\n\n{}\n", targets::table(evaluated))
    };
    let readme = format!("{}\n{held}{}", head(file, spec, results), tables(spec, &raw));
    fs::write(out.join("README.md"), readme)
}

fn head(file: &Path, spec: &Spec, results: &Results) -> String {
    let refused = results.runs.iter().filter(|run| run.refused.is_some()).count();
    let marked = results.runs.iter().filter(|run| !run.marks.is_empty()).count();
    let machines: String = results
        .headers
        .iter()
        .map(|header| {
            let m = &header.machine;
            let (mib, device) = (m.memory_bytes >> 20, &m.device);
            format!(
                "- {} x {}, {mib} MiB, Linux {}, {} on {device}, {}, commit {}\n",
                m.cpus, m.cpu, m.kernel, m.file_system, m.fio, m.commit
            )
        })
        .collect();
    format!(
        "# {}\n\nMade by `terrace-bench matrix {}`: {} runs, {refused} refused, {marked} marked. All runs: `raw.jsonl`, its first line with machine and matrix.\n\n\
         {machines}",
        spec.name,
        file.display(),
        results.runs.len(),
    )
}

/// The kernel's page cache, or the first system.
fn baseline(spec: &Spec) -> &SystemSpec {
    spec.system.iter().find(|s| s.name == "kernel").unwrap_or(&spec.system[0])
}

/// Each system against the baseline.
fn tables(spec: &Spec, raw: &Path) -> String {
    let asked = Compare {
        files: vec![raw.to_path_buf()],
        factor: Some("system".into()),
        baseline: Some(baseline(spec).name.clone()),
        metric: custom_metrics(spec),
        pair: spec.is_paired().then(|| "repetition".into()),
        confidence: 0.95,
        ..Compare::default()
    };
    let loaded = sources::load(&asked);
    match loaded.and_then(|loaded| compare(&loaded.rows, &loaded.question)) {
        Ok(answer) => show::show(&answer, Format::Markdown),
        Err(why) => format!("No comparison: {why}\n"),
    }
}

/// Names of the commands' own metrics; those of fio have defaults.
fn custom_metrics(spec: &Spec) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for load in &spec.load {
        // A command that prints an object of numbers uses the defaults.
        if load.kind != LoadKind::Command || load.regex.is_none() && load.metric == "value" {
            return Vec::new();
        }
        if !names.contains(&load.metric_key()) {
            names.push(load.metric_key());
        }
    }
    names
}

/// Metrics of the first look, with their titles.
const SHOWN: [(&str, &str); 11] = [
    ("tps", "tps"),
    ("build_s", "build, s"),
    ("throughput_mib_s", "MiB/s"),
    ("reads_per_s", "reads/s"),
    ("p99_us", "p99, us"),
    ("p50_over_bare", "p50 : bare read"),
    ("miss_ratio", "misses"),
    ("tier_write_mib", "tier written, MiB"),
    ("hit_ratio_kept", "hits kept"),
    ("cpu_us_per_op", "CPU a read, us"),
    ("wall_s", "seconds"),
];

/// Means of the valid runs, by cell and system, for the terminal.
pub(super) fn means(results: &Results) -> String {
    let name = |run: &Run| format!("{}, {}, {} jobs: {}", run.load, run.pattern, run.jobs, run.system);
    let valid = results.runs.iter().filter(|run| run.refused.is_none());
    let mut groups = grouped(valid.map(|run| (name(run), run)));
    groups.sort_by(|a, b| a.0.cmp(&b.0));
    let mean = |runs: &[&Run], key: &str| {
        let all: Vec<f64> = runs.iter().filter_map(|run| run.metrics.get(key).copied()).collect();
        crate::stats::mean(&all)
    };
    let told = |(key, _): &&(&str, &str)| groups.iter().any(|(_, runs)| mean(runs, key).is_some());
    let shown: Vec<&(&str, &str)> = SHOWN.iter().filter(told).collect();
    let mut table = markdown_table();
    table.set_header(["", "runs"].into_iter().chain(shown.iter().map(|(_, head)| *head)));
    for (name, runs) in &groups {
        let numbers = shown.iter().map(|(key, _)| mean(runs, key).map_or("-".into(), short));
        table.add_row([name.clone(), runs.len().to_string()].into_iter().chain(numbers));
    }
    format!("{table}\n")
}
