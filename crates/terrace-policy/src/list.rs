//! Doubly linked lists over slots, and the list of pages that could not be evicted.
//!
//! All lists of a policy share one array of links: a slot is in at most one list. Each list is a ring through a
//! sentinel node behind the slots, so taking a slot out needs no search and no branch for the ends.
//!
//! ```text
//!   nodes: [slot 0][slot 1] ... [slot n-1][sentinel A][sentinel B] ...
//!          push here ► head ... tail ◄ victims leave here
//! ```
//! One tag byte a slot says where it is (0: not resident); what tags mean is the policy's affair. A node is one little
//! endian word of two links and the tag:
//!
//! ```text
//!   up to 2^24 slots (64 GiB): 7 bytes    | tag 8 | towards the head 24 | towards the tail 24 |
//!   up to 2^28 slots (1 TiB):  8 bytes    | tag 8 | towards the head 28 | towards the tail 28 |
//! ```
//! Eight bytes are loaded and stored at a time, also where a node has seven: the eighth is the next node's, and stays.
//! Rejected: links of 32 bits and a table of tags (9 bytes, and two cache lines a step instead of one).
//! The nodes are zeroed by the allocator, so slots never used cost no memory.

use crate::evict::{SENTINELS_MAX, SLOTS_MAX};
use crate::{Slot, Touches, Victim};

/// Tag of a slot that is not resident. Policies may use further tags for absent slots.
pub(crate) const ABSENT: u8 = 0;

/// Slots and sentinels for which links of 24 bits will do.
const NARROW_MAX: usize = 1 << 24;
const _: () = assert!(SLOTS_MAX + SENTINELS_MAX <= 1 << 28);

/// Which of a node's two links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Tailward,
    Headward,
}
use Way::{Headward, Tailward};

/// Links and tags of all slots.
#[derive(Debug)]
pub(crate) struct Slots {
    nodes: Vec<u8>,
    slots_max: usize,
    /// Bits of a link: 24 or 28.
    link_bits: u32,
    /// Bytes of a node: two links and the tag.
    node_bytes: usize,
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
        const { assert!(N <= SENTINELS_MAX) };
        let link_bits = if slots_max + N <= NARROW_MAX { 24 } else { 28 };
        Slots::with_links(slots_max, link_bits)
    }

    fn with_links<const N: usize>(slots_max: usize, link_bits: u32) -> (Slots, [List; N]) {
        let node_bytes = (2 * link_bits as usize + 8) / 8;
        // The last node is loaded and stored in eight bytes like all others.
        let nodes = vec![0; (slots_max + N) * node_bytes + (size_of::<u64>() - node_bytes)];
        let mut slots = Slots { nodes, slots_max, link_bits, node_bytes };
        let lists = std::array::from_fn(|i| {
            let sentinel = (slots_max + i) as u32;
            slots.set_links(sentinel, sentinel, sentinel, ABSENT);
            List { sentinel, len: 0 }
        });
        (slots, lists)
    }

    pub(crate) fn slots_max(&self) -> usize {
        self.slots_max
    }

    pub(crate) fn bytes(&self) -> usize {
        self.nodes.capacity()
    }

    /// The node, and in its unused bits what belongs to the next.
    fn load(&self, node: u32) -> u64 {
        let at = node as usize * self.node_bytes;
        u64::from_le_bytes(self.nodes[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Replaces the bits of `mask`.
    fn store(&mut self, node: u32, mask: u64, bits: u64) {
        let word = self.load(node) & !mask | bits;
        let at = node as usize * self.node_bytes;
        self.nodes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    fn link_mask(&self) -> u64 {
        (1 << self.link_bits) - 1
    }

    fn link(&self, node: u32, way: Way) -> u32 {
        let shift = if way == Tailward { 0 } else { self.link_bits };
        (self.load(node) >> shift & self.link_mask()) as u32
    }

    fn set_link(&mut self, node: u32, way: Way, to: u32) {
        let shift = if way == Tailward { 0 } else { self.link_bits };
        self.store(node, self.link_mask() << shift, u64::from(to) << shift);
    }

    fn set_links(&mut self, node: u32, tailward: u32, headward: u32, tag: u8) {
        let mask = u64::MAX >> (56 - 2 * self.link_bits);
        let links = u64::from(tailward) | u64::from(headward) << self.link_bits;
        self.store(node, mask, links | u64::from(tag) << (2 * self.link_bits));
    }

    pub(crate) fn tag(&self, slot: Slot) -> u8 {
        debug_assert!((slot as usize) < self.slots_max);
        (self.load(slot) >> (2 * self.link_bits)) as u8
    }

    pub(crate) fn set_tag(&mut self, slot: Slot, tag: u8) {
        debug_assert!((slot as usize) < self.slots_max);
        let shift = 2 * self.link_bits;
        self.store(slot, 0xff << shift, u64::from(tag) << shift);
    }

    /// Puts a slot that is in no list at the head of `list`.
    pub(crate) fn push(&mut self, list: &mut List, slot: Slot, tag: u8) {
        self.put_between(slot, self.link(list.sentinel, Tailward), list.sentinel, tag);
        list.len += 1;
    }

    /// Puts a slot that is in no list at the tail of `list`.
    pub(crate) fn push_tail(&mut self, list: &mut List, slot: Slot, tag: u8) {
        self.put_between(slot, list.sentinel, self.link(list.sentinel, Headward), tag);
        list.len += 1;
    }

    /// Links `slot` between two neighbours.
    fn put_between(&mut self, slot: Slot, tailward: u32, headward: u32, tag: u8) {
        debug_assert!((slot as usize) < self.slots_max);
        self.set_links(slot, tailward, headward, tag);
        self.set_link(tailward, Headward, slot);
        self.set_link(headward, Tailward, slot);
    }

    /// Takes `slot` out of `list`, which must be the one it is in; its tag becomes `tag`.
    pub(crate) fn unlink(&mut self, list: &mut List, slot: Slot, tag: u8) {
        let (next, prev) = (self.link(slot, Tailward), self.link(slot, Headward));
        self.set_link(prev, Tailward, next);
        self.set_link(next, Headward, prev);
        self.set_tag(slot, tag);
        list.len -= 1;
    }

    /// The slot at the tail.
    pub(crate) fn tail(&self, list: &List) -> Option<Slot> {
        if list.len == 0 { None } else { Some(self.link(list.sentinel, Headward)) }
    }

    /// The next slot of `list` towards the head.
    pub(crate) fn newer(&self, list: &List, slot: Slot) -> Option<Slot> {
        let newer = self.link(slot, Headward);
        (newer != list.sentinel).then_some(newer)
    }

    /// Takes the tail out; its tag becomes `tag`.
    pub(crate) fn pop(&mut self, list: &mut List, tag: u8) -> Option<Slot> {
        let slot = self.tail(list)?;
        self.unlink(list, slot, tag);
        Some(slot)
    }

    /// From head to tail.
    pub(crate) fn iter(&self, list: &List) -> impl Iterator<Item = Slot> + '_ {
        self.walk(list, Tailward)
    }

    /// From tail to head.
    pub(crate) fn iter_back(&self, list: &List) -> impl Iterator<Item = Slot> + '_ {
        self.walk(list, Headward)
    }

    fn walk(&self, list: &List, way: Way) -> impl Iterator<Item = Slot> + '_ {
        let sentinel = list.sentinel;
        let mut at = self.link(sentinel, way);
        std::iter::from_fn(move || {
            (at != sentinel).then(|| {
                let slot = at;
                at = self.link(slot, way);
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
                if slot as usize >= self.slots_max || len >= list.len() {
                    return Err(format!(
                        "list {i}: longer than its length {}, or runs into another",
                        list.len
                    ));
                }
                if self.link(slot, Headward) != before {
                    return Err(format!("list {i}: slot {slot} does not point back to {before}"));
                }
                if !belongs(i, self.tag(slot)) {
                    return Err(format!("list {i}: slot {slot} carries the tag {}", self.tag(slot)));
                }
                before = slot;
                len += 1;
            }
            if len != list.len() || self.link(list.sentinel, Headward) != before {
                return Err(format!("list {i}: {len} slots linked, {} counted", list.len));
            }
            listed += len;
        }
        let tagged = (0..self.slots_max).filter(|&slot| resident(self.tag(slot as Slot))).count();
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
    use std::collections::VecDeque;

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

    /// Random moves between three lists (xorshift64, seeded), against queues of std, at both widths.
    #[test]
    fn lists_are_the_same_at_both_widths() {
        const SLOTS: u64 = 300;
        for (link_bits, node_bytes) in [(24, 7), (28, 8)] {
            let (mut slots, mut lists) = Slots::with_links::<3>(SLOTS as usize, link_bits);
            assert_eq!(slots.bytes(), 303 * node_bytes + 8 - node_bytes);
            let mut model = [const { VecDeque::<Slot>::new() }; 3];
            let mut x = 88_172_645_463_325_252u64;
            for _ in 0..20_000 {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                let (slot, to, tag) = ((x % SLOTS) as Slot, (x >> 20) as usize % 3, (x >> 30) as u8 | 1);
                match model.iter().position(|queue| queue.contains(&slot)) {
                    None if x & 1 << 41 == 0 => {
                        slots.push_tail(&mut lists[to], slot, tag);
                        model[to].push_back(slot);
                    }
                    None => {
                        slots.push(&mut lists[to], slot, tag);
                        model[to].push_front(slot);
                        assert_eq!(slots.tag(slot), tag);
                    }
                    Some(from) if x & 1 << 40 == 0 => {
                        slots.unlink(&mut lists[from], slot, ABSENT);
                        model[from].retain(|&s| s != slot);
                        assert_eq!(slots.tag(slot), ABSENT);
                    }
                    Some(from) => assert_eq!(slots.pop(&mut lists[from], ABSENT), model[from].pop_back()),
                }
            }
            for (list, queue) in lists.iter().zip(&model) {
                assert!(slots.iter(list).eq(queue.iter().copied()));
                assert!(slots.iter_back(list).eq(queue.iter().rev().copied()));
            }
            slots.check(&lists.each_ref(), |_, tag| tag != ABSENT, |tag| tag != ABSENT).unwrap();
        }
    }

    #[test]
    fn a_pool_over_64_gib_has_wider_links() {
        let (mut slots, [mut a]) = Slots::new::<1>(NARROW_MAX);
        let last = NARROW_MAX as Slot - 1;
        slots.push(&mut a, last, 255);
        slots.push(&mut a, 0, 254);
        assert_eq!((slots.show(&a), slots.tag(last), slots.tag(0)), (format!("0 {last}"), 255, 254));
        assert_eq!((slots.pop(&mut a, 7), slots.tag(last)), (Some(last), 7));
        assert_eq!(slots.bytes(), 8 * (NARROW_MAX + 1));
        let (slots, [_a]) = Slots::new::<1>(NARROW_MAX - 1);
        assert_eq!(slots.bytes(), 7 * NARROW_MAX + 1);
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
        slots.set_link(1, Headward, 0);
        assert!(run(&slots, &a).unwrap_err().contains("point back"));
        let (mut slots, a) = fresh();
        slots.set_tag(2, 9);
        assert!(run(&slots, &a).unwrap_err().contains("carries the tag 9"));
        let (mut slots, a) = fresh();
        slots.set_tag(3, 1);
        assert!(run(&slots, &a).unwrap_err().contains("4 slots tagged resident, 3 in lists"));
        let (mut slots, a) = fresh();
        slots.set_link(0, Tailward, 2); // a ring that never meets its sentinel
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
