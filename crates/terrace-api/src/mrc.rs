//! What more or less memory would do: the miss-ratio curve of `terrace stat --mrc --json`.

use serde::{Deserialize, Serialize};

/// The format's name and version: what carries another does not parse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schema {
    /// This one.
    #[default]
    #[serde(rename = "terrace.mrc.v1")]
    V1,
}

/// What a sample of live accesses tells of other sizes of memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Mrc {
    /// The format.
    pub schema: Schema,
    /// Name of the eviction policy.
    pub policy: String,
    /// Time of which it tells, seconds; the longer ago, the less it counts.
    pub seconds: f64,
    /// Page accesses of that time, reads and writes.
    pub accesses: f64,
    /// The same by second.
    pub accesses_per_second: f64,
    /// Different pages among them.
    pub pages_used: f64,
    /// Share of pages that were sampled for the LRU curve, 0 to 1.
    pub sample_rate: f64,
    /// Share of reads that hit, as the policy in force has them, 0 to 1; none: nothing was read.
    pub measured_hit_ratio: Option<f64>,
    /// By size of memory, smallest first; empty: there were no accesses.
    pub estimates: Vec<MrcPoint>,
    /// Accesses a second that would no longer miss with one GiB more; none: there were no accesses.
    pub gib_saves_per_second: Option<f64>,
}

/// The estimate for one size of memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MrcPoint {
    /// Times the frames that there are.
    pub factor: f64,
    /// Memory of so many frames, bytes.
    pub bytes: u64,
    /// Hit ratio of the policy in force, 0 to 1.
    pub hit_ratio: f64,
    /// Hit ratio of an LRU cache, 0 to 1.
    pub lru_hit_ratio: f64,
}
