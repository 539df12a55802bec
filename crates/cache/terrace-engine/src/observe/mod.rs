//! Views and checks of a live instance.

pub(crate) mod check;
pub(crate) mod earning;
mod lanes;
pub mod lru;
pub(crate) mod mrc;
pub(crate) mod stat;
pub(crate) mod tiers;
pub mod trace;
