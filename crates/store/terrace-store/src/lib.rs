//! A store: buckets of blobs on the cache engine. It runs in the program itself or in the key-value server.
//!
//! A store is two hidden files of a directory, and two more for its journal while it is open. `.NAME.heap`
//! holds the bytes of blobs. It is an object of the engine, with the engine's tiers, writeback and memory
//! limit. `.NAME.names` is the record log: one record for each change of a bucket or blob (Sheehy, Smith:
//! Bitcask, 2010). A start reads the log once, past the cache, and rebuilds the index from it.
//!
//! Modules from the top down. No file imports one above it.
//!
//! | files | job |
//! |---|---|
//! | `store`, `bucket` | the public interface |
//! | `owner` | lifetime of an open store and its threads |
//! | `ops/` | one operation a file: put, partial change, get, prefetch, remove, rename; persistent files |
//! | `open/` | a start: files, locks, replay of the log, choice of the records to trust |
//! | `durable/`, `warm` | syncs (group commit), log compaction, the thread that does both; read-ahead of the heap |
//! | `state` | shared state of an open store |
//! | `index/` | names of buckets, their tables of blobs |
//! | `scan_cache` | scans through unordered names, piece by piece |
//! | `heap` | the heap file, with the bytes of blobs |
//! | `log`, `records`, `tail` | the record log, its reader, its unwritten tail in the segment |
//! | `journal` | heap bytes since the last sync, in the kernel's page cache |
//! | `space/` | the allocator of the heap's room |
//! | `record` | the record format |
//! | `options`, `error`, `segment`, `write`, `fork`, `allocated` | plain data; writes of whole buffers; the process that opened a store; sizes of allocations |
//!
//! **Durability.** A whole put never changes bytes in place: it writes a new extent, then a record. The old
//! extent is reused once the record is durable. After a power cut the store holds a prefix of all changes, at
//! least up to the last sync. A kill of all its processes loses no acknowledged change: the kernel holds the
//! log and the journal. If a parent process holds the [`Segment`], the next process also starts warm.
//!
//! Lock order: names of buckets, kept rests of scans, tables of a bucket (in order), the log's end, the log's
//! file, the journal; the engine's state, the allocator.

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
mod record;
mod records;
mod scan_cache;
mod segment;
mod space;
mod state;
mod store;
mod tail;
mod warm;
mod write;

pub use bucket::Bucket;
pub use error::{Error, Result};
pub use index::{Expect, Stat, Version};
pub use ops::prefetch::Wanted;
pub use options::{StoreOptions, SyncPolicy};
pub use scan_cache::{ScanCache, ScanRemainder, fetched};
pub use segment::Segment;
pub use store::{Store, Usage};
pub use terrace_engine::{CompressedConfig, EngineConfig, IoKind, prefetch};
