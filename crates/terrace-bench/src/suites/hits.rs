//! Hits: a file that fits, resident on both sides; what a read costs in CPU time.

use super::{
    Expect, MIB, data, expect_fast_door, fill_step, fio_sample, fio_step, measured, verify_step,
    worker_result, worker_step,
};
use crate::fio::{Job, random_options};
use crate::system::{self, Places, System};
use crate::trial::{Bound, Cell, Measured, Sample, Trial};
use std::io;

const FILE: &str = "resident";
const FILE_BYTES: u64 = 256 * MIB;
const MEMORY: u64 = 1024 * MIB;

/// Loops at three sizes, and unmodified fio.
pub fn run(trial: &mut Trial) -> io::Result<()> {
    data(&trial.places, FILE, FILE_BYTES).map_err(io::Error::other)?;
    for (name, bs, ops, bound) in
        [("4k", 4096, 2_000_000, 0.55), ("64k", 65_536, 150_000, 0.75), ("1m", 1 << 20, 10_000, 0.75)]
    {
        let judged = vec![
            ("cpu_ns_per_read", Bound::AtMost(bound)),
            ("thread_cpu_ns_per_read", Bound::None),
            ("wall_ns_per_read", Bound::None),
        ];
        trial.cell(cell(format!("loop {name}"), judged), |places, system, seed| {
            one_loop(places, system, seed, bs, ops)
        })?;
    }
    let judged = vec![
        ("cpu_us_per_op", Bound::AtMost(0.75)),
        ("fio_cpu_us_per_op", Bound::None),
        ("iops", Bound::None),
    ];
    trial.cell(cell("fio psync 4k".into(), judged), one_fio)
}

fn cell(name: String, judged: Vec<(&'static str, Bound)>) -> Cell {
    let systems = [System::Kernel, System::Terrace { memory: MEMORY, fast_door: true }];
    Cell { suite: "hits", name, systems, judged }
}

fn one_loop(places: &Places, system: &System, seed: u64, bs: usize, ops: u64) -> Result<Measured, String> {
    let options = [("file", format!("{{dir}}/{FILE}")), ("bs", bs.to_string()), ("ops", ops.to_string())];
    let run = system::run(places, system, None, |group| {
        let fill = fill_step(places, group, FILE, FILE_BYTES);
        vec![fill, worker_step(places, group, "hits", seed, &options)]
    })?;
    let r = worker_result(&run, "hits")?;
    expect_fast_door(system, run.step("hits")?, r.bytes, Expect::Hits)?;
    let per_read = |ns: u64| ns as f64 / r.ops as f64;
    let sample = Sample::from([
        ("cpu_ns_per_read", per_read(r.group_cpu_ns.ok_or("no CPU meter")?)),
        ("thread_cpu_ns_per_read", per_read(r.cpu_ns)),
        ("wall_ns_per_read", per_read(r.wall_ns)),
    ]);
    measured(run, "hits", sample)
}

fn one_fio(places: &Places, system: &System, seed: u64) -> Result<Measured, String> {
    let more = random_options("random", 1, seed);
    let job =
        Job { engine: "psync", rw: "randread", bs: "4k", file: FILE, size: FILE_BYTES, seconds: 6, more };
    let run = system::run(places, system, None, |group| {
        let fill = fill_step(places, group, FILE, FILE_BYTES);
        vec![fill, fio_step("measure", &job), verify_step(places, group, FILE)]
    })?;
    let sample = fio_sample(run.step("measure")?, "read")?;
    expect_fast_door(system, run.step("measure")?, sample["ops"] as u64 * 4096, Expect::Hits)?;
    measured(run, "measure", sample)
}
