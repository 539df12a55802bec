//! What is put beside the raw results when a matrix has ended: its tables, and the page for people.

use super::Matrix;
use super::spec::Spec;
use crate::compare::sources::{self, Asked};
use crate::compare::{Format, compare, show};
use crate::raw::Results;
use crate::report::{self, Report};
use std::fs;
use std::io;
use std::path::Path;

/// Writes README.md and report.html into `out`, which holds raw.jsonl.
///
/// # Errors
/// Files that cannot be written.
pub fn write(options: &Matrix, spec: &Spec, out: &Path, results: &Results) -> io::Result<()> {
    let raw = out.join("raw.jsonl");
    let readme = format!("{}\n{}", head(options, spec, results), tables(spec, &raw));
    fs::write(out.join("README.md"), readme)?;
    if results.runs.iter().any(|run| run.refused.is_none()) {
        report::run(&Report::of(raw, out.join("report.html")))?;
    }
    Ok(())
}

fn head(options: &Matrix, spec: &Spec, results: &Results) -> String {
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
        "# {}\n\nMade by `terrace-bench matrix {}`: {} runs, {refused} refused, {marked} marked. All runs: `raw.jsonl`, its first line with machine and matrix; \
         pictures: `report.html`.\n\n{machines}",
        spec.name,
        options.file.display(),
        results.runs.len(),
    )
}

/// Each system against the kernel's page cache, or against the first one.
fn tables(spec: &Spec, raw: &Path) -> String {
    let baseline = spec.system.iter().find(|s| s.name == "kernel").unwrap_or(&spec.system[0]);
    let asked = Asked {
        factor: Some("system".into()),
        baseline: Some(baseline.name.clone()),
        metrics: custom_metrics(spec),
        confidence: 0.95,
        ..Asked::default()
    };
    let loaded = sources::load(&[raw.to_path_buf()], &asked);
    match loaded.and_then(|loaded| compare(&loaded.rows, &loaded.question)) {
        Ok(answer) => show::show(&answer, Format::Markdown),
        Err(why) => format!("No comparison: {why}\n"),
    }
}

/// Where commands name their own numbers, those are meant; fio's usual ones are known.
fn custom_metrics(spec: &Spec) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for load in &spec.load {
        if load.kind != super::LoadKind::Command {
            return Vec::new();
        }
        if !names.contains(&load.metric_key()) {
            names.push(load.metric_key());
        }
    }
    names
}
