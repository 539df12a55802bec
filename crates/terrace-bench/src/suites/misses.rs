//! Misses: what a read through terrace costs over the bare device read that it contains.

use super::{Expect, MIB, data, expect_fast_door, fill_step, measured, worker_result, worker_step};
use crate::system::{self, Places, System};
use crate::trial::{Bound, Cell, Measured, Sample, Trial};
use std::io;

const HOT_BYTES: u64 = 128 * MIB;
const COLD_BYTES: u64 = 1024 * MIB;

/// One thread that only misses; four threads that hit half of the time. The memory is small enough that pages must go as others come.
pub fn run(trial: &mut Trial) -> io::Result<()> {
    data(&trial.places, "hot", HOT_BYTES).map_err(io::Error::other)?;
    data(&trial.places, "cold", COLD_BYTES).map_err(io::Error::other)?;
    let judged = vec![
        ("latency_us_mean", Bound::AtMost(1.10)),
        ("latency_us_p50", Bound::None),
        ("latency_us_p99", Bound::None),
        ("cpu_us_per_read", Bound::None),
    ];
    trial.cell(cell("1 thread", 128 * MIB, judged), one_thread)?;
    let judged = vec![("reads_per_s", Bound::AtLeast(0.95)), ("cpu_us_per_read", Bound::None)];
    trial.cell(cell("4 threads, half hits", 384 * MIB, judged), four_threads)
}

fn cell(name: &str, memory: u64, judged: Vec<(&'static str, Bound)>) -> Cell {
    let systems = [System::Kernel, System::Terrace { memory, fast_door: true }];
    Cell { suite: "misses", name: name.into(), systems, judged }
}

fn one_thread(places: &Places, system: &System, seed: u64) -> Result<Measured, String> {
    let mut options = vec![("file", "{dir}/cold".to_string()), ("ops", "60000".into())];
    if *system == System::Kernel {
        options.push(("direct", String::new()));
    }
    let run = system::run(places, system, None, |group| {
        vec![worker_step(places, group, "misses", seed, &options)]
    })?;
    let r = worker_result(&run, "misses")?;
    expect_fast_door(system, run.step("misses")?, r.bytes, Expect::Served)?;
    let sample = Sample::from([
        ("latency_us_mean", r.latency_ns_mean / 1000.0),
        ("latency_us_p50", r.latency_ns_p50 / 1000.0),
        ("latency_us_p99", r.latency_ns_p99 / 1000.0),
        ("cpu_us_per_read", r.group_cpu_ns.ok_or("no CPU meter")? as f64 / 1000.0 / r.ops as f64),
    ]);
    measured(run, "misses", sample)
}

/// The baseline is what a careful program does by hand: hits from the page cache, misses by O_DIRECT.
fn four_threads(places: &Places, system: &System, seed: u64) -> Result<Measured, String> {
    let mut options = vec![
        ("hot", "{dir}/hot".to_string()),
        ("cold", "{dir}/cold".into()),
        ("threads", "4".into()),
        ("ops", "50000".into()),
    ];
    if *system == System::Kernel {
        options.push(("direct", String::new()));
    }
    let run = system::run(places, system, None, |group| {
        // The first read of the hot file misses, in pieces too large for the fast door: not in the step that is judged. Between
        // the two, caches stay as they are: with the kernel's inodes, terrace's pages of closed files go too.
        let fill = fill_step(places, group, "hot", HOT_BYTES);
        vec![fill, worker_step(places, group, "mixed", seed, &options)]
    })?;
    let r = worker_result(&run, "mixed")?;
    expect_fast_door(system, run.step("mixed")?, r.bytes, Expect::Served)?;
    let sample = Sample::from([
        ("reads_per_s", r.ops as f64 * 1e9 / r.wall_ns as f64),
        ("cpu_us_per_read", r.group_cpu_ns.ok_or("no CPU meter")? as f64 / 1000.0 / r.ops as f64),
    ]);
    measured(run, "mixed", sample)
}
