//! The eviction policy's lists of pages: the data of `terrace lru --json`.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Name and version of the format. JSON with another value is an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schema {
    /// This one.
    #[default]
    #[serde(rename = "terrace.lru.v1")]
    V1,
}

/// The output of `terrace lru --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LruReport {
    /// The lists.
    #[serde(flatten)]
    pub lru: Lru,
    /// Directory where the source is served.
    #[serde(with = "crate::path")]
    pub mnt: PathBuf,
    /// With `--age`: number of the new generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opened: Option<u64>,
    /// With `--evict`: pages evicted and kept.
    #[serde(flatten)]
    pub evicted: Option<Evicted>,
}

/// A policy's lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lru {
    /// The format.
    pub schema: Schema,
    /// Name of the eviction policy.
    pub policy: String,
    /// Number of the oldest generation; none: no generations.
    pub min_seq: Option<u64>,
    /// Number of the youngest generation; none: no generations.
    pub max_seq: Option<u64>,
    /// Queues first, then generations, youngest first.
    pub lists: Vec<ListRow>,
    /// Pages outside of generations: those of queues, or all pages of a policy without generations.
    pub queued: Kinds,
    /// Reference tiers; empty: none.
    pub tiers: Vec<TierRow>,
    /// Faults on pages that were evicted or not admitted before.
    pub refaults: u64,
    /// Part of `refaults` soon enough to count for the working set.
    pub refaults_recent: u64,
    /// Pages scanned for eviction.
    pub pgscan: u64,
    /// Pages evicted.
    pub pgsteal: u64,
    /// Minimum age of the oldest generation for evictions, ms; 0: no minimum.
    pub min_ttl_ms: u64,
    /// Evictions refused because of `min_ttl`.
    pub min_ttl_refused: u64,
}

/// One queue or generation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListRow {
    /// `probation`, `gen 7`, ...
    pub label: String,
    /// Number of the generation; none: a queue.
    pub seq: Option<u64>,
    /// Age of the generation, ms; for a queue, of the policy.
    pub age_ms: u64,
    /// Pages in it.
    pub pages: u64,
    /// Pages of a generation by state, counted concurrently with accesses and therefore approximate; none: a
    /// queue.
    #[serde(flatten)]
    pub kinds: Option<Kinds>,
}

/// Pages by their state relative to the source.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kinds {
    /// Pages equal to the source.
    pub clean: u64,
    /// Pages newer than the source.
    pub dirty: u64,
    /// Pages under writeback.
    pub writeback: u64,
    /// Pages written to the kernel's page cache, perhaps not yet on the device.
    pub unstable: u64,
}

impl Kinds {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.clean + self.dirty + self.writeback + self.unstable
    }
}

/// One reference tier: pages used about equally often, and refaults of its evicted pages (a row of the
/// kernel's `lru_gen_full`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierRow {
    /// 0 (used once or never) and up.
    pub tier: usize,
    /// Resident pages.
    pub pages: u64,
    /// Refaults of pages evicted from this tier, since the oldest generation became the oldest.
    pub refaulted: u64,
    /// Pages evicted since then.
    pub evicted: u64,
    /// Pages kept by protection since then.
    pub protected: u64,
    /// Moving average of `refaulted`, by generations, pages.
    pub avg_refaulted: u64,
    /// Moving average of `evicted + protected`, by generations, pages.
    pub avg_total: u64,
}

/// The result of an eviction by command.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evicted {
    /// Pages evicted.
    pub evicted: u64,
    /// Pages kept: unwritten, or in use at that moment.
    pub kept: u64,
}
