//! Miniature caches: the hit ratios of a running policy at other memory sizes.
//!
//! Source: C. Waldspurger, T. Saemundson, I. Ahmad, N. Park, "Cache Modeling and Optimization using Miniature
//! Simulations", USENIX ATC 2017. A share R of the pages, fed with a share R of the keys (by hash), has the
//! whole cache's miss ratio. Unlike a curve of stack distances ([`crate::mrc`]) this holds for any policy, at
//! the cost of one small cache for each size.
//!
//! Accesses without a key ([`Miniature::passed`]) count as hits of every size, as in SHARDS-adj. They are
//! further uses of pages just fed, while misses have keys.

use std::collections::VecDeque;

use crate::keys::{KeyMap, mix};
use crate::{Evict, InsertReason, Shadow, Slot, Victim, build};

/// Absent keys remembered for each slot. The ghost of `strata` may be longer. With two, loops over more than
/// the pool differ by more than the sampling error.
const GHOSTS: usize = 3;

/// One policy at several sizes.
#[derive(Debug)]
pub struct Miniature {
    caches: Vec<Cache>,
    /// Hashes below this are sampled.
    threshold: u64,
    rate: f64,
    accesses: f64,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Resident(Slot),
    /// Shadow and number of the eviction.
    Absent(Option<Shadow>, u32),
}

#[derive(Debug)]
struct Cache {
    policy: Box<dyn Evict>,
    index: KeyMap<Entry>,
    /// Evicted keys, oldest first, with the numbers of their evictions.
    ghosts: VecDeque<(u64, u32)>,
    ghosts_max: usize,
    evictions: u32,
    touches: Vec<u8>,
    keys: Vec<u64>,
    free: Vec<Slot>,
    victims: Vec<Victim>,
    misses: f64,
}

impl Cache {
    fn new(policy: Box<dyn Evict>, slots: usize) -> Cache {
        Cache {
            policy,
            index: KeyMap::default(),
            ghosts: VecDeque::new(),
            ghosts_max: slots * GHOSTS,
            evictions: 0,
            touches: vec![0; slots],
            keys: vec![0; slots],
            free: (0..slots as Slot).rev().collect(),
            victims: Vec::new(),
            misses: 0.0,
        }
    }

    fn access(&mut self, key: u64) {
        let shadow = match self.index.get(&key) {
            Some(&Entry::Resident(slot)) => {
                let touches = &mut self.touches[slot as usize];
                *touches = touches.saturating_add(1).min(3);
                return;
            }
            Some(&Entry::Absent(shadow, _)) => shadow,
            None => None,
        };
        self.misses += 1.0;
        while self.free.is_empty() {
            self.evict();
        }
        let slot = self.free.pop().expect("a slot was freed");
        self.keys[slot as usize] = key;
        self.index.insert(key, Entry::Resident(slot));
        self.policy.key(slot, key);
        self.policy.insert(slot, shadow, InsertReason::Read, &mut self.touches);
    }

    fn evict(&mut self) {
        self.policy.victims(1, &mut self.touches, &mut self.victims);
        for victim in self.victims.drain(..) {
            let (key, now) = (self.keys[victim.slot as usize], self.evictions);
            self.index.insert(key, Entry::Absent(victim.shadow, now));
            self.ghosts.push_back((key, now));
            self.free.push(victim.slot);
            self.evictions = now.wrapping_add(1);
        }
        while self.ghosts.len() > self.ghosts_max {
            let (key, then) = self.ghosts.pop_front().expect("there are more than may be");
            // The key may have returned since.
            if matches!(self.index.get(&key), Some(Entry::Absent(_, at)) if *at == then) {
                self.index.remove(&key);
            }
        }
    }

    fn bytes(&self) -> usize {
        // A table has 8/7 to 16/7 of its entries, each a key, a value and a control byte.
        let entry = size_of::<(u64, Entry)>() + 1;
        let slot = size_of::<u64>() + size_of::<u8>() + size_of::<Slot>();
        self.index.capacity() * entry * 8 / 7
            + self.ghosts.capacity() * size_of::<(u64, u32)>()
            + self.touches.len() * slot
            + self.policy.bytes()
    }
}

impl Miniature {
    /// `policy` at each of `sizes` (pages, not 0), in caches of `slots_max` slots for the largest. `None`: there is no such
    /// policy.
    pub fn new(policy: &str, sizes: &[usize], slots_max: usize) -> Option<Miniature> {
        let largest = sizes.iter().copied().max().unwrap_or(1).max(1);
        let rate = (slots_max as f64 / largest as f64).min(1.0);
        let cache = |&pages: &usize| {
            let slots = ((pages as f64 * rate).round() as usize).max(1);
            Some(Cache::new(build(policy, slots, slots)?, slots))
        };
        let caches = sizes.iter().map(cache).collect::<Option<Vec<Cache>>>()?;
        let threshold = if rate < 1.0 { (rate * 18_446_744_073_709_551_616.0) as u64 } else { u64::MAX };
        Some(Miniature { caches, threshold, rate, accesses: 0.0 })
    }

    /// Keys with a hash ([`crate::mrc::Shards::hash`]) below this are sampled.
    pub fn threshold(&self) -> u64 {
        self.threshold
    }

    /// One access.
    pub fn feed(&mut self, key: u64) {
        self.accesses += 1.0;
        if mix(key) < self.threshold {
            self.caches.iter_mut().for_each(|cache| cache.access(key));
        }
    }

    /// Reports accesses without their keys.
    pub fn passed(&mut self, accesses: u64) {
        self.accesses += accesses as f64;
    }

    /// Multiplies the weight of all accesses so far by `share` (0 to 1).
    pub fn fade(&mut self, share: f64) {
        let share = share.clamp(0.0, 1.0);
        self.accesses *= share;
        self.caches.iter_mut().for_each(|cache| cache.misses *= share);
    }

    /// The hit ratio of each size, in the order of construction; 0 before any access.
    pub fn hit_ratios(&self) -> impl Iterator<Item = f64> + '_ {
        let sampled = self.accesses * self.rate;
        self.caches.iter().map(move |cache| match sampled > 0.0 {
            true => (1.0 - cache.misses / sampled).clamp(0.0, 1.0),
            false => 0.0,
        })
    }

    /// Heap used.
    pub fn bytes(&self) -> usize {
        self.caches.iter().map(Cache::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_without_key_is_a_hit_and_history_fades() {
        let mut mini = Miniature::new("lru", &[10, 20], 20).unwrap();
        (0..10).for_each(|key| mini.feed(key));
        assert_eq!(mini.hit_ratios().collect::<Vec<_>>(), [0.0, 0.0]);
        mini.passed(30);
        assert_eq!(mini.hit_ratios().collect::<Vec<_>>(), [0.75, 0.75]);
        mini.fade(0.0);
        (0..10).for_each(|key| mini.feed(key));
        assert_eq!(mini.hit_ratios().collect::<Vec<_>>(), [1.0, 1.0]);
        assert!(Miniature::new("none", &[1], 1).is_none());
    }

    #[test]
    fn memory_is_bounded_whatever_is_fed() {
        let mut mini = Miniature::new("strata", &[1000, 4000], 4000).unwrap();
        (0..200_000u64).for_each(|key| mini.feed(key * 7919));
        for cache in &mini.caches {
            assert!(cache.index.len() <= cache.touches.len() * (1 + GHOSTS), "{}", cache.index.len());
        }
        assert!(mini.bytes() < 5000 * 300, "{} bytes", mini.bytes());
    }
}
