//! The page-cache study: files twice the memory, random reads of three distributions, program and cache together in one memory cgroup.
//!
//! The kernel's side has fio and its page cache under the limit. terrace's side has fio, the daemon and all its frames under the same
//! limit; `--memory` is the largest that stays inside, found once for each number of jobs: what else the group must hold is measured with a
//! smaller memory first.

use super::{data, fio_sample, fio_step, largest_memory, limited, measured, verify_step};
use crate::fio::{Job, random_options};
use crate::steps::Step;
use crate::system::{self, Places, System};
use crate::trial::{Bound, Cell, HIT_SHARE, Measured, Trial};
use std::io;

/// Sizes and times.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The memory limit of either side; the file is twice as large.
    pub limit: u64,
    /// Seconds of warm-up.
    pub warm_s: u64,
    /// Seconds measured.
    pub measure_s: u64,
    /// Bytes that terrace's side leaves free for the programs' own text, page tables and kernel memory, which come and go. Too few, and
    /// the programs run from the disk: major faults tell.
    pub spare: u64,
}

/// MiB to spare: the programs' text, and what a fault in it reads around itself. With 16, where faults read 8 MiB around, the
/// programs of a full group pushed each other's text out: a quarter of what the device read in zipf was text.
pub const SPARE_MIB: u64 = 32;

const FILE: &str = "study";

/// Three distributions, two and four jobs.
pub fn run(trial: &mut Trial, scale: Scale) -> io::Result<()> {
    data(&trial.places, FILE, scale.limit * 2).map_err(io::Error::other)?;
    for jobs in [2, 4] {
        let mut memory = None;
        for (name, distribution, iops) in [
            ("random", "random", Bound::AtLeast(1.0)),
            ("zipf:0.8", "zipf:0.8:0.5", Bound::Above(1.0)),
            ("normal:40", "normal:40", Bound::Above(1.0)),
        ] {
            let name = format!("{name}, {jobs} jobs");
            if !trial.wanted("fio", &name) || system::interrupted() {
                continue;
            }
            let study = Study { scale, file: FILE, distribution, jobs };
            let bytes = match memory {
                Some(bytes) => bytes,
                None if trial.options.self_check => 0,
                None => study.largest_memory(&trial.places).map_err(io::Error::other)?,
            };
            memory = Some(bytes);
            let judged = vec![
                ("iops", iops),
                ("latency_us_p99", Bound::None),
                ("cpu_us_per_op", Bound::AtMostWhereHits(0.75)),
                (HIT_SHARE, Bound::None),
                ("device_reads_per_op", Bound::None),
            ];
            let systems = [System::Kernel, System::Terrace { memory: bytes, fast_door: true }];
            let cell = Cell { suite: "fio", name, systems, judged };
            trial.cell(cell, |places, system, seed| one(places, system, seed, study))?;
        }
    }
    Ok(())
}

/// One study: a load, its file and its steps.
#[derive(Clone, Copy, Debug)]
pub struct Study<'a> {
    /// Sizes and times.
    pub scale: Scale,
    /// File below the directory under test.
    pub file: &'a str,
    /// fio's name of the distribution.
    pub distribution: &'a str,
    /// Processes that read.
    pub jobs: u32,
}

impl Study<'_> {
    /// A warm-up with one seed, a measurement with another.
    pub fn steps(&self, seed: u64) -> Vec<Step> {
        let job = |seconds, seed| Job {
            engine: "psync",
            rw: "randread",
            bs: "4k",
            file: self.file,
            size: self.scale.limit * 2,
            seconds,
            more: random_options(self.distribution, self.jobs, seed),
        };
        vec![
            fio_step("warm", &job(self.scale.warm_s, seed)),
            fio_step("measure", &job(self.scale.measure_s, seed + 1)),
        ]
    }

    /// The largest `--memory` that keeps program, daemon and cache inside the limit.
    pub fn largest_memory(&self, places: &Places) -> Result<u64, String> {
        let scale = Scale { warm_s: self.scale.warm_s.min(8), measure_s: 2, ..self.scale };
        let short = Study { scale, distribution: "random", ..*self };
        let what = format!("{} jobs", self.jobs);
        let probe = scale.limit / 4 * 3;
        largest_memory(places, &what, (scale.limit, scale.spare), probe, |_| short.steps(1))
    }
}

fn one(places: &Places, system: &System, seed: u64, study: Study<'_>) -> Result<Measured, String> {
    let limit = study.scale.limit;
    let run = system::run(places, system, Some(limit), |group| {
        let mut steps = study.steps(seed);
        steps.push(verify_step(places, group, study.file));
        steps
    })?;
    let mut sample = fio_sample(run.step("measure")?, "read")?;
    limited(&run, system, limit, &mut sample)?;
    if sample.get("device_reads_per_op").is_some_and(|&r| r < 0.001) {
        return Err("nothing was read from the device: the file is cached outside the limit".into());
    }
    measured(run, "measure", sample)
}
