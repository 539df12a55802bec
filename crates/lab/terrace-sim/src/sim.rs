//! The simulated cache: runs a policy over a stream of page keys and counts misses.
//!
//! Residency and shadows are in one table, as in the engine's index. The rest is the policy object itself,
//! the same that the engine runs. [`Mode`] defines how hits reach it.
//!
//! ```text
//!   keys (u64) ── Ids: open addressing ──► ids 0, 1, 2.. ──► one word an id: slot, or shadow
//! ```
//! Numbering the keys ([`Ids`]) is most of the cost of a simulation, and the same for every policy and size.

use std::num::NonZeroU32;

use terrace_policy::{Evict, InsertReason, Shadow, Slot, Victim};

/// How hits reach the policy, and when victims are requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As in papers: every hit is reported (`accessed`, in addition to the touch table). At a miss on a full
    /// pool the policy is given the incoming page (`faulting`), and evicts one victim.
    Exact,
    /// As in the engine: hits only increase the touch table's counts, and batches of victims are evicted
    /// ahead of demand, so the pool is always a little under full.
    Sampled {
        /// Size of a batch of victims, at most an eighth of the pool.
        batch: usize,
    },
    /// As in the engine while its reclaim thread sleeps: hits only increase the touch table's counts, and a
    /// batch of victims is evicted when no page is free.
    OnDemand {
        /// Size of a batch of victims, at most an eighth of the pool.
        batch: usize,
    },
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Requests in the trace.
    pub(crate) requests: u64,
    /// Requests for an absent page.
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

/// Numbers keys by first occurrence: 0, 1, 2...
#[derive(Clone, Debug)]
pub struct Ids {
    /// Keys with their ids plus one, 0 for an empty bucket; the length is a power of two, and at most half is
    /// used.
    buckets: Vec<(u64, u32)>,
    len: u32,
}

impl Default for Ids {
    fn default() -> Ids {
        Ids { buckets: vec![(0, 0); 1 << 10], len: 0 }
    }
}

impl Ids {
    /// Number of keys so far.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// The number of `key`. Panics at the 2^32nd.
    pub fn id(&mut self, key: u64) -> u32 {
        let mut at = self.home(key);
        loop {
            let (known, id) = self.buckets[at];
            if id == 0 {
                break;
            }
            if known == key {
                return id - 1;
            }
            at = (at + 1) & (self.buckets.len() - 1);
        }
        self.len = self.len.checked_add(1).expect("fewer than 2^32 keys");
        self.buckets[at] = (key, self.len);
        if self.len() * 2 > self.buckets.len() {
            self.grow();
        }
        self.len - 1
    }

    /// Start of the search for a key: multiplied by an odd constant, from the upper bits. Keys are not
    /// adversarial.
    fn home(&self, key: u64) -> usize {
        let mixed = (key ^ key >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> (64 - self.buckets.len().trailing_zeros())) as usize
    }

    fn grow(&mut self) {
        let twice = vec![(0, 0); self.buckets.len() * 2];
        for (key, id) in std::mem::replace(&mut self.buckets, twice) {
            if id != 0 {
                let mut at = self.home(key);
                while self.buckets[at].1 != 0 {
                    at = (at + 1) & (self.buckets.len() - 1);
                }
                self.buckets[at] = (key, id);
            }
        }
    }
}

/// State of one page: a slot in DRAM, a node in the compressed tier, a shadow, or nothing.
#[derive(Clone, Copy, Default)]
pub(crate) struct Entry(u64);

impl Entry {
    const RESIDENT: u64 = 1 << 32;
    const COMPRESSED: u64 = 1 << 33;
    const WAS_HERE: u64 = 1 << 34;

    pub(crate) fn resident(slot: Slot) -> Entry {
        Entry(Entry::RESIDENT | u64::from(slot))
    }

    pub(crate) fn compressed(node: Slot) -> Entry {
        Entry(Entry::COMPRESSED | u64::from(node))
    }

    /// An absent page that was in memory before, without a shadow.
    pub(crate) fn was_here() -> Entry {
        Entry(Entry::WAS_HERE)
    }

    pub(crate) fn absent(shadow: Option<Shadow>) -> Entry {
        Entry(shadow.map_or(0, |shadow| u64::from(shadow.0.get())))
    }

    pub(crate) fn slot(self) -> Option<Slot> {
        (self.0 & Entry::RESIDENT != 0).then_some(self.0 as Slot)
    }

    pub(crate) fn node(self) -> Option<Slot> {
        (self.0 & Entry::COMPRESSED != 0).then_some(self.0 as Slot)
    }

    pub(crate) fn came_before(self) -> bool {
        self.0 != 0
    }

    pub(crate) fn shadow(self) -> Option<Shadow> {
        NonZeroU32::new(self.0 as u32).map(Shadow)
    }
}

/// Runs `policy`, freshly built for `capacity` slots or more, over a trace of numbered keys, all below `ids_max`.
pub fn run_ids(
    policy: &mut dyn Evict,
    trace: &[u32],
    ids_max: usize,
    capacity: usize,
    mode: Mode,
) -> Outcome {
    let mut pool = Pool::new(policy, ids_max, capacity, mode);
    trace.iter().for_each(|&id| pool.request(id));
    pool.outcome
}

/// The pool of a simulation and its index.
pub(crate) struct Pool<'a> {
    pub(crate) policy: &'a mut dyn Evict,
    exact: bool,
    wants_keys: bool,
    pub(crate) batch: usize,
    pub(crate) free_min: usize,
    pub(crate) entries: Vec<Entry>,
    pub(crate) touches: Vec<u8>,
    pub(crate) ids: Vec<u32>,
    pub(crate) free: Vec<Slot>,
    pub(crate) victims: Vec<Victim>,
    outcome: Outcome,
}

impl<'a> Pool<'a> {
    /// An empty pool for ids below `ids_max`.
    pub(crate) fn new(policy: &'a mut dyn Evict, ids_max: usize, capacity: usize, mode: Mode) -> Pool<'a> {
        assert!(capacity > 0, "a pool has at least one page");
        let (batch, free_min) = match mode {
            Mode::Exact => (1, 0),
            Mode::Sampled { batch } => (batch.clamp(1, capacity.div_ceil(8)), (batch / 2).min(capacity / 32)),
            Mode::OnDemand { batch } => (batch.clamp(1, capacity.div_ceil(8)), 0),
        };
        Pool {
            exact: mode == Mode::Exact,
            wants_keys: policy.wants_keys(),
            policy,
            batch,
            free_min,
            entries: vec![Entry::default(); ids_max],
            touches: vec![0; capacity],
            ids: vec![0; capacity],
            free: (0..capacity as Slot).rev().collect(),
            victims: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    fn request(&mut self, id: u32) {
        self.outcome.requests += 1;
        let entry = self.entries[id as usize];
        let Some(slot) = entry.slot() else { return self.fault(id, entry.shadow()) };
        let touches = &mut self.touches[slot as usize];
        *touches = touches.saturating_add(1);
        if self.exact {
            self.policy.accessed(slot);
        }
    }

    fn fault(&mut self, id: u32, shadow: Option<Shadow>) {
        self.outcome.misses += 1;
        if let (true, Some(shadow)) = (self.exact, shadow) {
            self.policy.faulting(shadow);
        }
        while self.free.len() <= self.free_min {
            self.reclaim();
        }
        let slot = self.claim(id);
        self.policy.insert(slot, shadow, InsertReason::Read, &mut self.touches);
    }

    /// Assigns a free slot to `id`; the caller then inserts it into the policy.
    pub(crate) fn claim(&mut self, id: u32) -> Slot {
        let slot = self.free.pop().expect("reclaim left a free slot");
        self.ids[slot as usize] = id;
        self.entries[id as usize] = Entry::resident(slot);
        if self.wants_keys {
            self.policy.key(slot, u64::from(id));
        }
        slot
    }

    fn reclaim(&mut self) {
        self.policy.victims(self.batch, &mut self.touches, &mut self.victims);
        let none = self.victims.is_empty();
        assert!(!none, "{}: no victim among {} pages", self.policy.name(), self.policy.resident());
        for victim in self.victims.drain(..) {
            self.outcome.evictions += 1;
            self.entries[self.ids[victim.slot as usize] as usize] = Entry::absent(victim.shadow);
            self.free.push(victim.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_numbered_as_they_come() {
        let mut ids = Ids::default();
        let keys: Vec<u64> = (0..5000u64).map(|i| i.wrapping_mul(0x0123_4567_89AB_CDEF) << 20).collect();
        for (id, &key) in keys.iter().enumerate() {
            assert_eq!(ids.id(key), id as u32);
        }
        assert!(keys.iter().enumerate().all(|(id, &key)| ids.id(key) == id as u32));
        assert_eq!(ids.id(u64::MAX), 5000);
        assert_eq!(ids.len(), 5001);
    }
}
