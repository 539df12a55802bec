//! Estimated hit ratios of the cache at other memory sizes: the data of `terrace stat --mrc --json`.

use serde::{Deserialize, Serialize};

/// Name and version of the format. JSON with another value is an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schema {
    /// This one.
    #[default]
    #[serde(rename = "terrace.mrc.v1")]
    V1,
}

/// Estimates for other sizes of memory, from a sample of live accesses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Mrc {
    /// The format.
    pub schema: Schema,
    /// Name of the eviction policy.
    pub policy: String,
    /// Time covered by the observations, seconds; older ones count less.
    pub seconds: f64,
    /// Page accesses in that time, reads and writes.
    pub accesses: f64,
    /// `accesses` per second.
    pub accesses_per_second: f64,
    /// Distinct pages among them.
    pub pages_used: f64,
    /// Share of pages sampled for the LRU curve, 0 to 1.
    pub sample_rate: f64,
    /// Measured hit ratio of reads, 0 to 1; none: no reads.
    pub measured_hit_ratio: Option<f64>,
    /// By memory size, smallest first; empty: no accesses.
    pub estimates: Vec<MrcPoint>,
    /// Accesses a second that would become hits with one more GiB; none: no accesses.
    pub gib_saves_per_second: Option<f64>,
}

/// The estimate for one size of memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MrcPoint {
    /// Size as a factor of the present number of frames.
    pub factor: f64,
    /// Memory of that many frames, bytes.
    pub bytes: u64,
    /// Hit ratio of the present policy, 0 to 1.
    pub hit_ratio: f64,
    /// Hit ratio of an LRU cache, 0 to 1.
    pub lru_hit_ratio: f64,
}
