//! A matrix: systems x loads x patterns x jobs x repetitions. Each run has fresh caches and becomes one line
//! of raw results.
//!
//! Reading order: [`spec`] (the definition) and its [`check`], [`plan`] (the order), [`device`], [`systems`]
//! and [`trees`] (set-up), [`load`] (the steps), [`harness`] (execution), [`numbers`] (metrics and validity
//! of a run), [`targets`] (bounds of results), [`bars`] (a first look), [`cleanup`] (removal of all set-ups).
//! `compare` evaluates the results.

mod bars;
pub mod check;
pub mod cleanup;
pub mod device;
mod harness;
pub mod load;
pub mod numbers;
mod options;
pub mod plan;
pub mod spec;
mod summary;
pub mod systems;
pub mod targets;
pub mod trees;

use crate::machine;
use crate::raw;
use cleanup::Cleanup;
use harness::Harness;
use plan::{Planned, estimate, minutes};
use spec::{LoadKind, Spec};
use std::fs;
use std::io::{self, IsTerminal};

pub use options::Matrix;

/// Runs a matrix. The exit code is 1 after a refused run, a missed target, or an interrupt.
///
/// # Errors
/// An error in the file, or a missing feature of the machine.
pub fn run(options: &Matrix) -> io::Result<u8> {
    terrace_output::signals::catch();
    let named = |e: &dyn std::fmt::Display| io::Error::other(format!("{}: {e}", options.file.display()));
    let text = fs::read_to_string(&options.file).map_err(|e| named(&e))?;
    let mut spec = Spec::parse(&text).map_err(|e| named(&e))?;
    if let Some(iops) = options.iops {
        spec.device.iops = Some(iops).filter(|&iops| iops > 0);
    }
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
    // Leftovers of a killed harness are undone before anything else.
    let mut cleanup = Cleanup::open(&options.state)?;
    let mut harness = Harness::set_up(options, &spec, &text, &runs, &mut cleanup)?;
    runs.retain(|run| !harness.done.contains(&run.id));
    terrace_output::print_line!(
        "{}: {} runs, {} exist already, seed {seed}",
        spec.name,
        runs.len() + harness.done.len(),
        harness.done.len()
    )?;
    let code = harness.all(&runs, &mut cleanup)?;
    let out = harness.out.clone();
    // Not needed below.
    drop((harness, cleanup));
    let results = raw::read(&out.join("raw.jsonl")).map_err(io::Error::other)?;
    let evaluated = targets::evaluate(&spec, &results.runs);
    summary::write(&options.file, &spec, &out, &results, &evaluated)?;
    terrace_output::print_line!("{}", out.join("README.md").display())?;
    let systems: Vec<String> = spec.system.iter().map(|system| system.name.clone()).collect();
    let shown = match options.bars {
        true => bars::bars(&spec.patterns, &systems, &results.runs, io::stdout().is_terminal()),
        false => format!("\n{}\n{}", summary::means(&results), targets::table(&evaluated)),
    };
    terrace_output::print(&shown)?;
    Ok(code.max(u8::from(evaluated.iter().any(|target| !target.is_met()))))
}

fn dry_run(spec: &Spec, runs: &[Planned<'_>], seed: u64) -> io::Result<()> {
    terrace_output::print_line!(
        "{}: {} runs, about {}, seed {seed}",
        spec.name,
        runs.len(),
        minutes(estimate(runs))
    )?;
    for run in runs {
        terrace_output::print_line!("{:5} {}", run.order, run.id)?;
    }
    systems::check_machine(spec)
}
