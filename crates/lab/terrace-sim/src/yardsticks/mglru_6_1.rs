//! `mglru-6.1`: MGLRU as in Linux 6.1, the first version in the kernel.
//!
//! Source: Linux 6.1 with long-term updates (6.1.192); written from a specification, no kernel code. The parts that all
//! versions share are in [`terrace_policy::policies::mglru`].
//!
//! ```text
//!   max_seq  ▲ gen 3   \
//!            │ gen 2    only protected pages get here
//!            │ gen 1   ◄── new pages while 4 generations are open;  ◄─┐ at the tail, uses forgotten
//!   min_seq  │ gen 0   ◄── else                                      │
//!            └─ tail: of a protected tier, or used 5 times ───────────┘ else evicted
//! ```
//! 1. The state is 0..5 uses through a descriptor; the read that faulted a page in is the first. A use moves nothing.
//! 2. A tier is protected when it refaults more than twice as often as the lowest.
//! 3. A shadow is recent as long as the oldest generation is the one it was evicted from; it gives back all uses if
//!    it had 4, else none.
//! 4. A generation opens when only 2 are left, or when 3 are and pages are spread unevenly (the youngest over 1/2 of
//!    all, or the oldest under 1/4); not at priority 12.
//!
//! Two rules came with Linux 6.7 ("underprotected page cache"), and to 6.1 by its updates: new pages may
//! enter one generation higher, and pages used 5 times are protected. Without them the simulator does not
//! reproduce a real 6.1.192: where its controller is unstable (lirs-sprite, 1773 pages), .085 to .16 of the
//! reads miss instead of .071; with them .075.
//!
//! Generations hardly move here: the oldest never runs empty while new pages enter it, so pages that were
//! popular once stay for ever in a generation that is never scanned.
//!
//! With batches, uses count at the tail only, so nothing is lost except uses beyond three at a look: 0.1 %
//! more misses than with every access reported, on average of 22 cells of real traces. Consecutive reads of
//! one page, which the kernel counts as one use, then count each: where records are read piecemeal, up to 9 %
//! fewer misses.

use terrace_policy::policies::mglru::{
    Aging, At, DEF_PRIORITY, MAX_LRU_BATCH, MAX_NR_GENS, MIN_NR_GENS, Mglru, Rules, Sizes, Span, Verdict,
};

/// MGLRU with the rules of Linux 6.1. See the module's description.
pub(crate) type Mglru61 = Mglru<Linux61>;

/// Maximum count of uses.
const USES_MAX: u8 = 5;

/// The rules of Linux 6.1.
#[derive(Debug)]
pub(crate) struct Linux61;

impl Rules for Linux61 {
    const NAME: &'static str = "mglru-6.1";
    const GAINS: (u64, u64) = (1, 2);
    const COMPARES_NEIGHBOURS: bool = false;
    const PROTECTS_TO_TAIL: bool = true;
    const LOOKS_MAX: usize = MAX_LRU_BATCH;
    const KEEPS_TO_BUDGET: bool = false;
    const TIMER_MS: u64 = 0;

    fn tier(uses: u8) -> usize {
        [0, 0, 1, 2, 2, 3][usize::from(uses)]
    }

    fn used(uses: u8) -> u8 {
        (uses + 1).min(USES_MAX)
    }

    fn referenced(at: At, _span: Span) -> At {
        At { state: Linux61::used(at.state), ..at }
    }

    fn sighted(_at: At, span: Span) -> At {
        At { seq: span.max, state: 0 }
    }

    fn entrance(_uses: u8, span: Span) -> u64 {
        if span.max - span.min + 1 == MAX_NR_GENS { span.min + 1 } else { span.min }
    }

    fn is_recent(_opened: u64, retired: u64) -> bool {
        retired == 0
    }

    fn restored(uses: u8) -> u8 {
        if uses >= 4 { USES_MAX } else { 0 }
    }

    fn verdict(uses: u8, threshold: usize) -> Verdict {
        if uses == USES_MAX || Linux61::tier(uses) > threshold {
            Verdict::Protect { state: 0, counted: true }
        } else {
            Verdict::Evict
        }
    }

    fn drained(_uses: u8) -> u8 {
        0
    }

    fn rejected(uses: u8, span: Span) -> At {
        At { seq: span.max, state: uses }
    }

    fn aging(sizes: Sizes, priority: u32) -> Aging {
        let uneven = sizes.young * 2 > sizes.total || sizes.old * 4 < sizes.total;
        let due = sizes.open == MIN_NR_GENS || (sizes.open == MIN_NR_GENS + 1 && uneven);
        if due && priority < DEF_PRIORITY { Aging::Open } else { Aging::No }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_policy::testing::Pool;
    use terrace_policy::{Evict, InsertReason, Refaults, Tier};

    /// A pool with a batch of one page.
    fn pool() -> Pool<Mglru61> {
        Pool::new(Mglru61::new(64, 8))
    }

    #[test]
    fn new_pages_enter_above_oldest_of_four_and_uses_move_nothing() {
        let mut pool = pool();
        pool.enter(0..3);
        pool.enter_as(3, None, InsertReason::Readahead);
        pool.enter_as(4, None, InsertReason::Write);
        pool.is("gen 3:  | gen 2:  | gen 1: 4/0 3/0 2/1 1/1 0/1 | gen 0:  | isolated:  | held: ");
        pool.touch([0, 0, 0, 2]);
        assert_eq!(pool.evict(1), [0], "used four times, but its tier never came back");
        pool.enter([5]); // three generations are open: into the oldest
        pool.is("gen 3:  | gen 2:  | gen 1: 5/1 4/0 3/0 2/2 1/1 | isolated:  | held: ");
    }

    #[test]
    fn pages_used_five_times_are_protected_and_start_over() {
        let mut pool = pool();
        pool.enter(0..4);
        pool.touch([3, 3, 3]);
        assert_eq!(pool.evict(1), [0]);
        pool.touch([3]); // the fifth use
        assert_eq!(pool.evict(2), [1, 2]);
        pool.enter([4, 5]);
        assert_eq!(pool.evict(1), [4]);
        pool.is("gen 3:  | gen 2: 3/0 | gen 1: 5/1 | isolated:  | held: ");
        assert_eq!(pool.policy.tiers()[3], Tier { tier: 3, protected: 1, ..Tier::default() });
    }

    #[test]
    fn tier_with_twice_the_refaults_is_protected_to_the_tail() {
        assert_eq!((0..=5).map(Linux61::tier).collect::<Vec<_>>(), [0, 0, 1, 2, 2, 3]);
        let mut pool = pool();
        pool.enter(20..24);
        pool.touch([20, 21]);
        pool.policy.set_rates([100, 300, 0, 0], [1000; 4]);
        assert_eq!(pool.evict(1), [22]);
        pool.is("gen 3:  | gen 2: 20/0 21/0 | gen 1: 23/1 | isolated:  | held: ");
    }

    #[test]
    fn a_shadow_counts_while_its_generation_is_the_oldest() {
        let mut pool = pool();
        pool.enter(20..24);
        pool.touch([20, 20, 20]);
        let victims = pool.evict_shadows(2);
        assert_eq!((victims[0].slot, victims[1].slot), (20, 21));
        assert!(pool.enter_as(20, victims[0].shadow, InsertReason::Readahead), "min_seq is still 1");
        assert!(pool.enter_as(21, victims[1].shadow, InsertReason::Read));
        pool.is("gen 3:  | gen 2:  | gen 1: 21/1 20/5 23/1 22/1 | isolated:  | held: ");
        assert_eq!(pool.policy.tiers()[2].refaulted, 1);
        assert_eq!(pool.evict(3), [22, 23, 21]);
        pool.is("gen 3:  | gen 2: 20/0 | isolated:  | held: ");
        assert!(!pool.enter_as(22, victims[0].shadow, InsertReason::Read), "generation 1 is gone");
        assert_eq!(pool.policy.refaults(), Refaults { total: 3, recent: 2 });
    }

    #[test]
    fn generations_open_when_three_are_uneven_or_two_are_left() {
        let ages = |open, young, old, priority| {
            Linux61::aging(Sizes { open, young, old, total: 100 }, priority) != Aging::No
        };
        assert!(ages(2, 50, 50, 11) && !ages(2, 50, 50, 12));
        assert!(!ages(3, 50, 25, 11), "even");
        assert!(ages(3, 51, 25, 11) && ages(3, 50, 24, 11) && !ages(3, 51, 24, 12));
        assert!(!ages(4, 100, 0, 0));
    }

    #[test]
    fn the_walk_lifts_to_the_top_and_a_forced_drain_forgets_uses() {
        let mut pool = pool();
        pool.enter(0..3);
        pool.touch([1]);
        pool.policy.age(&mut pool.touches);
        pool.is("gen 4:  | gen 3: 1/0 | gen 2:  | gen 1: 2/1 0/1 | isolated:  | held: ");
        pool.policy.age(&mut pool.touches);
        pool.is("gen 5:  | gen 4:  | gen 3: 1/0 | gen 2: 0/0 2/0 | isolated:  | held: ");
    }

    #[test]
    fn batch_is_isolated_at_once_and_handed_out_as_asked_for() {
        let mut pool = Pool::new(Mglru61::new(64, 32));
        pool.enter(0..6);
        assert_eq!(pool.evict(1), [0]);
        pool.is("gen 3:  | gen 2:  | gen 1: 5/1 4/1 | isolated: 3/1 2/1 1/1 | held: ");
        pool.touch([1, 4]);
        pool.policy.remove(2);
        assert_eq!(pool.evict(3), [1, 3, 4], "chosen is chosen; one use more does not protect");
        pool.is("gen 3:  | gen 2:  | isolated: 5/1 | held: ");
        assert_eq!(pool.policy.generations(9)[0].label, "isolated");
    }
}
