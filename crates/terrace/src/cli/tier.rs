//! The command line of `terrace tier`: subcommands and options.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `terrace tier`.
#[derive(Debug, Subcommand)]
pub(crate) enum Tier {
    /// List the tiers of the configuration, of running instances and of the given paths; for a mount, its own
    /// tiers
    List(TierList),
    /// Show the source and the content of a tier
    Show(TierShow),
    /// Empty a tier that is not in use; it stays the tier of its source, and keeps its space
    Drop(TierDrop),
    /// Add a file or block device to a mount in service
    Add(TierAdd),
    /// Remove a file or block device: its pages go to the others
    Remove(TierRemove),
    /// Change the size of a file or block device
    Resize(TierResize),
}

/// `terrace tier add`.
#[derive(Debug, Args)]
pub(crate) struct TierAdd {
    /// The mount
    #[arg(value_name = "MNT")]
    pub mnt: PathBuf,
    /// The file, block device or place in a store, and its size, for example /ssd/second.tier:64GiB
    #[arg(value_name = "PATH[:SIZE]")]
    pub target: OsString,
    /// Its name in statistics
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Erase what is on it
    #[arg(long)]
    pub format: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `terrace tier remove`.
#[derive(Debug, Args)]
pub(crate) struct TierRemove {
    /// The mount
    #[arg(value_name = "MNT")]
    pub mnt: PathBuf,
    /// Name in statistics, or path
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
    /// Remove the last one as well: its pages leave the cache
    #[arg(long)]
    pub force: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `terrace tier resize`.
#[derive(Debug, Args)]
pub(crate) struct TierResize {
    /// The mount
    #[arg(value_name = "MNT")]
    pub mnt: PathBuf,
    /// Name in statistics, or path
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,
    /// The new size, for example 128GiB
    #[arg(value_name = "SIZE")]
    pub size: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `terrace tier list`.
#[derive(Debug, Args)]
pub(crate) struct TierList {
    /// Files and block devices, directories with files, mounts
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
    /// Configuration file, instead of the ones searched for [environment: TERRACE_CONFIG]
    #[arg(long, value_name = "FILE.toml")]
    pub config: Option<PathBuf>,
}

/// `terrace tier show`.
#[derive(Debug, Args)]
pub(crate) struct TierShow {
    /// The file or block device
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `terrace tier drop`.
#[derive(Debug, Args)]
pub(crate) struct TierDrop {
    /// The file or block device
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Do not ask for confirmation
    #[arg(long, short = 'y')]
    pub yes: bool,
}
