//! Eviction policies, one algorithm a file.

pub mod clock;
pub mod lru;
pub mod mglru;

pub mod strata;

/// Slots a policy can be built for: numbers above are needed as list ends.
pub const SLOTS_MAX: usize = u32::MAX as usize - 64;

#[cfg(test)]
mod testing;
