//! Eviction policy `sieve`: a FIFO queue with a hand that moves towards the newest and removes the unvisited.
//!
//! Source: Y. Zhang et al., "SIEVE is Simpler than LRU", NSDI 2024.
//!
//! ```text
//!   new ► head ──────────◄ hand ◄──────── tail
//!                          │ visited: cleared, and stays where it is
//!                          └ unvisited: evicted
//! ```
//! Unlike in a clock, survivors lie behind the hand, and new pages in front of it, where it reaches them
//! soon. No ghost.
//!
//! One bit of hits a page is enough, so batches lose only uses after an eviction ahead of demand. Victims
//! that could not be evicted wait aside, out of the hand's way; used ones enter anew at the head.

use crate::list::Step;
use crate::queue_policy::{QueuePolicy, Queues, Rules, Uses};
use crate::{Slot, Victim};

const QUEUE: usize = 0;

#[derive(Debug)]
pub(crate) struct Sieve {
    /// The page examined next; `None`: the tail.
    hand: Option<Slot>,
}

impl Sieve {
    pub(crate) fn build(slots_max: usize) -> QueuePolicy<Sieve> {
        QueuePolicy::new(slots_max, Sieve { hand: None })
    }
}

impl Rules for Sieve {
    const NAME: &'static str = "sieve";
    const QUEUES: &'static [&'static str] = &["queue"];
    const MOVES: bool = false;

    fn look(&mut self, queues: &mut Queues, uses: &mut Uses<'_>) -> Step {
        let Some(slot) = self.hand.or(queues.tail(QUEUE)) else { return Step::Empty };
        self.hand = queues.newer(QUEUE, slot);
        if uses.stays(uses.count(slot) != 0) {
            uses.set(slot, 0);
            return Step::Moved;
        }
        queues.unlink(QUEUE, slot);
        Step::Take(Victim { slot, shadow: None })
    }

    fn leaves(&mut self, queues: &Queues, slot: Slot) {
        if self.hand == Some(slot) {
            self.hand = queues.newer(QUEUE, slot);
        }
    }

    fn dump(&self) -> String {
        format!(" | hand: {}", self.hand.map_or("-".into(), |slot| slot.to_string()))
    }

    fn check(&self, queues: &Queues) -> Result<(), String> {
        match self.hand.filter(|&slot| queues.queue_of(slot) != Some(QUEUE)) {
            Some(slot) => Err(format!("the hand points at slot {slot}, which is not in the queue")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Evict;
    use crate::testing::Pool;

    /// The paper's illustration: of A to G, A, B and G were visited, then H, A, D, I, B, J are requested.
    #[test]
    fn the_papers_illustration() {
        let [a, b, c, d, e, f, g, h, i, j] = std::array::from_fn(|n| n as Slot);
        let mut pool = Pool::new(Sieve::build(64));
        pool.enter(a..=g);
        pool.touch([a, b, g]);
        pool.is("queue: 6 5 4 3 2 1 0 | held:  | hand: -");
        assert_eq!(pool.evict(1), [c]); // A and B are passed
        pool.enter([h]);
        pool.is("queue: 7 6 5 4 3 1 0 | held:  | hand: 3");
        pool.touch([a, d]);
        assert_eq!(pool.evict(1), [e]); // D is passed
        pool.enter([i]);
        pool.touch([b]);
        pool.is("queue: 8 7 6 5 3 1 0 | held:  | hand: 5");
        assert_eq!(pool.evict(1), [f]);
        pool.enter([j]);
        pool.is("queue: 9 8 7 6 3 1 0 | held:  | hand: 6");
        assert_eq!(pool.evict(1), [h], "G is passed");
    }

    #[test]
    fn hand_starts_over_at_tail_and_leaves_removed_page() {
        let mut pool = Pool::new(Sieve::build(64));
        pool.enter(0..4);
        pool.touch(0..4);
        assert_eq!(pool.evict(1), [0]); // all were visited: a full round
        pool.is("queue: 3 2 1 | held:  | hand: 1");
        pool.policy.remove(1);
        pool.is("queue: 3 2 | held:  | hand: 2");
        pool.touch([2, 3]);
        assert_eq!(pool.evict(1), [2]);
    }
}
