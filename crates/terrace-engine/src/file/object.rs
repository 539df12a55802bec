//! An object: a regular file as the cache knows it.

use crate::file::backoff::Vain;
use crate::file::source::{SourceFile, times_of};
use crate::state::dirty::Dirt;
use parking_lot::{Mutex, RwLock};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrace_shm::layout::{TIMES_KNOWN, TIMES_RESTORE};
use terrace_shm::{ObjectSlot, RUN_PAGES, Segment};

/// Coarsest granularity of a file system's times: FAT's, ns.
const COARSEST_NS: i64 = 2_000_000_000;

/// Number of an object: the inode number that programs see on the mount.
pub type ObjectId = u64;
/// A shared object.
pub type ObjectRef = Arc<Object>;

/// A regular file of the source, published in the segment.
#[derive(Debug)]
pub struct Object {
    id: ObjectId,
    slot: u32,
    seg: Arc<Segment>,
    source: SourceFile,
    /// Held (write) while content or size changes, so that a reader who must not see that waits (read).
    pub(crate) content: RwLock<()>,
    /// Held while pages of the object are on their way to the source.
    pub(crate) writeback: Mutex<()>,
    /// Held (write) while unstable pages are made stable, and (read) by other syncs: the kernel tells each failure once a
    /// descriptor, and who did not hear of it must not take the pages for stable.
    pub(crate) syncing: RwLock<()>,
    /// What the source does not have yet. Locked inside the core lock, or alone.
    pub(crate) dirt: Mutex<Dirt>,
    /// Size that a write under way has given the source already; 0: none. Writeback must not cut or lengthen that.
    pub(crate) growing: AtomicU64,
    pub(crate) readahead: Mutex<Readahead>,
    errors: Mutex<Errors>,
    /// Guards the times in the slot.
    times: Mutex<()>,
    /// Changed since its file was last made stable.
    pub(crate) unsynced: AtomicBool,
    /// The last name is gone: dirty pages are of no use to anybody once the last handle is closed.
    pub(crate) doomed: AtomicBool,
    /// Tries to compress a page of it, and to do so with LZ4.
    pub(crate) compressing: Vain,
    pub(crate) lz4: Vain,
    /// Taken out of the books, its slot and descriptors may be another's. Set under the writeback lock.
    pub(crate) gone: AtomicBool,
}

/// Sequential reads that miss: where the last one ended, and how far it read ahead.
///
/// Readers copy what was read ahead without asking, so the next miss of a sequential reader comes exactly at `next`; the
/// window then doubles, as in the kernel's mm/readahead.c.
#[derive(Debug, Default)]
pub(crate) struct Readahead {
    next: u64,
    window: u64,
}

impl Readahead {
    /// Pages to read beyond a miss of `[first, first + pages)`.
    pub(crate) fn beyond(&mut self, first: u64, pages: u64, window_max: u64) -> u64 {
        let sequential = first == self.next && first > 0;
        let window = match (sequential, self.window) {
            (false, _) if first == 0 => RUN_PAGES as u64,
            (false, _) => 0,
            (true, 0) => RUN_PAGES as u64,
            (true, w) => w * 2,
        };
        self.window = window.min(window_max);
        self.next = first + pages + self.window;
        self.window
    }
}

/// Failed writebacks so far, as the kernel's errseq: each handle hears of each failure once.
#[derive(Debug, Default)]
struct Errors {
    count: u64,
    last: i32,
    seen: bool,
}

/// What one open file has heard of failed writebacks.
#[derive(Debug)]
pub struct ErrorCursor(AtomicU64);

impl Object {
    pub(crate) fn new(id: ObjectId, slot: u32, seg: Arc<Segment>, source: SourceFile) -> Object {
        Object {
            id,
            slot,
            seg,
            source,
            content: RwLock::new(()),
            writeback: Mutex::new(()),
            syncing: RwLock::new(()),
            dirt: Mutex::new(Dirt::default()),
            growing: AtomicU64::new(0),
            readahead: Mutex::new(Readahead::default()),
            errors: Mutex::new(Errors { seen: true, ..Errors::default() }),
            times: Mutex::new(()),
            unsynced: AtomicBool::new(false),
            doomed: AtomicBool::new(false),
            compressing: Vain::default(),
            lz4: Vain::default(),
            gone: AtomicBool::new(false),
        }
    }
    /// Its number.
    pub fn id(&self) -> ObjectId {
        self.id
    }
    /// Its slot in the segment's object table.
    pub fn slot_index(&self) -> u32 {
        self.slot
    }
    /// Its slot.
    pub(crate) fn slot(&self) -> &ObjectSlot {
        self.seg.object(self.slot)
    }
    /// The file itself.
    pub fn source(&self) -> &SourceFile {
        &self.source
    }
    /// Size in bytes, as programs see it.
    pub fn size(&self) -> u64 {
        self.slot().size.load(Ordering::Acquire)
    }
    /// Gives the fast door a reason to step aside for this object, or takes it back.
    pub(crate) fn set_flag(&self, flag: u32, on: bool) {
        if on {
            self.slot().flags.fetch_or(flag, Ordering::SeqCst);
        } else {
            self.slot().flags.fetch_and(!flag, Ordering::SeqCst);
        }
    }
    /// Pages that the source does not show yet, those on their way among them.
    pub fn dirty_pages(&self) -> u64 {
        self.dirt.lock().unwritten()
    }
    /// errno of its last writeback, if that failed.
    pub(crate) fn failing(&self) -> Option<i32> {
        Some(self.dirt.lock().errno).filter(|&errno| errno != 0)
    }

    /// What a new handle starts from: a failure that nobody heard of yet is still reported to it.
    pub fn error_cursor(&self) -> ErrorCursor {
        let e = self.errors.lock();
        ErrorCursor(AtomicU64::new(if e.seen { e.count } else { e.count - 1 }))
    }
    pub(crate) fn note_error(&self, error: &std::io::Error) {
        let mut e = self.errors.lock();
        e.count += 1;
        e.last = error.raw_os_error().unwrap_or(libc::EIO);
        e.seen = false;
    }
    /// Reports a failure that this handle has not heard of.
    pub(crate) fn take_error(&self, cursor: &ErrorCursor) -> std::io::Result<()> {
        let mut e = self.errors.lock();
        if cursor.0.swap(e.count, Ordering::Relaxed) == e.count {
            return Ok(());
        }
        e.seen = true;
        Err(std::io::Error::from_raw_os_error(e.last))
    }

    // ---- times ---------------------------------------------------------------------------------------------------
    //
    // Writeback comes later than the write, so the cache knows mtime and ctime better than the source. They lie in the
    // object's slot: an acknowledged utimens outlives terraced, as the data do.

    /// mtime and ctime (ns since 1970) where the cache knows better than the source.
    pub fn times(&self) -> Option<(i64, i64)> {
        let _times = self.times.lock();
        self.known_times()
    }
    fn known_times(&self) -> Option<(i64, i64)> {
        let slot = self.slot();
        let known = slot.times_known.load(Ordering::Acquire) & TIMES_KNOWN != 0;
        let time = |t: &AtomicU64| t.load(Ordering::Relaxed).cast_signed();
        known.then(|| (time(&slot.mtime), time(&slot.ctime)))
    }
    /// Times first, then the word that says that they are there. The caller holds `times`.
    fn set_times(&self, (mtime, ctime): (i64, i64), restore: bool) {
        let slot = self.slot();
        slot.mtime.store(mtime.cast_unsigned(), Ordering::Relaxed);
        slot.ctime.store(ctime.cast_unsigned(), Ordering::Relaxed);
        slot.times_known.store(TIMES_KNOWN | if restore { TIMES_RESTORE } else { 0 }, Ordering::Release);
    }
    fn restore_due(&self) -> bool {
        self.slot().times_known.load(Ordering::Relaxed) & TIMES_RESTORE != 0
    }

    /// A program wrote at `now`.
    pub(crate) fn note_write(&self, now: i64) {
        let _times = self.times.lock();
        self.set_times((now, now), true);
    }
    /// A program set the mtime through the mount; the source has it already, unless a writeback has just put the old one
    /// back.
    pub fn adopt_mtime(&self, mtime: i64) {
        let times = self.times.lock();
        let Some((_, ctime)) = self.known_times() else { return };
        self.set_times((mtime, ctime), true);
        drop(times);
        self.restore_times();
    }
    /// A program changed metadata through the mount (chmod, link, ...): the source's ctime is the newest.
    pub fn adopt_ctime(&self) {
        let _times = self.times.lock();
        if let (Some((mtime, _)), Some((_, ctime))) = (self.known_times(), self.source.times()) {
            self.set_times((mtime, ctime), self.restore_due());
        }
    }
    /// The source itself was changed (fallocate, ...): its times are the newest.
    pub(crate) fn adopt_times(&self) {
        let _times = self.times.lock();
        if let (Some(_), Some(newest)) = (self.known_times(), self.source.times()) {
            self.set_times(newest, self.restore_due());
        }
    }

    /// After a writeback: gives the source the mtime of the write, not of the writeback.
    pub(crate) fn restore_times(&self) {
        let _times = self.times.lock();
        let Some((mtime, ctime)) = self.known_times().filter(|_| self.restore_due()) else { return };
        if let Err(e) = self.set_mtime_of_source(mtime) {
            tracing::debug!("object {}: mtime not restored: {e}", self.id);
        }
        // The source's file system may know no such fine times, and then cuts them. What is later is somebody else's.
        let cut = |told: &i64| (0..COARSEST_NS).contains(&(mtime - told));
        let told = self.source.times().map(|(told, _)| told).filter(cut);
        self.set_times((told.unwrap_or(mtime), ctime), self.dirty_pages() > 0);
    }

    /// Pages that the source has been given already go to it again: after that its mtime is to be restored, too.
    pub(crate) fn owe_times(&self) {
        let _times = self.times.lock();
        if let Some(times) = self.known_times()
            && self.dirty_pages() > 0
        {
            self.set_times(times, true);
        }
    }

    /// Has somebody else changed the source, which says `stat` now, since its mtime was put right after a writeback? (Yes, too,
    /// if it could not be put right, as that of another owner's file.)
    pub(crate) fn is_changed_behind(&self, stat: &rustix::fs::Stat) -> bool {
        let _times = self.times.lock();
        let (newest, _) = times_of(stat);
        let resized = stat.st_size as u64 != self.size();
        self.known_times().is_some_and(|(mtime, _)| !self.restore_due() && (newest != mtime || resized))
    }

    /// By path, for no descriptor that writes need be open any more.
    fn set_mtime_of_source(&self, mtime: i64) -> std::io::Result<()> {
        let time =
            Timespec { tv_sec: mtime.div_euclid(1_000_000_000), tv_nsec: mtime.rem_euclid(1_000_000_000) };
        let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let times = Timestamps { last_access: omit, last_modification: time };
        Ok(rustix::fs::utimensat(CWD, self.source.proc_path(), &times, AtFlags::empty())?)
    }
}
