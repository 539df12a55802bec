//! The shared segment of terrace: the daemon publishes pages, clients read them without a request.
//!
//! *Picture*: clients are the CPU, the touch table is the page table's accessed bits, the daemon is the
//! kernel's memory manager. Only the daemon changes the index and the frames; clients look up, copy
//! optimistically, check again and touch.
//!
//! | memory file | written by | holds |
//! |---|---|---|
//! | segment | daemon; clients map it read-only | header, object table, index nodes, frames, compressed pages |
//! | touch table | clients and daemon | one saturating count a frame, and some for compressed pages |
//! | ring (one a client process) | that client and daemon | counters, page fills, trace records |
//! | device table | daemon; clients map it read-only | offsets of regions on a target, and checks of pages |
//! | writes | clients; daemon | counts and records of announced writes; counts of applied ones, in a file that clients map read-only |
//! | durable | supervisor and daemon | state for a restarted daemon, beside the segment |
//!
//! This crate has all data that cross a process boundary, with their `unsafe` code. The protocols
//! ([`protocol`]) use plain atomics so that loom can run them.

#[cfg(not(loom))]
pub mod client;
#[cfg(not(loom))]
pub mod codec;
#[cfg(all(feature = "compress", not(loom)))]
pub mod compress;
#[cfg(not(loom))]
pub mod copy;
#[cfg(not(loom))]
pub mod device_table;
pub mod entry;
#[cfg(not(loom))]
pub mod index;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
pub mod map;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
mod nodes;
#[cfg(not(loom))]
mod part;
#[cfg(not(loom))]
pub mod program;
#[cfg(not(loom))]
pub mod proto;
pub mod protocol;
#[cfg(not(loom))]
pub mod reader;
#[cfg(not(loom))]
pub mod ring;
#[cfg(not(loom))]
pub mod scratch;
pub mod sync;
#[cfg(not(loom))]
pub mod touch;
#[cfg(not(loom))]
pub mod trace;
#[cfg(all(feature = "unzstd", not(loom)))]
pub mod unzstd;
#[cfg(not(loom))]
pub mod writes;
#[cfg(not(loom))]
pub mod zobject;
#[cfg(not(loom))]
pub mod zpool;
#[cfg(not(loom))]
pub mod zread;
#[cfg(not(loom))]
mod zspages;

#[cfg(not(loom))]
pub use device_table::DeviceTable;
pub use entry::{Below, DeviceSlot, Entry, State};
#[cfg(not(loom))]
pub use layout::{BLOCK_PAGES, Geometry, Header, ObjectSlot, PAGE_SIZE};
#[cfg(not(loom))]
pub use map::Segment;
#[cfg(not(loom))]
pub use mapping::Mapping;
#[cfg(not(loom))]
pub use touch::TouchTable;
