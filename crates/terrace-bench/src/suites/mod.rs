//! The ready comparisons. Each module is one suite: its data, its loads, its targets.

pub mod doors;
pub mod fio;
pub mod harm;
pub mod hits;
pub mod misses;
pub mod real;

use crate::cgroup::Group;
use crate::fio::Job;
use crate::pages;
use crate::steps::{Outcome, Step};
use crate::system::{self, Places, Run, System};
use crate::trial::{HIT_SHARE, Measured, Sample};
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

/// Share of the bytes of a run that the fast door must have served where a cell is about the fast door.
const FAST_DOOR_SHARE_MIN: f64 = 0.99;

/// What the fast door is expected to do in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// To hit.
    Hits,
    /// To serve: by hits, or by its own reads of the source.
    Served,
}

/// Refuses a run of terrace whose program, in this step, did not go through the fast door as expected: it would measure something else.
pub fn expect_fast_door(
    system: &System,
    outcome: &Outcome,
    bytes: u64,
    expect: Expect,
) -> Result<(), String> {
    if !matches!(system, System::Terrace { fast_door: true, .. }) {
        return Ok(());
    }
    let door = outcome.door.ok_or("terrace stat did not answer: nobody knows which door was used")?;
    let missed = if expect == Expect::Served { door.miss_bytes } else { 0 };
    let share = (door.hit_bytes + missed) as f64 / bytes.max(1) as f64;
    if share < FAST_DOOR_SHARE_MIN {
        let what = if expect == Expect::Hits { "were hits at" } else { "went through" };
        return Err(format!("only {:.1} % of {} MiB {what} the fast door", share * 100.0, bytes / MIB));
    }
    Ok(())
}

/// A step that makes a file resident, before anything is measured.
pub fn fill_step(places: &Places, group: Option<&Group>, file: &str, bytes: u64) -> Step {
    worker_step(places, group, "fill", 1, &[("file", format!("{{dir}}/{file}"))]).until_hits(bytes)
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
        ("ops", report.ios),
    ]);
    if let Some(ns) = outcome.cpu_ns {
        sample.insert("cpu_us_per_op", ns as f64 / 1000.0 / report.ios);
    }
    if let Some(bytes) = outcome.read_bytes {
        let reads = bytes as f64 / pages::PAGE as f64 / report.ios;
        sample.insert("device_reads_per_op", reads);
        sample.insert(HIT_SHARE, (1.0 - reads).max(0.0));
    }
    Ok(sample)
}

/// A run's numbers with the disturbance during `step` and terrace's own statistics.
pub fn measured(run: Run, step: &str, sample: Sample) -> Result<Measured, String> {
    Ok(Measured { sample, foreign_cpu: run.step(step)?.foreign_cpu(), stats: run.stats })
}

/// The largest `--memory` that keeps programs, daemon and cache inside the limit: what else the group holds for good is measured with a
/// smaller memory, `probe`. `limits`: the limit, and what is to be spare below it, in bytes.
pub fn largest_memory(
    places: &Places,
    what: &str,
    limits: (u64, u64),
    probe: u64,
    steps: impl FnOnce(Option<&Group>) -> Vec<Step>,
) -> Result<u64, String> {
    let (limit, spare) = limits;
    let system = System::Terrace { memory: probe, fast_door: true };
    let run = system::run(places, &system, Some(limit), steps)?;
    // A load that is small or short leaves some of the probe unused.
    let used = run.stats.as_ref().and_then(|s| s.pointer("/memory/used_bytes")?.as_u64()).unwrap_or(probe);
    let beside = run.pinned_max.saturating_sub(used.min(probe));
    let memory = limit.checked_sub(beside + spare).map(|bytes| bytes / MIB * MIB);
    let (beside, spare, limit) = (beside / MIB, spare / MIB, limit / MIB);
    let memory = memory.filter(|&bytes| bytes > 0).ok_or_else(|| {
        format!(
            "the limit of {limit} MiB is too small: programs hold {beside} MiB, {spare} MiB are to spare; raise --limit-mib"
        )
    })?;
    let mib = memory / MIB;
    eprintln!(
        "{what}: {beside} MiB beside terrace's memory, so --memory {mib}MiB under the limit of {limit} MiB"
    );
    Ok(memory)
}

/// Adds the numbers of the group's memory to the sample. Refuses a run of the kernel's page cache that its limit did not hold back.
pub fn limited(run: &Run, system: &System, limit: u64, sample: &mut Sample) -> Result<(), String> {
    let memory = run.memory.ok_or("no memory controller: no limit")?;
    sample.insert("memory_max_mib", memory.usage_max as f64 / MIB as f64);
    sample.insert("limit_hits", memory.limit_hits as f64);
    sample.insert("major_faults", memory.major_faults as f64);
    sample.insert("pinned_max_mib", run.pinned_max as f64 / MIB as f64);
    if *system == System::Kernel && (memory.limit_hits == 0 || memory.usage_max < limit / 100 * 98) {
        return Err(format!("the limit does not bind: {} MiB used", memory.usage_max / MIB));
    }
    Ok(())
}

/// Removes what a suite left in the data directory.
pub fn remove(dir: &Path, name: &str) {
    let _ = std::fs::remove_file(dir.join(name));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::Door;

    fn outcome(door: Option<Door>) -> Outcome {
        let empty = serde_json::json!({"name": "x", "status": 0, "wall_ns": 0, "cpu_ns": null, "read_bytes": null,
            "machine_busy_ns": 0, "machine_steal_ns": 0, "memory": null});
        Outcome { door, ..serde_json::from_value(empty).unwrap() }
    }

    #[test]
    fn a_run_by_another_door_is_refused() {
        let fast = System::Terrace { memory: 1, fast_door: true };
        let main = System::Terrace { memory: 1, fast_door: false };
        let mixed = outcome(Some(Door { hit_bytes: 500, miss_bytes: 495 }));
        assert!(expect_fast_door(&fast, &mixed, 1000, Expect::Served).is_ok());
        let why = expect_fast_door(&fast, &mixed, 1000, Expect::Hits).unwrap_err();
        assert!(why.contains("50.0 %"), "{why}");
        assert!(expect_fast_door(&fast, &outcome(None), 1000, Expect::Served).is_err());
        for other in [main, System::Kernel] {
            assert!(expect_fast_door(&other, &outcome(None), 1000, Expect::Hits).is_ok());
        }
    }
}
