//! Tiers: rows of the statistics, from DRAM down, and what `terrace tier` tells of a file or device.

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
    /// Of a device: its tier among those on devices, 0 the fastest. Several targets may be one tier; none: not a device, or one that cannot be used.
    pub level: Option<u32>,
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
    /// Pages that went from it to the next tier of devices when their region was reclaimed.
    pub moved_down: u64,
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
    /// `serving`, `scanning` (looks for pages of an earlier mount), `removing`, or `off: ` and the reason.
    pub state: String,
}

/// Counters of a tier on a device since terraced started.
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
    /// Pages that went to the next tier at reclaim of their region.
    pub moved_down: u64,
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
    /// Something that is not terrace's.
    Foreign,
    /// A tier without a sound superblock.
    Damaged,
    /// The tier of another version of terrace.
    Layout,
    /// It cannot be read.
    Unreadable,
}

/// Whether the directory of a tier is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceState {
    /// It is.
    There,
    /// Another directory has its path now.
    Replaced,
    /// Nothing has its path now: it was removed, renamed, or is not mounted.
    Gone,
}

/// One file or block device, as `terrace tier show --json` and `terrace tier list --json` tell it, one object a line.
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
    /// That instance's supervisor; none: not in use, or not to be seen.
    pub pid: Option<i32>,
    /// Where that instance serves; likewise.
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
    /// The directory whose pages it holds.
    #[serde(with = "crate::path")]
    pub source: PathBuf,
    /// Whether that is still there.
    pub source_state: SourceState,
    /// When it was formatted, seconds since 1970.
    pub created: u64,
    /// When an instance last began or ended to use it, seconds since 1970.
    pub used: u64,
    /// Whether its last user closed it in order.
    pub clean: bool,
    /// Storage for pages, bytes.
    pub capacity_bytes: u64,
    /// Size of a region, bytes.
    pub region_bytes: u64,
    /// Number of regions.
    pub regions: u32,
    /// Its content; none: not counted, by `list` or because it is in use.
    pub content: Option<TierContent>,
}

/// The result of a scan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierContent {
    /// Files of which there are pages.
    pub files: u64,
    /// Pages.
    pub pages: u64,
    /// The pages' content, bytes.
    pub bytes: u64,
    /// Pages that are damaged, which the next mount leaves out.
    pub pages_damaged: u64,
}
