//! `lru`: least recently used, as well as touch counts can tell. A baseline.
//!
//! ```text
//!   new ► head ─────────────────────────► tail ► evicted
//!          ▲ ▲                             │
//!          │ └── touched: cleared ─────────┘
//!          └── touched pages met by a hand over the slot numbers, 8 slots a victim
//! ```
//! Real LRU moves a page at every hit; a hit here writes one byte. So the order is rebuilt afterwards: with every
//! batch of victims a hand passes the next few slots and moves touched pages to the head, and a touched page at
//! the tail is moved as well. What that loses: all uses between two passes of the hand (an eighth of a turnover of
//! the pool) look alike, and among them the order is that of slot numbers. What it cannot lose: a page used since
//! it was last looked at is never evicted.
//!
//! When [`Evict::accessed`] is called (the simulator's exact mode) this is textbook LRU and the table is ignored.

use crate::list::{ABSENT, Held, List, Patience, SWEEP_RATE, Slots, Step, Sweep, collect};
use crate::{Evict, Generation, Refaults, Shadow, Slot, Touches, Victim, Why};

const OUT_OF_HELD: u8 = 1;
const QUEUED: u8 = 2;
const HELD: u8 = 3;

/// See the module's description.
#[derive(Debug)]
pub struct Lru {
    slots: Slots,
    queue: List,
    held: Held,
    patience: Patience,
    sweep: Sweep,
    /// Somebody tells each access: the touch table has nothing to add.
    exact: bool,
}

fn is_resident(tag: u8) -> bool {
    tag >= QUEUED
}

impl Lru {
    /// For slots below `slots_max`; the capacity has no influence.
    pub fn new(slots_max: usize, _capacity: usize) -> Lru {
        let (slots, [queue, held]) = Slots::new::<2>(slots_max);
        let (held, patience) = (Held::new(held), Patience::default());
        Lru { slots, queue, held, patience, sweep: Sweep::default(), exact: false }
    }

    /// Moves a resident page to the head.
    fn refresh(&mut self, slot: Slot) {
        self.remove(slot);
        self.slots.push(&mut self.queue, slot, QUEUED);
    }

    fn look(&mut self, touches: &mut dyn Touches) -> Step {
        let held = self.held.due(self.queue.len());
        let (list, tag) = if held { (&mut self.held.list, OUT_OF_HELD) } else { (&mut self.queue, ABSENT) };
        let Some(slot) = self.slots.pop(list, tag) else { return Step::Empty };
        if self.exact || touches.take(slot) == 0 {
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

impl Evict for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn insert(&mut self, slot: Slot, _shadow: Option<Shadow>, _why: Why, touches: &mut dyn Touches) -> bool {
        assert!(!self.contains(slot), "slot {slot} is resident already");
        touches.set(slot, 0);
        self.slots.push(&mut self.queue, slot, QUEUED);
        false
    }

    fn victims(&mut self, want: usize, touches: &mut dyn Touches, out: &mut Vec<Victim>) {
        let mut left = if self.exact { 0 } else { (want * SWEEP_RATE).min(self.slots.slots_max()) };
        while let Some((slot, _)) = self.sweep.next(&mut left, &self.slots, is_resident, touches) {
            self.refresh(slot);
        }
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

    fn accessed(&mut self, slot: Slot) {
        self.exact = true;
        self.refresh(slot);
    }

    fn generations(&self, now_ms: u64) -> Vec<Generation> {
        let queue = |label: &str, list: &List| Generation {
            seq: 0,
            age_ms: now_ms,
            pages: list.len(),
            label: label.into(),
        };
        vec![queue("recency", &self.queue), queue("held", &self.held.list)]
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
        format!("recency: {} | held: {}", self.slots.show(&self.queue), self.slots.show(&self.held.list))
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
    fn told_each_access_it_is_textbook_lru() {
        let mut pool = Pool::new(Lru::new(64, 4));
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
        let mut pool = Pool::new(Lru::new(64, 16));
        pool.enter(0..12);
        pool.touch([5, 1, 9]);
        assert_eq!(pool.evict(1), [0]); // the hand passed 0..8: 1 and 5 moved, 9 not yet
        pool.is("recency: 5 1 11 10 9 8 7 6 4 3 2 | held: ");
        assert_eq!(pool.evict(1), [2]); // it passed 8..16: 9 moved
        pool.is("recency: 9 5 1 11 10 8 7 6 4 3 | held: ");
    }

    #[test]
    fn a_touched_page_at_the_tail_is_moved_even_before_the_hand_comes() {
        let mut pool = Pool::new(Lru::new(64, 16));
        pool.enter([40, 41]);
        pool.touch([40]);
        assert_eq!(pool.evict(1), [41]);
        pool.is("recency: 40 | held: ");
    }
}
