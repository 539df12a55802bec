//! Requests of programs: reads, writes, syncs, and their parts.

pub(crate) mod ahead;
pub(crate) mod base;
pub(crate) mod burst;
pub(crate) mod decompress;
pub(crate) mod fetch;
pub mod flusher;
pub(crate) mod follow;
pub(crate) mod markers;
pub(crate) mod objects;
pub(crate) mod park;
pub(crate) mod permit;
pub(crate) mod prefetch;
pub(crate) mod promote;
pub mod read;
pub mod recover;
pub mod replay;
pub(crate) mod resize;
pub(crate) mod spread;
pub(crate) mod sync;
pub(crate) mod throttle;
pub(crate) mod trouble;
pub(crate) mod write;
pub(crate) mod writeback;
