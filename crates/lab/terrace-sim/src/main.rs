//! terrace-sim: cache policies on recorded accesses.
// Output may hit a full disk or a closed pipe: `terrace_output::print` and `error_line` handle both.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod commands;

use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
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
    let command = match parse() {
        Ok(command) => command,
        Err(code) => return code,
    };
    match run(&command) {
        Ok(code) => ExitCode::from(code),
        Err(e) => failed(e),
    }
}

fn failed(e: io::Error) -> ExitCode {
    terrace_output::error_line!("terrace-sim: {e}");
    ExitCode::from(2)
}

/// The command, or the exit code of help, version or a wrong use, which prints one line.
fn parse() -> Result<Command, ExitCode> {
    Cli::try_parse().map(|cli| cli.command).map_err(|e| {
        if !e.use_stderr() || e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            let help = e.render();
            let code = e.exit_code() as u8;
            let printed = terrace_output::print(&terrace_output::styled(&help, help.ansi()));
            return printed.map_or_else(failed, |()| ExitCode::from(code));
        }
        let text = e.render().to_string();
        let why = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        terrace_output::error_line!("terrace-sim: {why} (see `terrace-sim --help`)");
        ExitCode::from(2)
    })
}

fn run(command: &Command) -> io::Result<u8> {
    match command {
        Command::Sim(options) => sim::run(options).map(|()| 0),
        Command::Mrc(options) => mrc::run(options).map(|()| 0),
        Command::Gates(options) => gates::run(options),
        Command::Placement(options) => placement::run(options).map(|()| 0),
        Command::Numa(options) => numa::run(options).map(|()| 0),
    }
}
