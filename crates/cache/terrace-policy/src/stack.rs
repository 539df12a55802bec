//! Stack distances: the number of other pages used since a page's last use.
//!
//! F. Olken, "Efficient methods for calculating the success function of fixed space replacement policies",
//! LBL-12370, 1981, with a Fenwick tree (P. Fenwick, 1994) in place of his balanced tree. Each use takes the
//! next position in time. The tree counts the positions of last uses. A page's distance is their number
//! behind its own last use.
//!
//! ```text
//!   position   0 1 2 3 4 5 6 7
//!   page       a b . a . c b .        a was last used at 3, c at 5, b at 6
//!              . . . 1 . 1 1 .        distance of a: 2
//! ```
//! At twice as many positions as pages, the last uses are compacted in order. O(log pages) a use.

const NONE: u32 = u32::MAX;
const POSITIONS_MIN: usize = 64;

/// Last uses of pages with small numbers.
#[derive(Debug, Default)]
pub(crate) struct Distances {
    last: Vec<u32>,
    owner: Vec<u32>,
    /// Fenwick tree over positions, from 1: node `i` counts the positions of `(i - lowbit(i), i]`.
    tree: Vec<u32>,
    next: usize,
    live: u32,
}

impl Distances {
    /// Records a use of `page`. Returns its distance: other pages used since; `None` at the first use.
    pub(crate) fn used(&mut self, page: u32) -> Option<u32> {
        if self.last.len() <= page as usize {
            self.last.resize(page as usize + 1, NONE);
        }
        let distance = self.forget(page);
        if self.next == self.owner.len() {
            self.move_together();
        }
        self.last[page as usize] = self.next as u32;
        self.owner[self.next] = page;
        self.count(self.next, 1);
        self.next += 1;
        self.live += 1;
        distance
    }

    /// Removes `page`. Returns its distance as [`Distances::used`] does.
    pub(crate) fn forget(&mut self, page: u32) -> Option<u32> {
        let at = std::mem::replace(&mut self.last[page as usize], NONE);
        if at == NONE {
            return None;
        }
        let distance = self.live - self.up_to(at as usize);
        self.owner[at as usize] = NONE;
        self.count(at as usize, -1);
        self.live -= 1;
        Some(distance)
    }

    /// Pages with their last use at `position` or before.
    fn up_to(&self, position: usize) -> u32 {
        let (mut i, mut sum) = (position + 1, 0);
        while i > 0 {
            sum += self.tree[i];
            i &= i - 1;
        }
        sum
    }

    fn count(&mut self, position: usize, by: i32) {
        let mut i = position + 1;
        while i < self.tree.len() {
            self.tree[i] = self.tree[i].wrapping_add_signed(by);
            i += i & i.wrapping_neg();
        }
    }

    /// Compacts: moves the last uses to the first positions, and leaves as many free ones after them.
    fn move_together(&mut self) {
        let live = self.live as usize;
        let mut to = 0;
        for from in 0..self.next {
            let page = self.owner[from];
            if page != NONE {
                self.owner[to] = page;
                self.last[page as usize] = to as u32;
                to += 1;
            }
        }
        assert_eq!(to, live, "each page has one last use");
        let positions = (2 * live).max(POSITIONS_MIN);
        assert!(positions < NONE as usize, "too many pages");
        self.owner.resize(positions, NONE);
        self.owner[live..].fill(NONE);
        self.next = live;
        self.tree.clear();
        self.tree.resize(positions + 1, 0);
        for i in 1..=positions {
            self.tree[i] += u32::from(i <= live);
            let above = i + (i & i.wrapping_neg());
            if above <= positions {
                self.tree[above] += self.tree[i];
            }
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        4 * (self.last.capacity() + self.owner.capacity() + self.tree.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_picture() {
        let mut distances = Distances::default();
        let (a, b, c) = (0, 1, 2);
        let uses = [a, b, a, c, b].map(|page| distances.used(page));
        assert_eq!(uses, [None, None, Some(1), None, Some(2)]);
        assert_eq!(distances.used(a), Some(2));
        assert_eq!(distances.used(a), Some(0));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn as_a_list_of_pages_has_it(uses in prop::collection::vec((0..40u32, any::<u8>()), 1..600)) {
            let (mut distances, mut list) = (Distances::default(), Vec::new());
            for (page, how) in uses {
                let at = list.iter().rev().position(|p| *p == page);
                list.retain(|p| *p != page);
                let found = if how < 20 && at.is_some() {
                    distances.forget(page)
                } else {
                    list.push(page);
                    distances.used(page)
                };
                prop_assert_eq!(found, at.map(|at| at as u32));
            }
        }
    }
}
