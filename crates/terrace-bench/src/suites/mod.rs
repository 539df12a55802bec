//! The ready comparisons. Each module is one suite: its data, its loads, its targets.

pub mod doors;
pub mod fio;
pub mod hits;
pub mod misses;

use crate::cgroup::Group;
use crate::fio::Job;
use crate::pages;
use crate::steps::{Outcome, Step};
use crate::system::{Places, Run};
use crate::trial::{Measured, Sample};
use crate::worker;
use std::path::Path;

/// Seed of all data files.
pub const DATA_SEED: u64 = 20_240_611;
/// 1 MiB.
pub const MIB: u64 = 1 << 20;

/// Names of all files that suites make in the data directory.
pub const FILES: [&str; 5] = ["resident", "hot", "cold", "study", "written"];

/// Makes a data file.
pub fn data(places: &Places, name: &str, bytes: u64) -> Result<(), String> {
    let path = places.data.join(name);
    pages::make_file(&path, bytes, DATA_SEED).map_err(|e| format!("{}: {e}", path.display()))
}

/// A step that runs a loop of this program.
pub fn worker_step(
    places: &Places,
    group: Option<&Group>,
    load: &str,
    seed: u64,
    options: &[(&str, String)],
) -> Step {
    let mut argv = vec![places.bench.display().to_string(), "worker".into(), load.into()];
    argv.extend(["--seed".into(), seed.to_string(), "--data-seed".into(), DATA_SEED.to_string()]);
    if let Some(group) = group {
        argv.extend(["--group".into(), serde_json::to_string(group).expect("paths are text")]);
    }
    for (name, value) in options {
        argv.push(format!("--{name}"));
        if !value.is_empty() {
            argv.push(value.clone());
        }
    }
    Step::new(load, argv)
}

/// The step that ends each run under fio: what the system now says is in the file must be what was put there.
pub fn verify_step(places: &Places, group: Option<&Group>, file: &str) -> Step {
    let options = [("file", format!("{{dir}}/{file}")), ("pages", "4096".into())];
    worker_step(places, group, "verify", 1, &options)
}

/// A step that runs fio.
pub fn fio_step(name: &str, job: &Job<'_>) -> Step {
    Step::new(name, job.argv())
}

/// The JSON that a loop printed.
pub fn worker_result(run: &Run, load: &str) -> Result<worker::Result, String> {
    let output = &run.step(load)?.output;
    serde_json::from_str(output).map_err(|e| format!("{load} printed {output:?}: {e}"))
}

/// What fio and the meters around it say about a step.
pub fn fio_sample(outcome: &Outcome, direction: &str) -> Result<Sample, String> {
    let report = crate::fio::parse(&outcome.output, direction)?;
    let mut sample = Sample::from([
        ("iops", report.iops),
        ("mib_per_s", report.bytes_per_s / MIB as f64),
        ("latency_us_mean", report.latency_us_mean),
        ("latency_us_p99", report.latency_us_p99),
        ("fio_cpu_us_per_op", report.fio_cpu_us_per_op),
    ]);
    if let Some(ns) = outcome.cpu_ns {
        sample.insert("cpu_us_per_op", ns as f64 / 1000.0 / report.ios);
    }
    if let Some(bytes) = outcome.read_bytes {
        sample.insert("device_reads_per_op", bytes as f64 / pages::PAGE as f64 / report.ios);
    }
    Ok(sample)
}

/// A run's numbers with the disturbance during `step` and terrace's own statistics.
pub fn measured(run: Run, step: &str, sample: Sample) -> Result<Measured, String> {
    Ok(Measured { sample, foreign_cpu: run.step(step)?.foreign_cpu(), stats: run.stats })
}

/// Removes what a suite left in the data directory.
pub fn remove(dir: &Path, name: &str) {
    let _ = std::fs::remove_file(dir.join(name));
}
