//! Doubly linked lists over slots, and the list of pages that could not be evicted.
//!
//! All lists of a policy share one array of links: a slot is in at most one list. Each list is a ring through a
//! sentinel node behind the slots, so taking a slot out needs no search and no branch for the ends.
//!
//! ```text
//!   nodes: [slot 0][slot 1] ... [slot n-1][sentinel A][sentinel B] ...
//!          push here ► head ... tail ◄ victims leave here
//! ```
//! One tag byte a slot says where it is (0: not resident); what tags mean is the policy's affair. 9 bytes a slot.
//! The arrays are zeroed by the allocator, so slots never used cost no memory.

use crate::{Slot, Touches, Victim};

/// Tag of a slot that is not resident. Policies may use further tags for absent slots.
pub(crate) const ABSENT: u8 = 0;

const NEXT: usize = 0; // towards the tail
const PREV: usize = 1; // towards the head

/// Links and tags of all slots.
#[derive(Debug)]
pub(crate) struct Slots {
    nodes: Vec<[u32; 2]>,
    tags: Vec<u8>,
}

/// One list: the number of its sentinel, and its length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct List {
    sentinel: u32,
    len: u32,
}

impl List {
    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Slots {
    /// Links for slots below `slots_max`, and `N` empty lists over them.
    pub(crate) fn new<const N: usize>(slots_max: usize) -> (Slots, [List; N]) {
        let mut nodes = vec![[0u32; 2]; slots_max + N];
        let lists = std::array::from_fn(|i| {
            let sentinel = (slots_max + i) as u32;
            nodes[slots_max + i] = [sentinel; 2];
            List { sentinel, len: 0 }
        });
        (Slots { nodes, tags: vec![ABSENT; slots_max] }, lists)
    }

    pub(crate) fn slots_max(&self) -> usize {
        self.tags.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<[u32; 2]>() + self.tags.capacity()
    }

    pub(crate) fn tag(&self, slot: Slot) -> u8 {
        self.tags[slot as usize]
    }

    pub(crate) fn set_tag(&mut self, slot: Slot, tag: u8) {
        self.tags[slot as usize] = tag;
    }

    /// Puts a slot that is in no list at the head of `list`.
    pub(crate) fn push(&mut self, list: &mut List, slot: Slot, tag: u8) {
        debug_assert!((slot as usize) < self.tags.len());
        let first = self.nodes[list.sentinel as usize][NEXT];
        self.nodes[slot as usize] = [first, list.sentinel];
        self.nodes[first as usize][PREV] = slot;
        self.nodes[list.sentinel as usize][NEXT] = slot;
        self.tags[slot as usize] = tag;
        list.len += 1;
    }

    /// Puts a slot that is in no list at the tail of `list`.
    pub(crate) fn push_tail(&mut self, list: &mut List, slot: Slot, tag: u8) {
        debug_assert!((slot as usize) < self.tags.len());
        let last = self.nodes[list.sentinel as usize][PREV];
        self.nodes[slot as usize] = [list.sentinel, last];
        self.nodes[last as usize][NEXT] = slot;
        self.nodes[list.sentinel as usize][PREV] = slot;
        self.tags[slot as usize] = tag;
        list.len += 1;
    }

    /// Takes `slot` out of `list`, which must be the one it is in; its tag becomes `tag`.
    pub(crate) fn unlink(&mut self, list: &mut List, slot: Slot, tag: u8) {
        let [next, prev] = self.nodes[slot as usize];
        self.nodes[prev as usize][NEXT] = next;
        self.nodes[next as usize][PREV] = prev;
        self.tags[slot as usize] = tag;
        list.len -= 1;
    }

    /// The slot at the tail.
    pub(crate) fn tail(&self, list: &List) -> Option<Slot> {
        if list.len == 0 { None } else { Some(self.nodes[list.sentinel as usize][PREV]) }
    }

    /// Takes the tail out; its tag becomes `tag`.
    pub(crate) fn pop(&mut self, list: &mut List, tag: u8) -> Option<Slot> {
        let slot = self.tail(list)?;
        self.unlink(list, slot, tag);
        Some(slot)
    }

    /// From head to tail.
    pub(crate) fn iter(&self, list: &List) -> impl Iterator<Item = Slot> + '_ {
        self.walk(list, NEXT)
    }

    /// From tail to head.
    pub(crate) fn iter_back(&self, list: &List) -> impl Iterator<Item = Slot> + '_ {
        self.walk(list, PREV)
    }

    fn walk(&self, list: &List, way: usize) -> impl Iterator<Item = Slot> + '_ {
        let sentinel = list.sentinel;
        let mut at = self.nodes[sentinel as usize][way];
        std::iter::from_fn(move || {
            (at != sentinel).then(|| {
                let slot = at;
                at = self.nodes[slot as usize][way];
                slot
            })
        })
    }

    /// The slots of `list` as text, head first.
    pub(crate) fn show(&self, list: &List) -> String {
        self.iter(list).map(|slot| slot.to_string()).collect::<Vec<_>>().join(" ")
    }

    /// Proves that every list is a sound ring of its stated length whose members `belongs(list, tag)`, and that
    /// no other slot has a tag for which `resident` holds. Terminates on any corruption.
    pub(crate) fn check(
        &self,
        lists: &[&List],
        belongs: impl Fn(usize, u8) -> bool,
        resident: impl Fn(u8) -> bool,
    ) -> Result<(), String> {
        let mut listed = 0;
        for (i, list) in lists.iter().enumerate() {
            let mut len = 0;
            let mut before = list.sentinel;
            for slot in self.iter(list) {
                if slot as usize >= self.tags.len() || len >= list.len() {
                    return Err(format!(
                        "list {i}: longer than its length {}, or runs into another",
                        list.len
                    ));
                }
                if self.nodes[slot as usize][PREV] != before {
                    return Err(format!("list {i}: slot {slot} does not point back to {before}"));
                }
                if !belongs(i, self.tag(slot)) {
                    return Err(format!("list {i}: slot {slot} carries the tag {}", self.tag(slot)));
                }
                before = slot;
                len += 1;
            }
            if len != list.len() || self.nodes[list.sentinel as usize][PREV] != before {
                return Err(format!("list {i}: {len} slots linked, {} counted", list.len));
            }
            listed += len;
        }
        let tagged = self.tags.iter().filter(|&&tag| resident(tag)).count();
        if tagged != listed {
            Err(format!("{tagged} slots tagged resident, {listed} in lists"))
        } else {
            Ok(())
        }
    }
}

/// Pages that were victims and could not go: dirty, under writeback, pinned.
///
/// They wait at the eviction end without being offered again at once: after [`HELD_WAIT`] victims from elsewhere
/// the held pages are offered, oldest first, for as long as they are really evicted; the first that comes back
/// starts the wait anew. So a pool full of dirty pages costs at most every second look, a pool whose writeback
/// has finished gives up its held pages first, and held pages never swell the queue they came from (which would
/// drive good pages out of the others). Rejected: putting them back at a queue's tail (they are offered for ever)
/// or at its head (a page written once stays as long as a page used often).
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) list: List,
    wait: u32,
}

/// Victims to take elsewhere before held pages are offered again: one batch of reclaim.
pub(crate) const HELD_WAIT: u32 = 64;

impl Held {
    pub(crate) fn new(list: List) -> Held {
        Held { list, wait: 0 }
    }

    /// A victim came back; `again`: it had been held before.
    pub(crate) fn put(&mut self, slots: &mut Slots, slot: Slot, again: bool, tag: u8) {
        if again || self.list.is_empty() {
            self.wait = HELD_WAIT;
        }
        slots.push(&mut self.list, slot, tag);
    }

    /// Whether the next victim should be a held page; `others`: pages that could be taken instead.
    pub(crate) fn due(&self, others: usize) -> bool {
        !self.list.is_empty() && (self.wait == 0 || others == 0)
    }

    #[cfg(test)]
    pub(crate) fn wait_is_over(&mut self) {
        self.wait = 0;
    }

    /// A victim was taken elsewhere.
    pub(crate) fn other_taken(&mut self) {
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
pub(crate) struct Patience {
    looks: usize,
}

impl Patience {
    /// A touched page was met, among `resident`; true: take it nevertheless.
    pub(crate) fn touched(&mut self, resident: usize) -> bool {
        self.looks = self.looks.saturating_add(1);
        self.looks > resident
    }

    /// An untouched page was found.
    pub(crate) fn found(&mut self) {
        self.looks = 0;
    }
}

/// Looks allowed for `want` victims: bounds the time a caller's lock is held; the first victim is always found.
pub(crate) fn looks_max(want: usize) -> usize {
    16 * want + 256
}

/// The frame loop every policy shares: `step` yields a victim, or `None` after looking at one page in vain.
pub(crate) fn collect(want: usize, out: &mut Vec<Victim>, mut step: impl FnMut() -> Step) {
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

/// What one look at the eviction end came to.
pub(crate) enum Step {
    /// This page goes.
    Take(Victim),
    /// The page looked at stays, elsewhere.
    Moved,
    /// No page is resident.
    Empty,
}

/// A hand over the slot numbers that brings touched pages to the policy's notice before they reach the tail.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    hand: u32,
}

/// Slots the hand passes for each victim wanted.
pub(crate) const SWEEP_RATE: usize = 8;

impl Sweep {
    /// The next touched slot within `left` (which it uses up), with its touches read and cleared.
    pub(crate) fn next(
        &mut self,
        left: &mut usize,
        slots: &Slots,
        resident: impl Fn(u8) -> bool,
        touches: &mut dyn Touches,
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

    #[test]
    fn push_pop_unlink_keep_order_and_length() {
        let (mut slots, [mut a, mut b]) = Slots::new::<2>(8);
        for slot in [3, 5, 7] {
            slots.push(&mut a, slot, 1);
        }
        slots.push(&mut b, 0, 2);
        assert_eq!(slots.show(&a), "7 5 3");
        slots.unlink(&mut a, 5, ABSENT);
        assert_eq!(slots.pop(&mut a, ABSENT), Some(3));
        assert_eq!((slots.show(&a), slots.show(&b)), ("7".into(), "0".into()));
        slots.push_tail(&mut a, 6, 1);
        assert_eq!(slots.show(&a), "7 6");
        assert_eq!(slots.pop(&mut a, ABSENT), Some(6));
        assert_eq!(slots.pop(&mut a, ABSENT), Some(7));
        assert_eq!(slots.pop(&mut a, ABSENT), None);
        slots.check(&[&a, &b], |_, tag| tag == 2, |tag| tag != ABSENT).unwrap();
    }

    #[test]
    fn check_tells_each_kind_of_damage() {
        let fresh = || {
            let (mut slots, [mut a]) = Slots::new::<1>(4);
            for slot in 0..3 {
                slots.push(&mut a, slot, 1);
            }
            (slots, a)
        };
        let run = |slots: &Slots, a: &List| slots.check(&[a], |_, tag| tag == 1, |tag| tag != ABSENT);
        let (slots, a) = fresh();
        run(&slots, &a).unwrap();
        let (slots, mut a) = fresh();
        a.len = 2;
        assert!(run(&slots, &a).unwrap_err().contains("longer"));
        let (mut slots, a) = fresh();
        slots.nodes[1][PREV] = 0;
        assert!(run(&slots, &a).unwrap_err().contains("point back"));
        let (mut slots, a) = fresh();
        slots.tags[2] = 9;
        assert!(run(&slots, &a).unwrap_err().contains("carries the tag 9"));
        let (mut slots, a) = fresh();
        slots.tags[3] = 1;
        assert!(run(&slots, &a).unwrap_err().contains("4 slots tagged resident, 3 in lists"));
        let (mut slots, a) = fresh();
        slots.nodes[0][NEXT] = 2; // a ring that never meets its sentinel
        assert!(run(&slots, &a).is_err());
    }

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
