//! Commands to a running instance: one JSON object a line, over a stream socket, each answered by one.
//!
//! ```text
//! {"cmd":"resize","bytes":1073741824}   ->   {"ok":true}
//! {"cmd":"check"}                       ->   {"ok":true,"disagreements":[]}
//! {"cmd":"fly"}                         ->   {"ok":false,"error":"there is no command `fly`"}
//! {"cmd":"trace"}                       ->   {"ok":true}, frames, {"ok":true,"accesses":70812,...}
//! ```
//! A trace comes in frames: a length (u32, little-endian) and as many bytes of a capture; a length of 0 is followed by the
//! closing line. It ends when the one who asked says no more (shuts his side of the socket down).

mod client;
mod server;

use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use client::{Client, Frames, Refusal};
pub use server::Server;

/// Bytes of a frame at the most.
const FRAME_MAX: usize = 1 << 20;

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cmd", rename_all = "lowercase")]
pub enum Request {
    /// Statistics.
    Stat,
    /// Write everything to stable storage.
    Flush,
    /// Drop clean pages.
    Drop,
    /// Walk all tables.
    Check,
    /// Set the memory limit.
    Resize {
        /// The new limit.
        bytes: u64,
    },
    /// Flush, unmount, end.
    Stop {
        /// Also when the mount is in use: its users keep what they have open.
        #[serde(default)]
        lazy: bool,
        /// Also when something cannot be written, which is then lost.
        #[serde(default)]
        lose: bool,
    },
    /// Process ids.
    Pid,
    /// Record accesses.
    Trace,
    /// What other sizes of memory would do.
    Mrc,
    /// The policy's lists.
    Lru,
    /// Open a generation.
    Age,
    /// Evict generations.
    Evict {
        /// Up to this one.
        seq: u64,
        /// So many pages at the most; none: all.
        #[serde(default)]
        pages: Option<u64>,
    },
}

/// Why a request is refused: a word for programs, a line for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct No {
    /// `busy`, `io`, `usage`, ...
    pub code: &'static str,
    /// The line.
    pub why: String,
}

impl No {
    /// A failed operation.
    pub fn failed(err: impl std::fmt::Display) -> No {
        No { code: "failed", why: err.to_string() }
    }
}

/// Who answers: the daemon; in tests, something simpler.
pub trait Answer: Sync {
    /// The fields of a positive answer, as an object.
    fn answer(&self, request: Request) -> Result<Value, No>;
    /// Begins a recording.
    fn record(&self) -> Result<Box<dyn Record>, No>;
}

/// A recording that has begun.
pub trait Record {
    /// Writes the capture until `ended`; the fields of the closing line.
    fn run(self: Box<Self>, out: &mut dyn Write, ended: &mut dyn FnMut() -> bool) -> io::Result<Value>;
}
