//! The file system: answers the kernel's requests for a mount over a source directory.
//!
//! Node ids of the kernel map to inodes of the source. Operations on names and attributes are system calls on
//! the source; content goes through the page cache. Every inode has an O_PATH descriptor, and all paths are
//! relative to one, so that renames cannot mislead the daemon.
//!
//! Authority: names, owners, modes, links and extended attributes are the source's. Content, size and mtime
//! are the page cache's while it holds something newer. The kernel may cache attributes and names of a
//! watched directory for long (`inode/watch`), and others for a second. An open detects content that was
//! changed behind the mount.
//!
//! From the top down; nothing imports what stands above it.
//!
//! | file | what |
//! |---|---|
//! | [`fuse`] | the kernel's requests, each one call of [`Namespace`]; the only code that knows FUSE |
//! | `cache` | adapter: the engine behind the interface `page_cache` |
//! | `pressure/shrink` | frees descriptors when few are left |
//! | `pressure/deleted` | files deleted behind the mount that cannot be written |
//! | `ops/make`, `ops/remove` | operations that change names |
//! | `ops/dir`, `ops/file`, `ops/xattr` | listings, content, extended attributes |
//! | `ops/stage`, `ops/open_ahead` | staging of content, and files opened ahead of programs |
//! | `ops/lookup`, `ops/change` | names to inodes, attributes; changes of attributes |
//! | `namespace` | the tables put together, recovery, the end of an inode |
//! | `ops/creds` | acting for the caller |
//! | `inode/handle`, `inode/stream`, `inode/table` | open handles, listings, inodes that the kernel knows |
//! | `inode/journal`, `inode/durable` | state that a restarted daemon needs |
//! | `pressure`, [`limits`], `pressure/heap` | fill levels of tables, descriptors, memory left by bursts |
//! | `crossings` | mounts of terrace that are not entered |
//! | `coherence` | writes that reads for the kernel's page cache may have missed |
//! | `page_cache`, `kernel` | the interfaces to the page cache and to the kernel |
//! | `made_up` | files with a size other than the length of their content |
//! | `attr`, `error` | plain data |

// Unit tests and mount tests share helpers, which use this name.
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
pub use ops::lookup::Entry;
pub use ops::open_ahead::OpenedAhead;
pub use ops::stage::{STAGE_BYTES_MAX, drop_content, pin, stage, stage_down};
pub use page_cache::{CachedFile, PageCache};
pub use pressure::heap::set_up_heap;
pub use pressure::limits;
