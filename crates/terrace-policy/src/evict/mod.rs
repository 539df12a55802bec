//! Eviction policies, one algorithm a file.

pub mod arc;
pub mod classic;
pub mod clock;
pub mod fifo;
pub mod lirs;
pub mod lru;
pub mod mglru;
pub mod mglru_6_1;
pub mod mglru_7_1;
pub mod mglru_fg;
pub mod opt;
pub mod s3fifo;
pub mod sieve;
pub mod strata;
pub mod two_q;
pub mod w_tinylfu;

/// Slots a policy can be built for, 1 TiB of pages: links have 28 bits at the most, and numbers above are list ends.
pub const SLOTS_MAX: usize = (1 << 28) - SENTINELS_MAX;
/// Lists that a policy may have.
pub(crate) const SENTINELS_MAX: usize = 512;

#[cfg(test)]
mod testing;
