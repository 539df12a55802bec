//! terrace-bench: measures terrace from outside, against what a program would do without it.
// A reader may go away: `terrace_output::print_line`, or `print`, where `println` panics.
#![deny(clippy::print_stdout)]

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use terrace_bench::{
    compare, demo, gray_scott, matrix, metadata, nothing, passthrough, probe, report, schedule, signals,
    steps, worker,
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
    /// Systems x loads x patterns x jobs, many times in random order, as a file asks for: raw results for comparisons and reports.
    Matrix(matrix::Matrix),
    /// Compares terrace with the page cache in a few minutes: with real content, or for a program and a directory of yours.
    Demo(demo::Demo),
    /// Differences between systems, or between two runs of one benchmark, with their confidence (Welch's t-test).
    Compare(compare::Compare),
    /// Measures storage: bandwidth and latency of each directory's device, and of the memory; a file that terrace's configuration reads.
    Probe(probe::Options),
    /// How fast the store makes, finds and removes buckets and blobs: five tables, by count and threads.
    Metadata(metadata::Options),
    /// A server of memcached's protocol that stores nothing, with a thread for each client, to set beside those that do.
    Nothing(nothing::Options),
    /// A simulation that writes its state now and then, and reads it again in the end: the Gray-Scott reaction on a cube.
    GrayScott(gray_scott::Options),
    /// Makes a capture of `terrace trace` a schedule for `terrace run --prefetch`: its pages in the order in which they were first read.
    Schedule(schedule::Options),
    /// Raw results of a matrix as one HTML file: plots, tests, tables; two files of one benchmark show what became worse.
    Report(report::Report),
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
        Err(e) => {
            eprintln!("terrace-bench: {e}");
            ExitCode::from(2)
        }
    }
}

/// Commands that were here once, and what does their work now.
const MOVED: [(&str, &str); 12] = [
    ("sim", "terrace-sim sim"),
    ("mrc", "terrace-sim mrc"),
    ("policies", "terrace-sim gates"),
    ("hits", "terrace-bench matrix bench/hits.toml"),
    ("misses", "terrace-bench matrix bench/misses.toml"),
    ("doors", "terrace-bench matrix bench/paths.toml"),
    ("fio", "terrace-bench matrix bench/fio.toml"),
    ("all", "make bench-suites"),
    ("harm", "terrace-bench matrix bench/overhead.toml"),
    ("real", "make bench-real"),
    ("watch", "terrace top"),
    ("lab", "terrace-sim"),
];

/// The command, or the exit code of help, version or a wrong use, which is told in one line.
fn parse() -> Result<Command, ExitCode> {
    let asked = std::env::args().nth(1).unwrap_or_default();
    if let Some((old, new)) = MOVED.into_iter().find(|(old, _)| *old == asked) {
        eprintln!("terrace-bench: {old} is `{new}` now");
        return Err(ExitCode::from(2));
    }
    Cli::try_parse().map(|cli| cli.command).map_err(|e| {
        if !e.use_stderr() || e.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            let _ = e.print();
            return ExitCode::from(e.exit_code() as u8);
        }
        let text = e.render().to_string();
        let why = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        eprintln!("terrace-bench: {why} (see `terrace-bench --help`)");
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
        Command::Probe(options) => probe::run(&options),
        Command::Report(options) => report::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Matrix(options) => matrix::run(&options),
        Command::Metadata(options) => metadata::run(&options),
        Command::Nothing(options) => options.run().map(|()| 0),
        Command::GrayScott(options) => gray_scott::run(&options),
        Command::Schedule(options) => schedule::run(&options),
    }
}
