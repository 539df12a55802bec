//! The terrace cache engine: what stands between a program and the files of its source directory.
//!
//! | folder | job |
//! |---|---|
//! | [`path`] | what programs ask for: read, write, writeback, resize, recovery |
//! | `reclaim` | free frames: the policy names victims, this module acts |
//! | `preload_server` | the fast door: registers clients, hands out source descriptors, drains donations |
//! | [`observe`] | the policy's lists, estimates for other sizes of memory, recordings, checks |
//! | `state` | all that changes under one lock |
//! | [`file`](mod@file) | a file of the source: its descriptors, and what is kept about it |
//! | [`namespace`] | names, inodes, handles, attributes |
//! | [`io`], [`clock`] | the only ways to the outside, each with a null and a faulty twin |
//!
//! Lock order: object content lock, object writeback lock, object syncing lock, source root, state lock, object dirty set.
//! No lock but an object's own is held during I/O, and that of the source root while all of it is synced.

mod access_log;
pub mod clock;
pub mod config;
mod context;
mod engine;
pub mod file;
pub mod io;
pub mod namespace;
pub mod observe;
mod pagecache;
pub mod path;
mod preload_server;
mod reclaim;
mod rings;
pub mod segment;
mod state;
pub mod stats;

pub use file::{object, source};
pub use observe::{lru, trace};

pub use clock::{Clock, SystemClock};
pub use config::{Admit, CompressedConfig, EngineConfig, IoKind, RING_SLOTS_MAX};
pub use engine::Engine;
pub use file::errseq::ErrorCursor;
pub use object::{Object, ObjectId, ObjectRef};
pub use path::read::Door;
pub use segment::SegmentHandles;
pub use source::SourceFile;
pub use stats::Stats;
pub use terrace_shm::compress::Mode as Codec;
