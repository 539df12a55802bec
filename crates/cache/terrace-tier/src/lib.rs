//! A tier on devices below memory: its format, its I/O, and the scan at a start.
//!
//! ```text
//!   scan         finds the valid pages on a device after a stop, a crash or a power cut
//!   io, set      a target in use with its single writer; all targets in use
//!   target       a file or block device, opened and checked before the mount is made
//!   superblock   owner, division and clean flag of a device
//!   table        slots of a target, in memory files that clients map
//!   medium       one device: reads, writes, flush
//!   format       regions, batches, keys: bytes only
//!   config       a target, as its users describe it
//!   naming       names of files over restarts
//! ```
//! It stands on `terrace-io`, `terrace-shm` (slot tables), `terrace-policy` (cost of a read), `terrace-sync` and
//! `terrace-system`. It does not know the engine's state. The writer's rules stand at the top of `scan`.

mod config;
pub mod format;
mod io;
mod medium;
mod naming;
mod scan;
mod set;
#[cfg(any(test, feature = "testing"))]
mod sim;
pub mod superblock;
mod table;
pub mod target;

pub use config::{Access, DeviceConfig};
pub use format::{Batch, DATA_AT, Filling, Geometry, Record, TierId};
pub use io::{DeviceIo, Writer};
pub use medium::{FileMedium, Medium, ReadPiece};
pub use naming::Naming;
pub use scan::{
    FilledRegion, Scanned, ScannedFile, Undestaged, UndestagedFile, WriteIntents, region_keys, scan,
};
pub use set::Devices;
#[cfg(any(test, feature = "testing"))]
pub use sim::{SimCall, SimMedium};
pub use superblock::{Found, Source, Superblock, UndestagedMark};
pub use table::TargetTable;
