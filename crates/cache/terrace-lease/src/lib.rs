//! Files served without a mount: programs use the source directory itself. With the preload library they read
//! large files from the segment while no program has the file open for writing.
//!
//! | module | what |
//! |---|---|
//! | [`leases`] | the served files: added, left to the kernel while they are written, given up |
//! | [`file`](mod@file) | one file: its lease, its object, its attributes when the lease was broken |
//! | [`lease`] | the kernel's read leases (fcntl(2), "Leases") |
//! | [`guard`] | the futex word that shows clients whether a process still keeps the leases |
//!
//! Leases report the opens that a mount sees. An open for writing (or a truncate) of a leased file waits
//! until this daemon returns the lease. The daemon first sends the file's clients to the source. The kernel
//! gives no lease on a file that is open for writing or mapped writable. So while a lease is held, no program
//! can write the file, and the cached pages stay valid.

mod file;
pub mod guard;
mod lease;
mod leases;

pub use lease::is_leased;
pub use leases::{Counts, Leases};
pub use terrace_shm::program;
