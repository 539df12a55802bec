//! Doubly linked lists over slots: the building block of all policies.
//!
//! All lists of a policy share one array of links: a slot is in at most one list. Each list is a ring through
//! a sentinel node behind the slots. So a removal needs no search, and no branch for the ends.
//!
//! ```text
//!   nodes: [slot 0][slot 1] ... [slot n-1][sentinel A][sentinel B] ...
//!          push here ► head ... tail ◄ victims leave here
//! ```
//! One tag byte a slot names its place (0: not resident). Each policy defines its own tags. A node is one
//! little endian word of two links and the tag:
//!
//! ```text
//!   up to 2^24 slots (64 GiB): 7 bytes    | tag 8 | towards the head 24 | towards the tail 24 |
//!   up to 2^28 slots (1 TiB):  8 bytes    | tag 8 | towards the head 28 | towards the tail 28 |
//! ```
//! Loads and stores of seven-byte nodes are eight bytes wide, too, and preserve the next node's byte.
//! Rejected: links of 32 bits and a table of tags (9 bytes, and two cache lines a step instead of one). The
//! nodes are zeroed by the allocator, so slots never used cost no memory.

use crate::Slot;

/// Maximum slots of a policy, 1 TiB of pages: links have 28 bits, and numbers above are sentinels.
pub const SLOTS_MAX: usize = (1 << 28) - SENTINELS_MAX;
/// Maximum number of lists of a policy.
const SENTINELS_MAX: usize = 512;

/// Tag of a slot that is not resident. Policies may use further tags for absent slots.
pub const ABSENT: u8 = 0;

/// Maximum number of slots and sentinels with links of 24 bits.
const NARROW_MAX: usize = 1 << 24;
const _: () = assert!(SLOTS_MAX + SENTINELS_MAX <= 1 << 28);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Tailward,
    Headward,
}
use Way::{Headward, Tailward};

/// Links and tags of all slots.
#[derive(Debug)]
pub struct Slots {
    nodes: Vec<u8>,
    slots_max: usize,
    /// Bits of a link: 24 or 28.
    link_bits: u32,
    /// Bytes of a node: two links and the tag.
    node_bytes: usize,
}

/// One list: the number of its sentinel, and its length.
#[derive(Debug, Clone, Copy)]
pub struct List {
    sentinel: u32,
    len: u32,
}

impl List {
    /// Number of slots in the list.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Slots {
    /// Links for slots below `slots_max`, and `N` empty lists over them.
    pub fn new<const N: usize>(slots_max: usize) -> (Slots, [List; N]) {
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

    /// Slot numbers are below this.
    pub fn slots_max(&self) -> usize {
        self.slots_max
    }

    /// Heap used.
    pub fn bytes(&self) -> usize {
        self.nodes.capacity()
    }

    /// Loads the node. Its unused bits belong to the next node.
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

    /// The tag of a slot, in a list or not.
    pub fn tag(&self, slot: Slot) -> u8 {
        debug_assert!((slot as usize) < self.slots_max);
        (self.load(slot) >> (2 * self.link_bits)) as u8
    }

    /// Replaces the tag of a slot.
    pub fn set_tag(&mut self, slot: Slot, tag: u8) {
        debug_assert!((slot as usize) < self.slots_max);
        let shift = 2 * self.link_bits;
        self.store(slot, 0xff << shift, u64::from(tag) << shift);
    }

    /// Puts a slot that is in no list at the head of `list`.
    pub fn push(&mut self, list: &mut List, slot: Slot, tag: u8) {
        self.put_between(slot, self.link(list.sentinel, Tailward), list.sentinel, tag);
        list.len += 1;
    }

    /// Puts a slot that is in no list at the tail of `list`.
    pub(crate) fn push_tail(&mut self, list: &mut List, slot: Slot, tag: u8) {
        self.put_between(slot, list.sentinel, self.link(list.sentinel, Headward), tag);
        list.len += 1;
    }

    fn put_between(&mut self, slot: Slot, tailward: u32, headward: u32, tag: u8) {
        debug_assert!((slot as usize) < self.slots_max);
        self.set_links(slot, tailward, headward, tag);
        self.set_link(tailward, Headward, slot);
        self.set_link(headward, Tailward, slot);
    }

    /// Takes `slot` out of `list`, which must be the one it is in; its tag becomes `tag`.
    pub fn unlink(&mut self, list: &mut List, slot: Slot, tag: u8) {
        let (next, prev) = (self.link(slot, Tailward), self.link(slot, Headward));
        self.set_link(prev, Tailward, next);
        self.set_link(next, Headward, prev);
        self.set_tag(slot, tag);
        list.len -= 1;
    }

    /// The slot at the tail.
    pub fn tail(&self, list: &List) -> Option<Slot> {
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
    pub fn iter(&self, list: &List) -> impl Iterator<Item = Slot> + '_ {
        self.walk(list, Tailward)
    }

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
    pub fn show(&self, list: &List) -> String {
        self.iter(list).map(|slot| slot.to_string()).collect::<Vec<_>>().join(" ")
    }

    /// Checks that every list is a sound ring of its length, with `belongs(list, tag)` for its members. No
    /// other slot may have a `resident` tag. Terminates on any corruption.
    pub fn check(
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use terrace_testkit::rng::Rng;

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

    /// Compares random moves between three lists with queues of std, at both link widths.
    #[test]
    fn lists_are_the_same_at_both_widths() {
        const SLOTS: u64 = 300;
        for (link_bits, node_bytes) in [(24, 7), (28, 8)] {
            let (mut slots, mut lists) = Slots::with_links::<3>(SLOTS as usize, link_bits);
            assert_eq!(slots.bytes(), 303 * node_bytes + 8 - node_bytes);
            let mut model = [const { VecDeque::<Slot>::new() }; 3];
            let mut rng = Rng::new(1);
            for _ in 0..20_000 {
                let x = rng.next_u64();
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
}
