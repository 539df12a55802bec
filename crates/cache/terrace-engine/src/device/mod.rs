//! Devices of the tiers below DRAM: their format, their I/O, and the scan at a start.
//!
//! ```text
//!   scan         finds the valid pages on a device after a stop, a crash or a power cut
//!   superblock   source, region layout and clean flag of a device
//!   format       regions, batches, keys: bytes only
//!   medium       one device: reads, writes, flush
//!   target       a file or block device, opened and checked before its use
//! ```
//! These files do not depend on the engine's state. The writer's rules stand at the top of [`scan`].

pub mod format;
pub(crate) mod io;
pub mod medium;
pub mod scan;
pub(crate) mod set;
#[cfg(test)]
mod sim;
pub mod superblock;
pub mod target;

pub use format::{
    BATCH_PAGES_MAX, Batch, DATA_AT, Filling, Geometry, PastFilling, RECORDS_MAX, Record, TierId,
};
pub use medium::{FileMedium, Medium, ReadPiece};
pub use scan::{FilledRegion, Scanned, ScannedFile, Undestaged, UndestagedFile, region_keys, scan};
#[cfg(test)]
pub(crate) use sim::{SimCall, SimMedium};
pub use superblock::{Found, Source, Superblock, UndestagedMark};
