//! The main door: what programs without the fast door pay for having terrace in front of their files.

use super::{MIB, data, fio_sample, fio_step, remove, verify_step};
use crate::fio::{Job, random_options};
use crate::steps::Step;
use crate::system::{self, Places, System};
use crate::trial::{Bound, Cell, Measured, Trial};
use std::io;

const RESIDENT: &str = "resident";
const COLD: &str = "cold";
const NEW: &str = "written";
const GIB: u64 = 1024 * MIB;
const MEMORY: u64 = GIB;

/// Re-reads, cold deep reads, sequential reads and writes.
pub fn run(trial: &mut Trial, pass_through_threads: usize) -> io::Result<()> {
    data(&trial.places, RESIDENT, 256 * MIB).map_err(io::Error::other)?;
    data(&trial.places, COLD, GIB).map_err(io::Error::other)?;
    let judged = |metric, least| vec![(metric, Bound::AtLeast(least)), ("cpu_us_per_op", Bound::None)];
    for engine in ["psync", "io_uring"] {
        let cell = cell(&format!("re-read {engine}"), System::Kernel, judged("iops", 0.95));
        trial.cell(cell, |places, system, seed| reread(places, system, seed, engine))?;
    }
    let rival = System::PassThrough { threads: pass_through_threads };
    trial.cell(cell("cold io_uring, 32 deep", rival, judged("iops", 1.0)), cold)?;
    trial.cell(cell("sequential read 1m", System::Kernel, judged("mib_per_s", 0.9)), sequential_read)?;
    trial.cell(cell("sequential write 1m", System::Kernel, judged("mib_per_s", 0.9)), sequential_write)?;
    remove(&trial.places.data, NEW);
    Ok(())
}

fn cell(name: &str, baseline: System, judged: Vec<(&'static str, Bound)>) -> Cell {
    let systems = [baseline, System::Terrace { memory: MEMORY, fast_door: false }];
    Cell { suite: "doors", name: name.into(), systems, judged }
}

/// Runs the steps; what "measure" says.
fn measured(
    places: &Places,
    system: &System,
    direction: &str,
    file: Option<&str>,
    mut steps: Vec<Step>,
) -> Result<Measured, String> {
    let run = system::run(places, system, None, |group| {
        steps.extend(file.map(|f| verify_step(places, group, f)));
        steps
    })?;
    let sample = fio_sample(run.step("measure")?, direction)?;
    super::measured(run, "measure", sample)
}

/// The kernel holds the file: the first read put it there.
fn reread(places: &Places, system: &System, seed: u64, engine: &str) -> Result<Measured, String> {
    let size = 256 * MIB;
    let fill = Job { engine: "psync", rw: "read", bs: "1m", file: RESIDENT, size, seconds: 0, more: vec![] };
    let mut more = random_options("random", 1, seed);
    if engine == "io_uring" {
        more.push("--iodepth=32".into());
    }
    let measure = Job { engine, rw: "randread", bs: "4k", file: RESIDENT, size, seconds: 5, more };
    let steps = vec![fio_step("fill", &fill), fio_step("measure", &measure)];
    measured(places, system, "read", Some(RESIDENT), steps)
}

/// Each page read at most once.
fn cold(places: &Places, system: &System, seed: u64) -> Result<Measured, String> {
    let more = vec![
        "--iodepth=32".into(),
        "--randrepeat=0".into(),
        format!("--randseed={seed}"),
        format!("--io_size={}", GIB / 2),
    ];
    let job = Job { engine: "io_uring", rw: "randread", bs: "4k", file: COLD, size: GIB, seconds: 0, more };
    measured(places, system, "read", Some(COLD), vec![fio_step("measure", &job).cold()])
}

/// A gigabyte is read or written in half a second: the middle one of three tries stands for the run. Each has a mount of its own: in
/// one mount, the second would find what the first left in terrace's memory, which no dropping of the kernel's caches empties.
const TRIES: usize = 3;

fn sequential_read(places: &Places, system: &System, _: u64) -> Result<Measured, String> {
    let job = Job { engine: "psync", rw: "read", bs: "1m", file: COLD, size: GIB, seconds: 0, more: vec![] };
    middle_of_tries(|| measured(places, system, "read", Some(COLD), vec![fio_step("measure", &job).cold()]))
}

/// A new file, with fsync at its end; each block holds its own offset, checked afterwards by fio.
fn sequential_write(places: &Places, system: &System, _: u64) -> Result<Measured, String> {
    let job = |more: &[&str]| {
        let more =
            ["--verify=pattern", "--verify_pattern=%o"].iter().chain(more).map(ToString::to_string).collect();
        Job { engine: "psync", rw: "write", bs: "1m", file: NEW, size: GIB, seconds: 0, more }
    };
    middle_of_tries(|| {
        let steps = vec![
            Step::new("remove", ["rm", "-f", &format!("{{dir}}/{NEW}")]),
            fio_step("measure", &job(&["--end_fsync=1", "--do_verify=0"])).cold(),
            fio_step("verify", &job(&["--verify_only=1"])),
        ];
        measured(places, system, "write", None, steps)
    })
}

fn middle_of_tries(one: impl Fn() -> Result<Measured, String>) -> Result<Measured, String> {
    let mut tries = (0..TRIES).map(|_| one()).collect::<Result<Vec<_>, _>>()?;
    tries.sort_by(|a, b| a.sample["mib_per_s"].total_cmp(&b.sample["mib_per_s"]));
    Ok(tries.swap_remove(TRIES / 2))
}
