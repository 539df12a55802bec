//! The burst buffer: a tier on a device answers fsyncs, and the source gets the pages later.
//!
//! ```text
//!   fsync          answers an fsync, and destages files
//!   base_version   the state of the source under the undestaged pages
//!   spread         divides a burst between target and source
//!   replay         pages that a start or `terrace recover` writes to the source
//! ```

pub(crate) mod base_version;
pub(crate) mod fsync;
pub(crate) mod replay;
pub(crate) mod spread;
