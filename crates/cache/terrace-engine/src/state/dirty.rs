//! Accounting of the pages that the source may lack.
//!
//! A page is *dirty* (the source lacks it), then under *writeback*, then clean. After a write through the
//! kernel's page cache it is *unstable*, a term of the kernel's NFS client. The source shows such a page, but
//! the kernel may fail to write it, and drop it. Unstable pages keep their frames until a sync succeeds;
//! after a failed sync they are dirty again. All of this changes under the state lock. Each state has a flag
//! of the frame, which survives terraced.

use crate::file::dirty_pages::{DirtyPages, DirtyTotals};
use crate::file::object::{Object, ObjectId};
use crate::segment::flag::{DIRTY, UNDESTAGED, UNSTABLE, WRITEBACK};
use crate::state::page_table::PageTable;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Totals of all objects, and the progress of writeback.
#[derive(Debug, Default)]
pub(crate) struct DirtyAccounting {
    pub(crate) totals: DirtyTotals,
    /// Sum of the totals, for writers without the state lock.
    pub(crate) unwritten: Arc<AtomicU64>,
    /// Objects with such pages.
    pub(crate) objects: BTreeSet<ObjectId>,
    failing_objects: u64,
    last_errno: i32,
    /// Pages made clean by writeback since the start.
    pub(crate) arrived: u64,
    /// Writers waiting for writeback.
    pub(crate) waiting: u32,
    /// Passes of the writeback thread.
    pub(crate) passes_begun: u64,
    pub(crate) passes_ended: u64,
    /// Number of syncs of the whole source. A sync covers pages that became unstable in earlier rounds.
    pub(crate) sync_round: u64,
}

impl DirtyAccounting {
    /// errno of a writeback that keeps failing; 0: none.
    pub(crate) fn failing_errno(&self) -> i32 {
        if self.failing_objects == 0 { 0 } else { self.last_errno }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WritebackOutcome {
    /// The device has taken it.
    Arrived,
    /// The kernel's page cache has taken it.
    Unstable,
    /// The state of the page in the source is unknown.
    Failed,
}

impl DirtyAccounting {
    /// Changes the sets of one object, and the totals with them.
    fn account<T>(&mut self, o: &Object, change: impl FnOnce(&mut DirtyPages) -> T) -> T {
        let mut dirty = o.dirty.lock();
        let (before, failed) = (dirty.totals(), dirty.errno != 0);
        let result = change(&mut dirty);
        let after = dirty.totals();
        let all = &mut self.totals;
        all.dirty = all.dirty + after.dirty - before.dirty;
        all.undestaged = all.undestaged + after.undestaged - before.undestaged;
        all.writeback = all.writeback + after.writeback - before.writeback;
        all.unstable = all.unstable + after.unstable - before.unstable;
        all.failing = all.failing + after.failing - before.failing;
        self.unwritten.store(all.all(), Ordering::Relaxed);
        match (failed, dirty.errno != 0) {
            (false, true) => self.failing_objects += 1,
            (true, false) => self.failing_objects -= 1,
            _ => {}
        }
        match (before.all() > 0, after.all() > 0) {
            (false, true) => drop(self.objects.insert(o.id())),
            (true, false) => drop(self.objects.remove(&o.id())),
            _ => {}
        }
        result
    }

    /// Marks a page dirty, given the flags of its frame. Called before the page is published: a crash in
    /// between must not lose it.
    pub(crate) fn mark(&mut self, flags: &AtomicU8, o: &Object, page: u64, now_ns: u64) {
        let before = flags.fetch_or(DIRTY, Ordering::Release);
        if before & DIRTY != 0 {
            if before & UNDESTAGED != 0 {
                // The target's version is outdated.
                flags.fetch_and(!UNDESTAGED, Ordering::Release);
                self.account(o, |dirty| {
                    dirty.undestaged.remove(&page);
                    dirty.dirty.insert(page);
                    dirty.superseded.insert(page);
                });
            }
            return;
        }
        // A page with a further write need not become stable before it.
        flags.fetch_and(!UNSTABLE, Ordering::Release);
        self.account_dirty(o, page, now_ns);
    }

    /// Takes over a page that the dead daemon had not made stable, in any state, as dirty. (Also an unstable
    /// one: only the dead daemon may have got the report of its loss.) The frame's flags are right at every
    /// moment, because of further kills.
    pub(crate) fn adopt(&mut self, flags: &AtomicU8, o: &Object, page: u64, now_ns: u64) {
        flags.store(DIRTY, Ordering::Release);
        self.account_dirty(o, page, now_ns);
    }

    /// Takes over an unstable page as it is, since the source's content is newer. If the kernel has lost the
    /// page, it stays lost.
    pub(crate) fn adopt_unstable(&mut self, flags: &AtomicU8, o: &Object, page: u64, now_ns: u64) {
        flags.store(UNSTABLE, Ordering::Release);
        self.account_unstable(o, page, now_ns);
    }

    fn account_unstable(&mut self, o: &Object, page: u64, now_ns: u64) {
        let round = self.sync_round;
        self.account(o, |dirty| {
            if dirty.unstable.is_empty() {
                dirty.unstable_since = now_ns;
            }
            dirty.unstable.insert(page, round);
        });
    }

    fn account_dirty(&mut self, o: &Object, page: u64, now_ns: u64) {
        self.account(o, |dirty| {
            dirty.unstable.remove(&page);
            if dirty.dirty.is_empty() && dirty.undestaged.is_empty() {
                dirty.dirty_since = now_ns;
            }
            dirty.dirty.insert(page);
        });
    }

    /// Forgets that a page is dirty or unstable: it is dropped, or need not be written.
    pub(crate) fn clean(&mut self, flags: &AtomicU8, o: &Object, page: u64) {
        if flags.fetch_and(!(DIRTY | UNDESTAGED | UNSTABLE), Ordering::Release) & (DIRTY | UNSTABLE) != 0 {
            self.account(o, |dirty| {
                dirty.dirty.remove(&page);
                dirty.undestaged.remove(&page);
                dirty.unstable.remove(&page);
            });
        }
    }

    pub(crate) fn begin_writeback(&mut self, flags: &AtomicU8, o: &Object, page: u64) {
        flags.fetch_or(WRITEBACK, Ordering::Release);
        flags.fetch_and(!(DIRTY | UNDESTAGED), Ordering::Release);
        self.account(o, |dirty| {
            dirty.dirty.remove(&page);
            dirty.undestaged.remove(&page);
            dirty.writeback += 1;
        });
    }

    /// Ends the writeback of a page by its outcome. A write may have made it dirty again meanwhile.
    pub(crate) fn end_writeback(
        &mut self,
        flags: &AtomicU8,
        o: &Object,
        page: u64,
        outcome: WritebackOutcome,
        now_ns: u64,
    ) {
        match outcome {
            WritebackOutcome::Arrived => {}
            WritebackOutcome::Failed => self.mark(flags, o, page, now_ns),
            WritebackOutcome::Unstable if flags.load(Ordering::Relaxed) & DIRTY != 0 => {}
            WritebackOutcome::Unstable => {
                flags.fetch_or(UNSTABLE, Ordering::Release);
                self.account_unstable(o, page, now_ns);
            }
        }
        self.arrived += u64::from(outcome != WritebackOutcome::Failed);
        flags.fetch_and(!WRITEBACK, Ordering::Release);
        self.account(o, |dirty| dirty.writeback -= 1);
    }

    /// Ends the write of a page to a target. If `undestaged`, a flush makes it durable there. The page stays
    /// dirty, since `since` at the latest.
    pub(crate) fn end_target_write(
        &mut self,
        flags: &AtomicU8,
        o: &Object,
        page: u64,
        undestaged: bool,
        since: u64,
    ) {
        let anew = flags.load(Ordering::Relaxed) & DIRTY != 0;
        if !undestaged {
            self.mark(flags, o, page, since);
        } else if !anew {
            flags.fetch_or(DIRTY | UNDESTAGED, Ordering::Release);
        }
        flags.fetch_and(!WRITEBACK, Ordering::Release);
        self.account(o, |dirty| {
            if undestaged && !anew {
                dirty.undestaged.insert(page);
                dirty.superseded.remove(&page);
            } else {
                dirty.superseded.insert(page);
            }
            dirty.writeback -= 1;
            dirty.dirty_since = dirty.dirty_since.min(since);
        });
    }

    /// Ends a sync: pages unstable before `round` are stable, or (with `lost`, the time) dirty again.
    pub(crate) fn end_sync(&mut self, table: &PageTable, o: &Object, round: u64, lost: Option<u64>) {
        let pages: Vec<u64> = o
            .dirty
            .lock()
            .unstable
            .iter()
            .filter(|(_, became)| **became < round)
            .map(|(page, _)| *page)
            .collect();
        for &page in &pages {
            let flags = table.flags(table.frame_of(o, page).expect("an unstable page has a frame"));
            match lost {
                Some(now_ns) => self.mark(flags, o, page, now_ns),
                None => drop(flags.fetch_and(!UNSTABLE, Ordering::Release)),
            }
        }
        self.account(o, |dirty| dirty.unstable.retain(|_, became| *became >= round));
        self.arrived += if lost.is_none() { pages.len() as u64 } else { 0 };
    }

    /// Notes the result of an object's last writeback: errno, or 0.
    pub(crate) fn note_outcome(&mut self, o: &Object, errno: i32, now_ns: u64) {
        self.account(o, |dirty| {
            dirty.errno = errno;
            dirty.failed_at = now_ns;
        });
        if errno != 0 {
            self.last_errno = errno;
        }
    }
}
