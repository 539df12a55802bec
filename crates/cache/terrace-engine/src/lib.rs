//! The terrace cache engine: the part between programs and the files of the source directory.
//!
//! From the top down: a folder imports only folders below it.
//!
//! | folder | job |
//! |---|---|
//! | `engine` | the facade: builds the parts, starts and stops threads |
//! | [`numa`] | memory nodes: traffic between threads and nodes, and moves of threads to their data |
//! | `preload_server` | serves the preload library: clients, source descriptors, page fills |
//! | `observe` | the policy's lists, estimates for other sizes of memory, recordings, checks |
//! | `service` | threads that combine the folders below: writeback, targets of a tier, changes of the tier |
//! | `reclaim` | free frames ahead of need, compression of evicted pages, the balance between the two |
//! | `burst` | fsyncs that a tier answers, and the replay of its pages |
//! | `path` | requests of programs: read, write, writeback, sync, resize, recovery |
//! | `readahead` | which pages to fetch before a program reads them |
//! | `tier` | the writer of the tier on devices: its log, regions, records |
//! | `context` | shared by all paths: configuration, I/O, clock, the state behind its lock, queues, counters |
//! | `state` | all data that change under one lock |
//! | `file` | a file of the source: its descriptors and its state in the cache |
//! | `clock` | the time, with test doubles |
//! | [`table`] | fast hash tables, and their shrinking after a burst |
//!
//! The engine is a cache of objects, which are numbered files. It does not know names, inodes or the
//! transport of requests: `terrace-fs` does.
//!
//! ARCHITECTURE.md has the lock order and the invariants.

mod access_log;
mod burst;
mod clock;
mod config;
mod context;
mod engine;
mod file;
mod nodes;
pub mod numa;
mod observe;
mod path;
mod preload_server;
mod readahead;
mod reclaim;
mod rings;
mod segment;
mod service;
mod state;
pub mod table;
#[cfg(test)]
mod testing;
mod tier;
mod yield_memory;

pub use access_log::set_caller;
pub use file::{object, source};
pub use observe::earning::Earning;
pub use observe::{lru, trace};

pub use burst::replay::{Conflict, Decision, FileLookup, Replayed, UndestagedPages};
pub use clock::{Clock, StampClock, SystemClock};
pub use config::{Admit, CompressedConfig, EngineConfig, IoKind, NumaConfig, RING_SLOTS_MAX, SourceShare};
pub use engine::Engine;
pub use file::errseq::ErrorCursor;
pub use file::serve::Serve;
pub use object::{Object, ObjectId, ObjectRef};
pub use path::fault::AccessPath;
pub use readahead::schedule::ScheduledFiles;
pub use segment::SegmentHandles;
pub use source::{PathFd, SourceFile};
pub use terrace_shm::compress::CompressionMode;
pub use terrace_shm::copy::prefetch;
pub use terrace_shm::device_table::TARGETS_MAX;

/// Largest number of regions of all targets together, by the width of their numbers in entries.
pub const REGIONS_MAX: u32 = terrace_shm::DeviceSlot::REGIONS_MAX;
