//! Eviction policy `clock`: the second-chance queue. A baseline.
//!
//! Source: F. J. Corbato, "A Paging Experiment with the Multics System", 1968. Implemented as FIFO with
//! reinsertion, which makes the same decisions as a hand over a ring.
//!
//! ```text
//!   new ► head ──────────────► tail ── untouched: evicted
//!          ▲                    │
//!          └── touched: cleared ┘
//! ```
//! There is no ghost. One bit of hits is enough, so batches lose only uses after an eviction ahead of demand.
//! A page read ahead and used once looks like a page used twice, and gets a second chance.

use crate::Victim;
use crate::list::Step;
use crate::queue_policy::{QueuePolicy, Queues, Rules, Uses};

const RING: usize = 0;

#[derive(Debug)]
pub(crate) struct Clock;

impl Clock {
    pub(crate) fn build(slots_max: usize) -> QueuePolicy<Clock> {
        QueuePolicy::new(slots_max, Clock)
    }
}

impl Rules for Clock {
    const NAME: &'static str = "clock";
    const QUEUES: &'static [&'static str] = &["ring"];
    const MOVES: bool = false;

    fn look(&mut self, queues: &mut Queues, uses: &mut Uses<'_>) -> Step {
        let Some(slot) = queues.tail(RING) else { return Step::Empty };
        let used = uses.take(slot) != 0;
        if uses.stays(used) {
            queues.shift(RING, RING, slot);
            return Step::Moved;
        }
        queues.unlink(RING, slot);
        Step::Take(Victim { slot, shadow: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pool;

    #[test]
    fn touched_pages_go_round_once() {
        let mut pool = Pool::new(Clock::build(64));
        pool.enter(0..4);
        pool.touch([0, 2, 2, 2]);
        pool.is("ring: 3 2 1 0 | held: ");
        assert_eq!(pool.evict(1), [1]); // 0 was touched
        pool.is("ring: 0 3 2 | held: ");
        assert_eq!(pool.evict(2), [3, 0]); // 2 was touched, thrice or once alike
        pool.is("ring: 2 | held: ");
        assert_eq!(pool.evict(5), [2]);
        assert_eq!(pool.evict(5), []);
    }

    #[test]
    fn a_victim_that_cannot_go_waits_aside() {
        let mut pool = Pool::new(Clock::build(64));
        pool.enter(0..4);
        assert_eq!(pool.evict(1), [0]);
        pool.restore([0]);
        pool.is("ring: 3 2 1 | held: 0");
        assert_eq!(pool.evict(2), [1, 2]);
        pool.touch([0]);
        assert_eq!(pool.evict(2), [3, 0]); // touched while held: it went round, and nothing else was left
        pool.restore([0]);
        assert_eq!(pool.evict(1), [0], "alone, it is offered at once");
    }
}
