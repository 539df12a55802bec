//! `mglru`: the kernel's multi-generational LRU, for a cache of files read by descriptor.
//!
//! Source: Linux MGLRU as of the 7.2 reclaim loop with the fine-grained reference rules proposed as MGLRU-FG v3
//! (2026); written from a specification, no kernel code.
//!
//! ```text
//!   max_seq   ▲ gen 3   youngest
//!             │ gen 2   a climb of one generation: more than 7 references, or 2 in the oldest
//!             │ gen 1   ◄── new pages known from before (2 references or more)
//!   min_seq   │ gen 0   ◄── new pages; scanned from the tail: referenced ► up, protected ► up, else evicted
//!             └─ aging opens a generation when 2 are left, or 3 are and a first pass did not suffice
//! ```
//! A page has 0..7 references (the read that faulted it in is the first; readahead and writes give none). Their
//! logarithm is its *tier*. A tier whose pages, once evicted, come back more than twice as often as those of the
//! tier below is *protected*: its pages move up a generation instead of being evicted. The comparison decays by
//! half whenever the oldest generation is used up. A shadow is min_seq and references at eviction; it is recent
//! while fewer than 4 generations opened since.
//!
//! Our departures:
//! - References are not counted at the access but when somebody looks: at the tail, and by a hand that passes 8
//!   slots for each victim wanted. So several uses between two looks act one after the other, in the generation
//!   the page is in by then. In return there is no stale list to sort: a page's list is always its generation.
//! - No mapped pages, hence no page-table walk, Bloom filter or look-around; no second type of page.
//! - `priority` restarts at 12 for each batch wanted, and the scan budget of a pass is at least 64 pages.
//! - A victim that cannot go waits aside (see `list::Held`) where the kernel activates it and rotates it to the tail
//!   when its writeback ends.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use crate::list::{ABSENT, Held, List, Patience, SWEEP_RATE, Slots, Sweep, looks_max};
use crate::{Evict, Generation, Refaults, Shadow, Slot, Standing, Tier, Touches, Victim, Why};

const MIN_NR_GENS: u64 = 2;
const MAX_NR_GENS: u64 = 4;
const MAX_NR_TIERS: usize = 4;
const MIN_LRU_BATCH: usize = 64;
const DEF_PRIORITY: u32 = 12;
/// The most references a page can have.
const REFS_MAX: u8 = 7;
/// References left after a climb earned by references.
const REFS_CLIMBED: u8 = 3;
/// References left after a move up by protection.
const REFS_PROTECTED: u8 = 2;

// Tags. Absent: the references a victim had (0..7), and whether it had been held. Resident: generation and
// references, or held and references.
const WAS_HELD: u8 = 0x08;
const HELD: u8 = 0x40;
const LISTED: u8 = 0x80;

// Shadows: a bit that keeps them from being 0, the low bits of min_seq, 3 bits of references.
const SHADOW_MARK: u32 = 1 << 31;
const SHADOW_SEQ_MASK: u32 = (1 << 28) - 1;

fn is_resident(tag: u8) -> bool {
    tag >= HELD
}

fn refs_of(tag: u8) -> u8 {
    tag & 7
}

fn index_of(seq: u64) -> usize {
    (seq % MAX_NR_GENS) as usize
}

fn listed(index: usize, refs: u8) -> u8 {
    LISTED | (index as u8) << 3 | refs
}

fn listed_index(tag: u8) -> usize {
    usize::from(tag >> 3 & 3)
}

/// The tier of a page with `refs` references: their logarithm, rounded up.
fn tier(refs: u8) -> usize {
    match refs {
        0 | 1 => 0,
        2 => 1,
        3 | 4 => 2,
        _ => 3,
    }
}

/// How often pages of each tier come back: the controller's inputs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Tiers {
    avg_refaulted: [u64; MAX_NR_TIERS],
    avg_total: [u64; MAX_NR_TIERS],
    refaulted: [u64; MAX_NR_TIERS],
    evicted: [u64; MAX_NR_TIERS],
    protected: [u64; MAX_NR_TIERS],
}

impl Tiers {
    /// Refaults, and pages evicted or protected, of `tier`.
    fn rate(&self, tier: usize) -> (u64, u64) {
        let total = self.avg_total[tier] + self.evicted[tier] + self.protected[tier];
        (self.avg_refaulted[tier] + self.refaulted[tier], total)
    }

    /// What `tier` shows of itself, but for its pages.
    fn row(&self, tier: usize) -> Tier {
        Tier {
            tier,
            pages: 0,
            refaulted: self.refaulted[tier],
            evicted: self.evicted[tier],
            protected: self.protected[tier],
            avg_refaulted: self.avg_refaulted[tier],
            avg_total: self.avg_total[tier],
        }
    }

    /// The highest tier up to which no tier refaults more than twice as often as the one below it.
    fn threshold(&self) -> usize {
        let fine = |tier: &usize| {
            let ((below, below_total), (refaulted, total)) = (self.rate(tier - 1), self.rate(*tier));
            refaulted < MIN_LRU_BATCH as u64
                || u128::from(refaulted) * u128::from(below_total + MIN_LRU_BATCH as u64)
                    <= u128::from(below + 1) * u128::from(total) * 2
        };
        (1..MAX_NR_TIERS).take_while(fine).last().unwrap_or(0)
    }

    /// A generation is used up: the past counts half.
    fn carry_over(&mut self) {
        for tier in 0..MAX_NR_TIERS {
            let (refaulted, total) = self.rate(tier);
            self.avg_refaulted[tier] = refaulted / 2;
            self.avg_total[tier] = total / 2;
        }
        self.refaulted = [0; MAX_NR_TIERS];
        self.evicted = [0; MAX_NR_TIERS];
        self.protected = [0; MAX_NR_TIERS];
    }
}

/// See the module's description.
#[derive(Debug)]
pub struct Mglru {
    slots: Slots,
    /// Generation `seq` is at `seq % 4`.
    lists: [List; MAX_NR_GENS as usize],
    births_ms: [u64; MAX_NR_GENS as usize],
    min_seq: u64,
    max_seq: u64,
    tiers: Tiers,
    held: Held,
    patience: Patience,
    sweep: Sweep,
    now_ms: u64,
    refaults: Refaults,
}

impl Mglru {
    /// For slots below `slots_max`; the capacity has no influence.
    pub fn new(slots_max: usize, _capacity: usize) -> Mglru {
        let (slots, [a, b, c, d, held]) = Slots::new::<5>(slots_max);
        Mglru {
            slots,
            lists: [a, b, c, d],
            births_ms: [0; MAX_NR_GENS as usize],
            min_seq: 0,
            max_seq: MAX_NR_GENS - 1,
            tiers: Tiers::default(),
            held: Held::new(held),
            patience: Patience::default(),
            sweep: Sweep::default(),
            now_ms: 0,
            refaults: Refaults::default(),
        }
    }

    fn evictable(&self) -> usize {
        self.lists.iter().map(List::len).sum()
    }

    fn generations_open(&self) -> u64 {
        self.max_seq - self.min_seq + 1
    }

    fn seq_at(&self, index: usize) -> u64 {
        self.min_seq + (index as u64 + MAX_NR_GENS - self.min_seq % MAX_NR_GENS) % MAX_NR_GENS
    }

    fn push(&mut self, slot: Slot, seq: u64, refs: u8) {
        let index = index_of(seq);
        self.slots.push(&mut self.lists[index], slot, listed(index, refs));
    }

    /// Moves a listed page to the head of generation `seq`.
    fn climb(&mut self, slot: Slot, seq: u64, refs: u8) {
        let from = listed_index(self.slots.tag(slot));
        self.slots.unlink(&mut self.lists[from], slot, ABSENT);
        self.push(slot, seq, refs);
    }

    /// Applies `touches` references to a listed page, one after the other; true when it climbed.
    fn reference(&mut self, slot: Slot, touches: u8) -> bool {
        let tag = self.slots.tag(slot);
        let (start, mut refs) = (self.seq_at(listed_index(tag)), refs_of(tag));
        let mut seq = start;
        for _ in 0..touches.min(REFS_MAX + 1) {
            let more = refs + 1;
            if seq == self.max_seq {
                refs = more.min(REFS_MAX);
            } else if more > REFS_MAX {
                (seq, refs) = (seq + 1, REFS_CLIMBED);
            } else if seq == self.min_seq && more >= 2 {
                (seq, refs) = (seq + 1, more.min(REFS_CLIMBED));
            } else {
                refs = more;
            }
        }
        if seq == start {
            self.slots.set_tag(slot, listed(index_of(seq), refs));
        } else {
            self.climb(slot, seq, refs);
        }
        seq != start
    }

    fn token(&self, refs: u8) -> Shadow {
        let seq = self.min_seq as u32 & SHADOW_SEQ_MASK;
        Shadow(NonZeroU32::new(SHADOW_MARK | seq << 3 | u32::from(refs)).expect("marked"))
    }

    /// The references a page is restored with, if its shadow is recent.
    fn refault(&mut self, shadow: Shadow) -> Option<u8> {
        let (seq, refs) = (shadow.0.get() >> 3 & SHADOW_SEQ_MASK, (shadow.0.get() & 7) as u8);
        self.refaults.total += 1;
        let opened_since = (self.max_seq as u32).wrapping_sub(seq) & SHADOW_SEQ_MASK;
        if u64::from(opened_since) >= MAX_NR_GENS {
            return None;
        }
        self.refaults.recent += 1;
        self.tiers.refaulted[tier(refs)] += 1;
        Some(refs.min(REFS_CLIMBED))
    }

    /// Steps over empty generations, two always staying open.
    fn advance_min_seq(&mut self) {
        while self.generations_open() > MIN_NR_GENS && self.lists[index_of(self.min_seq)].is_empty() {
            self.tiers.carry_over();
            self.min_seq += 1;
        }
    }

    /// Applies what the kernel's walk does for an accessed bit: a page known to be used goes to the youngest.
    fn sight(&mut self, slot: Slot) {
        let tag = self.slots.tag(slot);
        let (seq, more) = (self.seq_at(listed_index(tag)), refs_of(tag) + 1);
        if seq == self.max_seq {
            self.slots.set_tag(slot, listed(index_of(seq), more.min(REFS_MAX)));
        } else if more >= 2 {
            self.climb(slot, self.max_seq, more.min(REFS_CLIMBED));
        } else if seq == self.min_seq {
            self.climb(slot, seq + 1, more);
        } else {
            self.slots.set_tag(slot, listed(index_of(seq), more));
        }
    }

    /// Moves the oldest generation behind the tail of the next, page by page (so its order turns round).
    fn drain(&mut self) {
        let (from, to) = (index_of(self.min_seq), index_of(self.min_seq + 1));
        while let Some(slot) = self.slots.tail(&self.lists[from]) {
            let refs = refs_of(self.slots.tag(slot));
            self.tiers.protected[tier(refs)] += 1;
            self.slots.unlink(&mut self.lists[from], slot, ABSENT);
            self.slots.push_tail(&mut self.lists[to], slot, listed(to, refs.min(REFS_PROTECTED)));
        }
        self.tiers.carry_over();
        self.min_seq += 1;
    }

    fn open_generation(&mut self) {
        debug_assert!(self.generations_open() < MAX_NR_GENS);
        self.max_seq += 1;
        self.births_ms[index_of(self.max_seq)] = self.now_ms;
    }

    /// Looks at the tail of the oldest generation, which is not empty.
    fn look(&mut self, threshold: usize, touches: &mut dyn Touches) -> Option<Victim> {
        let index = index_of(self.min_seq);
        let slot = self.slots.tail(&self.lists[index]).expect("the oldest generation is not empty");
        let force = self.patience.touched(self.evictable());
        let touched = touches.take(slot);
        if !force && touched != 0 && self.reference(slot, touched) {
            return None;
        }
        let refs = refs_of(self.slots.tag(slot));
        if !force && tier(refs) > threshold {
            self.tiers.protected[tier(refs)] += 1;
            self.climb(slot, self.min_seq + 1, refs.min(REFS_PROTECTED));
            return None;
        }
        if !force || touched == 0 {
            self.patience.found();
        }
        self.slots.unlink(&mut self.lists[index], slot, refs);
        self.tiers.evicted[tier(refs)] += 1;
        self.held.other_taken();
        Some(Victim { slot, shadow: Some(self.token(refs)) })
    }

    /// Looks at the page held longest: touched since, it goes back; never into the oldest generation.
    fn look_held(&mut self, touches: &mut dyn Touches) -> Option<Victim> {
        let slot = self.slots.tail(&self.held.list).expect("held is due");
        let (before, touched) = (refs_of(self.slots.tag(slot)), touches.take(slot));
        let refs = before.saturating_add(touched).min(REFS_MAX);
        self.slots.unlink(&mut self.held.list, slot, WAS_HELD | refs);
        if touched == 0 {
            self.patience.found();
        }
        if touched == 0 || self.patience.touched(self.resident()) {
            self.tiers.evicted[tier(refs)] += 1;
            return Some(Victim { slot, shadow: Some(self.token(refs)) });
        }
        let seq = if refs >= 2 { self.max_seq } else { self.min_seq + 1 };
        self.push(slot, seq, refs.min(REFS_PROTECTED));
        None
    }
}

impl Evict for Mglru {
    fn name(&self) -> &'static str {
        "mglru"
    }

    fn insert(&mut self, slot: Slot, shadow: Option<Shadow>, why: Why, touches: &mut dyn Touches) -> bool {
        assert!(!self.contains(slot), "slot {slot} is resident already");
        touches.set(slot, 0);
        let known = shadow.filter(|_| why != Why::Write).and_then(|shadow| self.refault(shadow));
        let refs = known.unwrap_or(0) + u8::from(why == Why::Read);
        let behind = if refs >= 2 { 2 } else { 3 };
        self.push(slot, self.max_seq.saturating_sub(behind).max(self.min_seq), refs);
        known.is_some()
    }

    fn victims(&mut self, want: usize, touches: &mut dyn Touches, out: &mut Vec<Victim>) {
        let mut left = (want * SWEEP_RATE).min(self.slots.slots_max());
        let listed = |tag| tag >= LISTED;
        while let Some((slot, touched)) = self.sweep.next(&mut left, &self.slots, listed, touches) {
            self.reference(slot, touched);
        }

        let (start, goal) = (out.len(), out.len() + want);
        let (mut priority, mut looks) = (DEF_PRIORITY, 0);
        while out.len() < goal && (looks < looks_max(want) || out.len() == start) {
            // 1. Pages held back, when it is their turn.
            if self.held.due(self.evictable()) {
                looks += 1;
                out.extend(self.look_held(touches));
                continue;
            }
            // 2. Age, when too few generations are left to tell old from young.
            if self.evictable() == 0 {
                break;
            }
            self.advance_min_seq();
            let open = self.generations_open();
            if open == MIN_NR_GENS || (open == MIN_NR_GENS + 1 && priority < DEF_PRIORITY) {
                self.open_generation();
                self.advance_min_seq();
            }
            // 3. One pass over the oldest.
            let budget = (self.evictable() >> priority).max(MIN_LRU_BATCH);
            let threshold = self.tiers.threshold();
            for _ in 0..budget {
                if out.len() == goal || self.lists[index_of(self.min_seq)].is_empty() {
                    break;
                }
                looks += 1;
                out.extend(self.look(threshold, touches));
            }
            priority = priority.saturating_sub(1);
        }
    }

    fn restore(&mut self, slot: Slot) {
        assert!(!self.contains(slot), "slot {slot} is resident already");
        let tag = self.slots.tag(slot);
        self.held.put(&mut self.slots, slot, tag & WAS_HELD != 0, HELD | refs_of(tag));
    }

    fn remove(&mut self, slot: Slot) {
        let tag = self.slots.tag(slot);
        assert!(is_resident(tag), "slot {slot} is not resident");
        let list = if tag < LISTED { &mut self.held.list } else { &mut self.lists[listed_index(tag)] };
        self.slots.unlink(list, slot, ABSENT);
    }

    fn shadow(&mut self) -> Option<Shadow> {
        Some(self.token(1))
    }

    fn set_capacity(&mut self, _pages: usize) {}

    fn set_time(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    fn generations(&self, now_ms: u64) -> Vec<Generation> {
        let held = Generation { seq: 0, age_ms: now_ms, pages: self.held.list.len(), label: "held".into() };
        let row = |seq: u64| Generation {
            seq,
            age_ms: now_ms.saturating_sub(self.births_ms[index_of(seq)]),
            pages: self.lists[index_of(seq)].len(),
            label: format!("gen {seq}"),
        };
        std::iter::once(held).chain((self.min_seq..=self.max_seq).rev().map(row)).collect()
    }

    fn window(&self) -> Option<RangeInclusive<u64>> {
        Some(self.min_seq..=self.max_seq)
    }

    fn standing(&self, slot: Slot) -> Option<Standing> {
        let tag = self.slots.tag(slot);
        let place = || Standing { seq: self.seq_at(listed_index(tag)), tier: tier(refs_of(tag)) };
        (tag >= LISTED).then(place)
    }

    fn tiers(&self) -> Vec<Tier> {
        let mut rows: Vec<Tier> = (0..MAX_NR_TIERS).map(|tier| self.tiers.row(tier)).collect();
        for list in self.lists.iter().chain([&self.held.list]) {
            for slot in self.slots.iter(list) {
                rows[tier(refs_of(self.slots.tag(slot)))].pages += 1;
            }
        }
        rows
    }

    fn age(&mut self, touches: &mut dyn Touches) -> Option<u64> {
        for slot in 0..self.slots.slots_max() as Slot {
            if self.slots.tag(slot) >= LISTED && touches.take(slot) != 0 {
                self.sight(slot);
            }
        }
        if self.generations_open() == MAX_NR_GENS {
            self.drain();
        }
        self.open_generation();
        Some(self.max_seq)
    }

    fn victims_until(&mut self, seq: u64, want: usize, touches: &mut dyn Touches, out: &mut Vec<Victim>) {
        let goal = out.len() + want;
        let threshold = self.tiers.threshold();
        while out.len() < goal {
            self.advance_min_seq();
            let oldest = &self.lists[index_of(self.min_seq)];
            if self.min_seq > seq || self.generations_open() == MIN_NR_GENS || oldest.is_empty() {
                break;
            }
            out.extend(self.look(threshold, touches));
        }
    }

    fn refaults(&self) -> Refaults {
        self.refaults
    }

    fn resident(&self) -> usize {
        self.evictable() + self.held.list.len()
    }

    fn contains(&self, slot: Slot) -> bool {
        is_resident(self.slots.tag(slot))
    }

    /// Pages are shown as `slot/references`.
    fn dump(&self) -> String {
        let show = |list: &List| {
            let page = |slot| format!("{slot}/{}", refs_of(self.slots.tag(slot)));
            self.slots.iter(list).map(page).collect::<Vec<_>>().join(" ")
        };
        let row = |seq: u64| format!("gen {seq}: {} | ", show(&self.lists[index_of(seq)]));
        let rows: String = (self.min_seq..=self.max_seq).rev().map(row).collect();
        rows + &format!("held: {}", show(&self.held.list))
    }

    fn check(&self) -> Result<(), String> {
        if !(MIN_NR_GENS..=MAX_NR_GENS).contains(&self.generations_open()) {
            return Err(format!("generations {}..={} are open", self.min_seq, self.max_seq));
        }
        for index in 0..self.lists.len() {
            if self.seq_at(index) > self.max_seq && !self.lists[index].is_empty() {
                return Err(format!("list {index} holds pages of no open generation"));
            }
        }
        let belongs = |list, tag| match list {
            4 => (HELD..LISTED).contains(&tag),
            _ => tag >= LISTED && listed_index(tag) == list,
        };
        let [a, b, c, d] = &self.lists;
        self.slots.check(&[a, b, c, d, &self.held.list], belongs, is_resident)
    }

    fn bytes(&self) -> usize {
        self.slots.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evict::testing::Pool;

    fn pool() -> Pool<Mglru> {
        Pool::new(Mglru::new(64, 16))
    }

    #[test]
    fn new_pages_enter_the_oldest_and_a_second_reference_lifts_them() {
        let mut pool = pool();
        pool.enter(20..23);
        pool.enter_as(23, None, Why::Readahead);
        pool.enter_as(24, None, Why::Write);
        pool.is("gen 3:  | gen 2:  | gen 1:  | gen 0: 24/0 23/0 22/1 21/1 20/1 | held: ");
        pool.touch([20, 23, 21, 21]);
        assert_eq!(pool.evict(1), [22]); // 20 and 21 climbed
        pool.is("gen 3:  | gen 2:  | gen 1: 21/3 20/2 | gen 0: 24/0 23/0 | held: ");
        assert_eq!(pool.evict(2), [23, 24]); // a page read ahead and used once has one reference
    }

    #[test]
    fn references_beyond_seven_climb_and_the_youngest_saturates() {
        let mut pool = pool();
        pool.enter([0]);
        pool.touches[0] = 7; // 1 -> 2 lifts to gen 1, then 3..7, then 8 lifts to gen 2
        assert!(pool.policy.reference(0, 7));
        pool.is("gen 3:  | gen 2: 0/3 | gen 1:  | gen 0:  | held: ");
        assert!(pool.policy.reference(0, 5));
        pool.is("gen 3: 0/3 | gen 2:  | gen 1:  | gen 0:  | held: ");
        assert!(!pool.policy.reference(0, 200));
        pool.is("gen 3: 0/7 | gen 2:  | gen 1:  | gen 0:  | held: ");
    }

    #[test]
    fn the_hand_sees_touches_before_pages_reach_the_tail() {
        let mut pool = pool();
        pool.enter(0..4);
        pool.touch([3]);
        assert_eq!(pool.evict(1), [0]);
        pool.is("gen 3:  | gen 2:  | gen 1: 3/2 | gen 0: 2/1 1/1 | held: ");
    }

    #[test]
    fn empty_generations_are_stepped_over_and_new_ones_opened() {
        let mut pool = pool();
        pool.enter(0..3);
        pool.touch(0..3);
        assert_eq!(pool.evict(1), [0]); // all climbed; gen 0 is used up
        pool.is("gen 3:  | gen 2:  | gen 1: 2/2 1/2 | held: ");
        pool.touch([1, 2]);
        pool.policy.set_time(7);
        assert_eq!(pool.evict(1), [1]); // they climbed again; two generations are too few
        pool.is("gen 4:  | gen 3:  | gen 2: 2/3 | held: ");
        let youngest = Generation { seq: 4, age_ms: 3, pages: 0, label: "gen 4".into() };
        assert_eq!(pool.policy.generations(10)[1], youngest);
    }

    #[test]
    fn a_recent_refault_brings_its_references_back() {
        let mut pool = pool();
        pool.enter(0..2);
        let victims = pool.evict_shadows(1);
        assert_eq!(victims[0].slot, 0);
        assert!(pool.enter_as(0, victims[0].shadow, Why::Read)); // 1 + the read's own
        pool.is("gen 3:  | gen 2:  | gen 1: 0/2 | gen 0: 1/1 | held: ");
        pool.policy.max_seq += 4;
        pool.policy.min_seq += 4;
        assert!(!pool.enter_as(2, victims[0].shadow, Why::Read), "four generations later it is forgotten");
        assert!(!pool.enter_as(3, victims[0].shadow, Why::Write), "a write proves nothing");
        assert_eq!(pool.policy.refaults(), Refaults { total: 2, recent: 1 });
    }

    #[test]
    fn a_tier_that_refaults_twice_as_often_as_the_one_below_is_protected() {
        let mut tiers = Tiers { evicted: [1000; 4], refaulted: [100, 150, 150, 150], ..Tiers::default() };
        assert_eq!(tiers.threshold(), 3);
        tiers.refaulted[2] = 400;
        assert_eq!(tiers.threshold(), 1);
        tiers.refaulted[1] = 300;
        assert_eq!(tiers.threshold(), 0);
        tiers.refaulted = [0, 63, 63, 63];
        assert_eq!(tiers.threshold(), 3, "too few to tell");
        tiers.protected[1] = 100;
        tiers.carry_over();
        assert_eq!((tiers.avg_refaulted[1], tiers.avg_total[1], tiers.evicted[1]), (31, 550, 0));
        assert_eq!((0..=7).map(tier).collect::<Vec<_>>(), [0, 0, 1, 2, 2, 3, 3, 3]);
    }

    #[test]
    fn protected_pages_move_up_with_two_references() {
        let mut pool = pool();
        pool.enter([0, 1]);
        pool.policy.slots.set_tag(0, listed(0, 5));
        pool.policy.tiers.evicted = [1000; 4];
        pool.policy.tiers.refaulted = [0, 0, 0, 500];
        assert_eq!(pool.evict(1), [1]);
        pool.is("gen 3:  | gen 2:  | gen 1: 0/2 | gen 0:  | held: ");
        assert_eq!(pool.policy.tiers.protected, [0, 0, 0, 1]);
    }

    #[test]
    fn aging_by_command_lifts_what_was_used_and_drains_the_oldest() {
        let mut pool = pool();
        pool.enter(0..4);
        pool.enter_as(4, None, Why::Readahead);
        pool.touch([1, 4]);
        pool.policy.set_time(5);
        assert_eq!(pool.policy.age(&mut pool.touches), Some(4));
        pool.policy.check().unwrap();
        pool.is("gen 4:  | gen 3: 1/2 | gen 2:  | gen 1: 4/1 0/1 2/1 3/1 | held: ");
        assert_eq!(pool.policy.tiers.protected, [0; 4], "carried over");
        assert_eq!(pool.policy.tiers()[0], Tier { pages: 4, avg_total: 1, ..Tier::default() });
        assert_eq!(pool.policy.tiers()[1], Tier { tier: 1, pages: 1, ..Tier::default() });
        assert_eq!(pool.policy.standing(1), Some(Standing { seq: 3, tier: 1 }));
        assert_eq!(pool.policy.window(), Some(1..=4));
    }

    #[test]
    fn eviction_by_command_stops_at_a_generation() {
        let mut pool = pool();
        pool.enter(0..4);
        pool.touch([1]);
        let mut until = |seq, want| {
            let mut out = Vec::new();
            pool.policy.victims_until(seq, want, &mut pool.touches, &mut out);
            out.iter().map(|victim| victim.slot).collect::<Vec<_>>()
        };
        assert_eq!(until(0, 2), [0, 2]);
        assert_eq!(until(0, 8), [3]);
        assert_eq!(until(0, 8), []);
        assert_eq!(until(9, 8), [1], "it had climbed");
        assert_eq!(pool.policy.window(), Some(2..=3), "the two youngest stay");
        pool.enter([5]);
        pool.policy.victims_until(9, 8, &mut pool.touches, &mut Vec::new());
        pool.is("gen 3:  | gen 2: 5/1 | held: ");
    }

    #[test]
    fn held_pages_never_return_to_the_oldest() {
        let mut pool = pool();
        pool.enter(0..3);
        assert_eq!(pool.evict(2), [0, 1]);
        pool.restore([0, 1]);
        pool.is("gen 3:  | gen 2:  | gen 1:  | gen 0: 2/1 | held: 1/1 0/1");
        pool.touch([0]);
        pool.policy.held.wait_is_over();
        assert_eq!(pool.evict(1), [1]);
        pool.is("gen 3: 0/2 | gen 2:  | gen 1:  | gen 0: 2/1 | held: ");
    }
}
