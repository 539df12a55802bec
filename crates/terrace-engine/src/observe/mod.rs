//! Views and checks of a live instance.

pub(crate) mod check;
pub mod earning;
mod lanes;
pub mod lru;
pub mod mrc;
pub(crate) mod stat;
pub mod tiers;
pub mod trace;
