//! Places by rank in an ordered set: a ladder of every few hundredth member, each with the number of members up to the next one.
//!
//! The tree of a set counts nothing below its nodes. To count the members before one of a million took 20 to 40 ms; with the ladder it is a sum over the steps below, and a walk within one. It is
//! made when a place is asked for first: most sets are never asked.

use std::collections::BTreeSet;
use std::collections::btree_set::Range;
use std::iter::{Skip, successors};

/// Members of a step when it is made. It is split at twice as many.
const STEP: usize = 256;

/// The steps: what is before the second one belongs to the first.
#[derive(Debug)]
pub struct Ladder<T> {
    begins: Vec<T>,
    /// Apart from the beginnings, since they are summed up.
    counts: Vec<usize>,
}

impl<T: Ord + Clone> Ladder<T> {
    /// Of a set that is not empty.
    pub fn new(order: &BTreeSet<T>) -> Ladder<T> {
        let mut ladder = Ladder { begins: Vec::new(), counts: Vec::new() };
        let mut members = order.iter();
        for begin in successors(members.next(), |_| members.nth(STEP - 1)) {
            ladder.begins.push(begin.clone());
            ladder.counts.push(STEP);
        }
        if let Some(last) = ladder.counts.last_mut() {
            *last = (order.len() - 1) % STEP + 1;
        }
        ladder
    }

    /// The step that a member belongs to.
    fn step(&self, of: &T) -> usize {
        self.begins.partition_point(|begin| begin <= of).saturating_sub(1)
    }

    /// A member has come into the set.
    pub fn insert(&mut self, member: &T, order: &BTreeSet<T>) {
        let step = self.step(member);
        self.counts[step] += 1;
        if self.counts[step] < 2 * STEP {
            return;
        }
        let middle = self.members(step, order).nth(STEP).expect("a step has the members that it counts");
        self.begins.insert(step + 1, middle.clone());
        self.counts.insert(step + 1, self.counts[step] - STEP);
        self.counts[step] = STEP;
    }

    /// A member has gone from the set.
    pub fn remove(&mut self, member: &T) {
        let step = self.step(member);
        self.counts[step] -= 1;
        if step > 0 && self.counts[step - 1] + self.counts[step] < STEP {
            self.begins.remove(step);
            self.counts[step - 1] += self.counts.remove(step);
        }
    }

    /// How many members stand before this one, which need not be in the set.
    pub fn rank(&self, of: &T, order: &BTreeSet<T>) -> usize {
        let step = self.step(of);
        let below: usize = self.counts[..step].iter().sum();
        below + self.members(step, order).take_while(|member| *member < of).count()
    }

    /// The members from a place on, counted from the lowest.
    pub fn from<'a>(&self, mut place: usize, order: &'a BTreeSet<T>) -> Skip<Range<'a, T>> {
        let mut step = 0;
        while step + 1 < self.counts.len() && place >= self.counts[step] {
            place -= self.counts[step];
            step += 1;
        }
        self.members(step, order).skip(place)
    }

    /// Members from the beginning of a step on.
    fn members<'a>(&self, step: usize, order: &'a BTreeSet<T>) -> Range<'a, T> {
        match step {
            0 => order.range::<T, _>(..),
            _ => order.range(&self.begins[step]..),
        }
    }

    /// Memory that it takes, bytes.
    pub fn bytes(&self) -> usize {
        self.begins.capacity() * size_of::<T>() + self.counts.capacity() * size_of::<usize>()
    }
}
