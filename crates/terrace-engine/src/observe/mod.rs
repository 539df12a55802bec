//! What is shown of a live instance, and what is checked in it.

pub(crate) mod check;
pub mod lru;
pub mod mrc;
pub(crate) mod stat;
pub mod trace;
