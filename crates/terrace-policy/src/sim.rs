//! The cache of a simulation: drives a policy over a stream of page keys and counts misses.
//!
//! Residency and shadows live in one hash table; everything else is the policy object itself, the very one the
//! engine runs. [`Mode`] says how it is told about hits.

use crate::keys::KeyMap;
use crate::{Evict, Shadow, Slot, Victim, Why};

/// How hits reach the policy and when victims are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As papers do: every hit is told (`accessed`, besides the touch table), one victim is taken at each miss on
    /// a full pool.
    Exact,
    /// As the engine does: hits only bump the touch table, and batches of victims are taken ahead of demand, so
    /// that the pool is always a little under full.
    Sampled {
        /// Victims asked for at once, an eighth of the pool at most.
        batch: usize,
    },
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Requests in the trace.
    pub requests: u64,
    /// Those that found their page absent.
    pub misses: u64,
    /// Pages evicted.
    pub evictions: u64,
}

impl Outcome {
    /// Misses a request.
    pub fn miss_ratio(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.misses as f64 / self.requests as f64 }
    }
}

#[derive(Clone, Copy)]
enum Entry {
    Resident(Slot),
    Absent(Option<Shadow>),
}

/// Runs `policy`, freshly built for `capacity` slots or more, over `trace`.
pub fn run(
    policy: &mut dyn Evict,
    trace: impl IntoIterator<Item = u64>,
    capacity: usize,
    mode: Mode,
) -> Outcome {
    assert!(capacity > 0, "a pool has at least one page");
    let (batch, free_min) = match mode {
        Mode::Exact => (1, 0),
        Mode::Sampled { batch } => (batch.clamp(1, capacity.div_ceil(8)), (batch / 2).min(capacity / 32)),
    };
    let mut index: KeyMap<Entry> = KeyMap::default();
    let mut touches = vec![0u8; capacity];
    let mut keys = vec![0u64; capacity];
    let mut free: Vec<Slot> = (0..capacity as Slot).rev().collect();
    let mut victims: Vec<Victim> = Vec::new();
    let mut outcome = Outcome::default();

    for key in trace {
        outcome.requests += 1;
        let shadow = match index.get(&key) {
            Some(&Entry::Resident(slot)) => {
                touches[slot as usize] = touches[slot as usize].saturating_add(1);
                if mode == Mode::Exact {
                    policy.accessed(slot);
                }
                continue;
            }
            Some(&Entry::Absent(shadow)) => shadow,
            None => None,
        };
        outcome.misses += 1;
        while free.len() <= free_min {
            policy.victims(batch, &mut touches, &mut victims);
            assert!(!victims.is_empty(), "{}: no victim among {} pages", policy.name(), policy.resident());
            for victim in victims.drain(..) {
                outcome.evictions += 1;
                index.insert(keys[victim.slot as usize], Entry::Absent(victim.shadow));
                free.push(victim.slot);
            }
        }
        let slot = free.pop().expect("reclaim left a free slot");
        keys[slot as usize] = key;
        index.insert(key, Entry::Resident(slot));
        policy.key(slot, key);
        policy.insert(slot, shadow, Why::Read, &mut touches);
    }
    outcome
}
