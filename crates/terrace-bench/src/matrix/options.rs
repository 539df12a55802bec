//! Command-line options of a matrix.

use clap::Args;
use std::io;
use std::path::{Path, PathBuf};

/// Options of a matrix.
#[derive(Clone, Debug, Args)]
pub struct Matrix {
    /// The matrix to run; bench/*.toml are ready, bench/README.md lists the keys.
    pub file: PathBuf,
    /// Where results go [default: matrix-NAME].
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Directory for the data and all that is set up, on the disk to be measured.
    #[arg(long, default_value = "/var/tmp/terrace-bench")]
    pub dir: PathBuf,
    /// Go on with the results that are there; refused runs are made again.
    #[arg(long)]
    pub resume: bool,
    /// Print bars of reads a second instead of the table.
    #[arg(long)]
    pub bars: bool,
    /// Say what would be run, and run nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Only runs whose id ("system/load/pattern/jobs/repetition") contains this.
    #[arg(long)]
    pub only: Option<String>,
    /// Seed of order and loads, instead of the file's.
    #[arg(long)]
    pub seed: Option<u64>,
    /// The terrace binary; by default the one beside this program.
    #[arg(long)]
    pub terrace: Option<PathBuf>,
    /// The program of bench/foyer; by default the one that `make bench-foyer` builds.
    #[arg(long)]
    pub foyer: Option<PathBuf>,
    /// Seconds to wait, before each run, until others leave the processors idle.
    #[arg(long, default_value_t = 0)]
    pub wait_quiet: u64,
    /// Give the measured processes nearly all of the processors: for a machine that cannot be made quiet.
    #[arg(long)]
    pub favour: bool,
    /// Go on without control groups and the right to drop caches, as an ordinary user: a demonstration, not a measurement.
    #[arg(long)]
    pub lenient: bool,
    /// Keep the data files for the next run.
    #[arg(long)]
    pub keep: bool,
    /// Where it is written down what is set up.
    #[arg(long, hide = true, default_value = "/run/terrace-bench")]
    pub state: PathBuf,
}

impl Matrix {
    /// The program of bench/foyer, whether it is there or not.
    ///
    /// # Errors
    /// This program cannot be found.
    pub fn foyer(&self) -> io::Result<PathBuf> {
        let bench = std::env::current_exe()?;
        let target = bench.ancestors().nth(2).unwrap_or(Path::new("."));
        let foyer = self.foyer.clone().unwrap_or_else(|| target.join("foyer/release/terrace-bench-foyer"));
        Ok(foyer.canonicalize().unwrap_or(foyer))
    }
}
