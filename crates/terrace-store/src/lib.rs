//! Buckets of blobs on the cache engine: a store in the program itself, or the server's.
//!
//! A store is two hidden files of a directory, and while it is open two more for its journal. `.NAME.heap` holds the bytes of blobs; it is an object of the engine, so that DRAM, the
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
//! | `journal` | bytes since the last sync, in the kernel |
//! | `options`, `error`, `segment`, `write`, `fork` | plain data; writes of whole buffers; the process that opened a store |
//!
//! **What is kept.** A whole put never changes bytes in place: it writes a new extent, then a record, and the old extent becomes free for others
//! when the record is durable. After a power cut the store holds a prefix of all changes, at least up to the last sync. When all processes that use it are
//! killed it loses nothing acknowledged: the kernel holds the log and the journal. Where a parent process holds the [`Segment`], the next process is warm, too.
//!
//! Lock order: names of buckets, what is kept of walks, tables of a bucket (in order), the log's end, the log's file, the journal; the engine's state, the allocator.

mod allocated;
mod bucket;
mod durable;
mod error;
mod fork;
mod heap;
mod index;
mod journal;
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
mod write;

pub use bucket::Bucket;
pub use error::{Error, Result};
pub use index::{Expect, Stat, Version};
pub use ops::prefetch::Wanted;
pub use options::{StoreOptions, SyncPolicy};
pub use segment::Segment;
pub use store::{Store, Usage};
pub use terrace_engine::{CompressedConfig, DeviceConfig, EngineConfig, IoKind, prefetch};
pub use walks::{Rest, Walks, fetched};
