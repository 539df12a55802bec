//! Eviction policies, one algorithm a file.

pub mod arc;
pub mod clock;
pub mod fifo;
pub mod lirs;
pub mod lru;
pub mod mglru;
pub mod mglru_fg;
pub mod s3fifo;
pub mod sieve;
pub mod strata;
pub mod two_q;
pub mod w_tinylfu;
