//! Unwritten and unstable pages of one file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Pages of one object that the source lacks, or may lack. Only `state/dirty.rs` changes them; it counts all
/// objects together. (`superseded` is not counted; `tier/intent.rs` empties it.)
#[derive(Debug, Default)]
pub(crate) struct DirtyPages {
    /// Dirty pages, in file order.
    pub(crate) dirty: BTreeSet<u64>,
    /// Dirty pages with content that is durable on a target; not in `dirty`.
    pub undestaged: BTreeSet<u64>,
    /// Pages with an older version on the file's target, until the target has a destage-complete record.
    pub(crate) superseded: BTreeSet<u64>,
    /// Time when the oldest page of both sets became dirty (ns, engine clock).
    pub(crate) dirty_since: u64,
    pub(crate) writeback: u64,
    /// Unstable pages, and the round of `DirtyAccounting::sync_round` in which they became so.
    pub(crate) unstable: BTreeMap<u64, u64>,
    /// Time when the oldest unstable page became so.
    pub(crate) unstable_since: u64,
    /// errno of the last writeback, if it failed; 0: success.
    pub(crate) errno: i32,
    /// Time of that failure.
    pub(crate) failed_at: u64,
}

impl DirtyPages {
    /// Pages with content that the source does not show yet.
    pub(crate) fn unwritten(&self) -> u64 {
        (self.dirty.len() + self.undestaged.len()) as u64 + self.writeback
    }
    /// The first dirty pages of a range, at most `most`, in file order.
    pub(crate) fn first(&self, range: Range<u64>, most: usize) -> Vec<u64> {
        let mut first: Vec<u64> = self.dirty.range(range.clone()).take(most).copied().collect();
        if !self.undestaged.is_empty() {
            first.extend(self.undestaged.range(range).take(most));
            first.sort_unstable();
            first.truncate(most);
        }
        first
    }
    pub(crate) fn totals(&self) -> DirtyTotals {
        let (dirty, undestaged) =
            ((self.dirty.len() + self.undestaged.len()) as u64, self.undestaged.len() as u64);
        let failing = if self.errno == 0 { 0 } else { dirty };
        DirtyTotals {
            dirty,
            undestaged,
            writeback: self.writeback,
            unstable: self.unstable.len() as u64,
            failing,
        }
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirtyTotals {
    pub(crate) dirty: u64,
    /// Undestaged pages among them.
    pub undestaged: u64,
    pub(crate) writeback: u64,
    pub(crate) unstable: u64,
    /// Dirty pages of objects after a failed writeback.
    pub(crate) failing: u64,
}

impl DirtyTotals {
    /// Pages that cannot be evicted now.
    pub(crate) fn all(&self) -> u64 {
        self.dirty + self.writeback + self.unstable
    }
    /// Pages that a writeback or sync can make clean.
    pub(crate) fn reclaimable(&self) -> u64 {
        self.dirty - self.failing + self.unstable
    }
}
