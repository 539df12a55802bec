//! Inodes and open handles: the tables, and their parts that outlive a crash of the daemon.

pub(crate) mod durable;
pub(crate) mod handle;
pub(crate) mod identity;
pub(crate) mod journal;
pub(crate) mod node;
mod path;
pub(crate) mod place;
pub(crate) mod possibly_mapped;
pub(crate) mod stream;
pub(crate) mod table;
pub(crate) mod watch;

pub(crate) use node::{Inode, Life, SourceState};
pub(crate) use table::InodeTable;

/// The node id of the root, and the inode number it reports.
pub const ROOT: u64 = 1;
