//! Tier targets in an object store (S3) or in a directory shared by several machines, through Apache OpenDAL.
//!
//! ```text
//!   target     opens and checks a target before its use
//!   medium     regions as objects: reads and writes of the engine; regions not yet stored are in memory
//!   uploader   the thread that writes to the store, in order, and probes a failed store
//!   lease      exclusive use of a target
//!   store      objects by name; the only file that knows OpenDAL and its runtime
//!   location   s3://... and fs://...
//! ```
//! ```text
//!   s/superblock-a, s/superblock-b        a page each, as on a device
//!   r/REGION-SEQUENCE-RANDOM              the batches of a region so far; the highest sequence counts
//!   lock/NUMBER                           the instance that uses the target; the highest number counts
//! ```
//! **No name is written twice**, except those of superblocks and locks. A request that the client has given
//! up may reach the store much later. It must not replace newer content.
//!
//! **The order of writes is kept.** One thread writes one object after the other. So the store's content
//! always equals that of a device after an earlier power cut. The device's format therefore suffices
//! ([`terrace_tier::scan`]).

mod lease;
mod location;
mod medium;
mod shared;
mod store;
mod target;
mod uploader;

pub use medium::RemoteMedium;
pub use target::{Inspection, Target, count, empty, look, open};
