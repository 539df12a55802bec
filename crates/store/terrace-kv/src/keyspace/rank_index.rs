//! Rank index of an ordered set: the first member and the size of each step of a few hundred members.
//!
//! `BTreeSet` does not count the members below its nodes. A count of the members before one of a million took
//! 20 to 40 ms. With the rank index, a rank is a sum over the steps below and a walk within one step. The
//! index is built at the first rank query: most sets never get one.

use std::collections::BTreeSet;
use std::collections::btree_set::Range;
use std::iter::{Skip, successors};

/// Members of a new step. A step is split at twice as many.
const STEP: usize = 256;

/// The steps. The first one has all members below the second one's begin.
#[derive(Debug)]
pub(super) struct RankIndex<T> {
    /// The first members of all steps but the first step.
    begins: Vec<T>,
    /// Number of members of each step. In their own array, since they are summed up.
    counts: Vec<usize>,
}

impl<T: Ord + Clone> RankIndex<T> {
    pub(super) fn new(order: &BTreeSet<T>) -> RankIndex<T> {
        let mut members = order.iter();
        let begins: Vec<T> = successors(members.nth(STEP), |_| members.nth(STEP - 1)).cloned().collect();
        let mut counts = vec![STEP; begins.len()];
        counts.push(order.len() - STEP * begins.len());
        RankIndex { begins, counts }
    }

    fn step(&self, of: &T) -> usize {
        self.begins.partition_point(|begin| begin <= of)
    }

    pub(super) fn insert(&mut self, member: &T, order: &BTreeSet<T>) {
        let step = self.step(member);
        self.counts[step] += 1;
        if self.counts[step] < 2 * STEP {
            return;
        }
        let middle = self.members(step, order).nth(STEP).expect("a step has the members that it counts");
        self.begins.insert(step, middle.clone());
        self.counts.insert(step + 1, self.counts[step] - STEP);
        self.counts[step] = STEP;
    }

    pub(super) fn remove(&mut self, member: &T, order: &BTreeSet<T>) {
        let step = self.step(member);
        self.counts[step] -= 1;
        if step > 0 && self.begins[step - 1] == *member && self.counts[step] > 0 {
            // A removed member must not stay as a begin.
            let next = self.members(step, order).next();
            self.begins[step - 1] = next.expect("a step has the members that it counts").clone();
        }
        if step + 1 < self.counts.len() && self.is_little(step) {
            self.merge(step);
        }
        if step > 0 && (self.is_little(step - 1) || self.counts[step] == 0) {
            self.merge(step - 1);
        }
    }

    /// Whether a step and the next one together have fewer members than a new step.
    fn is_little(&self, step: usize) -> bool {
        step + 1 < self.counts.len() && self.counts[step] + self.counts[step + 1] < STEP
    }

    /// Merges the next step into this one.
    fn merge(&mut self, step: usize) {
        self.begins.remove(step);
        self.counts[step] += self.counts.remove(step + 1);
    }

    /// Number of members below this one, which need not be in the set.
    pub(super) fn rank(&self, of: &T, order: &BTreeSet<T>) -> usize {
        let step = self.step(of);
        let below: usize = self.counts[..step].iter().sum();
        below + self.members(step, order).take_while(|member| *member < of).count()
    }

    /// The members from a rank on, lowest first.
    pub(super) fn from<'a>(&self, mut place: usize, order: &'a BTreeSet<T>) -> Skip<Range<'a, T>> {
        let mut step = 0;
        while step + 1 < self.counts.len() && place >= self.counts[step] {
            place -= self.counts[step];
            step += 1;
        }
        self.members(step, order).skip(place)
    }

    fn members<'a>(&self, step: usize, order: &'a BTreeSet<T>) -> Range<'a, T> {
        match step {
            0 => order.range::<T, _>(..),
            _ => order.range(&self.begins[step - 1]..),
        }
    }

    /// Memory that it takes, bytes.
    pub(super) fn bytes(&self) -> usize {
        self.begins.capacity() * size_of::<T>() + self.counts.capacity() * size_of::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_testkit::rng::{Rng, seed};

    fn check(rank_index: &RankIndex<u64>, order: &BTreeSet<u64>) {
        assert_eq!(rank_index.counts.iter().sum::<usize>(), order.len());
        assert!(rank_index.begins.is_sorted() && rank_index.begins.iter().all(|begin| order.contains(begin)));
        // Of two adjacent steps, at least one has half the members of a new step.
        assert!(
            rank_index.counts.len() <= 4 * order.len() / STEP + 2,
            "{} steps of {}",
            rank_index.counts.len(),
            order.len()
        );
        let places = [0, order.len() / 3, order.len().saturating_sub(1)];
        for (place, member) in order.iter().enumerate().filter(|(place, _)| places.contains(place)) {
            assert_eq!(
                (rank_index.rank(member, order), rank_index.from(place, order).next()),
                (place, Some(member))
            );
        }
    }

    #[test]
    fn rank_index_has_few_levels_after_any_changes() {
        let mut rng = Rng::new(seed("rank_index_has_few_levels_after_any_changes"));
        for shape in 0..6 {
            let mut order: BTreeSet<u64> = (1_000_000..1_002_000).collect();
            let mut rank_index = RankIndex::new(&order);
            for step in 0..20_000 {
                let (newest, any) = (1_002_000 + step, 900_000 + rng.next_u64() % 200_000);
                let (comes, goes) = match shape {
                    // Newest members in and oldest out, and the reverse.
                    0 => (900_000 - step, order.last().copied()),
                    1 => (newest, order.first().copied()),
                    // Stacks at one end, with a small one left at the other end.
                    2 => (newest, if step % 3000 < 1500 { None } else { order.iter().nth(5).copied() }),
                    3 => (newest, if step % 3000 < 1500 { None } else { order.last().copied() }),
                    _ => (any, order.range(any / 3 * 3 + rng.next_u64() % 90_000..).next().copied()),
                };
                if order.insert(comes) {
                    rank_index.insert(&comes, &order);
                }
                for goes in goes.into_iter().chain((shape == 5).then(|| *order.first().unwrap())) {
                    if order.len() > 1 && order.remove(&goes) {
                        rank_index.remove(&goes, &order);
                    }
                }
                if step % 97 == 0 {
                    check(&rank_index, &order);
                }
            }
        }
    }
}
