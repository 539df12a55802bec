//! Keys with types and expiry times over a store of blobs.
//!
//! ```text
//!  command ──► lock_keys(keys): locks of their stripes, in order ──► LockedKeys: read, write, remove, open a collection
//!         └──► read_string, read_compact: no lock, the store's reads are atomic
//! ```
//! A command that reads and then writes locks the stripes of its keys. Commands on several keys (MSET,
//! RENAME) do so, too. The store itself is never locked: the engine's threads and other connections go on.

pub mod collection;
pub mod compact;
mod dead_records;
mod deadlines;
mod expiry;
pub mod hash;
mod locked_keys;
mod lookup_prefetch;
mod rank_index;
mod reads;
mod record;
pub mod segment_list;
mod segments;
#[cfg(test)]
mod segments_tests;
mod space;
mod stripe;
pub mod word;
pub mod zset;

pub use locked_keys::LockedKeys;
pub use reads::Compact;
pub use record::{FieldRecord, fields};
pub use space::{Clock, Counters, Keyspace, system_clock};
