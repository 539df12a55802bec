//! terrace-bench: measures terrace from outside, in comparison with programs that run without it.
// Output may hit a full disk or a closed pipe: `terrace_output::print_line`, `print` and `error_line` handle
// both.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

use clap::{Parser, Subcommand};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use terrace_bench::{compare, demo, matrix, metadata, nothing, passthrough, schedule, steps, worker};

/// Benchmarks of terrace against the kernel's page cache, run in alternation, with 95 % intervals.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Systems x loads x patterns x jobs, repeated in random order, as defined in a file: raw results for
    /// comparisons.
    Matrix(matrix::Matrix),
    /// A command of yours on a directory of yours, plain and under `terrace run` in turn, twice each.
    Demo(demo::Demo),
    /// Differences between systems, or between two runs of one benchmark, with their confidence (Welch's t-test).
    Compare(compare::Compare),
    /// Rates at which the store makes, finds and removes buckets and blobs: five tables, by count and
    /// threads.
    Metadata(metadata::Options),
    /// A server of memcached's protocol that stores nothing, with a thread for each client: a baseline for
    /// servers that do.
    Nothing(nothing::Options),
    /// Converts a capture of `terrace trace` into a schedule for `terrace run --prefetch`: its pages in the
    /// order of their first reads.
    Schedule(schedule::Options),
    /// The plain pass-through FUSE: the baseline of cold reads.
    Passthrough {
        /// Directory to serve.
        src: PathBuf,
        /// Mount point.
        mnt: PathBuf,
        /// Threads that answer requests.
        #[arg(long, default_value_t = 8)]
        threads: usize,
        /// A /dev/fuse descriptor for each thread.
        #[arg(long)]
        clone_fd: bool,
        #[command(flatten)]
        slow: passthrough::Slow,
    },
    /// Runs commands from stdin with meters around each (used inside the system under test).
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
    terrace_output::main("terrace-bench", |cli: Cli| run(cli.command))
}

fn run(command: Command) -> io::Result<u8> {
    match command {
        Command::Matrix(options) => return matrix::run(&options),
        Command::Steps => steps::serve(io::stdin().lock(), io::stdout().lock()),
        Command::Worker { load } => worker::run(&load),
        Command::Passthrough { src, mnt, threads, clone_fd, slow } => {
            terrace_output::signals::catch();
            passthrough::serve(&src, &mnt, threads, clone_fd, slow)
        }
        Command::Compare(options) => compare::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Metadata(options) => metadata::run(&options),
        Command::Nothing(options) => options.run(),
        Command::Schedule(options) => schedule::run(&options),
    }
    .map(|()| 0)
}
