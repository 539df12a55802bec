//! The configuration: flag over environment over file over default.
//!
//! One file is read, the first that exists of `--config`, `TERRACE_CONFIG`,
//! `$XDG_CONFIG_HOME/terrace/terrace.toml` and `/etc/terrace/terrace.toml`. Files are not merged, so that the
//! settings in force are in one place. Everything is checked here, once; the rest of the program trusts the
//! values. docs/terrace.toml documents every key, and a test checks that it agrees with this code.

mod device;
mod invalid;
mod limits;
mod load;
mod locate;
mod measured;
mod memory;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use terrace_api::numa::NumaMode;

use crate::http;
use crate::size::{KIB, Size, Span};

pub use device::{Device, Speed, check as check_devices, free_name, is_remote, split as split_target};
pub use limits::parse_memory;
pub use memory::MemoryLimit;

/// All that can be configured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Limit on everything terrace keeps: frames, index, metadata, rings.
    pub memory: MemoryLimit,
    /// Eviction policy.
    pub policy: String,
    /// Age below which the oldest pages are not evicted under pressure; 0: no such age.
    pub min_ttl: Span,
    /// Back the frames with huge pages where the machine gives them.
    pub huge_pages: bool,
    /// The mode on machines of several memory nodes.
    pub numa: NumaMode,
    /// Bandwidth of a node's memory, MB/s: thresholds of the mode are parts of it.
    pub numa_read_mb_s: u32,
    /// The same for writes.
    pub numa_write_mb_s: u32,
    /// When written data goes to the source.
    pub dirty: Dirty,
    /// How the source is read and written.
    pub io: Io,
    /// The preload path.
    pub preload: Preload,
    /// The mount path.
    pub fuse: Fuse,
    /// Where pages go that leave DRAM.
    pub tier: Tier,
    /// Limits on tables.
    pub limits: Limits,
    /// Metrics over HTTP.
    pub metrics: Metrics,
    /// The log.
    pub log: Log,
}

/// `[dirty]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Dirty {
    /// Share of the memory at which writing back starts.
    pub background_ratio: u8,
    /// Share of the memory at which writers wait.
    pub ratio: u8,
    /// Age at which a dirty page is written back.
    pub expire: Span,
    /// How often ages are looked at.
    pub writeback_interval: Span,
    /// What answers fsync.
    pub durable: Durable,
    /// Whether the source writes some of what a tier is to make durable.
    pub source_share: SourceShare,
}

/// Whether the source writes some of what a tier is to make durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceShare {
    /// As many pages as it writes in the time that the tier needs for the others.
    Auto,
    /// None.
    Off,
}

/// Where written data are durable when fsync has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durable {
    /// In the source.
    Source,
    /// On a tier, or in the source.
    Tier,
}

/// `[io]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Io {
    /// How reads and writes of the source are issued.
    pub engine: IoEngine,
    /// Most that is read ahead of a sequential reader past the kernel's page cache.
    pub readahead_max: Size,
}

/// How the source is read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IoEngine {
    /// io_uring; falls back to blocking calls where the kernel refuses it.
    Uring,
    /// pread and pwrite on threads.
    Blocking,
}

/// `[preload]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Preload {
    /// Page fills of a client that terrace has not taken yet, at most.
    pub ring_slots: u32,
    /// Maximum number of processes that use the preload path at one time.
    pub clients_max: u32,
}

/// `[fuse]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fuse {
    /// Threads that answer the kernel.
    pub threads: u32,
    /// Whether the kernel reads and writes files itself for programs that the preload path does not serve.
    pub passthrough: Passthrough,
}

/// Who reads and writes the files of programs that the preload path does not serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Passthrough {
    /// The kernel itself, where it can and no tier on a device would be left out.
    Auto,
    /// Under `terrace run --mount` as `Auto`: programs with the library are served from memory all the same. On mounts as `Off`: nobody would be.
    /// Without a wish `run` does without a mount, where leases do.
    Run,
    /// The daemon.
    Off,
}

impl Config {
    /// Is the kernel to be asked for passthrough?
    pub fn wants_passthrough(&self) -> bool {
        self.fuse.passthrough == Passthrough::Auto && self.tier.device.is_empty()
    }
}

/// `[tier.*]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tier {
    /// File with device measurements; empty: none.
    pub probe: PathBuf,
    /// Cost of a device read, once [`Config::look_up_device`] has found it there.
    #[serde(skip)]
    pub miss: Option<Duration>,
    /// Compressed DRAM.
    pub compressed: Compressed,
    /// Name of the engine that spreads pages over the devices of a tier.
    pub placement: String,
    /// Files or block devices below DRAM.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device: Vec<Device>,
    /// Erase what is on the device and is not a tier of this source. A flag only: in a file it would erase the tier at every start.
    #[serde(skip)]
    pub format: bool,
}

impl Default for Tier {
    fn default() -> Tier {
        Tier {
            probe: PathBuf::new(),
            miss: None,
            compressed: Compressed::default(),
            placement: terrace_policy::placement::NAMES[0].to_owned(),
            device: Vec::new(),
            format: false,
        }
    }
}

/// `[tier.compressed]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Compressed {
    /// How pages are compressed, if at all.
    pub codec: CompressionMode,
    /// Share of the memory that compressed pages have in any case.
    pub min_percent: u8,
    /// Share of the memory that compressed pages may take.
    pub max_percent: u8,
    /// Which pages are compressed.
    pub admit: Admit,
}

/// How pages are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CompressionMode {
    /// Not at all.
    None,
    /// LZ4.
    Lz4,
    /// LZ4, and zstd for pages that LZ4 makes too little of.
    Mixed,
    /// zstd.
    Zstd,
}

/// Which pages are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Admit {
    /// Those that were read more than once.
    Reused,
    /// All.
    All,
}

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Most files and directories the kernel may know at one time.
    pub inodes_max: u32,
    /// Most open files and directories.
    pub handles_max: u32,
}

/// `[metrics]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Where they are served; empty: nowhere.
    pub address: String,
    /// Whether other machines may read them.
    pub public: bool,
}

impl Metrics {
    /// The address in the form of the system; the configuration was checked.
    pub fn socket_address(&self) -> Option<SocketAddr> {
        http::parse(&self.address, self.public).ok().filter(|_| !self.address.is_empty())
    }
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Least severe message written.
    pub level: Level,
}

/// Severities of log messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Errors only.
    Error,
    /// And possible problems.
    Warn,
    /// And events.
    Info,
    /// And how.
    Debug,
    /// And every step.
    Trace,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            memory: MemoryLimit::Auto,
            policy: "strata".to_owned(),
            min_ttl: Span(std::time::Duration::ZERO),
            huge_pages: true,
            numa: NumaMode::Off,
            numa_read_mb_s: 40_000,
            numa_write_mb_s: 20_000,
            dirty: Dirty::default(),
            io: Io::default(),
            preload: Preload::default(),
            fuse: Fuse::default(),
            tier: Tier::default(),
            limits: Limits::default(),
            metrics: Metrics::default(),
            log: Log::default(),
        }
    }
}

impl Default for Dirty {
    fn default() -> Dirty {
        let seconds = |s| Span(std::time::Duration::from_secs(s));
        Dirty {
            background_ratio: 10,
            ratio: 20,
            expire: seconds(30),
            writeback_interval: seconds(5),
            durable: Durable::Source,
            source_share: SourceShare::Auto,
        }
    }
}

impl Default for Io {
    fn default() -> Io {
        Io { engine: IoEngine::Uring, readahead_max: Size(512 * KIB) }
    }
}

impl Default for Preload {
    fn default() -> Preload {
        Preload { ring_slots: 64, clients_max: 256 }
    }
}

impl Default for Fuse {
    fn default() -> Fuse {
        Fuse { threads: 8, passthrough: Passthrough::Run }
    }
}

impl Default for Compressed {
    fn default() -> Compressed {
        Compressed { codec: CompressionMode::Mixed, min_percent: 0, max_percent: 75, admit: Admit::Reused }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { inodes_max: 1 << 20, handles_max: 65_536 }
    }
}

impl Default for Log {
    fn default() -> Log {
        Log { level: Level::Warn }
    }
}

#[cfg(test)]
mod tests;
