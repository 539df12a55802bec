//! Threads and the machine's memory nodes: their traffic, and moves of threads. The data of
//! `terrace numa --json`.

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

/// Mode of the daemon on machines with several nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumaMode {
    /// No observation.
    #[default]
    Off,
    /// Decides each second, and moves nothing.
    Show,
    /// Moves threads.
    Auto,
}

/// The output of `terrace numa --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NumaReport {
    /// The daemon's findings.
    #[serde(flatten)]
    pub numa: Numa,
    /// Directory where the source is served.
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
    /// Threads that used the cache, sorted by bytes read and written.
    pub threads: Vec<NumaThread>,
    /// Moves proposed by the daemon.
    pub moves: Vec<NumaMove>,
    /// Moves of threads since the daemon began.
    pub moved: u64,
    /// Bytes of frames that should move, or have moved, in this period.
    #[serde(default)]
    pub frame_bytes_to_move: u64,
    /// Bytes of frames moved since the daemon began.
    #[serde(default)]
    pub frame_bytes_moved: u64,
    /// Another recording is under way: the numbers are from an earlier period, or missing.
    pub stale: bool,
}

/// A memory node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NumaNode {
    /// The kernel's number.
    pub node: u32,
    /// Processors.
    pub cpus: u32,
    /// Busy processors.
    pub cpus_busy: f64,
    /// Bytes of memory; 0: unknown.
    pub memory_bytes: u64,
    /// Bytes of cache frames on the node.
    pub frame_bytes: u64,
    /// Load: bytes written a second, plus weighted bytes read.
    pub load_bytes_s: f64,
    /// `load_bytes_s` as predicted after the moves.
    pub predicted_bytes_s: f64,
}

/// A thread that used the cache.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NumaThread {
    /// Its number.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// Node on which the thread ran.
    pub node: u32,
    /// Processor time used, in processors.
    pub cpu: f64,
    /// Bytes a second read from each node, in the order of `nodes`.
    pub reads_bytes_s: Vec<f64>,
    /// Bytes a second read from memory on an unknown node, or from a device without a node.
    pub reads_elsewhere_bytes_s: f64,
    /// Bytes a second written.
    pub writes_bytes_s: f64,
    /// The program has bound it to processors, so it is not moved.
    pub bound: bool,
}

/// A thread that should move, or has moved.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaMove {
    /// Its number.
    pub tid: u32,
    /// The node that it leaves, by the kernel's number.
    pub from: u32,
    /// The node that it moves to.
    pub to: u32,
    /// `remote`: it reads most from there; `sharing`: threads with which it shares a file are there;
    /// `memory`, `cpu`: its node had too much load of that kind.
    pub why: String,
    /// The thread was moved.
    pub done: bool,
    /// Why an attempted move failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}
