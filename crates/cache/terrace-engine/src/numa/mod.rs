//! NUMA placement of threads: [`topology`] reads the machine, `observe` measures threads,
//! `terrace_policy::numa` decides, [`act`] moves threads and restores their masks. `service` is the daemon's
//! thread for all of this.

pub mod act;
mod chunks;
mod observe;
mod saved;
mod service;
mod threads;
pub mod topology;

pub use saved::restore;
pub(crate) use service::Service;
