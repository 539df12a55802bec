//! A file of the source as the cache knows it: its descriptors, and what is kept about it.

pub(crate) mod backoff;
pub mod object;
pub mod source;
