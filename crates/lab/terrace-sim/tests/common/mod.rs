//! Helpers of the simulator's tests: runs of a policy over a trace of keys. Also Belady's optimum, by the
//! policy `opt` and by a plain implementation.

use std::collections::{BTreeSet, HashMap};

use terrace_policy::Evict;
use terrace_sim::opt::{Opt, next_uses};
use terrace_sim::sim::{Ids, Mode, Outcome, run_ids};

/// Numbers of the keys, and how many differ.
fn numbered(trace: &[u64]) -> (Vec<u32>, usize) {
    let mut numbers = Ids::default();
    (trace.iter().map(|&key| numbers.id(key)).collect(), numbers.len())
}

/// Runs `policy`, freshly built for `capacity` slots or more, over `trace`.
pub(crate) fn run(policy: &mut dyn Evict, trace: &[u64], capacity: usize, mode: Mode) -> Outcome {
    let (ids, ids_max) = numbered(trace);
    run_ids(policy, &ids, ids_max, capacity, mode)
}

/// Misses of the policy `opt`.
pub(crate) fn policy_opt_misses(trace: &[u64], capacity: usize) -> u64 {
    let mut opt = Opt::new(capacity, next_uses(&numbered(trace).0));
    let outcome = run(&mut opt, trace, capacity, Mode::Exact);
    opt.check().unwrap();
    outcome.misses
}

/// Misses of Belady's MIN, by a plain implementation.
pub(crate) fn opt_misses(trace: &[u64], capacity: usize) -> u64 {
    let mut next = vec![usize::MAX; trace.len()];
    let mut seen: HashMap<u64, usize> = HashMap::new();
    for i in (0..trace.len()).rev() {
        if let Some(later) = seen.insert(trace[i], i) {
            next[i] = later;
        }
    }
    // Resident pages by their next use; the key separates pages that are never used again.
    let mut by_next: BTreeSet<(usize, u64)> = BTreeSet::new();
    let mut next_of: HashMap<u64, usize> = HashMap::new();
    let mut misses = 0;
    for (i, &key) in trace.iter().enumerate() {
        if let Some(expected) = next_of.remove(&key) {
            by_next.remove(&(expected, key));
        } else {
            misses += 1;
            if next_of.len() == capacity {
                let (_, farthest) = by_next.pop_last().expect("a full pool is not empty");
                next_of.remove(&farthest);
            }
        }
        next_of.insert(key, next[i]);
        by_next.insert((next[i], key));
    }
    misses
}
