//! Eviction policy `s3fifo`: a small FIFO that evicts most new pages, a main FIFO, and a ghost.
//!
//! Source: J. Yang et al., "FIFO Queues Are All You Need for Cache Eviction", SOSP 2023, in the form of
//! libCacheSim 0.3. A page needs two uses to move from the small queue to main. Before the first eviction,
//! pages that come while the small queue is full go to main.
//!
//! ```text
//!   new ► small (1/10) ──── used twice ────► main: used: count - 1, to the head ─┐
//!            │                                ▲   ▲                              │
//!            └─ else evicted ► ghost (9/10) ──┘   └──────────────────────────────┘
//!                                   faulted again        unused: evicted, forgotten
//! ```
//! Counts saturate at 3, in the paper as in the touch table. So batches lose only uses after an eviction
//! ahead of demand.

use crate::list::Step;
use crate::list::ghost::{Ghost, serial_of, shadow_of};
use crate::queue_policy::{QueuePolicy, Queues, Rules, Uses};
use crate::{Shadow, Slot, Victim};

const SMALL: usize = 0;
const MAIN: usize = 1;
/// Share of the pool for the small queue, in tenths; main and ghost have the rest.
const SMALL_TENTHS: usize = 1;
const GHOST_TENTHS: usize = 9;
/// Uses that move a page from small to main.
const PROMOTE_COUNT: u8 = 2;
/// Counts saturate at this value.
const COUNT_MAX: u8 = 3;

#[derive(Debug)]
pub(crate) struct S3Fifo {
    capacity: usize,
    /// Nothing was evicted yet: new pages fill main, too.
    filling: bool,
    ghost: Ghost,
}

impl S3Fifo {
    pub(crate) fn build(slots_max: usize, capacity: usize) -> QueuePolicy<S3Fifo> {
        QueuePolicy::new(slots_max, S3Fifo { capacity, filling: true, ghost: Ghost::new(slots_max, 8) })
    }

    fn small_max(&self) -> usize {
        (self.capacity * SMALL_TENTHS / 10).max(1)
    }

    fn ghost_max(&self) -> usize {
        self.capacity * GHOST_TENTHS / 10
    }

    fn look_small(&mut self, queues: &mut Queues, uses: &mut Uses<'_>, slot: Slot) -> Step {
        let proved = uses.take(slot) >= PROMOTE_COUNT;
        if uses.stays(proved) {
            queues.shift(SMALL, MAIN, slot);
            return Step::Moved;
        }
        queues.unlink(SMALL, slot);
        Step::Take(Victim { slot, shadow: self.remember() })
    }

    fn look_main(&mut self, queues: &mut Queues, uses: &mut Uses<'_>, slot: Slot) -> Step {
        let count = uses.count(slot).min(COUNT_MAX);
        if uses.stays(count != 0) {
            uses.set(slot, count - 1);
            queues.shift(MAIN, MAIN, slot);
            return Step::Moved;
        }
        queues.unlink(MAIN, slot);
        Step::Take(Victim { slot, shadow: None })
    }
}

impl Rules for S3Fifo {
    const NAME: &'static str = "s3fifo";
    const QUEUES: &'static [&'static str] = &["small", "main"];
    const MOVES: bool = false;
    const LAPS: usize = COUNT_MAX as usize;

    fn set_capacity(&mut self, pages: usize) {
        self.capacity = pages;
        self.ghost.trim(self.ghost_max());
    }

    fn faulting(&mut self, shadow: Shadow) {
        self.ghost.announce(serial_of(shadow).0);
    }

    fn enter(&mut self, queues: &mut Queues, slot: Slot, shadow: Option<Shadow>) -> bool {
        let known = shadow.is_some_and(|shadow| self.ghost.recall(serial_of(shadow).0));
        let fills_main = self.filling && queues.len(SMALL) >= self.small_max();
        queues.push(if known || fills_main { MAIN } else { SMALL }, slot);
        known
    }

    fn prepare(&mut self, _queues: &mut Queues, _want: usize, _resident: usize) {
        self.filling = false;
    }

    fn look(&mut self, queues: &mut Queues, uses: &mut Uses<'_>) -> Step {
        let main_max = self.capacity.saturating_sub(self.small_max());
        match (queues.tail(SMALL), queues.tail(MAIN)) {
            (Some(slot), None) => self.look_small(queues, uses, slot),
            (Some(slot), Some(_)) if queues.len(MAIN) <= main_max => self.look_small(queues, uses, slot),
            (_, Some(slot)) => self.look_main(queues, uses, slot),
            (None, None) => Step::Empty,
        }
    }

    fn remember(&mut self) -> Option<Shadow> {
        let shadow = shadow_of(self.ghost.push(), false);
        self.ghost.trim(self.ghost_max());
        Some(shadow)
    }

    fn bytes(&self) -> usize {
        self.ghost.bytes()
    }

    fn dump(&self) -> String {
        format!(" | ghost: {}", self.ghost.show())
    }

    fn check(&self, _queues: &Queues) -> Result<(), String> {
        if self.ghost.len() > self.ghost_max() {
            return Err(format!("a ghost of {} beside a pool of {}", self.ghost.len(), self.capacity));
        }
        self.ghost.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pool;
    use crate::{Evict, InsertReason};

    /// 20 pages: 2 in small, 18 in main and in the ghost.
    fn pool() -> Pool<QueuePolicy<S3Fifo>> {
        Pool::new(S3Fifo::build(64, 20))
    }

    #[test]
    fn a_pool_that_never_evicted_fills_main() {
        let mut pool = pool();
        pool.enter(0..5);
        pool.is("small: 1 0 | main: 4 3 2 | held:  | ghost: ");
        assert_eq!(pool.evict(1), [0]);
        pool.enter(5..7);
        pool.is("small: 6 5 1 | main: 4 3 2 | held:  | ghost: 1");
    }

    #[test]
    fn two_uses_lead_to_main_and_there_each_saves_once() {
        let mut pool = pool();
        pool.enter(0..4);
        pool.touch([0, 0, 0, 1, 2, 2]);
        assert_eq!(pool.evict(1), [1]); // 0 goes up, its count forgotten; one use is not enough
        pool.is("small:  | main: 0 3 2 | held:  | ghost: 1");
        assert_eq!(pool.touches[0], 0);
        assert_eq!(pool.evict(1), [3]); // 2 was used twice: once less now
        pool.is("small:  | main: 2 0 | held:  | ghost: 1");
        assert_eq!((pool.evict(1), pool.touches[2]), (vec![0], 1));
        assert_eq!(pool.evict(1), [2], "three laps at the most");
    }

    #[test]
    fn main_evicts_only_beyond_its_share_or_with_empty_small() {
        let mut pool = pool();
        pool.enter(0..22);
        pool.is("small: 1 0 | main: 21 20 19 18 17 16 15 14 13 12 11 10 9 8 7 6 5 4 3 2 | held:  | ghost: ");
        assert_eq!(pool.evict(4), [2, 3, 0, 1]);
        assert_eq!(pool.evict(1), [4]);
    }

    #[test]
    fn a_page_of_the_ghost_enters_main_and_the_ghost_forgets() {
        let mut pool = pool();
        pool.enter(0..4);
        let left = pool.evict_shadows(2);
        assert!(pool.enter_as(0, left[0].shadow, InsertReason::Read));
        pool.is("small:  | main: 0 3 2 | held:  | ghost: 2");
        for _ in 0..18 {
            pool.policy.shadow();
        }
        assert!(!pool.enter_as(1, left[1].shadow, InsertReason::Read), "18 pages later");
        pool.is("small: 1 | main: 0 3 2 | held:  | ghost: 20 19 18 17 16 15 14 13 12 11 10 9 8 7 6 5 4 3");
    }
}
