//! How a policy looks for victims: pages that could not go, an end to a fruitless search, the loop around both, and a hand that
//! finds touched pages.

use super::slots::{List, Slots};
use crate::{AccessCounts, Slot, Victim};

/// Pages that were victims and could not go: dirty, under writeback, pinned.
///
/// They wait at the eviction end without being offered again at once: after [`HELD_WAIT`] victims from elsewhere
/// the held pages are offered, oldest first, for as long as they are really evicted; the first that comes back
/// starts the wait anew. So a pool full of dirty pages costs at most every second look, a pool whose writeback
/// has finished gives up its held pages first, and held pages never swell the queue they came from (which would
/// drive good pages out of the others). Rejected: putting them back at a queue's tail (they are offered for ever)
/// or at its head (a page written once stays as long as a page used often).
#[derive(Debug)]
pub struct Held {
    /// Their queue, the oldest at the tail.
    pub list: List,
    wait: u32,
}

/// Victims to take elsewhere before held pages are offered again: one batch of reclaim.
pub const HELD_WAIT: u32 = 64;

impl Held {
    /// Over `list`, which is empty.
    pub fn new(list: List) -> Held {
        Held { list, wait: 0 }
    }

    /// A victim came back; `again`: it had been held before.
    pub fn put(&mut self, slots: &mut Slots, slot: Slot, again: bool, tag: u8) {
        if again || self.list.is_empty() {
            self.wait = HELD_WAIT;
        }
        slots.push(&mut self.list, slot, tag);
    }

    /// Whether the next victim should be a held page; `others`: pages that could be taken instead.
    pub fn due(&self, others: usize) -> bool {
        !self.list.is_empty() && (self.wait == 0 || others == 0)
    }

    /// The next victim is a held page.
    #[cfg(any(test, feature = "testing"))]
    pub fn wait_is_over(&mut self) {
        self.wait = 0;
    }

    /// A victim was taken elsewhere.
    pub fn other_taken(&mut self) {
        self.wait = self.wait.saturating_sub(1);
    }
}

/// Ends the search for an untouched page when there is none.
///
/// One fruitless lap over all pages means that none was idle while the policy went round: the pool is hot all over,
/// or a hostile client scribbles over the touch table. From then on pages go regardless of their touches, until an
/// untouched one is met: FIFO under attack, at full speed. Rejected: a lap for each count a page can have (three
/// times the pause under the caller's lock, for an order that says little by then).
#[derive(Debug, Default)]
pub struct Patience {
    looks: usize,
}

impl Patience {
    /// A touched page was met, among `resident`; true: take it nevertheless.
    pub fn touched(&mut self, resident: usize) -> bool {
        self.looks = self.looks.saturating_add(1);
        self.looks > resident
    }

    /// An untouched page was found.
    pub fn found(&mut self) {
        self.looks = 0;
    }
}

/// Looks allowed for `want` victims: bounds the time a caller's lock is held; the first victim is always found.
pub fn looks_max(want: usize) -> usize {
    16 * want + 256
}

/// The frame loop every policy shares: `step` yields a victim, or `None` after looking at a page that stays.
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
    /// This page goes.
    Take(Victim),
    /// The page looked at stays, elsewhere.
    Moved,
    /// No page is resident.
    Empty,
}

/// A hand over the slot numbers that brings touched pages to the policy's notice before they reach the tail.
#[derive(Debug, Default)]
pub struct Sweep {
    hand: u32,
}

/// Slots the hand passes for each victim wanted.
pub const SWEEP_RATE: usize = 8;

impl Sweep {
    /// The next touched slot within `left` (which it uses up), with its touches read and cleared.
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
        let mut held = Held::new(list);
        held.put(&mut slots, 1, false, 1);
        assert!(!held.due(10));
        assert!(held.due(0), "nothing else to take");
        for _ in 0..HELD_WAIT {
            assert!(!held.due(10));
            held.other_taken();
        }
        assert!(held.due(10));
        held.put(&mut slots, 2, false, 1);
        assert!(held.due(10), "a newcomer does not delay those who waited");
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
