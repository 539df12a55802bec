//! Eviction policy `strata`: S3-FIFO with an adaptive probation queue. The default policy.
//!
//! Its generations are only marks, for the display, the commands of `terrace lru` and `min_ttl`. Reclaim does
//! not choose victims by them (rule 4).
//!
//! Sources: the probation FIFO and the ghost of S3-FIFO (J. Yang et al., SOSP 2023), the correlated window of
//! Clock2Q+, LIRS's condition for joining the resident set (S. Jiang and X. Zhang, SIGMETRICS 2002), second
//! chances from MGLRU. terrace combines them, and its measurements chose the parameters.
//!
//! ```text
//!  new page                      touched in the old part
//!     │                       ┌─────────────────────────────► main, youngest generation ◄──┐
//!     ▼                       │                                  │    (a new one opens     │ touched: count - 1
//!  ┌─ young ─┬── old ─────────┤                                  ▼     above 1/4 of the    │
//!  └─ 1/4 ───┴────────────────┘ probation           gen n · n-1 · n-2 · n-3 ── edge ───────┤
//!   touches    count           │                       ▲           pool)                   └─► evicted, no shadow
//!   are for-                   └─► evicted, shadow =   │
//!   gotten at the border           eviction clock ─────┘ was away no longer than main's oldest has been there
//! ```
//! 1. A new page enters probation. The first quarter of probation is the *correlated window*. Touches there
//!    belong to one use (readahead, a record at a time), and the border to the old part clears them. A use
//!    takes only a few faults. A window of half of probation, as in Clock2Q+, loses second uses; without one,
//!    each page read in pieces reaches main.
//! 2. At probation's end a touched page goes to main. An untouched page is evicted, with the *eviction clock*
//!    as its shadow: the number of evictions from probation. So the ghost is a FIFO in the index entries. A
//!    refaulted page enters main if, by that clock, it was away no longer than main's oldest page has been
//!    there. Its uses are then more frequent. So the ghost is short when main turns over fast. When main
//!    stands still, only the memory for shadows limits it.
//! 3. Until the first eviction, probation overflows into main: a loop over slightly more than the pool keeps
//!    its first pages.
//! 4. Main is one queue: pages enter at its youngest end and leave at the oldest. Generations are *marks* on
//!    it: the slot's tag holds the sequence number. A merge of the oldest into the next adds two counters.
//!    Pages at the edge count as the oldest generation.
//! 5. A touched page at main's end gets a second chance, and loses one of its at most 3 counts: popularity
//!    decays by laps. A page evicted from main leaves no shadow, because its last use is older than that of
//!    any page of main.
//! 6. The size of probation follows the uses at its margin. A refault within 1/20 of the pool after the
//!    eviction from probation grows probation by two pages. With 1/20 more it would be a hit. A first touch
//!    in main's last 1/20 (the *edge*) shrinks probation by five times as much. A main with 1/20 less would
//!    lose the page. Such a page leaves no shadow, and misses several times before it is back in main.
//!    (Factors from two to five perform alike on traces. With steady popularity every page returns some day.
//!    Only a factor of five keeps these returns from enlarging probation.) So the border settles where one
//!    more page is worth the same on either side. Small pools and recency make probation large (up to 6/10).
//!    Loops over more than the pool and steady popularity make it small (down to 1/100). It starts at 1/10.
//!
//! Targets are shares of the capacity, not of the resident pages: reclaim ahead of demand keeps the pool
//! below it. A page read without admission advances the clock like an eviction from probation. A bit of its
//! shadow keeps it from moving the border, because no larger probation would have kept it.
//!
//! Victims that cannot be evicted are held aside (see `list::HeldQueue`). Their later evictions count as
//! evictions from probation, where most of them, pages written once, came from.

use std::num::NonZeroU32;
use std::ops::RangeInclusive;

use crate::list::queue_age::QueueAge;
use crate::list::segmented::SegmentedList;
use crate::list::{ABSENT, HeldQueue, Patience, Slots, Step, collect};
use crate::{AccessCounts, Evict, Generation, InsertReason, Position, Refaults, Shadow, Slot, Victim};

/// Share of the pool that probation starts with: 1/10.
const PROBATION_DIVISOR: usize = 10;
/// Bounds of probation's share, in hundredths of the pool.
const PROBATION_HUNDREDTHS: [usize; 2] = [1, 60];
/// Share of the pool that counts as the margin, on either side: 1/20.
const MARGIN_DIVISOR: usize = 20;
/// Pages that probation grows by for each fault that a larger probation would have avoided.
const PROBATION_STEP: usize = 2;
/// Cost of losing a page of main, relative to that of a page of probation.
const MAIN_WORTH: usize = 5;
/// Share of probation in which touches do not count: 1/4.
const CORRELATED_DIVISOR: usize = 4;
/// Share of the pool above which the youngest generation closes: 1/4.
const GENERATION_DIVISOR: usize = 4;
/// Generations shown; older pages belong to the oldest.
const GENERATIONS: u64 = 4;
/// Counts saturate at this value.
const COUNT_MAX: u8 = 3;

// Tags. Slots below FIRST_RESIDENT are absent; the tag then tells `restore` whether the victim had been held.
const OUT_OF_HELD: u8 = 1;
const FIRST_RESIDENT: u8 = 2;
const YOUNG: u8 = 2;
const OLD: u8 = 3;
const HELD: u8 = 4;
/// At the edge, and untouched when it came there.
const EDGE_IDLE: u8 = 5;
/// At the edge, touched before it came there.
const EDGE_USED: u8 = 6;
const FIRST_MAIN: u8 = 7;
/// Number of different sequence numbers in a tag.
const TAG_SPAN: u64 = 256 - FIRST_MAIN as u64;

/// Bit of a shadow: the page was admitted. The other bits are the clock, modulo `CLOCK_SPAN`, plus 1.
const WAS_ADMITTED: u32 = 1 << 31;
const CLOCK_SPAN: u64 = WAS_ADMITTED as u64 - 1;

#[derive(Debug)]
pub(crate) struct Strata {
    slots: Slots,
    /// Newer part: young. Older part: old.
    probation: SegmentedList,
    /// Older part: the edge.
    main: SegmentedList,
    held: HeldQueue,
    patience: Patience,
    capacity: usize,
    /// Target length of probation, pages.
    probation_target: usize,
    /// No eviction since the pool was last empty or grew: probation overflows into main.
    filling: bool,
    eviction_clock: u64,
    /// Entries into main, dated by the eviction clock.
    main_age: QueueAge,
    max_seq: u64,
    /// Pages of generation `seq`, at `seq % 4`; the next field holds its birth.
    pages: [usize; GENERATIONS as usize],
    births_ms: [u64; GENERATIONS as usize],
    now_ms: u64,
    refaults: Refaults,
}

fn is_resident(tag: u8) -> bool {
    tag >= FIRST_RESIDENT
}

fn tag_of(seq: u64) -> u8 {
    FIRST_MAIN + (seq % TAG_SPAN) as u8
}

impl Strata {
    pub(crate) fn new(slots_max: usize, capacity: usize) -> Strata {
        let (slots, [probation, main, held]) = Slots::new::<3>(slots_max);
        Strata {
            slots,
            probation: SegmentedList::new(probation),
            main: SegmentedList::new(main),
            held: HeldQueue::new(held),
            patience: Patience::default(),
            capacity,
            probation_target: (capacity / PROBATION_DIVISOR).max(1),
            filling: true,
            eviction_clock: 0,
            main_age: QueueAge::default(),
            max_seq: 0,
            pages: [0; 4],
            births_ms: [0; 4],
            now_ms: 0,
            refaults: Refaults::default(),
        }
    }

    /// Pages at the margin: of the edge, and of the ghost's newest part.
    fn margin(&self) -> usize {
        (self.capacity / MARGIN_DIVISOR).max(2)
    }

    fn set_probation_target(&mut self, pages: usize) {
        let [least, most] = PROBATION_HUNDREDTHS.map(|share| (self.capacity * share / 100).max(1));
        self.probation_target = pages.clamp(least, most);
    }

    /// Target length of the correlated window: a quarter of probation, rounded to the nearest.
    fn correlated_target(&self) -> usize {
        (self.probation_target + CORRELATED_DIVISOR / 2) / CORRELATED_DIVISOR
    }

    fn min_seq(&self) -> u64 {
        self.max_seq.saturating_sub(GENERATIONS - 1)
    }

    fn seq_of(&self, tag: u8) -> u64 {
        if tag < FIRST_MAIN {
            return self.min_seq(); // at the edge
        }
        self.max_seq.saturating_sub(self.generations_ago(tag)).max(self.min_seq())
    }

    fn generations_ago(&self, tag: u8) -> u64 {
        (self.max_seq + TAG_SPAN - u64::from(tag - FIRST_MAIN)) % TAG_SPAN
    }

    /// Advances the clock for a page that leaves probation or is refused. Returns its shadow, with `bit`.
    fn tick(&mut self, bit: u32) -> Shadow {
        self.eviction_clock += 1;
        let stamp = (self.eviction_clock % CLOCK_SPAN) as u32 + 1;
        Shadow(NonZeroU32::new(stamp | bit).expect("a stamp is not 0"))
    }

    /// Evictions from probation since `shadow` was left.
    fn ago(&self, shadow: Shadow) -> u64 {
        let then = u64::from(shadow.0.get() & !WAS_ADMITTED) + CLOCK_SPAN - 1;
        (self.eviction_clock % CLOCK_SPAN + CLOCK_SPAN - then % CLOCK_SPAN) % CLOCK_SPAN
    }

    /// Whether this shadow's page was away no longer than main's oldest page has been there: it is used more
    /// often.
    fn outdoes_main(&mut self, shadow: Shadow) -> bool {
        let len = self.main.len();
        len == 0 || self.ago(shadow) <= self.eviction_clock - self.main_age.entered(len)
    }

    /// Grows probation if a slightly larger one would have avoided this fault.
    fn learn_from_fault(&mut self, shadow: Shadow) {
        if shadow.0.get() & WAS_ADMITTED != 0 && self.ago(shadow) < self.margin() as u64 {
            self.set_probation_target(self.probation_target + PROBATION_STEP);
        }
    }

    /// Puts a page that is in no list into the youngest generation.
    fn push_main(&mut self, slot: Slot) {
        self.main_age.enter(self.eviction_clock, self.capacity);
        self.main.push(&mut self.slots, slot, tag_of(self.max_seq));
        let youngest = &mut self.pages[(self.max_seq % GENERATIONS) as usize];
        *youngest += 1;
        if *youngest > (self.capacity / GENERATION_DIVISOR).max(1) {
            self.open_generation();
        }
    }

    /// Opens a generation. A generation that falls out of the window is merged into the oldest left.
    fn open_generation(&mut self) {
        self.retire_tags();
        self.max_seq += 1;
        let index = (self.max_seq % GENERATIONS) as usize;
        let leaving = std::mem::take(&mut self.pages[index]);
        self.pages[(self.min_seq() % GENERATIONS) as usize] += leaving;
        self.births_ms[index] = self.now_ms;
    }

    /// Keeps tags unambiguous, by one walk in some 240 generations. A page outlives the span of tags only if
    /// main evicts nothing while truncations remove pages in front of it.
    fn retire_tags(&mut self) {
        let Some(oldest) = self.main.border() else { return };
        if self.generations_ago(self.slots.tag(oldest)) < TAG_SPAN - 2 {
            return;
        }
        let min_seq = self.min_seq();
        let outside = |slot: &Slot| self.generations_ago(self.slots.tag(*slot)) >= GENERATIONS;
        let oldest_first = self.slots.iter_back(&self.main.list).skip(self.main.older_len());
        let stale: Vec<Slot> = oldest_first.take_while(outside).collect();
        for slot in stale {
            self.slots.set_tag(slot, tag_of(min_seq));
        }
    }

    /// Unlinks a page of main, at the edge or not.
    fn take_out_of_main(&mut self, slot: Slot) {
        let tag = self.slots.tag(slot);
        self.pages[(self.seq_of(tag) % GENERATIONS) as usize] -= 1;
        self.main.unlink(&mut self.slots, slot, tag >= FIRST_MAIN);
    }

    /// Moves main's oldest pages to the edge, up to the margin's length and at most two a call.
    fn feed_edge(&mut self, touches: &dyn AccessCounts) {
        for _ in 0..2 {
            let Some(slot) = self.main.border() else { return };
            if self.main.older_len() >= self.margin() {
                return;
            }
            let seq = self.seq_of(self.slots.tag(slot));
            self.pages[(seq % GENERATIONS) as usize] -= 1;
            self.pages[(self.min_seq() % GENERATIONS) as usize] += 1;
            let tag = if touches.peek(slot) == 0 { EDGE_IDLE } else { EDGE_USED };
            self.main.cross(&mut self.slots, tag);
        }
    }

    /// Takes the oldest page of probation. The flag is true if its touches count.
    fn pop_probation(&mut self) -> Option<(Slot, bool)> {
        let slot = self.slots.tail(&self.probation.list)?;
        let is_young = self.slots.tag(slot) == YOUNG;
        self.probation.unlink(&mut self.slots, slot, is_young);
        Some((slot, !is_young))
    }

    /// Moves pages out of the correlated window, and while filling the excess of probation into main; at most
    /// `moves` of each.
    fn balance(&mut self, moves: usize, touches: &mut dyn AccessCounts) {
        for _ in 0..moves {
            if self.probation.newer_len() <= self.correlated_target() {
                break;
            }
            let slot = self.probation.border().expect("counted");
            touches.set(slot, 0);
            self.probation.cross(&mut self.slots, OLD);
        }
        for _ in 0..moves {
            if !self.filling
                || self.probation.len() <= self.probation_target
                || self.probation.older_len() == 0
            {
                break;
            }
            let (slot, _) = self.pop_probation().expect("counted");
            self.push_main(slot);
        }
    }

    fn look(&mut self, touches: &mut dyn AccessCounts) -> Step {
        let others = self.probation.len() + self.main.len();
        if self.held.due(others) {
            return self.look_held(touches);
        }
        if others == 0 {
            return Step::Empty;
        }
        let step = if self.probation.len() > self.probation_target || self.main.len() == 0 {
            self.look_probation(touches)
        } else {
            self.feed_edge(touches);
            self.look_main(touches)
        };
        if matches!(step, Step::Take(_)) {
            self.held.other_taken();
        }
        step
    }

    fn look_probation(&mut self, touches: &mut dyn AccessCounts) -> Step {
        self.balance(1, touches);
        let (slot, counts) = self.pop_probation().expect("probation is not empty");
        let touched = touches.take(slot) != 0 && counts;
        self.promote_or_evict(slot, touched)
    }

    fn look_held(&mut self, touches: &mut dyn AccessCounts) -> Step {
        let slot = self.slots.pop(&mut self.held.list, OUT_OF_HELD).expect("held is due");
        let touched = touches.take(slot) != 0;
        self.promote_or_evict(slot, touched)
    }

    fn promote_or_evict(&mut self, slot: Slot, touched: bool) -> Step {
        if touched && !self.patience.touched(self.resident()) {
            self.push_main(slot);
            return Step::Moved;
        }
        if !touched {
            self.patience.found();
        }
        Step::Take(Victim { slot, shadow: Some(self.tick(WAS_ADMITTED)) })
    }

    fn look_main(&mut self, touches: &mut dyn AccessCounts) -> Step {
        let slot = self.slots.tail(&self.main.list).expect("main is not empty");
        let was_idle = self.slots.tag(slot) == EDGE_IDLE;
        self.take_out_of_main(slot);
        let count = touches.peek(slot).min(COUNT_MAX);
        if count == 0 {
            self.patience.found();
        } else if !self.patience.touched(self.resident()) {
            if was_idle {
                let less = PROBATION_STEP * MAIN_WORTH;
                self.set_probation_target(self.probation_target.saturating_sub(less));
            }
            touches.set(slot, count - 1);
            self.push_main(slot);
            return Step::Moved;
        }
        Step::Take(Victim { slot, shadow: None })
    }
}

impl Evict for Strata {
    fn name(&self) -> &'static str {
        "strata"
    }

    fn insert(
        &mut self,
        slot: Slot,
        shadow: Option<Shadow>,
        _reason: InsertReason,
        touches: &mut dyn AccessCounts,
    ) -> bool {
        assert!(!self.contains(slot), "slot {slot} is resident already");
        touches.set(slot, 0);
        shadow.into_iter().for_each(|shadow| self.learn_from_fault(shadow));
        let recent = shadow.is_some_and(|shadow| self.outdoes_main(shadow));
        self.refaults.total += u64::from(shadow.is_some());
        self.refaults.recent += u64::from(recent);
        if recent {
            self.push_main(slot);
        } else {
            self.probation.push(&mut self.slots, slot, YOUNG);
            self.balance(2, touches);
        }
        recent
    }

    fn victims(&mut self, want: usize, touches: &mut dyn AccessCounts, out: &mut Vec<Victim>) {
        self.filling = false;
        collect(want, out, || self.look(touches));
    }

    fn restore(&mut self, slot: Slot) {
        assert!(!self.contains(slot), "slot {slot} is resident already");
        let again = self.slots.tag(slot) == OUT_OF_HELD;
        self.held.put(&mut self.slots, slot, again, HELD);
    }

    fn remove(&mut self, slot: Slot) {
        let tag = self.slots.tag(slot);
        assert!(is_resident(tag), "slot {slot} is not resident");
        match tag {
            YOUNG | OLD => self.probation.unlink(&mut self.slots, slot, tag == YOUNG),
            HELD => self.slots.unlink(&mut self.held.list, slot, ABSENT),
            _ => self.take_out_of_main(slot),
        }
        self.filling |= self.resident() == 0;
    }

    fn shadow(&mut self) -> Option<Shadow> {
        Some(self.tick(0))
    }

    fn set_capacity(&mut self, pages: usize) {
        // A pool that grows by an eighth or more fills anew; smaller steps are tuning.
        self.filling |= pages > self.capacity + self.capacity / 8;
        let target = self.probation_target * pages / self.capacity.max(1);
        self.capacity = pages;
        self.set_probation_target(target);
    }

    fn set_time(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    fn generations(&self, now_ms: u64) -> Vec<Generation> {
        let queue = |label: &str, pages| Generation::queue(label, pages, now_ms);
        let mut rows = vec![queue("probation", self.probation.len()), queue("held", self.held.list.len())];
        rows.extend((self.min_seq()..=self.max_seq).rev().map(|seq| {
            let index = (seq % GENERATIONS) as usize;
            Generation {
                seq,
                age_ms: now_ms.saturating_sub(self.births_ms[index]),
                pages: self.pages[index],
                label: format!("gen {seq}"),
            }
        }));
        rows
    }

    fn window(&self) -> Option<RangeInclusive<u64>> {
        Some(self.min_seq()..=self.max_seq)
    }

    fn position(&self, slot: Slot) -> Option<Position> {
        let tag = self.slots.tag(slot);
        (tag >= EDGE_IDLE).then(|| Position { seq: self.seq_of(tag), tier: 0 })
    }

    fn age(&mut self, touches: &mut dyn AccessCounts) -> Option<u64> {
        let touched = |slot: &Slot| touches.peek(*slot) != 0;
        let used: Vec<Slot> = self.slots.iter_back(&self.main.list).filter(touched).collect();
        for slot in used {
            touches.set(slot, 0);
            self.take_out_of_main(slot);
            self.push_main(slot);
        }
        self.open_generation();
        Some(self.max_seq)
    }

    fn victims_until(
        &mut self,
        seq: u64,
        want: usize,
        touches: &mut dyn AccessCounts,
        out: &mut Vec<Victim>,
    ) {
        let seq = seq.min(self.max_seq.saturating_sub(2));
        self.filling = false;
        collect(want, out, || match self.slots.tail(&self.main.list) {
            Some(tail) if self.max_seq >= 2 && self.seq_of(self.slots.tag(tail)) <= seq => {
                self.look_main(touches)
            }
            _ => Step::Empty,
        });
    }

    fn refaults(&self) -> Refaults {
        self.refaults
    }

    fn resident(&self) -> usize {
        self.probation.len() + self.main.len() + self.held.list.len()
    }

    fn contains(&self, slot: Slot) -> bool {
        is_resident(self.slots.tag(slot))
    }

    fn dump(&self) -> String {
        let [young, old] = self.probation.show(&self.slots);
        let [_, edge] = self.main.show(&self.slots);
        let mut text = format!("young: {young} | old: {old}");
        for seq in (self.min_seq()..=self.max_seq).rev() {
            let all = self.slots.iter(&self.main.list).take(self.main.newer_len());
            let members = all.filter(|&slot| self.seq_of(self.slots.tag(slot)) == seq);
            let members: Vec<String> = members.map(|slot| slot.to_string()).collect();
            text += &format!(" | gen {seq}: {}", members.join(" "));
        }
        text + &format!(" | edge: {edge} | held: {}", self.slots.show(&self.held.list))
    }

    fn check(&self) -> Result<(), String> {
        let belongs = |list, tag| match list {
            0 => tag == YOUNG || tag == OLD,
            1 => tag == HELD,
            _ => tag >= EDGE_IDLE,
        };
        let lists = [&self.probation.list, &self.held.list, &self.main.list];
        self.slots.check(&lists, belongs, is_resident)?;
        self.probation.check(&self.slots, |tag| tag == YOUNG).map_err(|e| format!("probation: {e}"))?;
        self.main.check(&self.slots, |tag| tag >= FIRST_MAIN).map_err(|e| format!("main: {e}"))?;
        let mut pages = [0; GENERATIONS as usize];
        let mut youngest_so_far = u64::MAX;
        for slot in self.slots.iter(&self.main.list) {
            let seq = self.seq_of(self.slots.tag(slot));
            if seq > youngest_so_far {
                return Err(format!("main: slot {slot} of gen {seq} lies behind gen {youngest_so_far}"));
            }
            youngest_so_far = seq;
            pages[(seq % GENERATIONS) as usize] += 1;
        }
        if pages != self.pages {
            return Err(format!("generations hold {pages:?} pages, counted {:?}", self.pages));
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.slots.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pool;

    /// 20 pages: probation 2, of which one page is young; a generation closes above 5.
    fn pool() -> Pool<Strata> {
        Pool::new(Strata::new(64, 20))
    }

    fn shadow(clock: u32) -> Option<Shadow> {
        Some(Shadow(NonZeroU32::new(clock | WAS_ADMITTED).unwrap()))
    }

    #[test]
    fn a_pool_that_never_evicted_fills_its_generations() {
        let mut pool = pool();
        pool.enter(0..6);
        pool.is("young: 5 | old: 4 | gen 0: 3 2 1 0 | edge:  | held: ");
        pool.enter(6..9);
        pool.is("young: 8 | old: 7 | gen 1: 6 | gen 0: 5 4 3 2 1 0 | edge:  | held: ");
    }

    #[test]
    fn touches_of_the_correlated_window_do_not_count() {
        let mut pool = pool();
        pool.enter(0..2);
        pool.is("young: 1 | old: 0 | gen 0:  | edge:  | held: ");
        pool.touch([1]);
        assert_eq!(pool.evict(1), [0]);
        pool.enter(2..5);
        pool.is("young: 4 | old: 3 2 1 | gen 0:  | edge:  | held: ");
        assert_eq!(pool.touches[1], 0, "forgotten at the border");
        pool.touch([2]);
        assert_eq!(pool.evict(1), [1]);
        pool.is("young: 4 | old: 3 2 | gen 0:  | edge:  | held: ");
        pool.enter([5]);
        assert_eq!(pool.evict(1), [3]); // 2 was touched in the old part
        pool.is("young: 5 | old: 4 | gen 0: 2 | edge:  | held: ");
    }

    #[test]
    fn main_is_evicted_once_probation_fits_and_counts_decrement() {
        let mut pool = pool();
        pool.enter(0..6);
        pool.touch([0, 0, 0, 0, 0, 1]);
        assert_eq!(pool.evict(2), [2, 3]);
        pool.is("young: 5 | old: 4 | gen 0: 1 | edge: 0 | held: ");
        assert_eq!((pool.touches[0], pool.touches[1]), (2, 0), "five touches count as three");
        assert_eq!(pool.evict(1), [1]); // 0 goes round once more
        assert_eq!(pool.touches[0], 1);
        let victims = pool.evict_shadows(1); // and once more: one lap without an idle page ends the search
        assert_eq!(victims, [Victim { slot: 0, shadow: None }]);
        let victims = pool.evict_shadows(2); // main is empty
        assert_eq!(victims, [Victim { slot: 4, shadow: shadow(2) }, Victim { slot: 5, shadow: shadow(3) }]);
    }

    #[test]
    fn refault_enters_main_if_away_no_longer_than_mains_oldest() {
        let mut pool = pool();
        pool.enter(0..6);
        pool.evict(2); // both from main: the clock stands still
        pool.is("young: 5 | old: 4 | gen 0: 3 | edge: 2 | held: ");
        pool.enter(6..9);
        let victims = pool.evict_shadows(1);
        assert_eq!(victims, [Victim { slot: 4, shadow: shadow(2) }]);
        for _ in 0..30 {
            pool.policy.shadow(); // pages read and passed on
        }
        assert!(
            pool.enter_as(4, victims[0].shadow, InsertReason::Read),
            "1.5 pools later: 2 has been there longer"
        );
        pool.is("young: 8 | old: 7 6 5 | gen 0: 4 3 | edge: 2 | held: ");
        pool.policy.remove(2);
        pool.policy.remove(3);
        let late = pool.policy.shadow();
        assert!(!pool.enter_as(9, victims[0].shadow, InsertReason::Read), "4 came later");
        assert!(pool.enter_as(10, late, InsertReason::Read), "4 was there already");
        assert_eq!(pool.policy.refaults(), Refaults { total: 3, recent: 2 });
    }

    /// 200 pages: probation 20, between 2 and 120; the margin 10.
    fn wide_pool() -> Pool<Strata> {
        let mut pool = Pool::new(Strata::new(64, 200));
        pool.policy.filling = false;
        pool
    }

    #[test]
    fn probation_grows_by_what_a_larger_one_would_have_kept() {
        let mut pool = wide_pool();
        pool.enter(0..25);
        let first = pool.evict_shadows(1)[0];
        for _ in 0..8 {
            pool.policy.shadow();
        }
        pool.enter_as(first.slot, first.shadow, InsertReason::Read);
        assert_eq!(pool.policy.probation_target, 22, "eight evictions later");
        let second = pool.evict_shadows(1)[0];
        for _ in 0..10 {
            pool.policy.shadow();
        }
        pool.enter_as(second.slot, second.shadow, InsertReason::Read);
        assert_eq!(pool.policy.probation_target, 22, "beyond the margin");
        let passed = pool.policy.shadow();
        pool.enter_as(60, passed, InsertReason::Read);
        assert_eq!(pool.policy.probation_target, 22, "one that was never admitted");
        pool.policy.set_probation_target(500);
        assert_eq!(pool.policy.probation_target, 120);
    }

    #[test]
    fn probation_shrinks_when_the_edge_of_main_is_used() {
        let mut pool = wide_pool();
        for slot in 0..30 {
            pool.enter_as(slot, shadow(1), InsertReason::Read);
        }
        pool.policy.set_probation_target(20); // the shadows let it grow
        pool.touch([0, 1]);
        assert_eq!(pool.evict(2), [2, 3]);
        assert_eq!(pool.policy.probation_target, 20, "touched long before the end");
        pool.is(
            "young:  | old:  | gen 0: 1 0 29 28 27 26 25 24 23 22 21 20 19 18 17 16 15 14 13 12 11 10 9 8 \
             | edge: 7 6 5 4 | held: ",
        );
        pool.touch([5]);
        assert_eq!(pool.evict(2), [4, 6]);
        assert_eq!(pool.policy.probation_target, 10, "touched at the edge");
        pool.policy.set_probation_target(0);
        assert_eq!(pool.policy.probation_target, 2);
        pool.policy.set_capacity(400);
        assert_eq!(pool.policy.probation_target, 4, "its share stays");
    }

    #[test]
    fn the_clock_wraps_past_zero() {
        let mut pool = pool();
        pool.policy.eviction_clock = CLOCK_SPAN - 2;
        let before = pool.policy.shadow().unwrap();
        let after = pool.policy.shadow().unwrap();
        assert_eq!((before.0.get(), after.0.get()), (WAS_ADMITTED - 1, 1));
        for _ in 0..16 {
            pool.policy.shadow();
        }
        assert_eq!((pool.policy.ago(before), pool.policy.ago(after)), (17, 16));
    }

    #[test]
    fn generations_open_by_size_and_merge_beyond_four() {
        let mut pool = pool();
        for slot in 0..32 {
            pool.policy.set_time(u64::from(slot));
            assert!(pool.enter_as(slot, shadow(1), InsertReason::Read));
        }
        pool.is("young:  | old:  | gen 5: 31 30 | gen 4: 29 28 27 26 25 24 | gen 3: 23 22 21 20 19 18 \
             | gen 2: 17 16 15 14 13 12 11 10 9 8 7 6 5 4 3 2 1 0 | edge:  | held: ");
        let rows = pool.policy.generations(40);
        assert_eq!(rows[2], Generation { seq: 5, age_ms: 11, pages: 2, label: "gen 5".into() });
        assert_eq!(rows[5], Generation { seq: 2, age_ms: 29, pages: 18, label: "gen 2".into() });
    }

    #[test]
    fn aging_lifts_used_pages_and_eviction_stops_at_a_generation() {
        let mut pool = pool();
        for slot in 0..9 {
            pool.enter_as(slot, shadow(1), InsertReason::Read);
        }
        pool.is("young:  | old:  | gen 1: 8 7 6 | gen 0: 5 4 3 2 1 0 | edge:  | held: ");
        pool.touch([0, 3]);
        assert_eq!(pool.policy.age(&mut pool.touches), Some(2));
        pool.is("young:  | old:  | gen 2:  | gen 1: 3 0 8 7 6 | gen 0: 5 4 2 1 | edge:  | held: ");
        assert_eq!(pool.touches[3], 0);
        assert_eq!(pool.policy.position(3), Some(Position { seq: 1, tier: 0 }));
        pool.touch([4]);
        let mut out = Vec::new();
        pool.policy.victims_until(1, 8, &mut pool.touches, &mut out);
        assert_eq!(out.iter().map(|victim| victim.slot).collect::<Vec<_>>(), [1, 2, 5]);
        pool.is("young:  | old:  | gen 2: 4 | gen 1: 3 0 8 7 6 | gen 0:  | edge:  | held: ");
    }

    #[test]
    fn tags_stay_unambiguous_for_pages_that_nothing_ever_evicts() {
        let mut pool = pool();
        pool.enter_as(0, shadow(1), InsertReason::Read);
        for _ in 0..3 * TAG_SPAN {
            for slot in 1..8 {
                pool.enter_as(slot, shadow(1), InsertReason::Read);
            }
            for slot in 1..8 {
                pool.policy.remove(slot);
            }
        }
        assert!(pool.policy.max_seq > 2 * TAG_SPAN);
        assert_eq!(pool.policy.seq_of(pool.policy.slots.tag(0)), pool.policy.min_seq());
        assert_eq!(pool.evict(1), [0]);
    }

    #[test]
    fn held_pages_do_not_count_as_probation_and_leave_a_shadow() {
        let mut pool = pool();
        pool.enter(0..6);
        assert_eq!(pool.evict(1), [0]);
        pool.restore([0]);
        pool.is("young: 5 | old: 4 | gen 0: 3 2 | edge: 1 | held: 0");
        assert_eq!(pool.evict(5), [1, 2, 3, 4, 5]);
        assert_eq!(pool.evict_shadows(1), [Victim { slot: 0, shadow: shadow(4) }]);
        pool.restore([0]);
        pool.enter([1]);
        pool.touch([0]);
        pool.policy.remove(1);
        assert_eq!(pool.evict(1), [0], "touched, it went to main, which holds nothing else");
    }

    #[test]
    fn an_emptied_or_grown_pool_fills_anew() {
        let mut pool = pool();
        pool.enter(0..3);
        pool.evict(1);
        assert!(!pool.policy.filling);
        pool.policy.set_capacity(22);
        assert!(!pool.policy.filling, "a small step is no growth");
        pool.policy.set_capacity(40);
        assert!(pool.policy.filling);
        pool.evict(1);
        let left: Vec<Slot> = (0..3).filter(|&slot| pool.policy.contains(slot)).collect();
        left.into_iter().for_each(|slot| pool.policy.remove(slot));
        assert!(pool.policy.filling);
    }
}
