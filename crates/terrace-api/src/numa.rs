//! Reads of threads from memory nodes: the data of `terrace numa --json`.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Name and version of the format. JSON with another value is an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schema {
    /// This one.
    #[default]
    #[serde(rename = "terrace.numa.v1")]
    V1,
}

/// The daemon's mode on several nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumaMode {
    /// Nothing.
    #[default]
    Off,
    /// It decides each second, and moves nothing.
    Show,
    /// It moves threads.
    Auto,
}

/// The output of `terrace numa --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NumaReport {
    /// The daemon's findings.
    #[serde(flatten)]
    pub numa: Numa,
    /// Where the source is served.
    #[serde(with = "crate::path")]
    pub mnt: PathBuf,
}

/// Nodes and threads in one period.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Numa {
    /// The format.
    pub schema: Schema,
    /// The daemon's mode.
    pub mode: NumaMode,
    /// The machine's nodes.
    pub nodes: Vec<NumaNode>,
    /// Threads that used the cache, those first that read and write most.
    pub threads: Vec<NumaThread>,
    /// The moves that the daemon proposes.
    pub moves: Vec<NumaMove>,
    /// Moves of threads since the daemon began.
    pub moved: u64,
    /// Bytes of frames that should move, or have, in this period.
    #[serde(default)]
    pub frame_bytes_to_move: u64,
    /// Bytes of frames moved since the daemon began.
    #[serde(default)]
    pub frame_bytes_moved: u64,
    /// Another recording was under way: the numbers are of an earlier period, or missing.
    pub stale: bool,
}

/// A memory node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NumaNode {
    /// The kernel's number.
    pub node: u32,
    /// Processors.
    pub cpus: u32,
    /// How many of them were busy.
    pub cpus_busy: f64,
    /// Bytes of memory; 0: unknown.
    pub memory_bytes: u64,
    /// Bytes of frames of the cache on it.
    pub frame_bytes: u64,
    /// Bytes written a second, and as much as its reads weigh.
    pub load_bytes_s: f64,
    /// The same after the moves.
    pub predicted_bytes_s: f64,
}

/// A thread that used the cache.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NumaThread {
    /// Its number.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// The kernel's number of the node that it ran on.
    pub node: u32,
    /// Processors that it kept busy.
    pub cpu: f64,
    /// Bytes a second read from each node, in the order of `nodes`.
    pub reads_bytes_s: Vec<f64>,
    /// Bytes a second read from memory of which the node is not known, or from a device without one.
    pub reads_elsewhere_bytes_s: f64,
    /// Bytes a second written.
    pub writes_bytes_s: f64,
    /// Its program has bound it to processors: it is not moved.
    pub bound: bool,
}

/// A thread that should move, or has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaMove {
    /// Its number.
    pub tid: u32,
    /// From this node, by the kernel's number.
    pub from: u32,
    /// To this node.
    pub to: u32,
    /// `remote`: it reads most from there; `sharing`: threads that it shares a file with are there; `memory`, `cpu`: its node had too much of that.
    pub why: String,
    /// It was moved.
    pub done: bool,
    /// Why it was not, if that was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}
