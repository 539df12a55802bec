//! Options of a demonstration, and the places where it happens.

use crate::matrix::cleanup::{Cleanup, Setup};
use crate::system::Places;
use clap::Args;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes.
pub const MIB: u64 = 1 << 20;

/// Options of `demo`.
#[derive(Clone, Debug, Args)]
pub struct Demo {
    /// Instead of the built-in comparison: this directory, for the command behind `--`, plain and under `terrace run` in turn, twice each.
    #[arg(long, value_name = "DIR", requires = "command")]
    pub on: Option<PathBuf>,
    /// Memory for either side, with programs and cache, MiB [default: 512 built-in; no limit with --on].
    #[arg(long, value_name = "MIB")]
    pub limit_mib: Option<u64>,
    /// Memory of terrace, MiB [default: the limit less 72, or what `terrace run` takes by itself].
    #[arg(long, value_name = "MIB")]
    pub memory_mib: Option<u64>,
    /// Directory for data and scratch files, on the disk to be shown.
    #[arg(long, default_value = "/var/tmp")]
    pub dir: PathBuf,
    /// The page with the result of the built-in comparison.
    #[arg(long, value_name = "FILE.html", default_value = "demo.html")]
    pub out: PathBuf,
    /// Longest warm-up of a pattern, seconds: it ends earlier when the compressed tier rests.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(3..=600))]
    pub warm_s: u64,
    /// Measurement of a pattern, seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub measure_s: u64,
    /// The terrace binary; by default the one beside this program.
    #[arg(long)]
    pub terrace: Option<PathBuf>,
    /// Go on without control groups and the right to drop caches, as an ordinary user: then the plain side has all of the machine's memory.
    #[arg(long)]
    pub lenient: bool,
    /// Where it is written down what is set up.
    #[arg(long, hide = true, default_value = "/run/terrace-bench")]
    pub state: PathBuf,
    /// The command and its arguments.
    #[arg(last = true, value_name = "CMD", requires = "on")]
    pub command: Vec<OsString>,
}

/// A directory of this run alone, which goes at the end.
pub fn work_dir(options: &Demo, cleanup: &mut Cleanup) -> io::Result<PathBuf> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", options.dir.display()));
    let work =
        options.dir.canonicalize().map_err(named)?.join(format!("terrace-demo-{}", std::process::id()));
    cleanup.note(Setup::Path(work.clone()))?;
    fs::create_dir_all(work.join("scratch")).map_err(named)?;
    Ok(work)
}

/// The sides' places.
pub fn places(options: &Demo, data: &Path, scratch: PathBuf) -> io::Result<Places> {
    let bench = std::env::current_exe()?;
    let terrace = options.terrace.clone().unwrap_or_else(|| bench.with_file_name("terrace"));
    let named = |e: io::Error| {
        io::Error::new(e.kind(), format!("{}: {e} (build it with `make build`)", terrace.display()))
    };
    let terrace = terrace.canonicalize().map_err(named)?;
    Ok(Places {
        data: data.to_owned(),
        scratch,
        terrace,
        bench,
        lenient: options.lenient,
        ..Places::default()
    })
}
