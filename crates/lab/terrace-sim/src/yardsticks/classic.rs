//! `classic`: the kernel's active and inactive lists with refault distances.
//!
//! Source: Linux's page reclaim without MGLRU (mm/vmscan.c, mm/swap.c, mm/workingset.c; J. Weiner, "Thrash
//! detection-based file cache sizing", 2012) as of 6.1, for pages of files under a memory limit of their own; written
//! from a specification, no kernel code.
//!
//! ```text
//!   new ► inactive head ─────────────────────────► tail: evicted, shadow = age of the nonresident
//!            │   ▲                      │ used a second time        │ refaulted within NR_active of it
//!            │   └── deactivated ◄── active tail ◄──── active head ◄┴────────────────────────────┘
//!            └── only when pages came back too soon lately, or inactive × ratio < active
//! ```
//! 1. The first use of an inactive page sets its referenced bit, the second moves it to the head of the active list.
//!    A use of an active page sets the bit and moves nothing. The read that faulted a page in is its first use.
//! 2. The *nonresident age* counts evictions and activations. A page refaulted within as many of them as the
//!    active list has pages would have stayed in memory without the active list: it enters that list.
//! 3. A *round* of reclaim frees 32 pages: from priority 12 downwards it scans lists >> priority pages, 32
//!    inactive ones and 32 active ones in turn, until 32 are free. Inactive pages are evicted whether
//!    referenced or not; active ones move to the inactive head, and keep their referenced bit.
//! 4. Active pages are scanned if a refault was activated since the last round, or if inactive × ratio < active;
//!    the ratio is 1 below 1 GiB, else the root of ten times the GiB.
//!
//! Departures:
//! - Without `accessed`, uses are seen only at the tail of the inactive list, and by a hand that passes 8
//!   slots for each victim wanted. So a page is activated late, by at most an eighth of a turnover of the
//!   pool, and pages activated by one pass are ordered by slot number. Consecutive reads of one page, which
//!   the kernel counts as one use, count each. The cost: 0.9 % more misses than with every access reported,
//!   on average of 22 cells of real traces, 8 % at most.
//! - A round continues over several calls that want fewer pages than it frees.
//! - No mapped pages; no second type of page, and so no balancing by cost; no per-CPU batches.
//! - A victim that cannot be evicted waits aside (see [`HeldQueue`]). The kernel activates it and rotates it to
//!   the tail when its writeback ends.

use std::num::NonZeroU32;

use terrace_policy::list::{ABSENT, HeldQueue, List, Patience, SWEEP_RATE, Slots, Step, Sweep, collect};
use terrace_policy::{AccessCounts, Evict, Generation, InsertReason, Refaults, Shadow, Slot, Victim};

const DEF_PRIORITY: u32 = 12;
/// Pages freed by a round, and pages of one list scanned in turn.
const SWAP_CLUSTER_MAX: usize = 32;
/// Pages of a GiB, as a shift.
const GIB_SHIFT: u32 = 30 - 12;
/// Maximum number of uses that one look at the touch table can show: clients count no further.
const TOUCHES_MAX: u8 = 3;

// Tags. The low bits belong to the page; absent slots keep them until `restore` or `insert`.
const REFERENCED: u8 = 0x01;
const WORKINGSET: u8 = 0x02;
const BITS: u8 = REFERENCED | WORKINGSET;
const WAS_HELD: u8 = 0x04;
const INACTIVE: u8 = 0x10;
const ACTIVE: u8 = 0x20;
const HELD: u8 = 0x40;

// Shadows: a bit that makes them nonzero, the low bits of the nonresident age, the workingset bit.
const SHADOW_MARK: u32 = 1 << 31;
const SHADOW_AGE_MASK: u32 = (1 << 30) - 1;

fn is_resident(tag: u8) -> bool {
    tag >= INACTIVE
}

/// The remaining work of the current round.
#[derive(Debug, Default)]
struct Round {
    priority: u32,
    /// Inactive pages to scan before the active list's turn.
    turn: usize,
    /// Further pages to scan at this priority.
    inactive: usize,
    active: usize,
    freed: usize,
    /// Whether active pages are scanned.
    deactivates: bool,
}

/// The policy `classic`. See the module's description.
#[derive(Debug)]
pub(crate) struct Classic {
    slots: Slots,
    inactive: List,
    active: List,
    held: HeldQueue,
    patience: Patience,
    sweep: Sweep,
    round: Round,
    /// Evictions and activations, modulo 2^32.
    nonresident_age: u32,
    /// Refaults activated, up to the last round.
    activated_before: u64,
    refaults: Refaults,
    /// Each access is reported: the touch table is ignored.
    exact: bool,
    /// The page used last: a further access to it is the same use.
    last_used: Option<Slot>,
}

impl Classic {
    /// For slots below `slots_max`; the capacity has no influence.
    pub(crate) fn new(slots_max: usize, _capacity: usize) -> Classic {
        let (slots, [inactive, active, held]) = Slots::new::<3>(slots_max);
        Classic {
            slots,
            inactive,
            active,
            held: HeldQueue::new(held),
            patience: Patience::default(),
            sweep: Sweep::default(),
            round: Round::default(),
            nonresident_age: 0,
            activated_before: 0,
            refaults: Refaults::default(),
            exact: false,
            last_used: None,
        }
    }

    /// Applies one use of a resident page. True if it activated the page.
    fn used(&mut self, slot: Slot) -> bool {
        let tag = self.slots.tag(slot);
        if tag & REFERENCED == 0 {
            self.slots.set_tag(slot, tag | REFERENCED);
            return false;
        }
        if tag & INACTIVE == 0 {
            return false;
        }
        self.slots.unlink(&mut self.inactive, slot, ABSENT);
        self.slots.push(&mut self.active, slot, ACTIVE | tag & WORKINGSET);
        self.nonresident_age = self.nonresident_age.wrapping_add(1);
        true
    }

    /// Applies a page's uses since the last look. True if one of them activated it.
    fn seen(&mut self, slot: Slot, touched: u8) -> bool {
        (0..touched.min(TOUCHES_MAX)).fold(false, |activated, _| self.used(slot) || activated)
    }

    fn take_touches(&self, slot: Slot, touches: &mut dyn AccessCounts) -> u8 {
        if self.exact { 0 } else { touches.take(slot) }
    }

    fn shadow_now(&mut self, bits: u8) -> Shadow {
        let age = self.nonresident_age & SHADOW_AGE_MASK;
        self.nonresident_age = self.nonresident_age.wrapping_add(1);
        let workingset = u32::from(bits & WORKINGSET != 0);
        Shadow(NonZeroU32::new(SHADOW_MARK | age << 1 | workingset).expect("marked"))
    }

    /// The list and bits of a refaulted page.
    fn refault(&mut self, shadow: Shadow) -> u8 {
        let (age, workingset) = (shadow.0.get() >> 1 & SHADOW_AGE_MASK, shadow.0.get() & 1);
        let distance = self.nonresident_age.wrapping_sub(age) & SHADOW_AGE_MASK;
        self.refaults.total += 1;
        if distance as usize > self.active.len() {
            return INACTIVE;
        }
        self.refaults.recent += 1;
        self.nonresident_age = self.nonresident_age.wrapping_add(1);
        ACTIVE | if workingset != 0 { WORKINGSET } else { 0 }
    }

    fn inactive_is_low(&self) -> bool {
        let gib = (self.inactive.len() + self.active.len()) >> GIB_SHIFT;
        let ratio = (10 * gib).isqrt().max(1);
        self.inactive.len() * ratio < self.active.len()
    }

    fn deactivate(&mut self, pages: usize, touches: &mut dyn AccessCounts) {
        for _ in 0..pages {
            let Some(slot) = self.slots.tail(&self.active) else { break };
            let touched = self.take_touches(slot, touches);
            self.seen(slot, touched);
            let bits = self.slots.tag(slot) & BITS;
            self.slots.unlink(&mut self.active, slot, ABSENT);
            self.slots.push(&mut self.inactive, slot, INACTIVE | WORKINGSET | bits);
        }
    }

    fn start_priority(&mut self, priority: u32, freed: usize) {
        let activated = self.refaults.recent != self.activated_before;
        self.round = Round {
            priority,
            turn: 0,
            inactive: self.inactive.len() >> priority,
            active: self.active.len() >> priority,
            freed,
            deactivates: activated || self.inactive_is_low(),
        };
    }

    /// Continues the round up to the turn of an inactive page. Some page must be inactive or active.
    fn reach_inactive(&mut self, touches: &mut dyn AccessCounts) {
        while self.round.turn == 0 || self.inactive.is_empty() {
            let scan = self.round.active.min(SWAP_CLUSTER_MAX);
            self.round.active -= scan;
            if self.round.deactivates {
                self.deactivate(scan, touches);
            }
            if self.round.freed >= SWAP_CLUSTER_MAX {
                self.activated_before = self.refaults.recent;
                self.start_priority(DEF_PRIORITY, 0);
            } else if self.round.inactive == 0 && self.round.active == 0 {
                let freed = self.round.freed;
                self.start_priority(self.round.priority.checked_sub(1).unwrap_or(DEF_PRIORITY), freed);
            }
            self.round.turn = self.round.inactive.min(SWAP_CLUSTER_MAX);
            self.round.inactive -= self.round.turn;
        }
    }

    fn look(&mut self, touches: &mut dyn AccessCounts) -> Step {
        let others = self.inactive.len() + self.active.len();
        if self.held.due(others) {
            return self.look_held(touches);
        }
        if others == 0 {
            return Step::Empty;
        }
        self.reach_inactive(touches);
        self.round.turn -= 1;
        let slot = self.slots.tail(&self.inactive).expect("reached");
        let force = self.patience.touched(self.resident());
        let touched = self.take_touches(slot, touches);
        if !force && self.seen(slot, touched) {
            return Step::Moved;
        }
        if !force || touched == 0 {
            self.patience.found();
        }
        self.round.freed += 1;
        self.held.other_taken();
        let bits = self.slots.tag(slot) & BITS;
        self.slots.unlink(&mut self.inactive, slot, bits);
        Step::Take(Victim { slot, shadow: Some(self.shadow_now(bits)) })
    }

    /// Looks at the page held longest. If it was used since, it returns to the list of its bits.
    fn look_held(&mut self, touches: &mut dyn AccessCounts) -> Step {
        let slot = self.slots.tail(&self.held.list).expect("held is due");
        let (bits, touched) = (self.slots.tag(slot) & BITS, self.take_touches(slot, touches));
        self.slots.unlink(&mut self.held.list, slot, WAS_HELD | bits);
        if touched == 0 {
            self.patience.found();
        } else if !self.patience.touched(self.resident()) {
            self.slots.push(&mut self.inactive, slot, INACTIVE | bits);
            self.seen(slot, touched);
            return Step::Moved;
        }
        Step::Take(Victim { slot, shadow: Some(self.shadow_now(bits)) })
    }
}

impl Evict for Classic {
    fn name(&self) -> &'static str {
        "classic"
    }

    fn insert(
        &mut self,
        slot: Slot,
        shadow: Option<Shadow>,
        reason: InsertReason,
        touches: &mut dyn AccessCounts,
    ) -> bool {
        assert!(!self.contains(slot), "slot {slot} is resident already");
        touches.set(slot, 0);
        let known = shadow.filter(|_| reason != InsertReason::Write).map(|shadow| self.refault(shadow));
        let mut tag = known.unwrap_or(INACTIVE);
        if reason == InsertReason::Read {
            tag |= REFERENCED;
            self.last_used = Some(slot);
        }
        let list = if tag & ACTIVE != 0 { &mut self.active } else { &mut self.inactive };
        self.slots.push(list, slot, tag);
        tag & ACTIVE != 0
    }

    fn victims(&mut self, want: usize, touches: &mut dyn AccessCounts, out: &mut Vec<Victim>) {
        let mut left = if self.exact { 0 } else { (want * SWEEP_RATE).min(self.slots.slots_max()) };
        let is_listed = |tag| tag & (INACTIVE | ACTIVE) != 0;
        while let Some((slot, touched)) = self.sweep.next(&mut left, &self.slots, is_listed, touches) {
            self.seen(slot, touched);
        }
        collect(want, out, || self.look(touches));
    }

    fn restore(&mut self, slot: Slot) {
        assert!(!self.contains(slot), "slot {slot} is resident already");
        let tag = self.slots.tag(slot);
        self.held.put(&mut self.slots, slot, tag & WAS_HELD != 0, HELD | tag & BITS);
    }

    fn remove(&mut self, slot: Slot) {
        let list = match self.slots.tag(slot) & !BITS {
            INACTIVE => &mut self.inactive,
            ACTIVE => &mut self.active,
            HELD => &mut self.held.list,
            _ => panic!("slot {slot} is not resident"),
        };
        self.slots.unlink(list, slot, ABSENT);
    }

    fn shadow(&mut self) -> Option<Shadow> {
        Some(self.shadow_now(0))
    }

    fn set_capacity(&mut self, _pages: usize) {}

    /// No page has a time.
    fn set_time(&mut self, _now_ms: u64) {}

    fn accessed(&mut self, slot: Slot) {
        self.exact = true;
        if self.last_used.replace(slot) != Some(slot) {
            self.used(slot);
        }
    }

    fn generations(&self, now_ms: u64) -> Vec<Generation> {
        let queue = |label: &str, list: &List| Generation::queue(label, list.len(), now_ms);
        vec![queue("active", &self.active), queue("inactive", &self.inactive), queue("held", &self.held.list)]
    }

    fn refaults(&self) -> Refaults {
        self.refaults
    }

    fn resident(&self) -> usize {
        self.inactive.len() + self.active.len() + self.held.list.len()
    }

    fn contains(&self, slot: Slot) -> bool {
        is_resident(self.slots.tag(slot))
    }

    /// Pages are shown as `slot`, with `r` if referenced and `w` if of the working set.
    fn dump(&self) -> String {
        let page = |slot: Slot| {
            let tag = self.slots.tag(slot);
            let mark = |bit, mark| if tag & bit != 0 { mark } else { "" };
            format!("{slot}{}{}", mark(REFERENCED, "r"), mark(WORKINGSET, "w"))
        };
        let show = |list: &List| self.slots.iter(list).map(page).collect::<Vec<_>>().join(" ");
        let (active, inactive) = (show(&self.active), show(&self.inactive));
        format!("active: {active} | inactive: {inactive} | held: {}", show(&self.held.list))
    }

    fn check(&self) -> Result<(), String> {
        let belongs = |list, tag| tag & !BITS == [INACTIVE, ACTIVE, HELD][list];
        self.slots.check(&[&self.inactive, &self.active, &self.held.list], belongs, is_resident)
    }

    fn bytes(&self) -> usize {
        self.slots.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_policy::testing::Pool;

    fn pool() -> Pool<Classic> {
        Pool::new(Classic::new(64, 16))
    }

    /// Separate uses, reported one by one.
    fn access(pool: &mut Pool<Classic>, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            pool.policy.accessed(slot);
        }
    }

    #[test]
    fn the_second_use_activates_and_further_ones_only_mark() {
        let mut pool = pool();
        pool.enter(0..3);
        pool.enter_as(3, None, InsertReason::Readahead);
        pool.enter_as(4, None, InsertReason::Write);
        pool.is("active:  | inactive: 4 3 2r 1r 0r | held: ");
        access(&mut pool, [0, 3, 3, 1]); // twice in a row is one use
        pool.is("active: 1 0 | inactive: 4 3r 2r | held: ");
        access(&mut pool, [0, 3, 0]);
        pool.is("active: 3 1 0r | inactive: 4 2r | held: ");
    }

    #[test]
    fn inactive_pages_go_referenced_or_not() {
        let mut pool = pool();
        pool.enter(0..3);
        pool.enter_as(3, None, InsertReason::Write);
        assert_eq!(pool.evict(9), [0, 1, 2, 3]);
        assert!(pool.evict(9).is_empty());
    }

    #[test]
    fn few_inactive_pages_make_active_ones_scanned_in_proportion() {
        let mut pool = pool();
        pool.enter(0..6);
        access(&mut pool, 0..4);
        pool.is("active: 3 2 1 0 | inactive: 5r 4r | held: ");
        // Priority 2: no inactive page, an active one. Priority 1: one of each, but they are even by then.
        // Priority 0: 2 inactive ones and then 3 active ones.
        access(&mut pool, [0]);
        assert_eq!(pool.evict(1), [4]);
        pool.is("active: 3 2 1 | inactive: 0rw 5r | held: ");
        assert_eq!(pool.evict(2), [5, 0]);
        pool.is("active: 3 2 1 | inactive:  | held: ");
        assert_eq!(pool.evict(9), [1, 2, 3]);
    }

    #[test]
    fn active_pages_are_left_alone_while_inactive_ones_abound() {
        let mut pool = pool();
        pool.enter(0..12);
        access(&mut pool, [0, 1]);
        assert_eq!(pool.evict(8), [2, 3, 4, 5, 6, 7, 8, 9]);
        pool.is("active: 1 0 | inactive: 11r 10r | held: ");
    }

    #[test]
    fn a_deactivated_page_needs_one_use_if_it_was_used_while_active() {
        let mut pool = pool();
        pool.enter(0..3);
        access(&mut pool, [0, 1, 0]);
        pool.policy.deactivate(2, &mut pool.touches);
        pool.is("active:  | inactive: 1w 0rw 2r | held: ");
        access(&mut pool, [1, 0]);
        pool.is("active: 0w | inactive: 1rw 2r | held: ");
    }

    #[test]
    fn refault_within_active_list_activates_and_deactivates() {
        let mut pool = pool();
        pool.enter(0..12);
        access(&mut pool, [0, 1]); // nonresident age 2
        let victims = pool.evict_shadows(3); // 2, 3, 4 at ages 2, 3, 4
        assert!(!pool.enter_as(2, victims[0].shadow, InsertReason::Read), "3 evictions ago, 2 active pages");
        assert!(pool.enter_as(3, victims[1].shadow, InsertReason::Read), "2 ago");
        assert_eq!(pool.policy.refaults(), Refaults { total: 2, recent: 1 });
        pool.is("active: 3r 1 0 | inactive: 2r 11r 10r 9r 8r 7r 6r 5r | held: ");
        pool.policy.start_priority(0, 0);
        assert!(pool.policy.round.deactivates, "a refault was activated");
        pool.policy.activated_before = 1;
        pool.policy.start_priority(0, 0);
        assert!(!pool.policy.round.deactivates);
        assert!(!pool.enter_as(4, victims[2].shadow, InsertReason::Write), "a write proves nothing");
    }

    #[test]
    fn the_working_set_mark_survives_eviction() {
        let mut pool = pool();
        pool.enter(0..2);
        access(&mut pool, [0, 1, 0]);
        pool.policy.deactivate(1, &mut pool.touches);
        let victims = pool.evict_shadows(1);
        assert_eq!(victims[0].slot, 0);
        assert!(pool.enter_as(0, victims[0].shadow, InsertReason::Readahead));
        pool.is("active: 0w 1 | inactive:  | held: ");
    }

    #[test]
    fn a_round_ends_with_the_turn_in_which_32_are_free() {
        let mut pool = pool();
        pool.enter(0..60);
        // 60 >> 5, 59 >> 4, 56 >> 3 and 49 >> 2 are 23 pages; 37 >> 1 more are enough.
        pool.evict(41);
        assert_eq!((pool.policy.round.freed, pool.policy.round.priority), (41, 1));
        pool.evict(1);
        assert_eq!((pool.policy.round.freed, pool.policy.round.priority), (1, 4));
    }

    #[test]
    fn seen_in_batches_uses_count_up_to_three_a_look() {
        let mut pool = pool();
        pool.enter(0..3);
        pool.enter_as(20, None, InsertReason::Readahead);
        pool.enter_as(21, None, InsertReason::Readahead);
        pool.touch([0, 20, 21, 21]);
        assert_eq!(pool.evict(1), [1]); // the hand activates 0
        pool.is("active: 0 | inactive: 21 20 2r | held: ");
        assert_eq!(pool.evict(2), [2, 20], "used once: referenced, and gone");
        pool.is("active: 21 0 | inactive:  | held: ");
    }

    #[test]
    fn held_pages_go_back_to_where_their_uses_put_them() {
        let mut pool = pool();
        pool.enter(0..4);
        assert_eq!(pool.evict(2), [0, 1]);
        pool.restore([0, 1]);
        pool.is("active:  | inactive: 3r 2r | held: 1r 0r");
        pool.touch([0]);
        pool.policy.held.wait_is_over();
        assert_eq!(pool.evict(1), [1]);
        pool.is("active: 0 | inactive: 3r 2r | held: ");
    }

    #[test]
    fn large_pools_keep_fewer_inactive_pages() {
        let mut policy = Classic::new(1 << 19, 1 << 19);
        let mut touches = vec![0; 1 << 19];
        for slot in 0..1 << 19 {
            policy.insert(slot, None, InsertReason::Read, &mut touches);
        }
        for slot in 0..400_000 {
            policy.accessed(slot);
        }
        assert!(!policy.inactive_is_low(), "2 GiB: 1 to 4");
        for slot in 400_000..430_000 {
            policy.accessed(slot);
        }
        assert!(policy.inactive_is_low());
    }
}
