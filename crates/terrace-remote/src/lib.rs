//! A target of the tiers in an object store (S3) or in a directory that several machines see, through Apache OpenDAL.
//!
//! ```text
//!   target     opens and checks it before the mount is made
//!   medium     regions as objects: what the engine reads and writes; what is not in the store yet is in memory
//!   uploader   the thread that brings it there, in order, and finds out whether the store works again
//!   lease      one instance a target
//!   store      objects by name; the only file that knows OpenDAL and its runtime
//!   location   s3://... and fs://...
//! ```
//! ```text
//!   s/superblock-a, s/superblock-b        a page each, as on a device
//!   r/REGION-SEQUENCE-RANDOM              the batches of a region so far; of several the highest sequence counts
//!   lock/NUMBER                           who uses the target; the highest number counts
//! ```
//! **No name is written twice** but those of superblocks and locks: a request that a client has given up for lost may still reach the store, long after others,
//! and must not replace what was written since.
//!
//! **The order of writes is kept.** One thread does them, one after the other. So what is in the store is at all times what a device would hold that was cut off
//! from power at some earlier time, and the format needs nothing more than it does there ([`terrace_engine::device::scan`]).

mod lease;
mod location;
mod medium;
mod shared;
mod store;
mod target;
mod uploader;

pub use medium::RemoteMedium;
pub use target::{Look, Target, count, empty, look, open};
