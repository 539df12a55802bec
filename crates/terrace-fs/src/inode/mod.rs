//! Inodes and open handles: the tables, and what of them outlives a crash of the daemon.

pub(crate) mod durable;
pub(crate) mod handle;
pub(crate) mod journal;
mod path;
pub(crate) mod stream;
pub(crate) mod table;
pub(crate) mod unsettled;

pub use table::ROOT;
pub(crate) use table::{Inode, InodeTable, Life, Look};
