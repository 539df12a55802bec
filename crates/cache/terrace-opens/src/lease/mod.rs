//! The kernel's leases: an open for writing waits until the daemon returns the lease.
//!
//! | module | what |
//! |---|---|
//! | [`leases`] | the served files: added, left to the kernel while they are written, given up |
//! | [`file`](mod@file) | one file: its lease, its object, its attributes when the lease was broken |
//! | [`fcntl`] | the kernel's read leases (fcntl(2), "Leases") |
//! | [`holder_word`] | the futex word that shows clients whether a process still keeps the leases |

mod fcntl;
mod file;
pub mod holder_word;
mod leases;

pub use fcntl::is_leased;
pub(crate) use fcntl::{is_held, is_written};
pub(crate) use leases::reopen;
pub use leases::{Counts, Leases};
