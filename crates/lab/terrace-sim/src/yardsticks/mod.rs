//! Yardsticks for the policies of `terrace-policy`: the kernel's own, in widely used versions.
//!
//! They follow released kernels, `mglru-6.1` and `classic` to within 5 % of the misses of a real one
//! (`gates`); the daemon does not offer them. [`names`], [`canonical`] and [`build`] are those of
//! [`terrace_policy`] with the yardsticks added.

pub mod classic;
pub mod mglru_6_1;
pub mod mglru_7_1;

use terrace_policy::Evict;

/// The kernel's policies, in the order of display.
const YARDSTICKS: [&str; 3] = ["mglru-7.1", "mglru-6.1", "classic"];
/// Their position: behind the kernel's policy that the daemon offers.
const BEHIND: &str = "mglru-fg";

/// All policies that can be simulated, the default first; [`crate::opt`] is not among them.
pub fn names() -> Vec<&'static str> {
    let mut names = terrace_policy::NAMES.to_vec();
    let at = names.iter().position(|name| *name == BEHIND).map_or(names.len(), |at| at + 1);
    names.splice(at..at, YARDSTICKS);
    names
}

/// The policy called `name`, as in [`names`]; `None` for an unknown name.
pub(crate) fn canonical(name: &str) -> Option<&'static str> {
    terrace_policy::canonical(name).or_else(|| YARDSTICKS.into_iter().find(|known| *known == name))
}

/// Builds the policy called `name`, as [`terrace_policy::build`] does; `None` for an unknown name.
pub fn build(name: &str, slots_max: usize, capacity: usize) -> Option<Box<dyn Evict>> {
    Some(match name {
        "mglru-7.1" => Box::new(mglru_7_1::Mglru71::new(slots_max, capacity)),
        "mglru-6.1" => Box::new(mglru_6_1::Mglru61::new(slots_max, capacity)),
        "classic" => Box::new(classic::Classic::new(slots_max, capacity)),
        _ => return terrace_policy::build(name, slots_max, capacity),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yardsticks_are_what_the_daemon_lacks() {
        let simulated: Vec<&str> = terrace_policy::SIMULATED.iter().map(|(name, _)| *name).collect();
        assert_eq!(simulated, YARDSTICKS);
        let names = names();
        assert_eq!(names.len(), terrace_policy::NAMES.len() + YARDSTICKS.len());
        assert_eq!(names[..3], ["strata", "mglru-fg", "mglru-7.1"]);
        for name in names {
            assert_eq!((canonical(name), build(name, 1, 1).unwrap().name()), (Some(name), name));
        }
        assert_eq!(canonical("mglru"), Some("mglru-fg"));
        assert!(canonical("nonesuch").is_none() && build("nonesuch", 1, 1).is_none());
    }
}
