//! A file of the source in the cache: its descriptors and its state.

pub(crate) mod backoff;
pub(crate) mod burst;
pub(crate) mod dirty_pages;
pub(crate) mod errseq;
pub(crate) mod identity;
pub mod object;
pub(crate) mod serve;
pub mod source;
pub(crate) mod source_root;
mod times;
