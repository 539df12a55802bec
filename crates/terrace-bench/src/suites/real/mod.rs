//! Real programs against the kernel's page cache under equal memory: databases, a build. The group holds server, clients and, on
//! terrace's side, the daemon with all its frames.
//!
//! Each run starts from a copy of the same data, made once on the plain directory. What a program says of its data afterwards, and what
//! its own tools find in the files when terrace is gone, decides whether the run counts.

mod build;
mod mariadb;
mod postgres;
mod shell;

use super::fio::Scale;
use super::{MIB, largest_memory, limited, measured};
use crate::steps::{Outcome, Step};
use crate::system::{self, Places, Run, System};
use crate::trial::{Bound, Cell, Sample, Trial};
use clap::Args;
use shell::Tree;
use std::io;

/// What the programs are told.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Connections to a database, all busy.
    #[arg(long, default_value_t = 8)]
    clients: u32,
    /// Jobs of the build; may be given again. By default twice, four and eight times the processors, one after the other.
    #[arg(long)]
    jobs: Vec<u32>,
    /// The build's limit: so many MiB above what its compilers hold at their peak.
    #[arg(long, default_value_t = 192)]
    build_cache_mib: u64,
}

/// All loads.
pub fn run(trial: &mut Trial, scale: Scale, options: &Options) -> io::Result<()> {
    postgres::run(trial, scale, options)?;
    mariadb::run(trial, scale, options)?;
    build::run(trial, scale, options)
}

/// How long a load runs.
#[derive(Clone, Copy, Debug)]
struct Times {
    warm_s: u64,
    measure_s: u64,
}

/// A program with its data.
trait Load {
    /// The data that each run starts from.
    fn tree(&self) -> &Tree;

    /// Bytes that terrace gets while it is found out what the programs hold beside it.
    fn probe(&self, limit: u64) -> u64 {
        limit / 4
    }

    /// What is done; the step "measure" is what counts.
    fn steps(&self, times: Times, seed: u64) -> Vec<Step>;

    /// The numbers of a run, if what it left is right.
    fn judge(&self, places: &Places, run: &Run) -> Result<Sample, String>;

    /// What the program said last, for a message about its failure.
    fn last_words(&self) -> String;
}

/// Compares both sides on a load: `judged` names its metrics, the first ones of the table.
fn compare(
    trial: &mut Trial,
    name: &str,
    scale: Scale,
    judged: &[&'static str],
    load: &dyn Load,
) -> io::Result<()> {
    if system::interrupted() {
        return Ok(());
    }
    let memory = match trial.options.self_check {
        true => 0,
        false => memory_for(&trial.places, name, scale, load).map_err(io::Error::other)?,
    };
    let more = ["cpu_share", "device_read_mib", "major_faults"];
    let judged = judged.iter().chain(&more).map(|&metric| (metric, Bound::None)).collect();
    let systems = [System::Kernel, System::Terrace { memory, fast_door: true }];
    let cell = Cell { suite: "real", name: name.into(), systems, judged };
    let times = Times { warm_s: scale.warm_s, measure_s: scale.measure_s };
    trial.cell(cell, |places, system, seed| {
        let _data = load.tree().fresh(places)?;
        let run = system::run(places, system, Some(scale.limit), |_| load.steps(times, seed))
            .map_err(|why| format!("{why}{}", load.last_words()))?;
        let outcome = run.step("measure")?;
        went_by_fast_door(places, system, outcome)?;
        let mut sample = load.judge(places, &run)?;
        add_meters(outcome, &mut sample);
        limited(&run, system, scale.limit, &mut sample)?;
        measured(run, "measure", sample)
    })
}

/// The largest `--memory` that leaves the programs their own; found with a short run of the load.
fn memory_for(places: &Places, name: &str, scale: Scale, load: &dyn Load) -> Result<u64, String> {
    let times = Times { warm_s: scale.warm_s.min(10), measure_s: 2 };
    let _data = load.tree().fresh(places)?;
    let limits = (scale.limit, scale.spare);
    largest_memory(places, name, limits, load.probe(scale.limit), |_| load.steps(times, 1))
        .map_err(|why| format!("{name}: {why}{}", load.last_words()))
}

/// A program that does not use the fast door at all (another user's, a static one) is not what is meant here.
fn went_by_fast_door(places: &Places, system: &System, outcome: &Outcome) -> Result<(), String> {
    let asked_for = !places.terrace_args.iter().any(|arg| arg == "--no-fast-door");
    let expected = asked_for && matches!(system, System::Terrace { fast_door: true, .. });
    let bytes = outcome.door.map_or(0, |door| door.hit_bytes + door.miss_bytes);
    if expected && bytes == 0 {
        return Err("nothing went through the fast door: the program cannot reach it".into());
    }
    Ok(())
}

fn add_meters(outcome: &Outcome, sample: &mut Sample) {
    sample.insert("seconds", outcome.wall_ns as f64 / 1e9);
    if let Some(ns) = outcome.cpu_ns {
        let of_all = outcome.wall_ns as f64 * crate::machine::cpus() as f64;
        sample.insert("cpu_share", ns as f64 / of_all);
    }
    if let Some(bytes) = outcome.read_bytes {
        sample.insert("device_read_mib", bytes as f64 / MIB as f64);
    }
    if let Some(door) = outcome.door {
        sample.insert("fast_door_hit_mib", door.hit_bytes as f64 / MIB as f64);
        sample.insert("fast_door_miss_mib", door.miss_bytes as f64 / MIB as f64);
    }
}
