//! The terrace cache engine: what stands between a program and the files of its source directory.
//!
//! | module | job |
//! |---|---|
//! | [`fault`] | a read: copy what is resident, read the rest from the source, publish it |
//! | [`write`] | a write, a truncate, an operation on the source that the cache must not see half done |
//! | [`writeback`] | dirty pages to the source, in file order, and the errors of it |
//! | `dirt` | the books of what the source does not have for certain |
//! | `throttle` | writers wait while too much is unwritten |
//! | [`reclaim`] | free frames: the policy names victims, this module acts |
//! | [`pool`] | frames, budget, resize |
//! | `metadata` | what pages cost beside their frames |
//! | [`door`] | the fast door: registers clients, hands out source descriptors, drains donations |
//! | [`tier`] | compressed pages; `vain`, what is not tried for them; `idle`, whether there are processors for it |
//! | [`lru`] | the policy's lists from outside: shown, aged, evicted by command; `min_ttl` |
//! | [`sample`] | what other sizes of memory would do, from a sample of live accesses |
//! | [`trace`] | records what programs access, for the simulator |
//! | [`namespace`] | names, inodes, handles, attributes |
//! | [`recover`] | what a restarted daemon does with the segment that it finds |
//! | [`io`], [`clock`] | the only ways to the outside, each with a null and a faulty twin |
//!
//! Lock order: object content lock, object writeback lock, object syncing lock, source root, core lock, object dirty set.
//! No lock but an object's own is held during I/O, and that of the source root while all of it is synced.

mod bits;
pub mod check;
pub mod clock;
pub mod config;
mod core;
mod dirt;
pub mod door;
pub mod fault;
mod frames;
mod idle;
pub mod io;
pub mod lru;
mod metadata;
pub mod namespace;
pub mod object;
mod pagecache;
pub mod pool;
pub mod reclaim;
pub mod recover;
pub mod sample;
pub mod segment;
pub mod source;
pub mod stats;
mod throttle;
pub mod tier;
pub mod trace;
mod trim;
mod vain;
pub mod write;
pub mod writeback;

mod engine;

pub use clock::{Clock, SystemClock};
pub use config::{EngineConfig, IoKind, RING_SLOTS_MAX};
pub use engine::{Door, Engine};
pub use object::{ErrorCursor, Object, ObjectId, ObjectRef};
pub use segment::SegmentHandles;
pub use source::SourceFile;
pub use stats::Stats;
pub use terrace_shm::compress::Mode as Codec;
pub use tier::{Admit, CompressedConfig};
pub use trim::set_up_heap;
