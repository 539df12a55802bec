//! Inodes and open handles: the tables, and what of them outlives a crash of the daemon.

pub(crate) mod durable;
pub(crate) mod handle;
pub(crate) mod journal;
mod path;
pub(crate) mod stream;
mod table;

pub use table::ROOT;
pub(crate) use table::{Inode, InodeTable, Life, Look};
