//! `opt`: evicts the page with the furthest next use. The bound that no policy beats.
//!
//! Source: L. A. Belady, "A Study of Replacement Algorithms for a Virtual-Storage Computer", 1966 (MIN). It
//! needs the future, so it runs in the simulator's exact mode only and is not among
//! [`terrace_policy::NAMES`].
//!
//! ```text
//!   next use of each resident page: a set of times, as bits with 64-fold summaries ► the greatest one goes
//!   pages that are never used again: a list ► go before all others
//! ```
//! All times of next use differ, so a set of bits over the length of the trace serves as the priority queue.
//! Insertion, removal and maximum look at one word a level, four levels for 16 million requests. Rejected: a
//! binary heap (log n moves at every *hit*).

use terrace_policy::list::{ABSENT, List, Slots};
use terrace_policy::{AccessCounts, Evict, Generation, InsertReason, Refaults, Shadow, Slot, Victim};

/// Time of the next use of a page without one.
pub(crate) const NEVER: u32 = u32::MAX;

const TIMED: u8 = 1;
const UNUSED: u8 = 2;

/// For each request of a trace of numbered keys (see [`crate::sim::Ids`]) the index of the next request of the same key,
/// or [`NEVER`]. Panics if there are 2^32 - 1 requests or more.
pub fn next_uses(ids: &[u32]) -> Vec<u32> {
    assert!(ids.len() < NEVER as usize, "times have 32 bits");
    let mut next = vec![NEVER; ids.len()];
    let mut seen = vec![NEVER; ids.iter().max().map_or(0, |&id| id as usize + 1)];
    for (time, &id) in ids.iter().enumerate().rev() {
        next[time] = std::mem::replace(&mut seen[id as usize], time as u32);
    }
    next
}

/// A set of numbers below a fixed bound: a bit each, and one summary bit for every 64 bits of the level
/// below.
#[derive(Debug)]
struct Times {
    levels: Vec<Vec<u64>>,
}

impl Times {
    fn new(bound: usize) -> Times {
        let mut levels = Vec::new();
        let mut len = bound.max(1);
        while len > 1 || levels.is_empty() {
            len = len.div_ceil(64);
            levels.push(vec![0; len]);
        }
        Times { levels }
    }

    fn insert(&mut self, time: u32) {
        let mut at = time as usize;
        for level in &mut self.levels {
            level[at / 64] |= 1 << (at % 64);
            at /= 64;
        }
    }

    fn remove(&mut self, time: u32) {
        let mut at = time as usize;
        for level in &mut self.levels {
            level[at / 64] &= !(1 << (at % 64));
            if level[at / 64] != 0 {
                break;
            }
            at /= 64;
        }
    }

    fn max(&self) -> Option<u32> {
        let mut at = 0;
        for level in self.levels.iter().rev() {
            at = at * 64 + level[at].checked_ilog2()? as usize;
        }
        Some(at as u32)
    }

    fn len(&self) -> usize {
        self.levels[0].iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// Belady's optimum. Must get every request: one `accessed` or `insert` each, in the order of the trace.
#[derive(Debug)]
pub struct Opt {
    next: Vec<u32>,
    /// Requests seen.
    now: usize,
    times: Times,
    /// The page with its next use at each time.
    slot_at: Vec<Slot>,
    /// The next use of each slot's page.
    next_of: Vec<u32>,
    slots: Slots,
    unused: List,
    resident: usize,
}

impl Opt {
    /// For slots below `slots_max`, and a trace with these [`next_uses`].
    pub fn new(slots_max: usize, next: Vec<u32>) -> Opt {
        let (slots, [unused]) = Slots::new::<1>(slots_max);
        Opt {
            now: 0,
            times: Times::new(next.len()),
            slot_at: vec![0; next.len()],
            next_of: vec![NEVER; slots_max],
            next,
            slots,
            unused,
            resident: 0,
        }
    }

    /// Processes a request for `slot`.
    fn used(&mut self, slot: Slot) {
        let next = *self.next.get(self.now).expect("no more requests than the trace has");
        self.now += 1;
        self.next_of[slot as usize] = next;
    }

    /// Inserts a page by its next use.
    fn list(&mut self, slot: Slot) {
        self.resident += 1;
        let next = self.next_of[slot as usize];
        if next == NEVER {
            self.slots.push(&mut self.unused, slot, UNUSED);
        } else {
            self.slots.set_tag(slot, TIMED);
            self.times.insert(next);
            self.slot_at[next as usize] = slot;
        }
    }

    fn take_next(&mut self) -> Option<Slot> {
        let timed = |times: &Times, slot_at: &[Slot]| times.max().map(|time| slot_at[time as usize]);
        let slot = self.slots.tail(&self.unused).or_else(|| timed(&self.times, &self.slot_at))?;
        self.remove(slot);
        Some(slot)
    }
}

impl Evict for Opt {
    fn name(&self) -> &'static str {
        "opt"
    }

    fn insert(
        &mut self,
        slot: Slot,
        _shadow: Option<Shadow>,
        _reason: InsertReason,
        touches: &mut dyn AccessCounts,
    ) -> bool {
        assert!(!self.contains(slot), "slot {slot} is resident already");
        touches.set(slot, 0);
        self.used(slot);
        self.list(slot);
        false
    }

    fn victims(&mut self, want: usize, _touches: &mut dyn AccessCounts, out: &mut Vec<Victim>) {
        let slots = std::iter::from_fn(|| self.take_next()).take(want);
        out.extend(slots.map(|slot| Victim { slot, shadow: None }));
    }

    fn restore(&mut self, slot: Slot) {
        assert!(!self.contains(slot), "slot {slot} is resident already");
        self.list(slot);
    }

    fn remove(&mut self, slot: Slot) {
        match self.slots.tag(slot) {
            TIMED => {
                self.times.remove(self.next_of[slot as usize]);
                self.slots.set_tag(slot, ABSENT);
            }
            UNUSED => self.slots.unlink(&mut self.unused, slot, ABSENT),
            _ => panic!("slot {slot} is not resident"),
        }
        self.resident -= 1;
    }

    fn shadow(&mut self) -> Option<Shadow> {
        None
    }

    fn set_capacity(&mut self, _pages: usize) {}

    /// No page has a time.
    fn set_time(&mut self, _now_ms: u64) {}

    fn accessed(&mut self, slot: Slot) {
        self.remove(slot);
        self.used(slot);
        self.list(slot);
    }

    fn generations(&self, now_ms: u64) -> Vec<Generation> {
        let row = |label: &str, pages| Generation::queue(label, pages, now_ms);
        vec![row("timed", self.resident - self.unused.len()), row("unused", self.unused.len())]
    }

    fn refaults(&self) -> Refaults {
        Refaults::default()
    }

    fn resident(&self) -> usize {
        self.resident
    }

    fn contains(&self, slot: Slot) -> bool {
        self.slots.tag(slot) != ABSENT
    }

    fn dump(&self) -> String {
        let mut timed: Vec<Slot> = (0..self.next_of.len() as Slot).collect();
        timed.retain(|&slot| self.slots.tag(slot) == TIMED);
        timed.sort_by_key(|&slot| self.next_of[slot as usize]);
        let timed: Vec<String> =
            timed.iter().map(|&slot| format!("{slot}@{}", self.next_of[slot as usize])).collect();
        format!("timed: {} | unused: {}", timed.join(" "), self.slots.show(&self.unused))
    }

    fn check(&self) -> Result<(), String> {
        self.slots.check(&[&self.unused], |_, tag| tag == UNUSED, |tag| tag == UNUSED)?;
        let astray = |slot: &Slot| {
            self.slots.tag(*slot) == TIMED && self.slot_at[self.next_of[*slot as usize] as usize] != *slot
        };
        if let Some(slot) = (0..self.next_of.len() as Slot).find(astray) {
            return Err(format!("slot {slot} is not where its next use says"));
        }
        let counted = self.times.len() + self.unused.len();
        if counted != self.resident {
            return Err(format!("{counted} pages listed, {} counted", self.resident));
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        let words: usize = self.times.levels.iter().map(|level| level.capacity() * size_of::<u64>()).sum();
        let tables = self.next.capacity() + self.slot_at.capacity() + self.next_of.capacity();
        self.slots.bytes() + words + tables * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_policy::testing::Pool;

    #[test]
    fn times_are_a_set_with_a_maximum() {
        let mut times = Times::new(300_000);
        assert_eq!(times.max(), None);
        for time in [5, 299_999, 64, 4096, 63] {
            times.insert(time);
        }
        for expected in [299_999, 4096, 64, 63, 5] {
            assert_eq!(times.max(), Some(expected));
            times.remove(expected);
        }
        assert_eq!((times.max(), times.len()), (None, 0));
    }

    /// The reference string of the textbooks, three frames: 9 faults instead of FIFO's 15.
    #[test]
    fn the_textbooks_reference_string() {
        let trace = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1];
        let mut opt = Opt::new(8, next_uses(&trace));
        let outcome = crate::sim::run_ids(&mut opt, &trace, 8, 3, crate::sim::Mode::Exact);
        assert_eq!(outcome.misses, 9);
    }

    #[test]
    fn the_page_used_last_goes_after_those_never_used_again() {
        let mut pool = Pool::new(Opt::new(64, next_uses(&[0, 1, 2, 3, 0, 2, 1])));
        pool.enter(0..4);
        pool.is("timed: 0@4 2@5 1@6 | unused: 3");
        assert_eq!(pool.evict(2), [3, 1]);
        pool.policy.accessed(0);
        pool.is("timed: 2@5 | unused: 0");
        pool.restore([1]);
        assert_eq!(pool.evict(4), [0, 1, 2]);
    }
}
