//! Summary of a recording of page accesses: the data of `terrace trace --json`.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Name and version of the format. JSON with another value is an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schema {
    /// This one.
    #[default]
    #[serde(rename = "terrace.trace.v1")]
    V1,
}

/// The output of `terrace trace --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SummaryReport {
    /// The format.
    pub schema: Schema,
    /// The capture.
    pub file: PathBuf,
    /// Its content.
    #[serde(flatten)]
    pub summary: Summary,
}

/// Counts and size of one recording.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Duration, seconds.
    pub seconds: f64,
    /// Page accesses recorded.
    pub accesses: u64,
    /// Size of the capture, bytes.
    pub bytes: u64,
    /// Accesses on the preload path.
    pub preload: PreloadPath,
    /// Accesses on the mount path.
    pub fuse: MountPath,
    /// Accesses that are missing.
    pub lost: Lost,
}

/// Recorded page accesses on the preload path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreloadPath {
    /// Pages read from the cache.
    pub hits: u64,
    /// Pages read from the source.
    pub misses: u64,
}

/// Recorded page accesses on the mount path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPath {
    /// Pages read from the cache.
    pub hits: u64,
    /// Pages read from the source.
    pub misses: u64,
    /// Pages written.
    pub writes: u64,
}

/// Page accesses that are missing from a recording.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// On the mount path: the list was full.
    pub fuse: u64,
    /// On the preload path: a lane was full.
    pub preload: u64,
    /// Reads not reported in time or not credible: of threads that died, or files that were forgotten
    /// meanwhile.
    pub unclear: u64,
}

impl Lost {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.fuse.saturating_add(self.preload).saturating_add(self.unclear)
    }
}
