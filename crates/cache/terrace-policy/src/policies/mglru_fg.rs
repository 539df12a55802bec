//! Eviction policy `mglru-fg` (also `mglru`): MGLRU with fine-grained references, as proposed for the kernel
//! after 7.2.
//!
//! Source: the reference rules of MGLRU-FG v3 (2026, not merged at the time) on the reclaim loop of Linux
//! 7.2. It is written from a specification, without kernel code. The file `mglru` has the parts that all
//! versions share.
//!
//! ```text
//!   max_seq  ▲ gen 3   references count up to 7
//!            │ gen 2   the eighth reference: up one generation, 3 are left
//!            │ gen 1   ◄── new pages with 2 references or more (known from before)
//!   min_seq  │ gen 0   ◄── new pages; the second reference: up one generation
//!            └─ tail: of a protected tier: up one generation, at most 2 are left; else evicted
//! ```
//! 1. The state is 0..7 references; the read that faulted a page in is the first, readahead and writes give none.
//! 2. A tier is protected when it refaults more than twice as often as the one below.
//! 3. A shadow is recent while fewer than 4 generations opened since; it gives back up to 3 references.
//! 4. A pass looks at up to 64 pages, and at no more than its priority allows (pages >> priority). A generation
//!    opens when only 2 are left, or when 3 are and priority 12 did not suffice.
//! 5. A generation also opens when the youngest is a minute old and the pool was turned over twice since. So
//!    climbed pages without further use come down (the kernel has no such timer, and keeps them).
//!
//! With batches, references climb late, and at most three at a look. The cost is 1.1 % more misses than with
//! every access reported (mean of 22 cells of real traces; 9 % at most).

use super::mglru::{
    Aging, At, DEF_PRIORITY, MAX_NR_GENS, MIN_LRU_BATCH, MIN_NR_GENS, Mglru, Rules, Sizes, Span, Verdict,
};

/// MGLRU with the fine-grained rules. See the module's description.
pub(crate) type MglruFg = Mglru<FineGrained>;

/// Maximum number of references of a page.
const REFS_MAX: u8 = 7;
/// References left after a climb, or given back by a shadow.
const REFS_CLIMBED: u8 = 3;
/// References left after a move up by protection.
const REFS_PROTECTED: u8 = 2;

#[derive(Debug)]
pub(crate) struct FineGrained;

impl Rules for FineGrained {
    const NAME: &'static str = "mglru-fg";
    const GAINS: (u64, u64) = (1, 2);
    const COMPARES_NEIGHBOURS: bool = true;
    const PROTECTS_TO_TAIL: bool = false;
    const LOOKS_MAX: usize = MIN_LRU_BATCH;
    const KEEPS_TO_BUDGET: bool = true;
    const TIMER_MS: u64 = 60_000;

    fn tier(refs: u8) -> usize {
        [0, 0, 1, 2, 2, 3, 3, 3][usize::from(refs)]
    }

    fn used(refs: u8) -> u8 {
        (refs + 1).min(REFS_MAX)
    }

    fn referenced(At { seq, state }: At, span: Span) -> At {
        let refs = state + 1;
        if seq == span.max {
            At { seq, state: refs.min(REFS_MAX) }
        } else if refs > REFS_MAX || (seq == span.min && refs >= 2) {
            At { seq: seq + 1, state: refs.min(REFS_CLIMBED) }
        } else {
            At { seq, state: refs }
        }
    }

    fn sighted(At { seq, state }: At, span: Span) -> At {
        let refs = state + 1;
        if seq == span.max {
            At { seq, state: refs.min(REFS_MAX) }
        } else if refs >= 2 {
            At { seq: span.max, state: refs.min(REFS_CLIMBED) }
        } else {
            At { seq: if seq == span.min { seq + 1 } else { seq }, state: refs }
        }
    }

    fn entrance(refs: u8, span: Span) -> u64 {
        let behind = if refs >= 2 { 2 } else { 3 };
        span.max.saturating_sub(behind).max(span.min)
    }

    fn is_recent(opened: u64, _retired: u64) -> bool {
        opened < MAX_NR_GENS
    }

    fn restored(refs: u8) -> u8 {
        refs.min(REFS_CLIMBED)
    }

    fn verdict(refs: u8, threshold: usize) -> Verdict {
        if FineGrained::tier(refs) > threshold {
            Verdict::Protect { state: refs.min(REFS_PROTECTED), counted: true }
        } else {
            Verdict::Evict
        }
    }

    fn drained(refs: u8) -> u8 {
        refs.min(REFS_PROTECTED)
    }

    fn rejected(refs: u8, span: Span) -> At {
        let seq = if refs >= 2 { span.max } else { span.min + 1 };
        At { seq, state: refs.min(REFS_PROTECTED) }
    }

    fn aging(sizes: Sizes, priority: u32) -> Aging {
        let short = sizes.open == MIN_NR_GENS + 1 && priority < DEF_PRIORITY;
        if sizes.open == MIN_NR_GENS || short { Aging::Open } else { Aging::No }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pool;
    use crate::{Evict, InsertReason, Refaults};

    /// A pool with a batch of one page.
    fn pool() -> Pool<MglruFg> {
        Pool::new(MglruFg::new(64, 8))
    }

    #[test]
    fn new_pages_enter_the_oldest_and_a_second_reference_lifts_them() {
        let mut pool = pool();
        pool.enter(20..23);
        pool.enter_as(23, None, InsertReason::Readahead);
        pool.enter_as(24, None, InsertReason::Write);
        pool.is("gen 3:  | gen 2:  | gen 1:  | gen 0: 24/0 23/0 22/1 21/1 20/1 | isolated:  | held: ");
        pool.touch([20, 23, 21, 21]);
        assert_eq!(pool.evict(1), [22]); // 20 and 21 climbed
        pool.is("gen 3:  | gen 2:  | gen 1: 21/3 20/2 | gen 0: 24/0 23/0 | isolated:  | held: ");
        assert_eq!(pool.evict(2), [23, 24]); // a page read ahead and used once has one reference
    }

    #[test]
    fn references_beyond_seven_climb_and_the_youngest_saturates() {
        let span = Span { min: 0, max: 3 };
        let after = |uses| (0..uses).fold(At { seq: 0, state: 1 }, |at, _| FineGrained::referenced(at, span));
        assert_eq!(after(1), At { seq: 1, state: 2 });
        assert_eq!(after(6), At { seq: 1, state: 7 });
        assert_eq!(after(7), At { seq: 2, state: 3 });
        assert_eq!(after(12), At { seq: 3, state: 3 });
        assert_eq!(after(99), At { seq: 3, state: 7 });
    }

    #[test]
    fn the_walk_lifts_pages_known_to_be_used_to_the_top() {
        let span = Span { min: 2, max: 5 };
        let seen = |seq, state| FineGrained::sighted(At { seq, state }, span);
        assert_eq!(seen(2, 0), At { seq: 3, state: 1 });
        assert_eq!(seen(3, 0), At { seq: 3, state: 1 });
        assert_eq!(seen(2, 1), At { seq: 5, state: 2 });
        assert_eq!(seen(4, 6), At { seq: 5, state: 3 });
        assert_eq!(seen(5, 7), At { seq: 5, state: 7 });
    }

    #[test]
    fn a_recent_refault_brings_its_references_back() {
        let mut pool = pool();
        pool.enter(0..2);
        let victims = pool.evict_shadows(1);
        assert_eq!(victims[0].slot, 0);
        assert!(pool.enter_as(0, victims[0].shadow, InsertReason::Read)); // 1 + the read's own
        pool.is("gen 3:  | gen 2:  | gen 1: 0/2 | gen 0: 1/1 | isolated:  | held: ");
        pool.policy.age(&mut pool.touches);
        assert!(
            !pool.enter_as(2, victims[0].shadow, InsertReason::Read),
            "four generations later it is forgotten"
        );
        assert!(!pool.enter_as(3, victims[0].shadow, InsertReason::Write), "a write proves nothing");
        assert_eq!(pool.policy.refaults(), Refaults { total: 2, recent: 1 });
    }

    #[test]
    fn protected_pages_move_up_with_two_references() {
        assert_eq!((0..=7).map(FineGrained::tier).collect::<Vec<_>>(), [0, 0, 1, 2, 2, 3, 3, 3]);
        let mut pool = pool();
        pool.enter([0, 1]);
        pool.touch([0, 0, 0]); // lifted to gen 1 with 3 references
        assert_eq!(pool.evict(1), [1]);
        pool.is("gen 3:  | gen 2:  | gen 1: 0/4 | isolated:  | held: ");
        pool.policy.set_rates([0, 0, 500, 0], [1000; 4]);
        pool.enter([2]);
        assert_eq!(pool.evict(1), [2]);
        pool.is("gen 4:  | gen 3:  | gen 2: 0/2 | isolated:  | held: ");
    }

    #[test]
    fn generations_open_when_two_are_left_or_three_did_not_suffice() {
        let sizes = |open| Sizes { open, young: 0, old: 0, total: 9 };
        let ages = |open, priority| FineGrained::aging(sizes(open), priority);
        assert_eq!((ages(2, 12), ages(3, 12), ages(4, 12)), (Aging::Open, Aging::No, Aging::No));
        assert_eq!((ages(2, 11), ages(3, 11), ages(4, 11)), (Aging::Open, Aging::Open, Aging::No));
    }
}
