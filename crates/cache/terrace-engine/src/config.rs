//! Configuration of an engine: its limits, the compressed tier, the targets of the tiers on devices, NUMA.

use std::path::PathBuf;
use std::time::Duration;
use terrace_api::numa::NumaMode;
use terrace_shm::compress::CompressionMode;
use terrace_tier::DeviceConfig;

/// Which kind of I/O the engine does on source files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoKind {
    /// io_uring for batches, plain calls for single operations.
    Uring,
    /// Plain calls only.
    Blocking,
}

/// Share of a burst (pages to be made durable on a target) that the source takes instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceShare {
    /// Nothing.
    Off,
    /// A share by measured speeds: the source and the target finish at the same time.
    Measured,
    /// For tests: half of the pages that the source may take, at any speed.
    Half,
}

/// Smallest memory that an instance works with, bytes.
pub(crate) const MEMORY_MIN: u64 = 16 << 20;

/// Configuration of an engine. Defaults are those of docs/terrace.toml.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Hard limit on all memory of the instance: frames, index, tables, rings (bytes).
    pub memory_bytes: u64,
    /// No user has set `memory_bytes`: a sizer lowers the ceiling to the useful size.
    pub memory_is_auto: bool,
    /// Largest memory of a resize: the segment has as many frames. None: all memory of the machine.
    pub memory_max_bytes: Option<u64>,
    /// Name of the eviction policy.
    pub policy: String,
    /// Minimum age of the oldest generation for evictions. Before it, misses bypass the cache and writers
    /// wait. Zero: no limit.
    pub min_ttl: Duration,
    /// Back frames with huge pages where the machine supports them.
    pub huge_pages: bool,
    /// Background writeback starts above this share of the frames, per cent.
    pub dirty_background_ratio: u32,
    /// Writers wait above this share of the frames, per cent.
    pub dirty_ratio: u32,
    /// Dirty pages older than this are written back.
    pub dirty_expire: Duration,
    /// Interval between searches of the writeback thread for expired pages.
    pub writeback_interval: Duration,
    /// Largest single read or write of the source, bytes.
    pub io_max_bytes: usize,
    /// Largest readahead window of a sequential reader that bypasses the kernel's page cache, bytes.
    pub readahead_max_bytes: usize,
    /// An fsync returns when a target has the data durably; otherwise when the source has.
    pub durable_in_tier: bool,
    /// An fsync of a grown file uses a tier from this number of unwritten pages on. Fewer pages go to the
    /// source with its commit.
    pub tier_fsync_min: u64,
    /// Number of new dirty pages that starts a write to the target ahead of the next fsync.
    pub tier_ahead_min: usize,
    /// Share of these pages that the source takes instead.
    pub source_share: SourceShare,
    /// For tests: mark of another boot of the machine, and the time when that boot began.
    pub boot: Option<(u16, i64)>,
    /// Kind of I/O.
    pub io: IoKind,
    /// The compressed tier.
    pub compressed: CompressedConfig,
    /// The targets of the tiers on devices, at most [`TARGETS_MAX`](terrace_shm::device_table::TARGETS_MAX).
    pub devices: Vec<DeviceConfig>,
    /// Name of the placement engine that spreads pages over the targets of a tier.
    pub placement: String,
    /// Page-fill slots of each client process, at most [`RING_SLOTS_MAX`].
    pub ring_slots: usize,
    /// Largest number of client processes; further ones use the mount path.
    pub clients_max: usize,
    /// Clients announce their writes, and files are served while programs write them.
    pub announced_writes: bool,
    /// Threads that serve hints and strided readers; 0: no prefetch in the background.
    pub prefetch_workers: usize,
    /// Memory nodes.
    pub numa: NumaConfig,
}

/// Configuration of NUMA placement.
#[derive(Debug, Clone)]
pub struct NumaConfig {
    /// Move threads, only show them, or do nothing.
    pub mode: NumaMode,
    /// Sysfs: /sys, except in tests.
    pub sys: PathBuf,
    /// File with the CPU masks of moved threads; None: a successor does not learn them.
    pub saved: Option<PathBuf>,
    /// Read bandwidth of a node's memory, bytes per second. An order of magnitude is enough.
    pub read_capacity: f64,
    /// Write bandwidth of a node's memory, bytes per second.
    pub write_capacity: f64,
}

impl Default for NumaConfig {
    fn default() -> NumaConfig {
        NumaConfig {
            mode: NumaMode::Off,
            sys: "/sys".into(),
            saved: None,
            // A few channels of DRAM.
            read_capacity: 40e9,
            write_capacity: 20e9,
        }
    }
}

/// Largest number of fill slots of a client process.
pub const RING_SLOTS_MAX: usize = terrace_shm::ring::SLOTS_MAX;

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            memory_bytes: 1 << 30,
            memory_is_auto: false,
            memory_max_bytes: None,
            policy: "strata".into(),
            min_ttl: Duration::ZERO,
            huge_pages: true,
            dirty_background_ratio: 10,
            dirty_ratio: 20,
            dirty_expire: Duration::from_secs(30),
            writeback_interval: Duration::from_secs(5),
            io_max_bytes: 1 << 20,
            readahead_max_bytes: 512 << 10,
            durable_in_tier: false,
            tier_fsync_min: 64,
            tier_ahead_min: 2048,
            source_share: SourceShare::Measured,
            boot: None,
            io: IoKind::Uring,
            compressed: CompressedConfig::default(),
            devices: Vec::new(),
            placement: "min-io-time".into(),
            ring_slots: 64,
            clients_max: 256,
            announced_writes: false,
            prefetch_workers: 8,
            numa: NumaConfig::default(),
        }
    }
}

/// Admission to the compressed tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admit {
    /// Pages read again since their fault, and refaulted pages; any page while there is room.
    Reused,
    /// All.
    All,
}

/// Configuration of the compressed tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressedConfig {
    /// Codecs; None: no compressed tier.
    pub codec: Option<CompressionMode>,
    /// Smallest share of memory for the tier, per cent.
    pub min_percent: u32,
    /// Largest share of memory for the tier, per cent.
    pub max_percent: u32,
    /// Admission.
    pub admit: Admit,
    /// A page of a compressed size above this share of 4 KiB stays uncompressed, per cent.
    pub refuse_percent: u32,
    /// Cost of a device read, ns, until measured.
    pub miss_ns: u64,
}

impl Default for CompressedConfig {
    fn default() -> CompressedConfig {
        CompressedConfig {
            codec: Some(CompressionMode::Mixed),
            min_percent: 0,
            max_percent: 75,
            admit: Admit::Reused,
            refuse_percent: 75,
            // An NVMe disk.
            miss_ns: 60_000,
        }
    }
}

impl EngineConfig {
    pub(crate) fn devices_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.bytes).sum()
    }
}
