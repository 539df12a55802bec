//! Format of a device of the tier below DRAM, its reads and writes, and the scan at a start.
//!
//! ```text
//!   scan         which pages of which files a device holds, after any end of the daemon
//!   superblock   whose device it is, how it is divided, whether it was left clean
//!   format       regions, batches, keys: bytes only
//!   medium       one device: reads, writes, flush
//!   target       a file or block device, opened and checked before the mount is made
//! ```
//! Nothing here knows the state of the engine. The rules that a writer keeps are at the top of [`scan`].

pub mod format;
pub(crate) mod io;
pub mod medium;
pub mod scan;
pub(crate) mod set;
#[cfg(any(test, feature = "testing"))]
mod sim;
pub mod superblock;
pub mod target;

pub use format::{
    BATCH_PAGES_MAX, Batch, DATA_AT, Filling, Geometry, PastFilling, RECORDS_MAX, Record, TierId,
};
pub use medium::{FileMedium, Medium, ReadPiece};
pub use scan::{FilledRegion, Owed, OwedFile, Scanned, ScannedFile, region_keys, scan};
#[cfg(any(test, feature = "testing"))]
pub use sim::{SimCall, SimMedium};
pub use superblock::{Found, OwedPages, Source, Superblock};
