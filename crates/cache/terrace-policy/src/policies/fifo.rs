//! Eviction policy `fifo`: first in, first out. A baseline.
//!
//! ```text
//!   new ► head ──────────────► tail ► evicted
//! ```
//! Hits change nothing, so batches of hits lose nothing; a touched page is evicted like any other. No ghost.

use crate::Victim;
use crate::list::Step;
use crate::queue_policy::{QueuePolicy, Queues, Rules, Uses};

const QUEUE: usize = 0;

#[derive(Debug)]
pub(crate) struct Fifo;

impl Fifo {
    pub(crate) fn build(slots_max: usize) -> QueuePolicy<Fifo> {
        QueuePolicy::new(slots_max, Fifo)
    }
}

impl Rules for Fifo {
    const NAME: &'static str = "fifo";
    const QUEUES: &'static [&'static str] = &["queue"];
    const MOVES: bool = false;

    fn look(&mut self, queues: &mut Queues, uses: &mut Uses<'_>) -> Step {
        let Some(slot) = queues.tail(QUEUE) else { return Step::Empty };
        queues.unlink(QUEUE, slot);
        uses.stays(false);
        Step::Take(Victim { slot, shadow: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Pool;

    #[test]
    fn uses_save_no_page() {
        let mut pool = Pool::new(Fifo::build(64));
        pool.enter(0..4);
        pool.touch([0, 0, 1]);
        pool.is("queue: 3 2 1 0 | held: ");
        assert_eq!(pool.evict(2), [0, 1]);
        pool.restore([1]);
        pool.is("queue: 3 2 | held: 1");
        assert_eq!(pool.evict(2), [2, 3]);
        assert_eq!(pool.evict(2), [1]);
    }
}
