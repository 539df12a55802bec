//! `clock`: the second-chance queue. A baseline.
//!
//! Source: F. J. Corbato, "A Paging Experiment with the Multics System", 1968; here as FIFO with reinsertion,
//! which decides exactly as a hand over a ring does.
//!
//! ```text
//!   new ► head ──────────────► tail ── untouched: evicted
//!          ▲                    │
//!          └── touched: cleared ┘
//! ```
//! No ghost. A page read ahead and then used once looks like a page used twice: it gets a second chance.

use crate::list::{ABSENT, Held, List, Patience, Slots, Step, collect};
use crate::{Evict, Generation, Refaults, Shadow, Slot, Touches, Victim, Why};

const OUT_OF_HELD: u8 = 1;
const QUEUED: u8 = 2;
const HELD: u8 = 3;

/// See the module's description.
#[derive(Debug)]
pub struct Clock {
    slots: Slots,
    queue: List,
    held: Held,
    patience: Patience,
}

fn is_resident(tag: u8) -> bool {
    tag >= QUEUED
}

impl Clock {
    /// For slots below `slots_max`; the capacity has no influence.
    pub fn new(slots_max: usize, _capacity: usize) -> Clock {
        let (slots, [queue, held]) = Slots::new::<2>(slots_max);
        Clock { slots, queue, held: Held::new(held), patience: Patience::default() }
    }

    fn look(&mut self, touches: &mut dyn Touches) -> Step {
        let held = self.held.due(self.queue.len());
        let (list, tag) = if held { (&mut self.held.list, OUT_OF_HELD) } else { (&mut self.queue, ABSENT) };
        let Some(slot) = self.slots.pop(list, tag) else { return Step::Empty };
        if touches.take(slot) == 0 {
            self.patience.found();
        } else if !self.patience.touched(self.resident()) {
            self.slots.push(&mut self.queue, slot, QUEUED);
            return Step::Moved;
        }
        if !held {
            self.held.other_taken();
        }
        Step::Take(Victim { slot, shadow: None })
    }
}

impl Evict for Clock {
    fn name(&self) -> &'static str {
        "clock"
    }

    fn insert(&mut self, slot: Slot, _shadow: Option<Shadow>, _why: Why, touches: &mut dyn Touches) -> bool {
        assert!(!self.contains(slot), "slot {slot} is resident already");
        touches.set(slot, 0);
        self.slots.push(&mut self.queue, slot, QUEUED);
        false
    }

    fn victims(&mut self, want: usize, touches: &mut dyn Touches, out: &mut Vec<Victim>) {
        collect(want, out, || self.look(touches));
    }

    fn restore(&mut self, slot: Slot) {
        assert!(!self.contains(slot), "slot {slot} is resident already");
        let again = self.slots.tag(slot) == OUT_OF_HELD;
        self.held.put(&mut self.slots, slot, again, HELD);
    }

    fn remove(&mut self, slot: Slot) {
        let list = match self.slots.tag(slot) {
            QUEUED => &mut self.queue,
            HELD => &mut self.held.list,
            _ => panic!("slot {slot} is not resident"),
        };
        self.slots.unlink(list, slot, ABSENT);
    }

    fn shadow(&mut self) -> Option<Shadow> {
        None
    }

    fn set_capacity(&mut self, _pages: usize) {}

    fn set_time(&mut self, _now_ms: u64) {}

    fn generations(&self, now_ms: u64) -> Vec<Generation> {
        let queue = |label: &str, list: &List| Generation {
            seq: 0,
            age_ms: now_ms,
            pages: list.len(),
            label: label.into(),
        };
        vec![queue("ring", &self.queue), queue("held", &self.held.list)]
    }

    fn refaults(&self) -> Refaults {
        Refaults::default()
    }

    fn resident(&self) -> usize {
        self.queue.len() + self.held.list.len()
    }

    fn contains(&self, slot: Slot) -> bool {
        is_resident(self.slots.tag(slot))
    }

    fn dump(&self) -> String {
        format!("ring: {} | held: {}", self.slots.show(&self.queue), self.slots.show(&self.held.list))
    }

    fn check(&self) -> Result<(), String> {
        let belongs = |list, tag| tag == [QUEUED, HELD][list];
        self.slots.check(&[&self.queue, &self.held.list], belongs, is_resident)
    }

    fn bytes(&self) -> usize {
        self.slots.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evict::testing::Pool;

    #[test]
    fn touched_pages_go_round_once() {
        let mut pool = Pool::new(Clock::new(64, 4));
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
        let mut pool = Pool::new(Clock::new(64, 4));
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
