//! What is shown of a live instance, and what is checked in it.

pub mod check;
pub mod lru;
pub mod mrc;
pub mod trace;
