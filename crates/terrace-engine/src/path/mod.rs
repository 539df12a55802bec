//! What programs ask for: reads, writes, syncs, and what these need.

pub mod read;
pub mod recover;
pub mod resize;
pub(crate) mod throttle;
pub mod write;
pub mod writeback;
