//! Search for victims: held pages, a bound on looks, the loop, and the hand that finds touched pages.

use super::slots::{List, Slots};
use crate::{AccessCounts, Slot, Victim};

/// Victims that could not be evicted: dirty, under writeback, pinned.
///
/// After [`HELD_WAIT`] other victims the search offers held pages, oldest first, while their evictions
/// succeed. The first page that comes back restarts the wait. So a pool full of dirty pages wastes at most
/// every second look. After writeback the held pages go first. Held pages do not lengthen their old queue,
/// which would push good pages out of the others. Rejected: a queue's tail (they are offered for ever), or
/// its head (pages written once stay too long).
#[derive(Debug)]
pub struct HeldQueue {
    /// The held pages, the oldest at the tail.
    pub list: List,
    wait: u32,
}

/// Victims from elsewhere before held pages are offered again: one batch of reclaim.
pub const HELD_WAIT: u32 = 64;

impl HeldQueue {
    /// Wraps `list`, which must be empty.
    pub fn new(list: List) -> HeldQueue {
        HeldQueue { list, wait: 0 }
    }

    /// Holds a victim that came back; `again`: it had been held before.
    pub fn put(&mut self, slots: &mut Slots, slot: Slot, again: bool, tag: u8) {
        if again || self.list.is_empty() {
            self.wait = HELD_WAIT;
        }
        slots.push(&mut self.list, slot, tag);
    }

    /// Whether the next victim should be a held page; `others`: number of other candidates.
    pub fn due(&self, others: usize) -> bool {
        !self.list.is_empty() && (self.wait == 0 || others == 0)
    }

    /// Ends the wait: the next victim is a held page.
    #[cfg(any(test, feature = "testing"))]
    pub fn wait_is_over(&mut self) {
        self.wait = 0;
    }

    /// A victim was taken elsewhere.
    pub fn other_taken(&mut self) {
        self.wait = self.wait.saturating_sub(1);
    }
}

/// Bounds the search for an untouched page.
///
/// After a fruitless lap no page is idle: programs use the whole pool, or a hostile client writes the touch
/// table. The search then evicts pages regardless of touches until it finds an untouched one: FIFO, at full
/// speed. Rejected: one lap for each possible count (three times the pause under the caller's lock, for a
/// meaningless order).
#[derive(Debug, Default)]
pub struct Patience {
    looks: usize,
}

impl Patience {
    /// A touched page was met, among `resident` pages. True: evict it nevertheless.
    pub fn touched(&mut self, resident: usize) -> bool {
        self.looks = self.looks.saturating_add(1);
        self.looks > resident
    }

    /// An untouched page was found.
    pub fn found(&mut self) {
        self.looks = 0;
    }
}

/// Maximum looks for `want` victims, to bound the time under the caller's lock. One is always found.
pub fn looks_max(want: usize) -> usize {
    16 * want + 256
}

/// The search loop of every policy: calls `step` until it has `want` victims, or the maximum of looks.
pub fn collect(want: usize, out: &mut Vec<Victim>, mut step: impl FnMut() -> Step) {
    let goal = out.len() + want;
    let start = out.len();
    let mut looks = 0;
    while out.len() < goal {
        match step() {
            Step::Take(victim) => out.push(victim),
            Step::Moved => {}
            Step::Empty => break,
        }
        looks += 1;
        if looks >= looks_max(want) && out.len() > start {
            break;
        }
    }
}

/// Result of one look at the eviction end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Evict this page.
    Take(Victim),
    /// The page stays and was moved.
    Moved,
    /// No page is resident.
    Empty,
}

/// A hand over the slot numbers: reports touched pages to the policy before they reach the tail.
#[derive(Debug, Default)]
pub struct Sweep {
    hand: u32,
}

/// Slots the hand passes for each victim wanted.
pub const SWEEP_RATE: usize = 8;

impl Sweep {
    /// The next touched slot within `left`, which is used up. Its touches are read and cleared.
    pub fn next(
        &mut self,
        left: &mut usize,
        slots: &Slots,
        resident: impl Fn(u8) -> bool,
        touches: &mut dyn AccessCounts,
    ) -> Option<(Slot, u8)> {
        while *left > 0 {
            *left -= 1;
            let slot = self.hand;
            self.hand = if slot as usize + 1 >= slots.slots_max() { 0 } else { slot + 1 };
            if resident(slots.tag(slot)) && touches.peek(slot) != 0 {
                return Some((slot, touches.take(slot)));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::slots::ABSENT;

    #[test]
    fn held_pages_wait_a_batch_then_go_first() {
        let (mut slots, [list]) = Slots::new::<1>(4);
        let mut held = HeldQueue::new(list);
        held.put(&mut slots, 1, false, 1);
        assert!(!held.due(10));
        assert!(held.due(0), "nothing else to take");
        for _ in 0..HELD_WAIT {
            assert!(!held.due(10));
            held.other_taken();
        }
        assert!(held.due(10));
        held.put(&mut slots, 2, false, 1);
        assert!(held.due(10), "a new held page does not delay the others");
        held.put(&mut slots, 3, true, 1);
        assert!(!held.due(10), "one that came back does");
    }

    #[test]
    fn sweep_wraps_and_clears() {
        let (mut slots, [mut a]) = Slots::new::<1>(4);
        slots.push(&mut a, 1, 1);
        slots.push(&mut a, 3, 1);
        let mut touches = vec![7u8, 2, 0, 0];
        let mut sweep = Sweep::default();
        let mut left = 4;
        let resident = |tag| tag != ABSENT;
        assert_eq!(sweep.next(&mut left, &slots, resident, &mut touches), Some((1, 2)));
        assert_eq!(sweep.next(&mut left, &slots, resident, &mut touches), None);
        assert_eq!((left, touches), (0, vec![7, 0, 0, 0]));
    }
}
