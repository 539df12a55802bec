//! A matrix: systems x loads x patterns x jobs x repetitions, each run on fresh caches and kept as a line of raw results.
//!
//! Reading order: [`spec`] (what is asked for) and its [`check`], [`plan`] (in what order), [`device`], [`systems`] and [`trees`] (what is set up),
//! [`load`] (what is run), [`harness`] (one run after the other), [`numbers`] (what a run says, and when it counts), [`targets`] (what all of them are
//! held to), [`cleanup`] (how it all goes away again). What it says is for `compare` and `report` to find out.

pub mod check;
pub mod cleanup;
pub mod device;
mod harness;
pub mod load;
pub mod numbers;
pub mod plan;
pub mod spec;
mod summary;
pub mod systems;
pub mod targets;
pub mod trees;

use crate::machine;
use crate::{output, raw, signals};
use clap::Args;
use cleanup::Cleanup;
use harness::Harness;
use plan::Planned;
use spec::{LoadKind, Spec};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Options of a matrix.
#[derive(Clone, Debug, Args)]
pub struct Matrix {
    /// What to run; bench/*.toml are ready, bench/README.md lists the keys.
    file: PathBuf,
    /// Where results go [default: matrix-NAME].
    #[arg(long)]
    out: Option<PathBuf>,
    /// Directory for the data and all that is set up, on the disk to be measured.
    #[arg(long, default_value = "/var/tmp/terrace-bench")]
    dir: PathBuf,
    /// Go on with the results that are there; refused runs are made again.
    #[arg(long)]
    resume: bool,
    /// Say what would be run, and run nothing.
    #[arg(long)]
    dry_run: bool,
    /// Only runs whose id ("system/load/pattern/jobs/repetition") contains this.
    #[arg(long)]
    only: Option<String>,
    /// Seed of order and loads, instead of the file's.
    #[arg(long)]
    seed: Option<u64>,
    /// The terrace binary; by default the one beside this program.
    #[arg(long)]
    terrace: Option<PathBuf>,
    /// The program of bench/foyer; by default the one that `make bench-foyer` builds.
    #[arg(long)]
    foyer: Option<PathBuf>,
    /// Seconds to wait, before each run, until others leave the processors idle.
    #[arg(long, default_value_t = 0)]
    wait_quiet: u64,
    /// Give the measured processes nearly all of the processors: for a machine that cannot be made quiet.
    #[arg(long)]
    favour: bool,
    /// Go on without control groups and the right to drop caches, as an ordinary user: a demonstration, not a measurement.
    #[arg(long)]
    lenient: bool,
    /// Keep the data files for the next run.
    #[arg(long)]
    keep: bool,
    /// Where it is written down what is set up.
    #[arg(long, hide = true, default_value = "/run/terrace-bench")]
    state: PathBuf,
}

/// Runs a matrix; the exit code is 1 where a run was refused, a target missed, or the matrix interrupted.
///
/// # Errors
/// What is wrong with the file, or with the machine for it.
pub fn run(options: &Matrix) -> io::Result<i32> {
    signals::catch();
    let named = |e: &dyn std::fmt::Display| io::Error::other(format!("{}: {e}", options.file.display()));
    let text = fs::read_to_string(&options.file).map_err(|e| named(&e))?;
    let spec = Spec::parse(&text).map_err(|e| named(&e))?;
    let seed = options.seed.or(spec.seed).unwrap_or_else(|| plan::number_of(&text) >> 32);
    let mut runs = plan::plan(&spec, seed, machine::cpus());
    runs.retain(|run| options.only.as_ref().is_none_or(|only| run.id.contains(only.as_str())));
    if runs.is_empty() {
        return Err(named(&format!("no run's id contains {:?}", options.only.clone().unwrap_or_default())));
    }
    if options.dry_run {
        return dry_run(&spec, &runs, seed).map(|()| 0);
    }
    systems::check_machine(&spec)?;
    systems::check_foyer(&spec, &options.foyer()?)?;
    if spec.load.iter().any(|load| load.kind == LoadKind::Fio) {
        cleanup::tool("fio", &["--version"])?;
    }
    // What a killed harness left is undone before anything of it is looked at.
    let mut cleanup = Cleanup::open(&options.state)?;
    let mut harness = Harness::set_up(options, &spec, &text, &runs, &mut cleanup)?;
    runs.retain(|run| !harness.done.contains(&run.id));
    println!(
        "{}: {} runs, {} are there already, seed {seed}",
        spec.name,
        runs.len() + harness.done.len(),
        harness.done.len()
    );
    let code = harness.all(&runs, &mut cleanup)?;
    let out = harness.out.clone();
    // Nothing of it is needed for what follows.
    drop((harness, cleanup));
    let results = raw::read(&out.join("raw.jsonl")).map_err(io::Error::other)?;
    let judged = targets::judge(&spec, &results.runs);
    summary::write(options, &spec, &out, &results, &judged)?;
    output::print(&format!("\n{}\n{}", summary::means(&results), targets::table(&judged)))?;
    Ok(code.max(i32::from(judged.iter().any(|target| !target.is_met()))))
}

impl Matrix {
    fn foyer(&self) -> io::Result<PathBuf> {
        let bench = std::env::current_exe()?;
        let target = bench.ancestors().nth(2).unwrap_or(Path::new("."));
        let foyer = self.foyer.clone().unwrap_or_else(|| target.join("foyer/release/terrace-bench-foyer"));
        Ok(foyer.canonicalize().unwrap_or(foyer))
    }
}

fn dry_run(spec: &Spec, runs: &[Planned<'_>], seed: u64) -> io::Result<()> {
    println!("{}: {} runs, about {}, seed {seed}", spec.name, runs.len(), minutes(estimate(runs)));
    for run in runs {
        println!("{:5} {}", run.order, run.id);
    }
    systems::check_machine(spec)
}

/// What a run takes beside its warm-up and its measurement, until that is known.
const BESIDE: Duration = Duration::from_millis(3000);

fn estimate(runs: &[Planned<'_>]) -> Duration {
    runs.iter().map(|run| Duration::from_secs(run.load.ramp_s + run.load.measure_s) + BESIDE).sum()
}

fn minutes(time: Duration) -> String {
    let s = time.as_secs();
    if s < 90 { format!("{s} s") } else { format!("{} min", s.div_ceil(60)) }
}
