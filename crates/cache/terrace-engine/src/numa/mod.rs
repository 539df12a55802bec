//! NUMA placement of threads: [`topology`] reads the machine, `observe` measures each thread's traffic with
//! each node, `terrace_policy::numa` decides, [`act`] moves threads and restores their masks. The daemon's
//! thread for this is in `service`.

pub mod act;
mod chunks;
mod observe;
mod saved;
mod service;
mod threads;
pub mod topology;

pub use saved::restore;
pub(crate) use service::Service;
