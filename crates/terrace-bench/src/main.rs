//! terrace-bench: measures terrace from outside, against what a program would do without it.
// An output may be full, and its reader gone: `terrace_output::print_line`, `print` and `error_line`.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use terrace_bench::{
    compare, demo, matrix, metadata, nothing, passthrough, schedule, signals, steps, worker,
};

/// Benchmarks of terrace against the kernel's page cache, run in alternation, with 95 % intervals.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Systems x loads x patterns x jobs, many times in random order, as a file asks for: raw results for comparisons.
    Matrix(matrix::Matrix),
    /// A command of yours on a directory of yours, plain and under `terrace run` in turn, twice each.
    Demo(demo::Demo),
    /// Differences between systems, or between two runs of one benchmark, with their confidence (Welch's t-test).
    Compare(compare::Compare),
    /// How fast the store makes, finds and removes buckets and blobs: five tables, by count and threads.
    Metadata(metadata::Options),
    /// A server of memcached's protocol that stores nothing, with a thread for each client, to set beside those that do.
    Nothing(nothing::Options),
    /// Makes a capture of `terrace trace` a schedule for `terrace run --prefetch`: its pages in the order in which they were first read.
    Schedule(schedule::Options),
    /// The plain pass-through FUSE that cold reads are compared with.
    Passthrough {
        /// Directory to serve.
        src: PathBuf,
        /// Where.
        mnt: PathBuf,
        /// Threads that answer.
        #[arg(long, default_value_t = 8)]
        threads: usize,
        /// A /dev/fuse descriptor for each thread.
        #[arg(long)]
        clone_fd: bool,
        #[command(flatten)]
        slow: passthrough::Slow,
    },
    /// Runs commands with meters around each, as it is told on stdin (used inside the system under test).
    #[command(hide = true)]
    Steps,
    /// A measuring loop (used inside the system under test).
    #[command(hide = true)]
    Worker {
        #[command(subcommand)]
        load: worker::Load,
    },
}

fn main() -> ExitCode {
    let command = match parse() {
        Ok(command) => command,
        Err(code) => return code,
    };
    match run(command) {
        Ok(code) => ExitCode::from(code as u8),
        Err(e) => failed(e),
    }
}

fn failed(e: io::Error) -> ExitCode {
    terrace_output::error_line!("terrace-bench: {e}");
    ExitCode::from(2)
}

/// The command, or the exit code of help, version or a wrong use, which is told in one line.
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
        terrace_output::error_line!("terrace-bench: {why} (see `terrace-bench --help`)");
        ExitCode::from(2)
    })
}

fn run(command: Command) -> io::Result<i32> {
    match command {
        Command::Steps => steps::serve(io::stdin().lock(), io::stdout().lock()).map(|()| 0),
        Command::Worker { load } => worker::run(&load).map(|()| 0),
        Command::Passthrough { src, mnt, threads, clone_fd, slow } => {
            signals::catch();
            passthrough::serve(&src, &mnt, threads, clone_fd, slow).map(|()| 0)
        }
        Command::Compare(options) => compare::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Matrix(options) => matrix::run(&options),
        Command::Metadata(options) => metadata::run(&options),
        Command::Nothing(options) => options.run().map(|()| 0),
        Command::Schedule(options) => schedule::run(&options),
    }
}
