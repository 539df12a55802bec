//! `mglru-7.1`: MGLRU as in Linux 6.14 to 7.1.
//!
//! Source: Linux 7.1; written from a specification, no kernel code. The parts that all versions share are in
//! [`terrace_policy::policies::mglru`].
//!
//! ```text
//!   max_seq  ▲ gen 3
//!            │ gen 2
//!            │ gen 1   ◄── new pages known as of the working set    ◄─┐ at the head, uses forgotten,
//!   min_seq  │ gen 0   ◄── new pages                                  │ the working set remembered
//!            └─ tail: of a protected tier, or at the maximum ─────────┘ else evicted
//! ```
//! 1. The state is 0..4 uses through a descriptor and, from the fifth on, the *workingset* mark: tier 3 until it is
//!    evicted, and again after a recent refault. A use moves nothing.
//! 2. A tier is protected when it refaults more than 1.5 times as often as the lowest; so is a page at the maximum
//!    of uses, which then does not count for the controller.
//! 3. A shadow is recent while fewer than 4 generations opened since; it gives back the mark, no uses.
//! 4. A generation opens whenever fewer than 4 are, but not at priority 12; at that priority nothing else is done.
//!
//! With batches, uses count at the tail only, so nothing is lost except uses beyond three at a look: 1.9 %
//! more misses than with every access reported, on average of 22 cells of real traces. Nearly all of that
//! comes from one cell (42 %) where the controller is unstable.

use terrace_policy::policies::mglru::{
    Aging, At, DEF_PRIORITY, MAX_LRU_BATCH, MAX_NR_GENS, MAX_NR_TIERS, MIN_NR_GENS, Mglru, Rules, Sizes,
    Span, Verdict,
};

/// MGLRU with the rules of Linux 6.14 to 7.1. See the module's description.
pub(crate) type Mglru71 = Mglru<Linux71>;

/// Maximum count of uses without the workingset flag.
const USES_MAX: u8 = 4;
/// The workingset flag: the page was used five times in a row once. It keeps tier 3.
const WORKINGSET: u8 = 8;

fn uses_of(state: u8) -> u8 {
    state & !WORKINGSET
}

fn is_workingset(state: u8) -> bool {
    state & WORKINGSET != 0
}

/// The rules of Linux 6.14 to 7.1.
#[derive(Debug)]
pub(crate) struct Linux71;

impl Rules for Linux71 {
    const NAME: &'static str = "mglru-7.1";
    const GAINS: (u64, u64) = (2, 3);
    const COMPARES_NEIGHBOURS: bool = false;
    const PROTECTS_TO_TAIL: bool = false;
    const LOOKS_MAX: usize = MAX_LRU_BATCH;
    const KEEPS_TO_BUDGET: bool = false;
    const TIMER_MS: u64 = 0;

    fn tier(state: u8) -> usize {
        if is_workingset(state) { MAX_NR_TIERS - 1 } else { [0, 0, 1, 2, 2][usize::from(uses_of(state))] }
    }

    fn used(state: u8) -> u8 {
        if uses_of(state) == USES_MAX { state | WORKINGSET } else { state + 1 }
    }

    fn referenced(at: At, _span: Span) -> At {
        At { state: Linux71::used(at.state), ..at }
    }

    fn sighted(at: At, span: Span) -> At {
        if at.state == 0 { At { state: 1, ..at } } else { At { seq: span.max, state: WORKINGSET } }
    }

    fn entrance(state: u8, span: Span) -> u64 {
        let behind = if is_workingset(state) { 2 } else { 3 };
        span.max.saturating_sub(behind).max(span.min)
    }

    fn is_recent(opened: u64, _retired: u64) -> bool {
        opened < MAX_NR_GENS
    }

    fn restored(state: u8) -> u8 {
        state & WORKINGSET
    }

    fn verdict(state: u8, threshold: usize) -> Verdict {
        let at_maximum = state == WORKINGSET | USES_MAX;
        if at_maximum || Linux71::tier(state) > threshold {
            Verdict::Protect { state: state & WORKINGSET, counted: !at_maximum }
        } else {
            Verdict::Evict
        }
    }

    fn drained(state: u8) -> u8 {
        state & WORKINGSET
    }

    fn rejected(state: u8, span: Span) -> At {
        At { seq: span.max - 1, state }
    }

    fn aging(sizes: Sizes, priority: u32) -> Aging {
        if sizes.open <= MIN_NR_GENS + 1 && priority < DEF_PRIORITY { Aging::OpenOnly } else { Aging::No }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_policy::testing::Pool;
    use terrace_policy::{Evict, InsertReason};

    /// A pool with a batch of one page.
    fn pool() -> Pool<Mglru71> {
        Pool::new(Mglru71::new(64, 8))
    }

    /// Uses that reach the policy in separate looks.
    fn looked(pool: &mut Pool<Mglru71>, slot: u32, uses: usize) {
        for _ in 0..uses {
            pool.policy.accessed(slot);
            pool.policy.accessed(63); // another page between
        }
    }

    #[test]
    fn new_pages_enter_the_oldest_and_the_fifth_use_marks_them() {
        let mut pool = pool();
        pool.enter(0..3);
        pool.enter([63]);
        pool.enter_as(4, None, InsertReason::Readahead);
        looked(&mut pool, 0, 3);
        pool.is("gen 3:  | gen 2:  | gen 1:  | gen 0: 4/0 63/4 2/1 1/1 0/4 | isolated:  | held: ");
        looked(&mut pool, 0, 1);
        looked(&mut pool, 0, 9);
        pool.is("gen 3:  | gen 2:  | gen 1:  | gen 0: 4/0 63/12 2/1 1/1 0/12 | isolated:  | held: ");
        assert_eq!((0..=4).map(Linux71::tier).collect::<Vec<_>>(), [0, 0, 1, 2, 2]);
        assert_eq!((Linux71::tier(8), Linux71::tier(12)), (3, 3));
    }

    #[test]
    fn page_at_maximum_is_protected_uncounted_in_working_set() {
        let mut pool = pool();
        pool.enter([0, 1, 2, 63]);
        looked(&mut pool, 0, 4);
        assert_eq!(pool.evict(1), [1]);
        pool.is("gen 3:  | gen 2:  | gen 1: 0/8 | gen 0: 63/12 2/1 | isolated:  | held: ");
        assert_eq!(pool.policy.tiers()[3].protected, 0);
        assert_eq!(pool.evict(1), [2]);
        pool.enter([3]);
        assert_eq!(pool.evict(1), [3]);
        pool.is("gen 3:  | gen 2:  | gen 1: 63/8 0/8 | isolated:  | held: ");
        let victims = pool.evict_shadows(1); // three generations are too few at lower priorities
        assert_eq!(victims[0].slot, 0, "the mark alone is no maximum");
        pool.is("gen 4:  | gen 3:  | gen 2:  | gen 1: 63/8 | isolated:  | held: ");
        assert!(pool.enter_as(0, victims[0].shadow, InsertReason::Read));
        pool.is("gen 4:  | gen 3:  | gen 2: 0/9 | gen 1: 63/8 | isolated:  | held: ");
        assert_eq!(pool.policy.tiers()[3].refaulted, 1);
    }

    #[test]
    fn tier_with_half_more_refaults_is_protected_to_the_head() {
        let mut pool = pool();
        pool.enter(20..24);
        pool.touch([20, 21]);
        pool.policy.set_rates([100, 140, 0, 0], [1000; 4]);
        assert_eq!(pool.evict(1), [20], "1.4 times is allowed");
        pool.policy.set_rates([100, 170, 0, 0], [1000; 4]);
        assert_eq!(pool.evict(1), [22]);
        pool.is("gen 3:  | gen 2:  | gen 1: 21/0 | gen 0: 23/1 | isolated:  | held: ");
        assert_eq!(pool.policy.tiers()[1].protected, 1);
    }

    #[test]
    fn shadows_count_for_four_generations_and_restore_mark_only() {
        assert_eq!((Linux71::restored(4), Linux71::restored(12)), (0, 8));
        assert!(Linux71::is_recent(3, 9) && !Linux71::is_recent(4, 0));
        let mut pool = pool();
        pool.enter(20..22);
        let victims = pool.evict_shadows(1);
        pool.policy.age(&mut pool.touches);
        assert!(
            !pool.enter_as(22, victims[0].shadow, InsertReason::Read),
            "the window was full: 4 generations ago"
        );
        pool.is("gen 4:  | gen 3:  | gen 2:  | gen 1: 22/1 21/0 | isolated:  | held: ");
    }

    #[test]
    fn the_walk_needs_to_see_a_page_twice() {
        let span = Span { min: 0, max: 3 };
        let seen = |state| Linux71::sighted(At { seq: 1, state }, span);
        assert_eq!(seen(0), At { seq: 1, state: 1 });
        assert_eq!(seen(1), At { seq: 3, state: 8 });
        assert_eq!(seen(12), At { seq: 3, state: 8 });
    }

    #[test]
    fn below_priority_12_generations_open_and_nothing_else_happens() {
        let ages = |open, priority| Linux71::aging(Sizes { open, young: 0, old: 0, total: 9 }, priority);
        assert_eq!((ages(2, 12), ages(3, 12)), (Aging::No, Aging::No));
        assert_eq!((ages(2, 11), ages(3, 11), ages(4, 0)), (Aging::OpenOnly, Aging::OpenOnly, Aging::No));
    }
}
