//! Tiers of an instance: rows of its statistics, from DRAM down, and the reports of `terrace tier`.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

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
    /// Name in JSON.
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
/// [`TierRow::state`] of a tier in service during the search for pages of an earlier mount.
pub const SCANNING: &str = "scanning";

/// [`TierRow::state`] of a target that is being removed.
pub const REMOVING: &str = "removing";

/// One tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TierRow {
    /// `dram`, `compressed`, or the name in the configuration.
    pub name: String,
    /// `dram`, `compressed` or `device`.
    pub kind: TierKind,
    /// For a device: its level among the tiers on devices, 0 the fastest. Several targets may share a level;
    /// none: not a device, or unusable.
    pub level: Option<u32>,
    /// Pages in it. A page may be both in DRAM and on a device.
    pub pages: u64,
    /// Storage used by the pages, bytes.
    pub bytes: u64,
    /// Storage available to the pages now, bytes.
    pub capacity_bytes: u64,
    /// Page reads served by it.
    pub hits: u64,
    /// `hits` as a share of all page reads, misses included, 0 to 1.
    pub share: f64,
    /// Mean time of a read from it, us; none: not measured.
    pub read_us: Option<f64>,
    /// Pages demoted to it from a higher tier.
    pub demoted: u64,
    /// Pages promoted from it to DRAM.
    pub promoted: u64,
    /// Pages in use that were written again when their region of the device was reclaimed.
    pub reinserted: u64,
    /// Pages moved to the next tier on devices when their region was reclaimed.
    pub moved_down: u64,
    /// Pages that left the cache from here.
    pub dropped: u64,
    /// Bytes written to the device.
    pub bytes_written: u64,
    /// `bytes_written` per byte of demoted pages; none: nothing was written.
    pub write_amplification: Option<f64>,
    /// Days until the device's rated writes are used up, at the rate since terraced started; earlier writes
    /// do not count. None: not rated, nothing written, or started less than a minute ago.
    pub days_of_life: Option<f64>,
    /// DRAM for each page in it, metadata included, bytes; none: no pages.
    pub dram_bytes_per_page: Option<f64>,
    /// `serving`, `scanning` (searches for pages of an earlier mount), `removing`, or `off: ` and the reason.
    pub state: String,
}

/// Counters of a tier on a device since terraced started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Pages in the index.
    pub pages: u64,
    /// Bytes of the regions in use.
    pub bytes: u64,
    /// Bytes of all regions.
    pub capacity_bytes: u64,
    /// Page reads served.
    pub hits: u64,
    /// Total time of the reads counted in `reads`, ns.
    pub read_ns: u64,
    /// Reads that were timed.
    pub reads: u64,
    /// Pages demoted from a higher tier.
    pub demoted: u64,
    /// Pages promoted to DRAM.
    pub promoted: u64,
    /// Pages written again at the reclaim of their region.
    pub reinserted: u64,
    /// Pages moved to the next tier at the reclaim of their region.
    pub moved_down: u64,
    /// Pages dropped at the reclaim of their region.
    pub dropped: u64,
    /// Bytes of demoted pages.
    pub content_bytes_written: u64,
    /// All bytes written: demoted pages, pages written again, keys.
    pub bytes_written: u64,
    /// DRAM of the tier's tables, bytes.
    pub dram_bytes: u64,
    /// [`SERVING`], [`SCANNING`], or `off: ` and the reason.
    pub state: String,
}

/// Name and version of [`TierReport`]. JSON with another value is an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schema {
    /// This one.
    #[default]
    #[serde(rename = "terrace.tier.v1")]
    V1,
}

/// The contents of a file or block device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TargetState {
    /// A tier.
    Tier,
    /// It does not exist yet.
    #[default]
    Missing,
    /// Nothing.
    Empty,
    /// Content of another program.
    Foreign,
    /// A tier without a valid superblock.
    Damaged,
    /// The tier of another version of terrace.
    Layout,
    /// It cannot be read.
    Unreadable,
}

/// State of a tier's source directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceState {
    /// It exists.
    There,
    /// Another directory now has its path.
    Replaced,
    /// Its path no longer exists: it was removed, renamed, or is not mounted.
    Gone,
}

/// A file or block device, in the output of `terrace tier show --json` and `terrace tier list --json`, one
/// object a line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierReport {
    /// The format.
    pub schema: Schema,
    /// The file or device.
    #[serde(with = "crate::path")]
    pub path: PathBuf,
    /// Its contents.
    pub state: TargetState,
    /// Its size, bytes.
    pub bytes: u64,
    /// Whether an instance uses it.
    pub in_use: bool,
    /// Process id of that instance's supervisor; none: not in use, or not visible.
    pub pid: Option<i32>,
    /// Mount point of that instance; none: not in use, or not visible.
    #[serde(default, with = "crate::path::optional")]
    pub mnt: Option<PathBuf>,
    /// The tier; none: there is none.
    pub tier: Option<TierFacts>,
}

/// The facts in a tier's superblock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierFacts {
    /// Its identity, new at each format.
    pub id: String,
    /// The source of its pages.
    #[serde(with = "crate::path")]
    pub source: PathBuf,
    /// State of the source directory.
    pub source_state: SourceState,
    /// When it was formatted, seconds since 1970.
    pub created: u64,
    /// Last start or end of its use by an instance, seconds since 1970.
    pub used: u64,
    /// Was it closed in order?
    pub clean: bool,
    /// Storage for pages, bytes.
    pub capacity_bytes: u64,
    /// Size of a region, bytes.
    pub region_bytes: u64,
    /// Number of regions.
    pub regions: u32,
    /// Its content; none: not counted, for `list` or because it is in use.
    pub content: Option<TierContent>,
}

/// The result of a scan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierContent {
    /// Files with pages in it.
    pub files: u64,
    /// Pages.
    pub pages: u64,
    /// Bytes of the pages' content.
    pub bytes: u64,
    /// Damaged pages, which the next mount leaves out.
    pub pages_damaged: u64,
}
