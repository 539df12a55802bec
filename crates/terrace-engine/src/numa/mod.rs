//! Threads to their data, on Linux: [`topology`] reads the machine, `observe` what threads do, `terrace_policy::numa` decides, [`act`]
//! moves threads and gives them their processors back; `service` is the daemon's thread.

pub mod act;
mod chunks;
mod observe;
mod saved;
mod service;
mod threads;
pub mod topology;

pub use saved::restore;
pub(crate) use service::Service;
