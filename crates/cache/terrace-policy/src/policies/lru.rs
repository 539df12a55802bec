//! Eviction policy `lru`: least recently used, as exact as touch counts allow. A baseline.
//!
//! ```text
//!   new ► head ─────────────────────────► tail ► evicted
//!          ▲ ▲                             │
//!          │ └── touched: cleared ─────────┘
//!          └── touched pages met by a hand over the slot numbers, 8 slots a victim
//! ```
//! LRU moves a page at every hit. A hit here writes one byte, and the hand of `queue_policy` rebuilds the
//! order later. Uses within an eighth of a turnover of the pool look simultaneous, ordered by slot number.
//! The simulator's exact mode reports each access: there this is textbook LRU.

use crate::list::Step;
use crate::queue_policy::{QueuePolicy, Queues, Rules, Uses};
use crate::{Slot, Victim};

const RECENCY: usize = 0;

#[derive(Debug)]
pub(crate) struct Lru;

impl Lru {
    pub(crate) fn build(slots_max: usize) -> QueuePolicy<Lru> {
        QueuePolicy::new(slots_max, Lru)
    }
}

impl Rules for Lru {
    const NAME: &'static str = "lru";
    const QUEUES: &'static [&'static str] = &["recency"];
    const MOVES: bool = true;

    fn hit(&mut self, queues: &mut Queues, slot: Slot, _count: u8) {
        queues.shift(RECENCY, RECENCY, slot);
    }

    fn look(&mut self, queues: &mut Queues, uses: &mut Uses<'_>) -> Step {
        let Some(slot) = queues.tail(RECENCY) else { return Step::Empty };
        let used = uses.take(slot) != 0;
        if uses.stays(used) {
            queues.shift(RECENCY, RECENCY, slot);
            return Step::Moved;
        }
        queues.unlink(RECENCY, slot);
        Step::Take(Victim { slot, shadow: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Evict;
    use crate::testing::Pool;

    #[test]
    fn told_each_access_it_is_textbook_lru() {
        let mut pool = Pool::new(Lru::build(64));
        pool.enter(0..4);
        for slot in [0, 2, 0] {
            pool.touch([slot]);
            pool.policy.accessed(slot);
        }
        pool.is("recency: 0 2 3 1 | held: ");
        assert_eq!(pool.evict(3), [1, 3, 2]);
        pool.is("recency: 0 | held: ");
    }

    #[test]
    fn the_hand_orders_by_slot_what_was_touched_between_its_passes() {
        let mut pool = Pool::new(Lru::build(64));
        pool.enter(0..12);
        pool.touch([5, 1, 9]);
        assert_eq!(pool.evict(1), [0]); // the hand passed 0..8: 1 and 5 moved, 9 not yet
        pool.is("recency: 5 1 11 10 9 8 7 6 4 3 2 | held: ");
        assert_eq!(pool.evict(1), [2]); // it passed 8..16: 9 moved
        pool.is("recency: 9 5 1 11 10 8 7 6 4 3 | held: ");
    }

    #[test]
    fn touched_page_at_tail_moves_before_the_hand_comes() {
        let mut pool = Pool::new(Lru::build(64));
        pool.enter([40, 41]);
        pool.touch([40]);
        assert_eq!(pool.evict(1), [41]);
        pool.is("recency: 40 | held: ");
    }
}
