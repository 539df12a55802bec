//! The burst buffer: a tier on a device answers fsyncs, and the source gets the pages later.
//!
//! ```text
//!   fsync    answers an fsync, and settles files with the source
//!   base     the state of the source under the tier's pages
//!   spread   divides a burst between tier and source
//!   replay   pages that a start or `terrace recover` writes to the source
//! ```

pub(crate) mod base;
pub(crate) mod fsync;
pub(crate) mod replay;
pub(crate) mod spread;
