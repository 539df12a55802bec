//! The policy's lists: the data of `terrace lru --json`.

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
    /// Where the source is served.
    #[serde(with = "crate::path")]
    pub mnt: PathBuf,
    /// With `--age`: number of the generation that was opened.
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
    /// Number of the oldest generation; none: the policy has none.
    pub min_seq: Option<u64>,
    /// Number of the youngest generation; none: the policy has none.
    pub max_seq: Option<u64>,
    /// Queues first, then generations, youngest first.
    pub lists: Vec<ListRow>,
    /// Pages in no generation: all of the queues, or of a policy without generations.
    pub queued: Kinds,
    /// Reference tiers; empty: the policy has none.
    pub tiers: Vec<TierRow>,
    /// Faults on pages that were evicted or not admitted before.
    pub refaults: u64,
    /// Part of `refaults` that came soon enough to count for the working set.
    pub refaults_recent: u64,
    /// Pages scanned for eviction.
    pub pgscan: u64,
    /// Pages evicted.
    pub pgsteal: u64,
    /// Least age of the oldest generation for evictions, ms; 0: no such limit.
    pub min_ttl_ms: u64,
    /// Evictions that `min_ttl` has refused.
    pub min_ttl_refused: u64,
}

/// One queue or generation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListRow {
    /// `probation`, `gen 7`, ...
    pub label: String,
    /// Number of the generation; none: a queue.
    pub seq: Option<u64>,
    /// Time since it was opened, ms; for a queue: since the start of the policy.
    pub age_ms: u64,
    /// Pages in it.
    pub pages: u64,
    /// Pages of a generation by their state, counted beside the traffic and therefore approximate; none: a queue.
    #[serde(flatten)]
    pub kinds: Option<Kinds>,
}

/// Pages by their state with respect to the source.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kinds {
    /// Pages that are the same in the source.
    pub clean: u64,
    /// Pages that are newer than in the source.
    pub dirty: u64,
    /// Pages being written now.
    pub writeback: u64,
    /// Pages written to the kernel's page cache that may not be on the device yet.
    pub unstable: u64,
}

impl Kinds {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.clean + self.dirty + self.writeback + self.unstable
    }
}

/// One reference tier: pages used about equally often, and how often those evicted came back (the rows of the kernel's
/// `lru_gen_full`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierRow {
    /// 0 (used once or never) and up.
    pub tier: usize,
    /// Resident pages.
    pub pages: u64,
    /// Refaults that counted, of pages evicted out of this tier, since the oldest generation became the oldest.
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
    /// Pages that had to stay: unwritten, or in use just then.
    pub kept: u64,
}
