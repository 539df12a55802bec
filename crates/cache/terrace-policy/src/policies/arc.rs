//! Eviction policy `arc`: two LRU lists, pages used once and pages used repeatedly. Hits in their ghosts set
//! their shares.
//!
//! Source: N. Megiddo and D. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003, figure
//! 4; `p` is a real number as there.
//!
//! ```text
//!        new ► t1 (used once) ──► evicted ► b1 (ghost) ─ faulted again: p grows ─┐
//!               │ used                                                          ▼
//!               └────────► t2 (used again; LRU) ► evicted ► b2 (ghost) ────────► t2
//!                                                           └ faulted again: p shrinks
//!   t1 longer than p: its tail goes; else t2's.   t1 + b1 <= c, all four <= 2c
//! ```
//! The ghosts are exact lists, although they store only a page's shadow (see `ghost`).
//!
//! Hits in batches lose their order (see `queue_policy`). As in the paper, a page read ahead or in pieces
//! counts as used repeatedly. Unlike there, victims are chosen before the incoming page is known. So the tie
//! `t1 = p` never goes to a page of b2. The trim of the ghosts assumes the incoming page in neither.

use crate::list::Step;
use crate::list::ghost::{Ghost, serial_of, shadow_of};
use crate::queue_policy::{QueuePolicy, Queues, Rules, Uses};
use crate::{Shadow, Slot, Victim};

const T1: usize = 0;
const T2: usize = 1;

#[derive(Debug)]
pub(crate) struct Arc {
    capacity: usize,
    /// Target length of t1.
    p: f64,
    b1: Ghost,
    b2: Ghost,
}

impl Arc {
    pub(crate) fn build(slots_max: usize, capacity: usize) -> QueuePolicy<Arc> {
        let ghost = || Ghost::new(slots_max, 8);
        QueuePolicy::new(slots_max, Arc { capacity, p: 0.0, b1: ghost(), b2: ghost() })
    }

    /// Cases II and III of the paper: the page is still in a ghost, `found` by the given search.
    fn adapt(&mut self, shadow: Shadow, find: impl Fn(&mut Ghost, u32) -> bool) -> bool {
        let (serial, second) = serial_of(shadow);
        let (len1, len2) = (self.b1.len() as f64, self.b2.len() as f64);
        let found = find(if second { &mut self.b2 } else { &mut self.b1 }, serial);
        if found && second {
            self.p = (self.p - (len1 / len2).max(1.0)).max(0.0);
        } else if found {
            self.p = (self.p + (len2 / len1).max(1.0)).min(self.capacity as f64);
        }
        found
    }

    /// Case IV: makes room in the ghosts for `coming` pages that none of the four lists holds.
    fn trim(&mut self, queues: &Queues, coming: usize) {
        self.b1.trim((self.capacity).saturating_sub(queues.len(T1) + coming));
        let others = queues.queued() + self.b1.len() + coming;
        self.b2.trim((2 * self.capacity).saturating_sub(others));
    }

    /// The queue of the next victim, as in the paper's REPLACE.
    fn source(&self, queues: &Queues) -> usize {
        let t1 = queues.len(T1) as f64;
        let over = t1 > self.p || (t1 == self.p && self.b2.is_announced());
        if queues.len(T2) == 0 || (queues.len(T1) > 0 && over) { T1 } else { T2 }
    }

    fn evicted_from(&mut self, queue: usize) -> Shadow {
        let ghost = if queue == T1 { &mut self.b1 } else { &mut self.b2 };
        shadow_of(ghost.push(), queue == T2)
    }
}

impl Rules for Arc {
    const NAME: &'static str = "arc";
    const QUEUES: &'static [&'static str] = &["t1", "t2"];
    const MOVES: bool = true;

    fn set_capacity(&mut self, pages: usize) {
        self.capacity = pages;
        self.p = self.p.min(pages as f64);
        self.b1.trim(pages);
        self.b2.trim(2 * pages);
    }

    fn faulting(&mut self, shadow: Shadow) {
        self.adapt(shadow, Ghost::announce);
    }

    fn enter(&mut self, queues: &mut Queues, slot: Slot, shadow: Option<Shadow>) -> bool {
        let announced = shadow.is_some_and(|shadow| {
            let (serial, second) = serial_of(shadow);
            if second { self.b2.was_announced(serial) } else { self.b1.was_announced(serial) }
        });
        let known = announced || shadow.is_some_and(|shadow| self.adapt(shadow, Ghost::take));
        queues.push(if known { T2 } else { T1 }, slot);
        self.trim(queues, 0);
        known
    }

    fn hit(&mut self, queues: &mut Queues, slot: Slot, _count: u8) {
        let from = queues.queue_of(slot).expect("hits are reported for queued pages");
        queues.shift(from, T2, slot);
    }

    fn look(&mut self, queues: &mut Queues, uses: &mut Uses<'_>) -> Step {
        if queues.queued() == 0 {
            return Step::Empty;
        }
        let returns = self.b1.is_announced() || self.b2.is_announced();
        // A t1 as large as the pool has no ghost for its tail.
        let forgotten = !returns && queues.len(T1) >= self.capacity.max(1);
        let from = if forgotten { T1 } else { self.source(queues) };
        let slot = queues.tail(from).expect("the source is not empty");
        let used = uses.take(slot) != 0;
        if uses.stays(used) {
            queues.shift(from, T2, slot);
            return Step::Moved;
        }
        if !returns {
            self.trim(queues, 1);
        }
        queues.unlink(from, slot);
        let shadow = (!forgotten).then(|| self.evicted_from(from));
        self.trim(queues, 0);
        Step::Take(Victim { slot, shadow })
    }

    fn readmit(&mut self, queues: &mut Queues, slot: Slot) {
        queues.push(T2, slot);
    }

    fn remember(&mut self) -> Option<Shadow> {
        let shadow = self.evicted_from(T1);
        self.b1.trim(self.capacity);
        Some(shadow)
    }

    fn bytes(&self) -> usize {
        self.b1.bytes() + self.b2.bytes()
    }

    fn dump(&self) -> String {
        format!(" | b1: {} | b2: {} | p: {:.2}", self.b1.show(), self.b2.show(), self.p)
    }

    fn check(&self, _queues: &Queues) -> Result<(), String> {
        if self.b1.len() > self.capacity || self.b2.len() > 2 * self.capacity {
            return Err(format!(
                "ghosts of {} and {} for a pool of {}",
                self.b1.len(),
                self.b2.len(),
                self.capacity
            ));
        }
        self.b1.check().and(self.b2.check())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pool;
    use crate::{Evict, InsertReason};

    fn pool() -> Pool<QueuePolicy<Arc>> {
        let mut pool = Pool::new(Arc::build(64, 4));
        pool.enter(0..4);
        pool
    }

    /// A miss as in the paper: the shadow is known before the victim is chosen.
    fn fault(pool: &mut Pool<QueuePolicy<Arc>>, slot: Slot, shadow: Option<Shadow>) -> Victim {
        shadow.into_iter().for_each(|shadow| pool.policy.faulting(shadow));
        let victim = pool.evict_shadows(1)[0];
        pool.enter_as(slot, shadow, InsertReason::Read);
        victim
    }

    #[test]
    fn hits_in_the_ghosts_move_the_share_of_t1() {
        let mut pool = pool();
        pool.policy.accessed(1);
        let zero = fault(&mut pool, 4, None);
        pool.is("t1: 4 3 2 | t2: 1 | held:  | b1: 1 | b2:  | p: 0.00");
        let two = fault(&mut pool, 5, None);
        assert_eq!((zero.slot, two.slot), (0, 2));
        pool.is("t1: 5 4 3 | t2: 1 | held:  | b1: 2 | b2:  | p: 0.00"); // t1 and b1 hold 4 at the most
        let three = fault(&mut pool, 2, two.shadow);
        pool.is("t1: 5 4 | t2: 2 1 | held:  | b1: 3 | b2:  | p: 1.00");
        let one = fault(&mut pool, 3, three.shadow);
        pool.is("t1: 5 4 | t2: 3 2 | held:  | b1:  | b2: 1 | p: 2.00");
        let four = fault(&mut pool, 1, one.shadow);
        pool.is("t1: 5 | t2: 1 3 2 | held:  | b1: 4 | b2:  | p: 1.00");
        fault(&mut pool, 6, None);
        pool.is("t1: 6 5 | t2: 1 3 | held:  | b1: 4 | b2: 2 | p: 1.00");
        let three = fault(&mut pool, 4, four.shadow);
        pool.is("t1: 6 5 | t2: 4 1 | held:  | b1:  | b2: 3 2 | p: 2.00");
        pool.policy.accessed(6);
        assert_eq!(fault(&mut pool, 3, three.shadow).slot, 5, "at a tie, a page of b2 comes at t1's expense");
        pool.is("t1:  | t2: 3 6 4 1 | held:  | b1: 5 | b2: 2 | p: 1.00");
        assert_eq!(pool.policy.refaults().recent, 5);
    }

    #[test]
    fn a_t1_of_the_whole_pool_leaves_no_trace() {
        let mut pool = pool();
        assert_eq!(fault(&mut pool, 4, None), Victim { slot: 0, shadow: None });
        pool.is("t1: 4 3 2 1 | t2:  | held:  | b1:  | b2:  | p: 0.00");
    }

    #[test]
    fn in_batches_touched_pages_are_found_before_they_go() {
        let mut pool = pool();
        pool.touch([0, 0, 2]);
        assert_eq!(pool.evict(2), [1, 3]);
        pool.is("t1:  | t2: 2 0 | held:  | b1: 2 1 | b2:  | p: 0.00");
        pool.restore([3]);
        pool.is("t1:  | t2: 2 0 | held: 3 | b1: 2 1 | b2:  | p: 0.00");
        pool.touch([3]);
        assert_eq!(pool.evict(1), [0]);
        pool.is("t1:  | t2: 2 | held: 3 | b1: 2 1 | b2: 1 | p: 0.00");
        assert_eq!(pool.evict(1), [2]);
        assert_eq!(pool.evict(1), [3], "used while it was held, it went through t2");
        pool.is("t1:  | t2:  | held:  | b1: 2 1 | b2: 3 2 1 | p: 0.00");
    }
}
