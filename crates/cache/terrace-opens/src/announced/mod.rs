//! Files that programs write while they are served: each program of the run announces its writes.
//!
//! | module | what |
//! |---|---|
//! | [`files`] | the served files: added, given up, looked at for changes without an announcement |
//! | [`file`](mod@file) | one file, and its attributes at the last look |
//! | [`guarded`] | leases for files without writers, announced writes for the others, fanotify for strangers |
//!
//! The engine withdraws the pages of announced writes (`terrace_shm::writes`). Other writers are excluded in one
//! of two ways: the user states that only programs of the run write (`terrace run --exclusive`), or fanotify
//! shows each open ([`guarded`]).

mod file;
mod files;
mod guarded;

pub use files::{AnnouncedFiles, Counts, descriptors};
pub use guarded::GuardedFiles;
