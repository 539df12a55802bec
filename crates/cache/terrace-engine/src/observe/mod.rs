//! Observation of a live engine: statistics, lists of the policy, recordings, estimates, consistency checks.

pub(crate) mod check;
pub(crate) mod earning;
mod lanes;
pub mod lru;
pub(crate) mod mrc;
pub(crate) mod stat;
pub(crate) mod tiers;
pub mod trace;
