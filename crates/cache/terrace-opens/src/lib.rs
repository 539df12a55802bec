//! Knowledge of open files: which programs write a file that is served.
//!
//! | module | what |
//! |---|---|
//! | [`lease`] | files served without a mount while no program has them open for writing: the kernel's leases |
//! | [`announced`] | files served while programs write them: each program announces its writes |
//! | [`guard`] | files that programs write while they are served: fanotify and /proc |
//!
//! Files served without a mount: programs use the source directory itself. With the preload library they read
//! large files from the segment while no program has the file open for writing.
//!
//! Leases report the opens that a mount sees. An open for writing (or a truncate) of a leased file waits
//! until this daemon returns the lease. The daemon first sends the file's clients to the source. The kernel
//! gives no lease on a file that is open for writing or mapped writable. So while a lease is held, no program
//! can write the file, and the cached pages stay valid.

pub mod announced;
pub mod guard;
pub mod lease;

pub use lease::{Leases, holder_word, is_leased};
pub use terrace_shm::program;
