//! Files that programs write while they are served: each program of the run announces its writes.
//!
//! | module | what |
//! |---|---|
//! | [`files`] | the served files: added, given up, looked at for changes without an announcement |
//! | [`file`](mod@file) | one file, and its attributes at the last look |
//!
//! The user states that only programs of the run write below the directory (`terrace run --exclusive`). The
//! engine withdraws the pages of announced writes (`terrace_shm::writes`).

mod file;
mod files;

pub use files::{AnnouncedFiles, Counts, descriptors};
