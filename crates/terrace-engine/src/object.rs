//! An object: a regular file as the cache knows it.

use crate::source::SourceFile;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrace_shm::{ObjectSlot, RUN_PAGES, Segment};

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
    /// Dirty pages, in file order. Locked inside the core lock, or alone.
    pub(crate) dirty: Mutex<BTreeSet<u64>>,
    /// Size that a write under way has given the source already; 0: none. Writeback must not cut or lengthen that.
    pub(crate) growing: AtomicU64,
    /// Since when the oldest dirty page is dirty (ns, engine clock; 0: none).
    pub(crate) dirty_since: AtomicU64,
    pub(crate) readahead: Mutex<Readahead>,
    errors: Mutex<Errors>,
    times: Mutex<Times>,
    /// The last name is gone: dirty pages are of no use to anybody once the last handle is closed.
    pub(crate) doomed: AtomicBool,
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
        self.window = match (sequential, self.window) {
            (false, _) if first == 0 => RUN_PAGES as u64,
            (false, _) => 0,
            (true, 0) => RUN_PAGES as u64,
            (true, w) => (w * 2).min(window_max),
        };
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

/// Times that the cache knows better than the source, because writeback comes later than the write.
#[derive(Debug, Default, Clone, Copy)]
struct Times {
    /// mtime and ctime as the program made them, ns since 1970.
    ours: Option<(i64, i64)>,
    /// The source's mtime must be put right after the writeback that is still to come.
    restore: bool,
}

impl Object {
    pub(crate) fn new(id: ObjectId, slot: u32, seg: Arc<Segment>, source: SourceFile) -> Object {
        Object {
            id,
            slot,
            seg,
            source,
            content: RwLock::new(()),
            writeback: Mutex::new(()),
            dirty: Mutex::new(BTreeSet::new()),
            growing: AtomicU64::new(0),
            dirty_since: AtomicU64::new(0),
            readahead: Mutex::new(Readahead::default()),
            errors: Mutex::new(Errors { seen: true, ..Errors::default() }),
            times: Mutex::new(Times::default()),
            doomed: AtomicBool::new(false),
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
    /// Pages not yet written back.
    pub fn dirty_pages(&self) -> u64 {
        self.dirty.lock().len() as u64
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

    /// mtime and ctime (ns since 1970) where the cache knows better than the source.
    pub fn times(&self) -> Option<(i64, i64)> {
        self.times.lock().ours
    }
    /// A program wrote at `now`.
    pub(crate) fn note_write(&self, now: i64) {
        let mut t = self.times.lock();
        t.ours = Some((now, now));
        t.restore = true;
    }
    /// A program set the mtime through the mount; the source has it already.
    pub fn adopt_mtime(&self, mtime: i64) {
        let mut t = self.times.lock();
        if let Some((m, _)) = &mut t.ours {
            *m = mtime;
        }
    }
    /// A program changed metadata through the mount (chmod, link, ...): the source's ctime is the newest.
    pub fn adopt_ctime(&self) {
        let mut t = self.times.lock();
        if let (Some((_, c)), Some((_, ctime))) = (&mut t.ours, self.source.times()) {
            *c = ctime;
        }
    }
    /// The source itself was changed (fallocate, ...): its times are the newest.
    pub(crate) fn adopt_times(&self) {
        let mut t = self.times.lock();
        if t.ours.is_some() {
            t.ours = self.source.times();
        }
    }

    /// After a writeback: gives the source the mtime of the write, not of the writeback.
    pub(crate) fn restore_times(&self) {
        let mut t = self.times.lock();
        let Some((mtime, _)) = t.ours else { return };
        if !t.restore {
            return;
        }
        if let Ok(w) = self.source.writer() {
            // SAFETY: the object keeps the descriptor open.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(w.raw()) };
            let ts = rustix::fs::Timespec {
                tv_sec: mtime.div_euclid(1_000_000_000),
                tv_nsec: mtime.rem_euclid(1_000_000_000),
            };
            let omit = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
            let set = rustix::fs::futimens(
                fd,
                &rustix::fs::Timestamps { last_access: omit, last_modification: ts },
            );
            if let Err(e) = set {
                tracing::debug!("object {}: mtime not restored: {e}", self.id);
            }
        }
        t.restore = !self.dirty.lock().is_empty();
    }
}
