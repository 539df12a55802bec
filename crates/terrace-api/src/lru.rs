//! The policy's lists: what `terrace lru --json` shows.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The format's name and version: what carries another does not parse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schema {
    /// This one.
    #[default]
    #[serde(rename = "terrace.lru.v1")]
    V1,
}

/// What `terrace lru --json` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LruReport {
    /// The lists.
    #[serde(flatten)]
    pub lru: Lru,
    /// Where the instance serves.
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
    /// Pages that came back after they were evicted or passed on.
    pub refaults: u64,
    /// Of these, pages that came back soon enough to count as part of the working set.
    pub refaults_recent: u64,
    /// Pages looked at for eviction.
    pub pgscan: u64,
    /// Pages evicted.
    pub pgsteal: u64,
    /// Nothing is evicted while the oldest generation is younger, ms; 0: no such limit.
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
    /// Since it was opened, ms; of a queue: since the policy began.
    pub age_ms: u64,
    /// Pages in it.
    pub pages: u64,
    /// What pages of a generation hold, as far as a walk beside the traffic can tell; none: a queue.
    #[serde(flatten)]
    pub kinds: Option<Kinds>,
}

/// Pages by what the source knows of them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kinds {
    /// Pages as the source has them.
    pub clean: u64,
    /// Pages that the source does not have yet.
    pub dirty: u64,
    /// Pages being written now.
    pub writeback: u64,
    /// Pages in the kernel's page cache, not yet known to be on the device.
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

/// What an eviction by command came to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evicted {
    /// Pages evicted.
    pub evicted: u64,
    /// Pages that had to stay: unwritten, or in use just then.
    pub kept: u64,
}
