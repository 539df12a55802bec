//! Buckets of blobs on the cache engine: a store in the program itself, or the server's.
//!
//! A store is two hidden files of a directory. `.NAME.heap` holds the bytes of blobs; it is an object of the engine, so that DRAM, the
//! compressed tier, a tier on a device, writeback and the limit of memory are the engine's. `.NAME.names` is the record log: each change of a
//! bucket or blob is one record, and the index in memory is rebuilt from it (Sheehy, Smith: Bitcask, 2010). The log is read once, at a start, and
//! does not go through the cache.
//!
//! From the top down; no file imports one above it.
//!
//! | files | job |
//! |---|---|
//! | `store`, `bucket` | what programs call |
//! | `ops/` | one operation a file: put, change in part, get, fetch ahead, remove, move; files of buckets that persist |
//! | `open/` | a start: files, locks, replay of the log, which records are believed |
//! | `durable/` | syncs (group commit), the log written anew, the thread that does both |
//! | `state` | what all of them share |
//! | `index/` | names of buckets, their tables of blobs |
//! | `walks` | walks through names in pieces |
//! | `heap`, `space/` | the file of bytes, and which parts of it are free |
//! | `log`, `tail`, `record` | the record log, its last part in the segment, the format of records |
//! | `options`, `error`, `segment` | plain data |
//!
//! **What is kept.** A whole put never changes bytes in place: it writes a new extent, then a record, and the old extent becomes free for others
//! when the record is durable. After a power cut the store holds a prefix of all changes, at least up to the last sync. A store whose
//! [`Segment`] a parent process holds loses nothing acknowledged when the process that uses it is killed. **A store embedded in a single
//! program has no such parent: what was not synced can be lost when that program is killed**; what was synced is kept.
//!
//! Lock order: names of buckets, what is kept of walks, tables of a bucket (in order), the log's end, the log's file; the engine's state, the allocator.

mod allocated;
mod bucket;
mod durable;
mod error;
mod heap;
mod index;
mod log;
mod open;
mod ops;
mod options;
mod owner;
pub mod record;
mod records;
mod segment;
mod space;
mod state;
mod store;
mod tail;
mod walks;
mod warm;

pub use bucket::Bucket;
pub use error::{Error, Result};
pub use index::{Expect, Stat, Version};
pub use ops::prefetch::Wanted;
pub use options::{StoreOptions, SyncPolicy};
pub use segment::Segment;
pub use store::{Store, Usage};
pub use terrace_engine::{CompressedConfig, DeviceConfig, EngineConfig, IoKind, prefetch};
pub use walks::{Rest, Walks, fetched};
