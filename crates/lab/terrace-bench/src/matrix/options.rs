//! Command-line options of `terrace-bench matrix`.

use clap::Args;
use std::io;
use std::path::{Path, PathBuf};

/// Options of a matrix.
#[derive(Clone, Debug, Args)]
pub struct Matrix {
    /// The matrix to run; bench/*.toml are ready, bench/README.md lists the keys.
    pub(crate) file: PathBuf,
    /// Directory of results [default: matrix-NAME].
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Directory for the data and all set-ups, on the disk to be measured.
    #[arg(long, default_value = "/var/tmp/terrace-bench")]
    pub(crate) dir: PathBuf,
    /// Requests a second of a throttled device, instead of the file's; 0: not throttled.
    #[arg(long)]
    pub(crate) iops: Option<u64>,
    /// Continue with the existing results; refused runs are repeated.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Print bars of reads a second instead of the table.
    #[arg(long)]
    pub(crate) bars: bool,
    /// Print the runs without running them.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Only runs whose id ("system/load/pattern/jobs/repetition") contains this.
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Seed of order and loads, instead of the file's.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// The terrace binary; default: beside this program.
    #[arg(long)]
    pub(crate) terrace: Option<PathBuf>,
    /// The program of bench/foyer; default: the result of `make bench-foyer`.
    #[arg(long)]
    pub(crate) foyer: Option<PathBuf>,
    /// Seconds to wait, before each run, until others leave the processors idle.
    #[arg(long, default_value_t = 0)]
    pub(crate) wait_quiet: u64,
    /// Give the measured processes nearly all of the processors: for a machine that is not quiet.
    #[arg(long)]
    pub(crate) favour: bool,
    /// Continue without control groups and the right to drop caches, as an ordinary user: a demonstration,
    /// not a measurement.
    #[arg(long)]
    pub(crate) lenient: bool,
    /// Keep the data files for the next run.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Directory for the journal of set-ups.
    #[arg(long, hide = true, default_value = "/run/terrace-bench")]
    pub(crate) state: PathBuf,
}

impl Matrix {
    /// Path of the program of bench/foyer; it need not exist.
    ///
    /// # Errors
    /// This program cannot be found.
    pub(crate) fn foyer(&self) -> io::Result<PathBuf> {
        let bench = std::env::current_exe()?;
        let target = bench.ancestors().nth(2).unwrap_or(Path::new("."));
        let foyer = self.foyer.clone().unwrap_or_else(|| target.join("foyer/release/terrace-bench-foyer"));
        Ok(foyer.canonicalize().unwrap_or(foyer))
    }
}
