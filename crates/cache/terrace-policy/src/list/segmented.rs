//! A queue in two parts. Pages cross from the newer part to the older one without being moved.
//!
//! ```text
//!   push ► head · · · · · border │ · · · · tail ► out
//!          └── newer part ───────┘ └── older part ┘
//! ```
//! The border is a slot number, so a crossing only writes the tag that names the page's part. The policy
//! defines all other tags.

use super::slots::{ABSENT, List, Slots};
use crate::Slot;

#[derive(Debug)]
pub(crate) struct SegmentedList {
    pub(crate) list: List,
    newer: usize,
    /// The oldest page of the newer part; meaningless while that part is empty.
    border: Slot,
}

impl SegmentedList {
    /// Wraps `list`, which must be empty.
    pub(crate) fn new(list: List) -> SegmentedList {
        SegmentedList { list, newer: 0, border: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) fn newer_len(&self) -> usize {
        self.newer
    }

    pub(crate) fn older_len(&self) -> usize {
        self.list.len() - self.newer
    }

    /// The page that would cross next.
    pub(crate) fn border(&self) -> Option<Slot> {
        (self.newer > 0).then_some(self.border)
    }

    /// Puts a page that is in no list at the head, which is in the newer part.
    pub(crate) fn push(&mut self, slots: &mut Slots, slot: Slot, tag: u8) {
        slots.push(&mut self.list, slot, tag);
        if self.newer == 0 {
            self.border = slot;
        }
        self.newer += 1;
    }

    /// Moves the page at the border, which must exist, to the older part. Its tag becomes `tag`.
    pub(crate) fn cross(&mut self, slots: &mut Slots, tag: u8) {
        slots.set_tag(self.border, tag);
        self.leave_newer(slots, self.border);
    }

    /// Takes out a page; `is_newer` names its part.
    pub(crate) fn unlink(&mut self, slots: &mut Slots, slot: Slot, is_newer: bool) {
        if is_newer {
            self.leave_newer(slots, slot);
        }
        slots.unlink(&mut self.list, slot, ABSENT);
    }

    fn leave_newer(&mut self, slots: &Slots, slot: Slot) {
        self.newer -= 1;
        if slot == self.border
            && let Some(next) = slots.newer(&self.list, slot)
        {
            self.border = next;
        }
    }

    /// The slots of both parts as text, head first.
    pub(crate) fn show(&self, slots: &Slots) -> [String; 2] {
        let all: Vec<String> = slots.iter(&self.list).map(|slot| slot.to_string()).collect();
        [all[..self.newer].join(" "), all[self.newer..].join(" ")]
    }

    /// Checks lengths and border by the tags for which `is_newer` holds. The list itself must be sound.
    pub(crate) fn check(&self, slots: &Slots, is_newer: impl Fn(u8) -> bool) -> Result<(), String> {
        for (i, slot) in slots.iter(&self.list).enumerate() {
            if is_newer(slots.tag(slot)) != (i < self.newer) {
                return Err(format!("slot {slot}, place {i}, is on the wrong side of place {}", self.newer));
            }
            if i + 1 == self.newer && slot != self.border {
                return Err(format!("slot {slot} lies at the border, not {}", self.border));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_cross_in_order_and_leave_from_anywhere() {
        let (mut slots, [list]) = Slots::new::<1>(8);
        let mut queue = SegmentedList::new(list);
        assert_eq!(queue.border(), None);
        for slot in 0..6 {
            queue.push(&mut slots, slot, 1);
        }
        let is = |queue: &SegmentedList, slots: &Slots, newer: &str, older: &str| {
            assert_eq!(queue.show(slots), [newer, older]);
            queue.check(slots, |tag| tag == 1).unwrap();
        };
        queue.cross(&mut slots, 2);
        queue.cross(&mut slots, 2);
        is(&queue, &slots, "5 4 3 2", "1 0");
        queue.unlink(&mut slots, 2, true); // the border itself
        queue.unlink(&mut slots, 4, true);
        queue.unlink(&mut slots, 0, false);
        is(&queue, &slots, "5 3", "1");
        assert_eq!((queue.border(), queue.newer_len(), queue.older_len()), (Some(3), 2, 1));
        queue.cross(&mut slots, 2);
        queue.cross(&mut slots, 2);
        is(&queue, &slots, "", "5 3 1");
        queue.push(&mut slots, 7, 1);
        is(&queue, &slots, "7", "5 3 1");
        queue.unlink(&mut slots, 7, true);
        is(&queue, &slots, "", "5 3 1");
        slots.set_tag(3, 1);
        assert!(queue.check(&slots, |tag| tag == 1).is_err());
    }
}
