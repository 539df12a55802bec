//! terrace-sim: cache policies on recorded accesses.
// Output may hit a full disk or a closed pipe: `terrace_output::print` and `error_line` handle both.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use commands::{gates, mrc, numa, placement, sim};

/// Cache policies on recorded accesses: the misses of each, at many sizes at once.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Misses of each policy on recorded traces: the engine's own policy objects, at many sizes at once.
    Sim(sim::Sim),
    /// The miss ratio of an LRU cache of every size, from one pass over a trace.
    Mrc(mrc::Mrc),
    /// Placement engines on targets of given room and bandwidth: each target's part of a batch, and its time.
    Placement(placement::Placement),
    /// All policies on a directory of traces, and the gates they must pass.
    #[command(visible_alias = "policies")]
    Gates(gates::Gates),
    /// Thread placement on machines with several memory nodes: its gain in a model.
    Numa(numa::Numa),
}

fn main() -> ExitCode {
    terrace_output::main("terrace-sim", |cli: Cli| match &cli.command {
        Command::Sim(options) => sim::run(options).map(|()| 0),
        Command::Mrc(options) => mrc::run(options).map(|()| 0),
        Command::Gates(options) => gates::run(options),
        Command::Placement(options) => placement::run(options).map(|()| 0),
        Command::Numa(options) => numa::run(options).map(|()| 0),
    })
}
