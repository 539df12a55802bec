//! The registry of eviction policies by name.

use crate::evict::Evict;
use crate::list::SLOTS_MAX;
use crate::policies;

/// The names accepted by [`build`], the default first.
pub const NAMES: &[&str] =
    &["strata", "mglru-fg", "clock", "lru", "fifo", "2q", "s3fifo", "sieve", "arc", "lirs", "w-tinylfu"];

/// Aliases, each with the policy's name.
pub const ALIASES: &[(&str, &str)] = &[("mglru", "mglru-fg")];

/// Policies that exist in the simulator (`terrace-sim`) only, each with its substitute.
pub const SIMULATED: &[(&str, &str)] =
    &[("mglru-7.1", "mglru-fg"), ("mglru-6.1", "mglru-fg"), ("classic", "2q")];

/// The policy called `name`, as in [`NAMES`]; `None` for an unknown name.
pub fn canonical(name: &str) -> Option<&'static str> {
    let meant = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, meant)| meant);
    NAMES.iter().find(|known| **known == meant).copied()
}

/// Whether the policy called `name` leaves shadows for evicted pages ([`Evict::shadow`]).
pub fn has_ghost(name: &str) -> bool {
    build(name, 64, 64).is_some_and(|mut policy| policy.shadow().is_some())
}

/// Builds the policy called `name` for slots below `slots_max` and a pool of `capacity` pages; `None` for an
/// unknown name. Memory is allocated for `slots_max` at once, but touched only as slots are used.
pub fn build(name: &str, slots_max: usize, capacity: usize) -> Option<Box<dyn Evict>> {
    assert!(slots_max <= SLOTS_MAX, "slots_max {slots_max} over {SLOTS_MAX}");
    Some(match canonical(name)? {
        "strata" => Box::new(policies::strata::Strata::new(slots_max, capacity)),
        "mglru-fg" => Box::new(policies::mglru_fg::MglruFg::new(slots_max, capacity)),
        "clock" => Box::new(policies::clock::Clock::build(slots_max)),
        "fifo" => Box::new(policies::fifo::Fifo::build(slots_max)),
        "2q" => Box::new(policies::two_q::TwoQ::build(slots_max, capacity)),
        "s3fifo" => Box::new(policies::s3fifo::S3Fifo::build(slots_max, capacity)),
        "arc" => Box::new(policies::arc::Arc::build(slots_max, capacity)),
        "lirs" => Box::new(policies::lirs::Lirs::build(slots_max, capacity)),
        "w-tinylfu" => Box::new(policies::w_tinylfu::WTinyLfu::build(slots_max, capacity)),
        "sieve" => Box::new(policies::sieve::Sieve::build(slots_max)),
        "lru" => Box::new(policies::lru::Lru::build(slots_max)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_stand_for_policies() {
        assert_eq!(canonical("mglru"), Some("mglru-fg"));
        assert_eq!((canonical("lru"), canonical("nonesuch")), (Some("lru"), None));
        for (alias, meant) in ALIASES {
            assert_eq!(build(alias, 1, 1).unwrap().name(), *meant);
            assert!(!NAMES.contains(alias));
        }
        for (name, instead) in SIMULATED {
            assert_eq!((canonical(name), canonical(instead)), (None, Some(*instead)));
        }
    }
}
