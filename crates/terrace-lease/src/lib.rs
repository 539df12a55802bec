//! Files of a directory, served without a mount: programs use the directory itself, and those with the preload library read large files
//! out of the segment for as long as nobody has them open for writing.
//!
//! | module | what |
//! |---|---|
//! | [`leases`] | which files are served: taken into service, left to the kernel while they are written, given up |
//! | [`file`](mod@file) | one file: lease, object, what it was when the lease was broken |
//! | [`lease`] | the kernel's read leases (fcntl(2), "Leases") |
//! | [`guard`] | the word by which clients learn that nobody answers for the leases any more |
//!
//! What a mount sees of opens, the kernel tells by leases. An open for writing (or a truncate) of a file with a read lease waits until
//! this daemon has given the lease back; before that it sends the clients of the file to the source. As long as a lease is held, nobody can
//! have the file open for writing or mapped so, for the kernel gives no lease on such a file: what was read from it stays right.

mod file;
pub mod guard;
mod lease;
mod leases;

pub use lease::is_leased;
pub use leases::{Counts, Leases};
pub use terrace_shm::program;
