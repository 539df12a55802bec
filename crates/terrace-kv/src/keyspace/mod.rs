//! Keys with types and expiry times over a store of blobs.
//!
//! ```text
//!  command ──► hold(keys): locks of their stripes, in order ──► Held: read, write, remove, open a collection
//!         └──► read_string, read_compact: no lock, the store's reads are atomic
//! ```
//! A command that reads and then writes locks the stripes of its keys. Commands on several keys (MSET,
//! RENAME) do so, too. The store itself is never locked: the engine's threads and other connections go on.

mod ahead;
pub mod chain;
pub mod collection;
pub mod compact;
mod deadlines;
mod expiry;
pub mod hash;
mod held;
mod ladder;
mod pieces;
#[cfg(test)]
mod pieces_tests;
mod reads;
mod record;
mod space;
mod stripe;
mod superseded;
pub mod word;
pub mod zset;

pub use held::Held;
pub use reads::Compact;
pub use record::{FieldRecord, fields};
pub use space::{Clock, Counters, Keyspace, system_clock};
