//! Which pages of one file the source does not have for certain.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Pages of one object that the source does not have. Only `state/dirty.rs` changes them; it counts all
/// objects together. (`superseded`, which is not counted, is emptied by `path/permit.rs`.)
#[derive(Debug, Default)]
pub(crate) struct DirtyPages {
    /// Dirty pages, in file order.
    pub dirty: BTreeSet<u64>,
    /// Dirty pages whose content is durable on a target, likewise; not among the former.
    pub owed: BTreeSet<u64>,
    /// Pages of which the file's target has an older version, until it is told that nothing is owed.
    pub superseded: BTreeSet<u64>,
    /// Since when the oldest of both is (ns, engine clock).
    pub dirty_since: u64,
    /// Pages under writeback.
    pub writeback: u64,
    /// Unstable pages, and the round of `DirtyAccounting::sync_round` in which they became so.
    pub unstable: BTreeMap<u64, u64>,
    /// Since when the oldest of them is.
    pub unstable_since: u64,
    /// errno of the last writeback, if it failed; else 0.
    pub errno: i32,
    /// When it failed.
    pub failed_at: u64,
}

impl DirtyPages {
    /// Pages that the source does not show yet.
    pub fn unwritten(&self) -> u64 {
        (self.dirty.len() + self.owed.len()) as u64 + self.writeback
    }
    /// The first dirty pages of a range, at most so many, in file order.
    pub fn first(&self, range: Range<u64>, most: usize) -> Vec<u64> {
        let mut first: Vec<u64> = self.dirty.range(range.clone()).take(most).copied().collect();
        if !self.owed.is_empty() {
            first.extend(self.owed.range(range).take(most));
            first.sort_unstable();
            first.truncate(most);
        }
        first
    }
    /// How many pages are in each state.
    pub fn totals(&self) -> DirtyTotals {
        let (dirty, owed) = ((self.dirty.len() + self.owed.len()) as u64, self.owed.len() as u64);
        let failing = if self.errno == 0 { 0 } else { dirty };
        DirtyTotals { dirty, owed, writeback: self.writeback, unstable: self.unstable.len() as u64, failing }
    }
}

/// Pages in each state.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirtyTotals {
    pub dirty: u64,
    /// Of these, those whose content is durable on a target.
    pub owed: u64,
    pub writeback: u64,
    pub unstable: u64,
    /// Dirty pages of objects whose last writeback failed.
    pub failing: u64,
}

impl DirtyTotals {
    /// Pages that cannot be evicted now.
    pub fn all(&self) -> u64 {
        self.dirty + self.writeback + self.unstable
    }
    /// Pages that writeback, or a sync, makes clean if it is asked to.
    pub fn reclaimable(&self) -> u64 {
        self.dirty - self.failing + self.unstable
    }
}
