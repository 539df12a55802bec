//! Requests of programs: reads, writes, syncs, and their parts.

pub(crate) mod decompress;
pub(crate) mod fault;
pub(crate) mod fetch;
pub(crate) mod objects;
mod pass_on;
pub(crate) mod prefetch;
pub(crate) mod promote;
pub(crate) mod read;
pub(crate) mod recover;
pub(crate) mod resize;
pub(crate) mod sync;
pub(crate) mod throttle;
pub(crate) mod write;
pub(crate) mod writeback;
