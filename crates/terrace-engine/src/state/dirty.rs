//! The books of what the source does not have for certain.
//!
//! A page is *dirty* (the source does not have it), then under *writeback* (on its way), then clean; or, if it went through
//! the kernel's page cache, *unstable*, as the kernel's NFS client says: the source shows it, but the kernel may still fail
//! to write it, and would drop it then. Unstable pages keep their frames until a sync has succeeded; if it fails they are
//! dirty again. All of this changes under the core lock; each state has a flag in the frame, which outlives terraced.

use crate::engine::Engine;
use crate::file::object::{Object, ObjectId, ObjectRef};
use crate::segment::flag::{DIRTY, UNSTABLE, WRITEBACK};
use crate::state::Core;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// What the source does not have of one object.
#[derive(Debug, Default)]
pub(crate) struct Dirt {
    /// Dirty pages, in file order.
    pub dirty: BTreeSet<u64>,
    /// Since when the oldest of them is (ns, engine clock).
    pub dirty_since: u64,
    /// Pages under writeback.
    pub writeback: u64,
    /// Unstable pages, and the round of [`Books::sync_round`] in which they became so.
    pub unstable: BTreeMap<u64, u64>,
    /// Since when the oldest of them is.
    pub unstable_since: u64,
    /// errno of the last writeback, if it failed; else 0.
    pub errno: i32,
    /// When it failed.
    pub failed_at: u64,
}

impl Dirt {
    /// Pages that the source does not show yet.
    pub fn unwritten(&self) -> u64 {
        self.dirty.len() as u64 + self.writeback
    }
    /// How many pages are in each state.
    pub fn totals(&self) -> Totals {
        let dirty = self.dirty.len() as u64;
        let failing = if self.errno == 0 { 0 } else { dirty };
        Totals { dirty, writeback: self.writeback, unstable: self.unstable.len() as u64, failing }
    }
}

/// Pages in each state.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    pub dirty: u64,
    pub writeback: u64,
    pub unstable: u64,
    /// Dirty pages of objects whose last writeback failed.
    pub failing: u64,
}

impl Totals {
    /// Pages that cannot be evicted now.
    pub fn all(&self) -> u64 {
        self.dirty + self.writeback + self.unstable
    }
    /// Pages that writeback, or a sync, makes clean if it is asked to.
    pub fn reclaimable(&self) -> u64 {
        self.dirty - self.failing + self.unstable
    }
}

/// The same for all objects, and how writeback gets on.
#[derive(Debug, Default)]
pub(crate) struct Books {
    pub totals: Totals,
    /// Objects that have some.
    pub objects: BTreeSet<ObjectId>,
    failing_objects: u64,
    last_errno: i32,
    /// Pages that writeback has made clean, ever.
    pub arrived: u64,
    /// Writers that wait for writeback.
    pub waiting: u32,
    /// Passes of the writeback thread.
    pub passes_begun: u64,
    pub passes_ended: u64,
    /// Moves with each sync of the whole source: what became unstable in an earlier round is covered by it.
    pub sync_round: u64,
}

impl Books {
    /// errno of a writeback that keeps failing; 0: all work.
    pub fn failing_errno(&self) -> i32 {
        if self.failing_objects == 0 { 0 } else { self.last_errno }
    }
}

/// What has become of a page under writeback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The device has taken it.
    Arrived,
    /// The kernel's page cache has taken it.
    Unstable,
    /// Nothing is known of it.
    Failed,
}

impl Core {
    /// Changes the books of one object, and those of all with them.
    fn book<T>(&mut self, o: &Object, change: impl FnOnce(&mut Dirt) -> T) -> T {
        let mut dirt = o.dirt.lock();
        let (before, failed) = (dirt.totals(), dirt.errno != 0);
        let result = change(&mut dirt);
        let after = dirt.totals();
        let all = &mut self.dirt.totals;
        all.dirty = all.dirty + after.dirty - before.dirty;
        all.writeback = all.writeback + after.writeback - before.writeback;
        all.unstable = all.unstable + after.unstable - before.unstable;
        all.failing = all.failing + after.failing - before.failing;
        match (failed, dirt.errno != 0) {
            (false, true) => self.dirt.failing_objects += 1,
            (true, false) => self.dirt.failing_objects -= 1,
            _ => {}
        }
        match (before.all() > 0, after.all() > 0) {
            (false, true) => drop(self.dirt.objects.insert(o.id())),
            (true, false) => drop(self.dirt.objects.remove(&o.id())),
            _ => {}
        }
        result
    }

    /// Marks a page dirty. Before it is published: a crash in between must not lose it.
    pub(crate) fn soil(&mut self, o: &Object, page: u64, frame: u32, now_ns: u64) {
        let handles = self.handles.clone();
        let flags = handles.frame_flags(frame);
        if flags.fetch_or(DIRTY, Ordering::Release) & DIRTY != 0 {
            return;
        }
        // What is written again need not be stable before.
        flags.fetch_and(!UNSTABLE, Ordering::Release);
        self.book_dirty(o, page, now_ns);
    }

    /// Takes over a page that the dead daemon had not made stable, whatever it was doing with it: it is dirty. (An unstable
    /// one, too: the kernel may have told the dead daemon, and nobody else, that it was lost.) The frame says so at every moment, for this daemon may be
    /// killed at any.
    pub(crate) fn inherit_dirt(&mut self, o: &Object, page: u64, frame: u32, now_ns: u64) {
        self.handles.frame_flags(frame).store(DIRTY, Ordering::Release);
        self.book_dirty(o, page, now_ns);
    }

    /// Takes over an unstable page as it is, since what the source shows is newer. One that was lost, of which only the dead daemon was told, stays so.
    pub(crate) fn inherit_unstable(&mut self, o: &Object, page: u64, frame: u32, now_ns: u64) {
        self.handles.frame_flags(frame).store(UNSTABLE, Ordering::Release);
        self.book_unstable(o, page, now_ns);
    }

    fn book_unstable(&mut self, o: &Object, page: u64, now_ns: u64) {
        let round = self.dirt.sync_round;
        self.book(o, |dirt| {
            if dirt.unstable.is_empty() {
                dirt.unstable_since = now_ns;
            }
            dirt.unstable.insert(page, round);
        });
    }

    fn book_dirty(&mut self, o: &Object, page: u64, now_ns: u64) {
        self.book(o, |dirt| {
            dirt.unstable.remove(&page);
            if dirt.dirty.is_empty() {
                dirt.dirty_since = now_ns;
            }
            dirt.dirty.insert(page);
        });
    }

    /// Forgets that a page is dirty or unstable: it goes, or it need not be written.
    pub(crate) fn clean(&mut self, o: &Object, page: u64, frame: u32) {
        let flags = self.handles.frame_flags(frame).fetch_and(!(DIRTY | UNSTABLE), Ordering::Release);
        if flags & (DIRTY | UNSTABLE) != 0 {
            self.book(o, |dirt| {
                dirt.dirty.remove(&page);
                dirt.unstable.remove(&page);
            });
        }
    }

    /// A dirty page sets out.
    pub(crate) fn begin_writeback(&mut self, o: &Object, page: u64, frame: u32) {
        let handles = self.handles.clone();
        handles.frame_flags(frame).fetch_or(WRITEBACK, Ordering::Release);
        handles.frame_flags(frame).fetch_and(!DIRTY, Ordering::Release);
        self.book(o, |dirt| {
            dirt.dirty.remove(&page);
            dirt.writeback += 1;
        });
    }

    /// It has arrived, or is dirty again. It may have become dirty again meanwhile in any case.
    pub(crate) fn end_writeback(&mut self, o: &Object, page: u64, frame: u32, fate: Fate, now_ns: u64) {
        let handles = self.handles.clone();
        let flags = handles.frame_flags(frame);
        match fate {
            Fate::Arrived => {}
            Fate::Failed => self.soil(o, page, frame, now_ns),
            Fate::Unstable if flags.load(Ordering::Relaxed) & DIRTY != 0 => {}
            Fate::Unstable => {
                flags.fetch_or(UNSTABLE, Ordering::Release);
                self.book_unstable(o, page, now_ns);
            }
        }
        self.dirt.arrived += u64::from(fate != Fate::Failed);
        flags.fetch_and(!WRITEBACK, Ordering::Release);
        self.book(o, |dirt| dirt.writeback -= 1);
    }

    /// The unstable pages of an object that became so before `round` are stable, or (with `lost`, the time) dirty again.
    pub(crate) fn end_sync(&mut self, o: &Object, round: u64, lost: Option<u64>) {
        let handles = self.handles.clone();
        let pages: Vec<u64> = o
            .dirt
            .lock()
            .unstable
            .iter()
            .filter(|(_, became)| **became < round)
            .map(|(page, _)| *page)
            .collect();
        for &page in &pages {
            let place = self.index.find(o.slot_index(), page).expect("an unstable page has a place");
            let frame = self.index.get(place).frame().expect("an unstable page has a frame");
            match lost {
                Some(now_ns) => self.soil(o, page, frame, now_ns),
                None => drop(handles.frame_flags(frame).fetch_and(!UNSTABLE, Ordering::Release)),
            }
        }
        self.book(o, |dirt| dirt.unstable.retain(|_, became| *became >= round));
        self.dirt.arrived += if lost.is_none() { pages.len() as u64 } else { 0 };
    }

    /// How the last writeback of an object ended: errno, or 0.
    pub(crate) fn note_outcome(&mut self, o: &Object, errno: i32, now_ns: u64) {
        self.book(o, |dirt| {
            dirt.errno = errno;
            dirt.failed_at = now_ns;
        });
        if errno != 0 {
            self.dirt.last_errno = errno;
        }
    }
}

impl Engine {
    /// Objects with pages that the source does not have for certain.
    pub(crate) fn unwritten_objects(&self) -> Vec<ObjectRef> {
        let core = self.core.lock();
        core.dirt.objects.iter().filter_map(|id| core.objects.get(id).cloned()).collect()
    }
}
