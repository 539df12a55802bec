//! terrace-bench: measures terrace from outside, against what a program would do without it.

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use terrace_bench::suites::fio::SPARE_MIB;
use terrace_bench::system::Places;
use terrace_bench::trial::{Options, Trial};
use terrace_bench::{
    compare, demo, machine, matrix, passthrough, probe, report, steps, suites, system, watch, worker,
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
    /// CPU time of a hit: loops at 4 KiB, 64 KiB, 1 MiB; unmodified fio.
    Hits(Common),
    /// A miss against a bare O_DIRECT read.
    Misses(Common),
    /// fio under a memory limit, files twice the memory.
    Fio(Common),
    /// The main door: re-reads, cold reads, sequential reads and writes.
    Doors(Common),
    /// All of these.
    All(Common),
    /// What the compressed tier costs where it cannot gain, in short turns with and without it: `--runs 20` or more.
    Harm(Common),
    /// Real programs under a memory limit: PostgreSQL, MariaDB, a kernel build.
    Real {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        options: suites::real::Options,
    },
    /// Systems x loads x patterns x jobs, many times in random order, as a file asks for: raw results for comparisons and reports.
    Matrix(matrix::Matrix),
    /// What differs between systems, or between two runs of one benchmark, and how sure that is (Welch's t-test).
    Compare(compare::Compare),
    /// What storage can do: bandwidth and latency of each directory's device, and of the memory; a file that terrace's configuration reads.
    Probe(probe::Options),
    /// Raw results of a matrix as one HTML file: plots, tests, tables; two files of one benchmark show what became worse.
    Report(report::Report),
    /// A mount, or a command and the mount that it works on, live in the terminal: hit ratio, tiers, misses, evictions.
    Watch(watch::Options),
    /// One short comparison for people: a table of throughput, p99, misses, CPU.
    Demo(demo::Demo),
    /// The plain pass-through FUSE that cold reads are compared with.
    Passthrough {
        /// What to serve.
        src: PathBuf,
        /// Where.
        mnt: PathBuf,
        /// Threads that answer.
        #[arg(long, default_value_t = 8)]
        threads: usize,
        /// A /dev/fuse descriptor for each thread.
        #[arg(long)]
        clone_fd: bool,
    },
    /// Runs a plan of commands with meters around each (used inside the system under test).
    #[command(hide = true)]
    Steps {
        /// plan.json
        plan: PathBuf,
    },
    /// A measuring loop (used inside the system under test).
    #[command(hide = true)]
    Worker {
        #[command(subcommand)]
        load: worker::Load,
    },
}

/// Where and how much.
#[derive(Clone, Debug, Args)]
struct Common {
    /// Rounds of each cell; each round runs both systems once.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Raw results, as JSON lines.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Seed of the order and the loads.
    #[arg(long)]
    seed: Option<u64>,
    /// Directory for the data, on the disk to be measured (3 to 5 GiB).
    #[arg(long, default_value = "/var/tmp/terrace-bench")]
    dir: PathBuf,
    /// The terrace binary; by default the one beside this program.
    #[arg(long)]
    terrace: Option<PathBuf>,
    /// An argument for `terrace run`; may be given again.
    #[arg(long = "terrace-arg", allow_hyphen_values = true)]
    terrace_args: Vec<String>,
    /// Only cells whose name ("fio zipf:0.8, 2 jobs") contains this.
    #[arg(long)]
    only: Option<String>,
    /// Puts the baseline in terrace's place: every interval must hold 1.
    #[arg(long)]
    self_check: bool,
    /// How often a round that others disturbed is repeated, in each cell.
    #[arg(long, default_value_t = 2)]
    retries: usize,
    /// Seconds to wait, before each round, until others leave the processors idle.
    #[arg(long, default_value_t = 0)]
    wait_quiet: u64,
    /// Give the measured processes nearly all of the processors: for a machine that cannot be made quiet. Its caches stay shared.
    #[arg(long)]
    favour: bool,
    /// Keep the data files for the next run.
    #[arg(long)]
    keep: bool,
    /// fio, real: the memory limit in MiB; fio's files are twice as large.
    #[arg(long, default_value_t = 512)]
    limit_mib: u64,
    /// fio, real: seconds of warm-up.
    #[arg(long, default_value_t = 20)]
    warm: u64,
    /// fio, real: seconds measured.
    #[arg(long, default_value_t = 10)]
    measure: u64,
    /// fio, real: MiB that terrace's side leaves free below the limit, beside what programs and daemon hold for good.
    #[arg(long, default_value_t = SPARE_MIB)]
    spare_mib: u64,
    /// Threads of the pass-through that the main door is compared with: as many as terrace has by default.
    #[arg(long, default_value_t = 8)]
    pass_through_threads: usize,
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

/// Commands that were here once, and their names in `terrace-sim`.
const MOVED: [(&str, &str); 3] = [("sim", "sim"), ("mrc", "mrc"), ("policies", "gates")];

/// The command, or the exit code of help, version or a wrong use, which is told in one line.
fn parse() -> Result<Command, ExitCode> {
    let asked = std::env::args().nth(1).unwrap_or_default();
    if let Some((old, new)) = MOVED.into_iter().find(|(old, _)| *old == asked) {
        eprintln!("terrace-bench: {old} is `terrace-sim {new}` now, with the same options");
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
        Command::Steps { plan } => steps::run(&plan),
        Command::Worker { load } => worker::run(&load).map(|()| 0),
        Command::Passthrough { src, mnt, threads, clone_fd } => {
            system::catch_signals();
            passthrough::serve(&src, &mnt, threads, clone_fd).map(|()| 0)
        }
        Command::Compare(options) => compare::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Probe(options) => probe::run(&options),
        Command::Report(options) => report::run(&options),
        Command::Watch(options) => watch::run(&options),
        Command::Matrix(options) => matrix::run(&options),
        Command::Hits(c) => session(&c, suites::hits::run),
        Command::Misses(c) => session(&c, suites::misses::run),
        Command::Fio(c) => session(&c, |t| suites::fio::run(t, scale(&c))),
        Command::Doors(c) => session(&c, |t| suites::doors::run(t, c.pass_through_threads)),
        Command::Harm(c) => session(&c, suites::harm::run),
        Command::Real { common: c, options } => session(&c, |t| suites::real::run(t, scale(&c), &options)),
        Command::All(c) => session(&c, |t| {
            suites::hits::run(t)?;
            suites::misses::run(t)?;
            suites::doors::run(t, c.pass_through_threads)?;
            suites::fio::run(t, scale(&c))
        }),
    }
}

fn scale(c: &Common) -> suites::fio::Scale {
    suites::fio::Scale {
        limit: c.limit_mib << 20,
        warm_s: c.warm,
        measure_s: c.measure,
        spare: c.spare_mib << 20,
    }
}

fn session(c: &Common, suite: impl FnOnce(&mut Trial) -> io::Result<()>) -> io::Result<i32> {
    system::catch_signals();
    let mut places = places(&c.dir, c.terrace.as_deref(), c.terrace_args.clone(), !c.self_check)?;
    places.favour = c.favour;
    let seed = c.seed.unwrap_or_else(|| u64::from(std::process::id()) ^ machine::describe(&c.dir).time << 16);
    let options = Options {
        runs: c.runs,
        seed,
        self_check: c.self_check,
        only: c.only.clone(),
        retries: c.retries,
        wait_quiet_s: c.wait_quiet,
    };
    let (data, scratch) = (places.data.clone(), places.scratch.clone());
    let mut trial = Trial::new(places, options, c.json.as_deref())?;
    let result = suite(&mut trial);
    clean_up(&data, &scratch, c.keep);
    result.map(|()| trial.finish())
}

/// Removes what this program made: nothing that could be somebody else's.
fn clean_up(data: &Path, scratch: &Path, keep: bool) {
    let _ = std::fs::remove_dir_all(scratch);
    if !keep {
        suites::FILES.iter().for_each(|name| suites::remove(data, name));
        let _ = std::fs::remove_dir(data);
        let _ = data.parent().map(std::fs::remove_dir);
    }
}

/// Makes the directories and finds the programs.
fn places(
    dir: &Path,
    terrace: Option<&Path>,
    terrace_args: Vec<String>,
    need_terrace: bool,
) -> io::Result<Places> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", dir.display()));
    std::fs::create_dir_all(dir.join("data")).map_err(named)?;
    std::fs::create_dir_all(dir.join("terrace-bench-scratch")).map_err(named)?;
    let dir = dir.canonicalize().map_err(named)?;
    let bench = std::env::current_exe()?;
    let terrace = terrace.map_or_else(|| bench.with_file_name("terrace"), Path::to_path_buf);
    // Steps run in a directory of their own.
    let terrace = terrace.canonicalize().unwrap_or(terrace);
    if need_terrace && !terrace.exists() {
        return Err(io::Error::other(format!(
            "{} is not there; build it or name it with --terrace",
            terrace.display()
        )));
    }
    Ok(Places {
        data: dir.join("data"),
        scratch: dir.join("terrace-bench-scratch"),
        terrace,
        bench,
        terrace_args,
        lenient: false,
        favour: false,
        throttle: None,
    })
}
