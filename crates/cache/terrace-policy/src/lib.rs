//! Decisions of the terrace page cache, above all which pages to keep and which to evict.
//!
//! This crate does no I/O, reads no clock, starts no thread and holds no page. A policy knows *slots* (frame
//! numbers) and a *touch table* (how often each slot was used since the last look). It returns lists of
//! victims, and the engine evicts them. The simulator (`terrace-sim`) runs the same objects.
//!
//! ```text
//!            engine or simulator                       policy
//!   fault    insert(slot, shadow, reason) ───────────► a list
//!   hit      one store into the touch table            (no call)     
//!   reclaim  victims(64) ────────────────────────────► reads touches, moves pages, picks
//!            page dropped: its shadow stays in the index entry (32 bits)
//!            page dirty or pinned: restore(slot) ────► held back for a while
//! ```
//!
//! All calls come from one thread at a time (the owner wraps the policy in its own lock).
#![forbid(unsafe_code)]

pub mod balancer;
pub mod device;
mod evict;
pub mod follow;
mod keys;
pub mod list;
pub mod memory;
pub mod minisim;
pub mod mrc;
pub mod numa;
pub mod placement;
pub mod policies;
pub mod prefetch;
mod queue_policy;
mod registry;
mod stack;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use evict::{
    AccessCounts, Evict, Generation, InsertReason, Position, Refaults, Shadow, Slot, Tier, Victim,
};
pub use keys::mix;
pub use list::SLOTS_MAX;
pub use registry::{ALIASES, NAMES, SIMULATED, build, canonical, has_ghost};
