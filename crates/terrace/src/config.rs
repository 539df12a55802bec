//! Configuration of an instance. The order of precedence is flag, environment, file, default.
//!
//! The configuration file is that of `--config`, or else of `TERRACE_CONFIG`. Without both it is the first that
//! exists of `$XDG_CONFIG_HOME/terrace/terrace.toml` and `/etc/terrace/terrace.toml`. Files are not merged, so
//! the settings in force are in one place. This module checks each value once, and other modules trust it.
//! docs/terrace.toml documents every key, and a test compares it with this code.

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

pub(crate) use device::{Device, Speed, check as check_devices, free_name, is_remote, split as split_target};
pub(crate) use limits::parse_memory;
pub(crate) use memory::MemoryLimit;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// Limit on all memory of terrace: frames, index, metadata, rings.
    pub memory: MemoryLimit,
    pub policy: String,
    /// Age below which pressure does not evict the oldest pages; 0: no limit.
    pub min_ttl: Span,
    /// Back the frames with huge pages where the machine gives them.
    pub huge_pages: bool,
    /// The mode on machines of several memory nodes.
    pub numa: NumaMode,
    /// Bandwidth of a node's memory, MB/s: thresholds of the mode are parts of it.
    pub numa_read_mb_s: u32,
    /// The same for writes.
    pub numa_write_mb_s: u32,
    pub dirty: Dirty,
    /// How the source is read and written.
    pub io: Io,
    pub preload: Preload,
    pub fuse: Fuse,
    pub tier: Tier,
    pub limits: Limits,
    pub metrics: Metrics,
    pub log: Log,
    /// Only programs of the run write below the directory: `terrace run --exclusive`. Only a flag: the statement
    /// holds for one run.
    #[serde(skip)]
    pub exclusive: bool,
    /// Programs of the run announce their writes, and fanotify shows the opens of other programs.
    #[serde(skip)]
    pub guarded: bool,
}

/// `[dirty]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Dirty {
    /// Share of the memory at which writeback starts.
    pub background_ratio: u8,
    /// Share of the memory at which writers wait.
    pub ratio: u8,
    /// Age at which a dirty page is written back.
    pub expire: Span,
    /// Interval of the check for expired dirty pages.
    pub writeback_interval: Span,
    /// Place where fsync makes data durable.
    pub durable: Durable,
    /// May the source write part of the data that a tier makes durable?
    pub source_share: SourceShare,
}

/// May the source write part of the data that a tier makes durable?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SourceShare {
    /// As many pages as it writes in the time that the tier needs for the others.
    Auto,
    Off,
}

/// Where data are durable once fsync has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Durable {
    Source,
    /// On a tier, or in the source.
    Tier,
}

/// `[io]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Io {
    /// How the source is read and written.
    pub engine: IoEngine,
    /// Maximum read-ahead for a sequential reader past the kernel's page cache.
    pub readahead_max: Size,
}

/// How the source is read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum IoEngine {
    /// io_uring; falls back to blocking calls where the kernel refuses it.
    Uring,
    /// pread and pwrite on threads.
    Blocking,
}

/// `[preload]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Preload {
    /// Most page fills of a client that terrace has not taken yet.
    pub ring_slots: u32,
    /// Maximum number of processes that use the preload path at one time.
    pub clients_max: u32,
}

/// `[fuse]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Fuse {
    /// Threads that answer FUSE requests.
    pub threads: u32,
    /// Does the kernel itself read and write files for programs without the preload path?
    pub passthrough: Passthrough,
}

/// Which side reads and writes the files of programs without the preload path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Passthrough {
    /// The kernel itself, where it can and where this bypasses no tier on a device.
    Auto,
    /// `Auto` under `terrace run --mount`, where programs with the library are still served from memory.
    /// `Off` for mounts: all of their programs would bypass the cache. If not set, `run` uses leases where it
    /// can, without a mount.
    Run,
    Off,
}

impl Config {
    /// Does this configuration request passthrough from the kernel?
    pub(crate) fn wants_passthrough(&self) -> bool {
        self.fuse.passthrough == Passthrough::Auto && self.tier.device.is_empty()
    }
}

/// `[tier.*]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tier {
    /// File with device measurements; empty: none.
    pub probe: PathBuf,
    /// Cost of a device read, set by [`Config::look_up_device`].
    #[serde(skip)]
    pub miss: Option<Duration>,
    pub compressed: Compressed,
    /// Name of the engine that spreads pages over the devices of a tier.
    pub placement: String,
    /// Files or block devices below DRAM.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device: Vec<Device>,
    /// Erase the device unless it is a tier of this source. Only a flag: in a file it would erase the tier at
    /// every start.
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
pub(crate) struct Compressed {
    /// How pages are compressed, if at all.
    pub codec: CompressionMode,
    /// Minimum share of the memory for compressed pages.
    pub min_percent: u8,
    /// Maximum share of the memory for compressed pages.
    pub max_percent: u8,
    /// Which pages are compressed.
    pub admit: Admit,
}

/// How pages are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CompressionMode {
    None,
    /// LZ4.
    Lz4,
    /// LZ4, and zstd for pages that LZ4 does not compress well.
    Mixed,
    Zstd,
}

/// Which pages are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Admit {
    /// Pages that were read more than once.
    Reused,
    All,
}

/// `[limits]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Limits {
    /// Most files and directories that the kernel may know at one time.
    pub inodes_max: u32,
    /// Most open files and directories.
    pub handles_max: u32,
}

/// `[metrics]`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Metrics {
    /// Address to listen on; empty: off.
    pub address: String,
    /// May other machines read the metrics?
    pub public: bool,
}

impl Metrics {
    /// The parsed address; the configuration was checked.
    pub(crate) fn socket_address(&self) -> Option<SocketAddr> {
        http::parse(&self.address, self.public).ok().filter(|_| !self.address.is_empty())
    }
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Log {
    /// Least severe message written.
    pub level: Level,
}

/// Severities of log messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Error,
    Warn,
    Info,
    /// Also details of events.
    Debug,
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
            exclusive: false,
            guarded: false,
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
