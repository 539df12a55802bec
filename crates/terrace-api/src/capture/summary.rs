//! What a recording came to: what `terrace trace --json` shows.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The format's name and version: what carries another does not parse.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schema {
    /// This one.
    #[default]
    #[serde(rename = "terrace.trace.v1")]
    V1,
}

/// What `terrace trace --json` shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SummaryReport {
    /// The format.
    pub schema: Schema,
    /// The capture.
    pub file: PathBuf,
    /// What is in it.
    #[serde(flatten)]
    pub summary: Summary,
}

/// What a recording came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How long it took, seconds.
    pub seconds: f64,
    /// Page accesses recorded.
    pub accesses: u64,
    /// Size of the capture, bytes.
    pub bytes: u64,
    /// Of the accesses, reads by the preload library.
    pub fast_door: FastDoor,
    /// Of the accesses, those through the mount.
    pub main_door: MainDoor,
    /// Accesses that are missing.
    pub lost: Lost,
}

/// Recorded page accesses by the preload library.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FastDoor {
    /// Pages read from the cache.
    pub hits: u64,
    /// Pages read from the source.
    pub misses: u64,
}

/// Recorded page accesses through the mount.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MainDoor {
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
    /// Of the main door: the list was full.
    pub main_door: u64,
    /// Of the fast door: a lane was full.
    pub fast_door: u64,
    /// Read, but not told in time or not credibly: threads that died, files that were forgotten meanwhile.
    pub unclear: u64,
}

impl Lost {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.main_door.saturating_add(self.fast_door).saturating_add(self.unclear)
    }
}
