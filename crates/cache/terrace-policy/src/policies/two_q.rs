//! Eviction policy `2q`: a FIFO for new pages, a ghost of its evicted pages, and an LRU list for refaults.
//!
//! Source: T. Johnson and D. Shasha, "2Q: A Low Overhead High Performance Buffer Management Replacement
//! Algorithm", VLDB 1994, the full version. Shares as there and in libCacheSim: A1in 1/4 of the pool, A1out
//! 1/2.
//!
//! ```text
//!   new ► in (FIFO, 1/4) ► evicted ► remembered in out (ghost FIFO, 1/2) ──┐ faulted again
//!         uses there are correlated                                      ▼
//!         and do not count                         main (LRU): used ► head ... tail ► evicted, forgotten
//! ```
//! Hits in `in` change nothing, as in the paper, so batches lose nothing there. The hand orders the LRU list
//! `main` later (see `queue_policy`): pages used between two passes lose their order.
//!
//! Departure: victims come from `main` while `in` is within its share, and from `in` when `main` is empty.

use crate::list::Step;
use crate::list::ghost::{Ghost, serial_of, shadow_of};
use crate::queue_policy::{QueuePolicy, Queues, Rules, Uses};
use crate::{Shadow, Slot, Victim};

const IN: usize = 0;
const MAIN: usize = 1;
/// Share of the pool for new pages: 1/4.
const IN_DIVISOR: usize = 4;
/// Length of the ghost, as a share of the pool: 1/2.
const OUT_DIVISOR: usize = 2;

#[derive(Debug)]
pub(crate) struct TwoQ {
    capacity: usize,
    out: Ghost,
}

impl TwoQ {
    pub(crate) fn build(slots_max: usize, capacity: usize) -> QueuePolicy<TwoQ> {
        QueuePolicy::new(slots_max, TwoQ { capacity, out: Ghost::new(slots_max / OUT_DIVISOR, 8) })
    }

    fn forget_oldest(&mut self) {
        self.out.trim((self.capacity / OUT_DIVISOR).max(1));
    }
}

impl Rules for TwoQ {
    const NAME: &'static str = "2q";
    const QUEUES: &'static [&'static str] = &["in", "main"];
    const MOVES: bool = true;

    fn set_capacity(&mut self, pages: usize) {
        self.capacity = pages;
        self.forget_oldest();
    }

    fn faulting(&mut self, shadow: Shadow) {
        self.out.announce(serial_of(shadow).0);
    }

    fn enter(&mut self, queues: &mut Queues, slot: Slot, shadow: Option<Shadow>) -> bool {
        let known = shadow.is_some_and(|shadow| self.out.recall(serial_of(shadow).0));
        queues.push(if known { MAIN } else { IN }, slot);
        known
    }

    fn hit(&mut self, queues: &mut Queues, slot: Slot, _count: u8) {
        if queues.queue_of(slot) == Some(MAIN) {
            queues.shift(MAIN, MAIN, slot);
        }
    }

    fn look(&mut self, queues: &mut Queues, uses: &mut Uses<'_>) -> Step {
        if queues.len(IN) > (self.capacity / IN_DIVISOR).max(1) || queues.len(MAIN) == 0 {
            let Some(slot) = queues.tail(IN) else { return Step::Empty };
            uses.stays(false);
            queues.unlink(IN, slot);
            return Step::Take(Victim { slot, shadow: self.remember() });
        }
        let slot = queues.tail(MAIN).expect("main is not empty");
        let used = uses.take(slot) != 0;
        if uses.stays(used) {
            queues.shift(MAIN, MAIN, slot);
            return Step::Moved;
        }
        queues.unlink(MAIN, slot);
        Step::Take(Victim { slot, shadow: None })
    }

    fn remember(&mut self) -> Option<Shadow> {
        let shadow = shadow_of(self.out.push(), false);
        self.forget_oldest();
        Some(shadow)
    }

    fn bytes(&self) -> usize {
        self.out.bytes()
    }

    fn dump(&self) -> String {
        format!(" | out: {}", self.out.show())
    }

    fn check(&self, _queues: &Queues) -> Result<(), String> {
        if self.out.len() > (self.capacity / OUT_DIVISOR).max(1) {
            return Err(format!("{} pages remembered of a pool of {}", self.out.len(), self.capacity));
        }
        self.out.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pool;
    use crate::{Evict, InsertReason};

    /// 8 pages: 2 for `in`, 4 remembered.
    fn pool() -> Pool<QueuePolicy<TwoQ>> {
        Pool::new(TwoQ::build(64, 8))
    }

    #[test]
    fn only_pages_that_come_back_reach_main() {
        let mut pool = pool();
        pool.enter(0..8);
        pool.touch([0, 0]);
        pool.is("in: 7 6 5 4 3 2 1 0 | main:  | held:  | out: ");
        let left = pool.evict_shadows(3); // uses in `in` do not count
        assert_eq!(left.iter().map(|v| v.slot).collect::<Vec<_>>(), [0, 1, 2]);
        pool.is("in: 7 6 5 4 3 | main:  | held:  | out: 3 2 1");
        assert!(pool.enter_as(0, left[0].shadow, InsertReason::Read));
        assert!(pool.enter_as(1, left[1].shadow, InsertReason::Read));
        pool.is("in: 7 6 5 4 3 | main: 1 0 | held:  | out: 3");
        assert_eq!(pool.evict(3), [3, 4, 5]);
        pool.touch([0]);
        assert_eq!(pool.evict(1), [1], "`in` is within its share; 0 was used");
        pool.is("in: 7 6 | main: 0 | held:  | out: 6 5 4 3");
        assert!(!pool.enter_as(1, None, InsertReason::Read), "main's victims are forgotten");
    }

    #[test]
    fn ghost_is_bounded_and_keeps_an_announced_page() {
        let mut pool = pool();
        pool.enter(0..8);
        let left = pool.evict_shadows(4);
        pool.is("in: 7 6 5 4 | main:  | held:  | out: 4 3 2 1");
        pool.policy.faulting(left[0].shadow.unwrap());
        pool.evict(1);
        pool.is("in: 7 6 5 | main:  | held:  | out: 5 4 3 2");
        assert!(pool.enter_as(0, left[0].shadow, InsertReason::Read));
        pool.evict(1);
        assert!(!pool.enter_as(1, left[1].shadow, InsertReason::Read), "four have left since");
        assert_eq!(pool.policy.refaults().recent, 1);
    }

    #[test]
    fn told_each_access_main_is_textbook_lru() {
        let mut pool = pool();
        pool.enter(0..8);
        let left = pool.evict_shadows(3);
        for (slot, victim) in left.iter().enumerate() {
            pool.enter_as(slot as Slot, victim.shadow, InsertReason::Read);
        }
        pool.policy.accessed(0);
        pool.policy.accessed(7);
        pool.is("in: 7 6 5 4 3 | main: 0 2 1 | held:  | out: ");
    }
}
