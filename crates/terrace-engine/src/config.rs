//! Configuration of an engine.

use crate::device::medium::Medium;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use terrace_api::numa::NumaMode;
use terrace_shm::compress::CompressionMode;

/// Which kind of I/O the engine does on source files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoKind {
    /// io_uring for batches, plain calls for single operations.
    Uring,
    /// Plain calls only.
    Blocking,
}

/// What the source takes of the pages that are to be made durable on a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceShare {
    /// Nothing.
    Off,
    /// As many as it writes in the time that the target needs for the others, by what is measured.
    Measured,
    /// For tests: half of those that it may take, however long that takes.
    Half,
}

/// Smallest memory that an instance works with, bytes.
pub const MEMORY_MIN: u64 = 16 << 20;

/// Configuration of an engine. Defaults are those of docs/terrace.toml.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Hard limit on all that is kept for the user: frames, index, tables, rings (bytes).
    pub memory_bytes: u64,
    /// The user has not set `memory_bytes`: a sizer lowers the ceiling to the useful size.
    pub memory_is_auto: bool,
    /// Frames that the segment has room for, over which a resize cannot go; None: all memory of the machine.
    pub memory_max_bytes: Option<u64>,
    /// Name of the eviction policy.
    pub policy: String,
    /// While the oldest generation of pages is younger, nothing is evicted: misses are passed on, writers wait. Zero: no limit.
    pub min_ttl: Duration,
    /// Back frames with huge pages where the machine gives them.
    pub huge_pages: bool,
    /// Background writeback starts above this share of the frames, per cent.
    pub dirty_background_ratio: u32,
    /// Writers wait above this share of the frames, per cent.
    pub dirty_ratio: u32,
    /// Dirty pages older than this are written back.
    pub dirty_expire: Duration,
    /// How often the writeback thread looks for old pages.
    pub writeback_interval: Duration,
    /// Largest single read or write of the source, bytes.
    pub io_max_bytes: usize,
    /// Farthest that a sequential reader past the kernel's page cache is read ahead, bytes.
    pub readahead_max_bytes: usize,
    /// fsync is answered when a target has what was written; else when the source has.
    pub durable_in_tier: bool,
    /// Unwritten pages from which on an fsync of a file that has grown is worth a write to a tier beside the source's own commit: with fewer the source
    /// writes them along with it.
    pub tier_fsync_min: u64,
    /// So many new dirty pages of a file that owes already go to the target before its next fsync.
    pub tier_ahead_min: usize,
    /// Which of them the source takes instead.
    pub source_share: SourceShare,
    /// For tests: a mark of another boot of the machine, and when it began.
    pub boot: Option<(u16, i64)>,
    /// Kind of I/O.
    pub io: IoKind,
    /// The compressed tier.
    pub compressed: CompressedConfig,
    /// The targets of the tiers on devices, at most [`TARGETS_MAX`](terrace_shm::device_table::TARGETS_MAX).
    pub devices: Vec<DeviceConfig>,
    /// Name of the placement engine that spreads pages over the targets of a tier.
    pub placement: String,
    /// PageFill slots of each client process, at most [`RING_SLOTS_MAX`].
    pub ring_slots: usize,
    /// Processes with the preload library at the most; others use the mount path.
    pub clients_max: usize,
    /// Threads that fetch what hints and strides ask for; 0: nothing is fetched in the background.
    pub prefetch_workers: usize,
    /// Memory nodes.
    pub numa: NumaConfig,
}

/// How an engine treats nodes.
#[derive(Debug, Clone)]
pub struct NumaConfig {
    /// Whether threads move, are shown, or are left alone.
    pub mode: NumaMode,
    /// Where the kernel describes the machine: /sys, but in tests.
    pub sys: PathBuf,
    /// The file of the masks of moved threads; none: they are not kept for a successor.
    pub saved: Option<PathBuf>,
    /// What the memory of a node can be read at, bytes a second. An order of magnitude is enough.
    pub read_capacity: f64,
    /// The same written.
    pub write_capacity: f64,
}

impl Default for NumaConfig {
    fn default() -> NumaConfig {
        NumaConfig {
            mode: NumaMode::Off,
            sys: "/sys".into(),
            saved: None,
            // Some channels of DRAM.
            read_capacity: 40e9,
            write_capacity: 20e9,
        }
    }
}

/// Most fill slots a client process can have.
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
            prefetch_workers: 8,
            numa: NumaConfig::default(),
        }
    }
}

/// Which pages go to the compressed tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admit {
    /// Those that were read again after they came, or that came back; any while there is room.
    Reused,
    /// All.
    All,
}

/// The compressed tier as it is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressedConfig {
    /// Codecs; None: no compressed tier.
    pub codec: Option<CompressionMode>,
    /// Share of memory that it has in any case, per cent.
    pub min_percent: u32,
    /// Share of memory that it may have, per cent.
    pub max_percent: u32,
    /// Which pages it takes.
    pub admit: Admit,
    /// A page whose result is longer than this share of it stays uncompressed, per cent.
    pub refuse_percent: u32,
    /// Cost of a device read, ns, until it is measured.
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
    /// Bytes of all targets that it begins with.
    pub(crate) fn devices_bytes(&self) -> u64 {
        self.devices.iter().map(|device| device.bytes).sum()
    }
}

/// How the bytes of a target are reached.
#[derive(Debug, Clone)]
pub enum Access {
    /// A file or block device, opened for direct I/O and locked; open as long as the engine lives. Clients read it themselves.
    File(RawFd),
    /// Something else, which only the daemon reads.
    Medium(Arc<dyn Medium>),
    /// It is not open yet: enough to make memory files by.
    Unopened,
}

impl Access {
    /// Whether it takes writes at the moment.
    pub(crate) fn is_ready(&self) -> bool {
        !matches!(self, Access::Medium(medium) if !medium.is_ready())
    }
    /// Whether what is durable there may stand for the source.
    pub(crate) fn takes_owed(&self) -> bool {
        match self {
            Access::File(_) => true,
            Access::Medium(medium) => medium.takes_owed(),
            Access::Unopened => false,
        }
    }
    /// Memory that it may take, bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        match self {
            Access::Medium(medium) => medium.memory_bytes(),
            _ => 0,
        }
    }
    /// Why it fails at the moment, if it does and may work again.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self {
            Access::Medium(medium) => medium.trouble(),
            _ => None,
        }
    }
}

/// A target of a tier on devices, as it was opened.
#[derive(Debug, Clone)]
pub struct DeviceConfig {
    /// Its number, below [`TARGETS_MAX`](terrace_shm::device_table::TARGETS_MAX): no two have the same.
    pub number: usize,
    /// Its name in statistics and messages.
    pub name: String,
    /// The target.
    pub access: Access,
    /// Size of the target, bytes.
    pub bytes: u64,
    /// Size of a region, bytes.
    pub region_bytes: u64,
    /// Regions of the target.
    pub regions: u32,
    /// Number of its first region among those of all targets.
    pub first_region: u32,
    /// Its tier: 0 is the fastest.
    pub level: u8,
    /// Identity of the tier: batches with another one are left over from an earlier format.
    pub tier_id: [u8; 16],
    /// Bytes that may be written a day; None: as many as pay.
    pub write_budget: Option<u64>,
    /// Bytes that the device's vendor warrants to be written in all (TBW); None: not known.
    pub rated_writes: Option<u64>,
    /// Time of a 4 KiB read by the device profile, or of a request to a medium of its own, ns; None: not measured.
    pub read_ns: Option<u64>,
    /// Time of a page when much is written, likewise.
    pub write_ns: Option<u64>,
    /// For tests, whose source and device may be equally fast: a hit is taken to save a read of a slow source.
    pub always_faster: bool,
}
