//! Eviction policy `w-tinylfu`: a small LRU window. A page that leaves it enters the main list only with more
//! uses than the victim there.
//!
//! Source: G. Einziger, R. Friedman, B. Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM TOS
//! 2017, in the form of libCacheSim 0.3. The window is 1/100 of the pool, main a segmented LRU (1/5 and 4/5).
//! The sketch is a counting Bloom filter, with an error of 1/1000 at one key a page of main. It is halved
//! after 32 hits a page of main.
//!
//! ```text
//!   new ► window (LRU, 1/100) ─ tail ─► more frequent than ───┬─ yes ► probation ─ used ─► protected (4/5)
//!                                       probation's tail?     │          ▲  │ tail          │ tail
//!                                                             │          │  ▼               │
//!                                                             └─ no: evicted  evicted       │
//!                                                                        └──────────────────┘
//! ```
//! The filter counts a page when it enters, at its uses in main, and at every candidacy for admission. Its
//! key is a hash of object and page index, so it knows pages evicted long ago and needs no ghost. Counters
//! have 8 bits and saturate at 255 (libCacheSim: 32 bits; a scan displaces no page with such a count). Other
//! hash functions change miss ratios by some 1 %: without hits counts do not age, and fill the filter with
//! noise.
//!
//! The rounding of main's shares leaves one page over. As in libCacheSim, a page that returns to a full
//! probation pushes another one out. That page is `dropped`, the next victim, and the window's next page
//! takes its place in main without a comparison. Otherwise main ages less (11 % more misses on one trace).
//! libCacheSim evicts the dropped page at the hit. Here the next fault evicts it, and a use before that moves
//! it to the window.
//!
//! With batches, uses count by the page's place at the hand's pass: in main, not in the window (see
//! `queue_policy`). A pass sees at most 3 uses, so frequent pages look alike. The window gets at least a
//! batch of the pool, since only its pages are compared.
//!
//! Departure: the window has at least one page. If 1/100 of the pool is less, libCacheSim has no window and
//! admits no page at all.

use crate::keys::mix;
use crate::list::Step;
use crate::queue_policy::{QueuePolicy, Queues, Rules, Uses};
use crate::{Shadow, Slot, Victim};

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;
const DROPPED: usize = 3;
/// Share of the pool for the window: 1/100.
const WINDOW_DIVISOR: usize = 100;
/// Share of main for probation: 1/5; the rest is protected.
const PROBATION_DIVISOR: usize = 5;
/// Counts are halved after this many hits a page of main.
const HITS_PER_PAGE: usize = 32;

/// Frequency of keys: a counting Bloom filter, with counters and hash functions for an error of 1/1000.
#[derive(Debug)]
struct Sketch {
    counters: Vec<u8>,
}

/// -ln(0.001) / ln(2)^2 counters a key, in thousandths, and -log2(0.001) hash functions.
const COUNTERS_PER_KEY: usize = 14_378;
const HASHES: u32 = 10;
/// SplitMix64's step: key 0 would hash to one place ten times.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

impl Sketch {
    fn new(keys: usize) -> Sketch {
        Sketch { counters: vec![0; (keys * COUNTERS_PER_KEY).div_ceil(1000).max(2 * HASHES as usize)] }
    }

    /// Positions of a key's counters: by double hashing, scaled to the table without a division.
    fn places(&self, key: u64) -> [usize; HASHES as usize] {
        let mixed = mix(key.wrapping_add(GOLDEN));
        let (a, b) = (mixed as u32, (mixed >> 32) as u32 | 1);
        let len = self.counters.len() as u64;
        std::array::from_fn(|i| ((u64::from(a.wrapping_add(b.wrapping_mul(i as u32))) * len) >> 32) as usize)
    }

    fn add(&mut self, key: u64, times: u8) {
        for place in self.places(key) {
            let counter = &mut self.counters[place];
            *counter = counter.saturating_add(times);
        }
    }

    fn estimate(&self, key: u64) -> u8 {
        self.places(key).iter().map(|&place| self.counters[place]).min().expect("there are hash functions")
    }

    fn halve(&mut self) {
        self.counters.iter_mut().for_each(|counter| *counter /= 2);
    }
}

#[derive(Debug)]
pub(crate) struct WTinyLfu {
    capacity: usize,
    main_max: usize,
    keys: Vec<u64>,
    sketch: Sketch,
    /// Hits in main since the counts were halved.
    hits: usize,
}

impl WTinyLfu {
    pub(crate) fn build(slots_max: usize, capacity: usize) -> QueuePolicy<WTinyLfu> {
        QueuePolicy::new(slots_max, WTinyLfu::new(slots_max, capacity))
    }

    fn new(slots_max: usize, capacity: usize) -> WTinyLfu {
        let sketch = Sketch::new(main_of(slots_max, 1));
        WTinyLfu { capacity, main_max: main_of(capacity, 1), keys: vec![0; slots_max], sketch, hits: 0 }
    }

    fn key_of(&self, slot: Slot) -> u64 {
        self.keys[slot as usize]
    }

    /// Puts a page that is in no queue into main: the lowest segment that has room.
    fn admit(&self, queues: &mut Queues, slot: Slot) {
        let to_probation =
            queues.len(PROBATION) < self.probation_max() || queues.len(PROTECTED) >= self.protected_max();
        queues.push(if to_probation { PROBATION } else { PROTECTED }, slot);
    }

    fn probation_max(&self) -> usize {
        self.main_max / PROBATION_DIVISOR
    }

    fn protected_max(&self) -> usize {
        self.main_max * (PROBATION_DIVISOR - 1) / PROBATION_DIVISOR
    }

    /// Moves excess protected pages to probation, and excess pages of probation to `dropped`.
    fn cool(&self, queues: &mut Queues) {
        for (from, to, max) in
            [(PROTECTED, PROBATION, self.protected_max()), (PROBATION, DROPPED, self.probation_max())]
        {
            if queues.len(from) <= max {
                break;
            }
            let tail = queues.tail(from).expect("counted");
            queues.shift(from, to, tail);
        }
    }

    fn count_hits(&mut self, count: u8) {
        self.hits += usize::from(count);
        if self.hits >= HITS_PER_PAGE * self.main_max {
            self.hits = 0;
            self.sketch.halve();
        }
    }

    /// Whether the page was used. Then it is moved to the place of used pages.
    fn saved(&mut self, queues: &mut Queues, uses: &mut Uses<'_>, slot: Slot) -> bool {
        let count = uses.take(slot);
        let saved = uses.stays(count != 0);
        if saved {
            self.hit(queues, slot, count);
        }
        saved
    }

    fn evict(&mut self, queues: &mut Queues, slot: Slot) -> Step {
        let queue = queues.queue_of(slot).expect("victims are queued");
        queues.unlink(queue, slot);
        Step::Take(Victim { slot, shadow: None })
    }
}

/// Size of main in a pool of `pages`, with a window of at least `batch`.
fn main_of(pages: usize, batch: usize) -> usize {
    pages - (pages / WINDOW_DIVISOR).max(batch).min(pages.div_ceil(2))
}

impl Rules for WTinyLfu {
    const NAME: &'static str = "w-tinylfu";
    const QUEUES: &'static [&'static str] = &["window", "probation", "protected", "dropped"];
    const MOVES: bool = true;
    const WANTS_KEYS: bool = true;

    fn set_capacity(&mut self, pages: usize) {
        self.capacity = pages;
        self.main_max = main_of(pages, 1);
    }

    fn key(&mut self, slot: Slot, key: u64) {
        self.keys[slot as usize] = key;
    }

    fn enter(&mut self, queues: &mut Queues, slot: Slot, _shadow: Option<Shadow>) -> bool {
        queues.push(WINDOW, slot);
        self.sketch.add(self.key_of(slot), 1);
        false
    }

    fn hit(&mut self, queues: &mut Queues, slot: Slot, count: u8) {
        let from = queues.queue_of(slot).expect("hits are reported for queued pages");
        if matches!(from, WINDOW | DROPPED) {
            return queues.shift(from, WINDOW, slot);
        }
        queues.shift(from, PROTECTED, slot);
        self.cool(queues);
        self.sketch.add(self.key_of(slot), count);
        self.count_hits(count);
    }

    fn prepare(&mut self, _queues: &mut Queues, want: usize, resident: usize) {
        self.main_max = main_of(resident.min(self.capacity), want.max(1));
    }

    fn look(&mut self, queues: &mut Queues, uses: &mut Uses<'_>) -> Step {
        if let Some(slot) = queues.tail(DROPPED) {
            return if self.saved(queues, uses, slot) { Step::Moved } else { self.evict(queues, slot) };
        }
        let main = queues.tail(PROBATION).or(queues.tail(PROTECTED));
        let Some(candidate) = queues.tail(WINDOW) else {
            let Some(slot) = main else { return Step::Empty };
            return if self.saved(queues, uses, slot) { Step::Moved } else { self.evict(queues, slot) };
        };
        if self.saved(queues, uses, candidate) {
            return Step::Moved;
        }
        let full = queues.len(PROBATION) + queues.len(PROTECTED) >= self.main_max;
        let rival = main.filter(|_| full);
        if let Some(slot) = rival
            && self.saved(queues, uses, slot)
        {
            return Step::Moved;
        }
        let frequency = |slot| self.sketch.estimate(self.key_of(slot));
        let wins = rival.is_none_or(|rival| frequency(candidate) > frequency(rival));
        self.sketch.add(self.key_of(candidate), 1);
        if !wins {
            return self.evict(queues, candidate);
        }
        let step = rival.map_or(Step::Moved, |rival| self.evict(queues, rival));
        queues.unlink(WINDOW, candidate);
        self.admit(queues, candidate);
        step
    }

    fn bytes(&self) -> usize {
        self.keys.capacity() * size_of::<u64>() + self.sketch.counters.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Evict;
    use crate::testing::Pool;

    /// 10 pages, each with its own key: a window of 1, probation 1, protected 7, and one left over by
    /// rounding.
    fn pool() -> Pool<QueuePolicy<WTinyLfu>> {
        let mut pool = Pool::new(WTinyLfu::build(64, 10));
        enter(&mut pool, 0..10);
        pool
    }

    fn enter(pool: &mut Pool<QueuePolicy<WTinyLfu>>, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            pool.policy.key(slot, u64::from(slot));
            pool.enter([slot]);
        }
    }

    #[test]
    fn window_page_enters_main_only_if_more_frequent_than_victim() {
        let mut pool = pool();
        pool.is("window: 9 8 7 6 5 4 3 2 1 0 | probation:  | protected:  | dropped:  | held: ");
        assert_eq!(pool.evict(1), [9]); // main fills up, and counts its pages once more; 9 was met once
        pool.is("window:  | probation: 8 0 | protected: 7 6 5 4 3 2 1 | dropped:  | held: ");
        enter(&mut pool, [9]);
        assert_eq!(pool.evict(1), [0]); // 9 was met three times by now, 0 twice
        pool.is("window:  | probation: 9 8 | protected: 7 6 5 4 3 2 1 | dropped:  | held: ");
    }

    #[test]
    fn page_pushed_out_of_probation_is_next_victim() {
        let mut pool = pool();
        pool.evict(1);
        enter(&mut pool, [10]);
        pool.policy.accessed(8);
        pool.is("window: 10 | probation: 1 | protected: 8 7 6 5 4 3 2 | dropped: 0 | held: ");
        assert_eq!(pool.evict(1), [0]);
        enter(&mut pool, [11]);
        assert_eq!(pool.evict(1), [11]);
        pool.is("window:  | probation: 10 1 | protected: 8 7 6 5 4 3 2 | dropped:  | held: ");
    }

    #[test]
    fn in_batches_touched_pages_are_found_where_they_are() {
        let mut pool = pool();
        pool.touch([0, 9, 9]);
        assert_eq!(pool.evict(1), [9]); // the hand took 0 to the head; 9 went there when its turn came, and lost then
        pool.is("window:  | probation: 0 1 | protected: 8 7 6 5 4 3 2 | dropped:  | held: ");
        pool.touch([1, 1]);
        enter(&mut pool, [10]);
        assert_eq!(pool.evict(1), [0]); // 1 was used: it sent 2 down, which pushed 0 out
        pool.is("window: 10 | probation: 2 | protected: 1 8 7 6 5 4 3 | dropped:  | held: ");
    }

    #[test]
    fn counts_stop_at_255_and_halve_after_32_hits_a_main_page() {
        let mut rules = WTinyLfu::new(64, 10);
        rules.sketch.add(5, 200);
        rules.sketch.add(5, 100);
        for _ in 1..HITS_PER_PAGE * 9 {
            rules.count_hits(1);
        }
        assert_eq!((rules.sketch.estimate(5), rules.sketch.estimate(6)), (255, 0));
        rules.count_hits(1);
        assert_eq!((rules.sketch.estimate(5), rules.hits), (127, 0));
    }
}
