//! Placement engines: they divide a batch of new data among several targets.
//!
//! | engine | rule | minimises |
//! |---|---|---|
//! | [`round-robin`](round_robin) | the next target that has room for the piece | - |
//! | [`random`](random) | a target at random, else the next that has room | - |
//! | [`min-io-sum`](min_io_sum) | the fastest target until it is full, then the next | the sum of the targets' times |
//! | [`min-io-time`](min_io_time) | every target for the same time, as far as it has room | the time of the slowest target |
//!
//! Targets work in parallel, and a program waits for the slowest of them: hence the default. Source of the
//! first three: Hermes' data placement engines (Kougkas, Devarajan, Sun: HPDC 2018). Its costs depend on the
//! target alone, so the greedy choice is optimal.
//!
//! [`levels`] sorts targets into tiers.

pub mod levels;
pub mod min_io_sum;
pub mod min_io_time;
pub mod random;
pub mod round_robin;
mod target;

pub use target::{CUT, Placement, Share, Target};

/// Names of the engines, the default first.
pub const NAMES: &[&str] = &["min-io-time", "min-io-sum", "round-robin", "random"];

/// The engine called `name`; `seed` is for `random`. None: unknown name.
pub fn build(name: &str, seed: u64) -> Option<Box<dyn Placement>> {
    Some(match name {
        "round-robin" => Box::new(round_robin::RoundRobin::default()),
        "random" => Box::new(random::Random::new(seed)),
        "min-io-sum" => Box::new(min_io_sum::MinIoSum),
        "min-io-time" => Box::new(min_io_time::MinIoTime),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_has_its_name() {
        for name in NAMES {
            assert!(build(name, 1).is_some(), "{name}");
        }
        assert!(build("nonesuch", 1).is_none());
    }
}
