//! Tiers in the statistics: one row each, from DRAM down.

use serde::{Deserialize, Serialize};

/// The kind of storage of a tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TierKind {
    /// Page frames.
    #[default]
    Dram,
    /// Compressed pages in DRAM.
    Compressed,
    /// A file or block device.
    Device,
}

impl TierKind {
    /// As it stands in JSON.
    pub fn name(self) -> &'static str {
        match self {
            TierKind::Dram => "dram",
            TierKind::Compressed => "compressed",
            TierKind::Device => "device",
        }
    }
}

/// [`TierRow::state`] of a tier that takes and serves pages.
pub const SERVING: &str = "serving";
/// [`TierRow::state`] of a tier that serves, while what an earlier mount left on it is still being looked for.
pub const SCANNING: &str = "scanning";

/// One tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TierRow {
    /// `dram`, `compressed`, or the name in the configuration.
    pub name: String,
    /// `dram`, `compressed` or `device`.
    pub kind: TierKind,
    /// Pages in it. A page may be in DRAM and on a device at one time.
    pub pages: u64,
    /// Storage that they take there, bytes.
    pub bytes: u64,
    /// Storage that they may take now, bytes.
    pub capacity_bytes: u64,
    /// Page reads that it served.
    pub hits: u64,
    /// `hits` as a share of all page reads, misses included, 0 to 1.
    pub share: f64,
    /// Mean time of a read of it, us; none: not measured.
    pub read_us: Option<f64>,
    /// Pages that came down to it from a tier above.
    pub demoted: u64,
    /// Pages that went from it up to DRAM.
    pub promoted: u64,
    /// Pages written again when their region of the device was reclaimed, because they were used.
    pub reinserted: u64,
    /// Pages that left the cache from here.
    pub dropped: u64,
    /// Bytes written to the device.
    pub bytes_written: u64,
    /// `bytes_written` per byte of pages that came down; none: nothing was written.
    pub write_amplification: Option<f64>,
    /// Days until the device's rated writes are used up, at the rate since terraced started, earlier writes not counted; none: not rated, or
    /// nothing was written, or started less than a minute ago.
    pub days_of_life: Option<f64>,
    /// DRAM for each page in it, metadata included, bytes; none: no pages.
    pub dram_bytes_per_page: Option<f64>,
    /// `serving`, `scanning` (looks for pages of an earlier mount), or `off: ` and the reason.
    pub state: String,
}

/// What the engine counts for a tier on a device; counters since terraced started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Pages that the index knows to be there.
    pub pages: u64,
    /// Bytes of the regions that hold something.
    pub bytes: u64,
    /// Bytes of all regions.
    pub capacity_bytes: u64,
    /// Page reads served.
    pub hits: u64,
    /// Time of the reads counted in `reads`, all together, ns.
    pub read_ns: u64,
    /// Reads that were timed.
    pub reads: u64,
    /// Pages that came from a tier above.
    pub demoted: u64,
    /// Pages brought to DRAM.
    pub promoted: u64,
    /// Pages written again at reclaim of their region.
    pub reinserted: u64,
    /// Pages given up at reclaim of their region.
    pub dropped: u64,
    /// Bytes of pages that came from a tier above.
    pub content_bytes_written: u64,
    /// All bytes written: these, pages written again, keys.
    pub bytes_written: u64,
    /// DRAM that the tier's tables take, bytes.
    pub dram_bytes: u64,
    /// [`SERVING`], [`SCANNING`], or `off: ` and the reason.
    pub state: String,
}
