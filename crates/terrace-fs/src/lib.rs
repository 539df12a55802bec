//! The file system: what a mount over a source directory answers to the kernel.
//!
//! It maps the kernel's node ids to inodes of the source directory, does every operation on names and attributes with
//! the source file system's own system calls, and hands content to the page cache. Everything is relative to one
//! O_PATH descriptor an inode, so that renames from any side cannot lead it astray.
//!
//! Authority: names, owners, modes, links and extended attributes are the source's; content, size and mtime are the page
//! cache's while it holds something newer. The kernel in front may cache attributes and names for long, since all
//! changes pass through it; a source changed behind the mount's back is noticed when a file is opened.
//!
//! From the top down; nothing imports what stands above it.
//!
//! | file | what |
//! |---|---|
//! | [`fuse`] | the kernel's requests, each one call of [`Namespace`]; all that knows FUSE |
//! | `cache` | the engine as the namespace's page cache |
//! | `pressure/shrink` | when descriptors become few |
//! | `pressure/deleted` | files deleted behind the mount that cannot be written |
//! | `ops/make`, `ops/remove` | operations that change names |
//! | `ops/dir`, `ops/file`, `ops/xattr` | listings, content, extended attributes |
//! | `ops/stage`, `ops/hold` | parts of files brought here, and files known, before a program needs them |
//! | `ops/lookup`, `ops/change` | names to inodes, attributes; changes of attributes |
//! | `namespace` | the tables put together, recovery, the end of an inode |
//! | `ops/creds` | acting for the caller |
//! | `inode/handle`, `inode/stream`, `inode/table` | tables of what is open and what the kernel knows |
//! | `inode/journal`, `inode/durable` | what a restarted daemon needs |
//! | `pressure`, [`limits`], `pressure/heap` | how full the tables are, descriptors, memory that a burst leaves behind |
//! | `crossings` | mounts of terrace that are not entered |
//! | `coherence` | writes that the kernel's own page cache may not show |
//! | `page_cache`, `kernel` | the two sides that the namespace stands between |
//! | `made_up` | files with a size other than the length of their content |
//! | `attr`, `error` | plain data |

// Helpers that the tests of requests by hand share with those through a mount use this name.
#[cfg(test)]
extern crate self as terrace_fs;

mod attr;
mod cache;
mod coherence;
mod crossings;
mod error;
pub mod fuse;
mod inode;
mod kernel;
mod made_up;
mod namespace;
mod ops;
mod page_cache;
mod pressure;
#[cfg(test)]
mod tests;

pub use attr::{Attr, Kind, Time};
pub use crossings::Crossings;
pub use error::{Error, Result};
pub use inode::ROOT;
pub use inode::durable::{DurableLayout, DurableRegion, descriptors_named};
pub use inode::journal::Op;
pub use kernel::{Caller, Kernel};
pub use namespace::{Namespace, NamespaceConfig};
pub use ops::change::{SetAttr, SetTime};
pub use ops::dir::{Listed, ListedPlus};
pub use ops::file::{Opened, WriteKind, Written};
pub use ops::hold::Held;
pub use ops::lookup::Entry;
pub use ops::stage::{drop_content, pin, stage, stage_down};
pub use page_cache::{CachedFile, PageCache};
pub use pressure::heap::set_up_heap;
pub use pressure::limits;
