//! An object: the cached content of one regular file, and its state.

use crate::file::backoff::Backoff;
use crate::file::burst::Burst;
use crate::file::dirty_pages::DirtyPages;
use crate::file::errseq::{ErrorCursor, ErrorSequence};
use crate::file::identity::Known;
use crate::file::source::{DataFd, SourceFile};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use terrace_policy::prefetch::Prefetcher;
use terrace_shm::layout::{FLAG_MAPPED, FLAG_SLOW, WATCHED};
use terrace_shm::{ObjectSlot, Segment};
use terrace_sync::{Mutex, RwLock};

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
    /// Held (write) while content or size changes, and (read) by readers that must not see a change in part.
    pub(crate) content: RwLock<()>,
    pub(crate) writeback: Mutex<()>,
    /// Held (write) while unstable pages are made stable, and (read) by other syncs. The kernel reports each
    /// failure once per descriptor. Without the report a thread would take lost pages for stable.
    pub(crate) syncing: RwLock<()>,
    /// Pages that the source does not have yet. Locked inside the state lock, or alone.
    pub(crate) dirty: Mutex<DirtyPages>,
    /// Size that a write under way has already given to the source; 0: none. Writeback keeps that size.
    pub(crate) growing: AtomicU64,
    /// Streams of the object's readers. Locked outside the state lock.
    pub(crate) prefetcher: Mutex<Prefetcher>,
    errors: ErrorSequence,
    /// Identity of the file when it was published; 0: not known.
    pub(crate) identity: AtomicU64,
    /// Earliest time for the identity of an object published soon after a change ([`crate::tier::park`]). 0:
    /// it has one, or gets none.
    pub(crate) identity_due_ns: AtomicU64,
    /// The file's state in the source. Locked as [`Burst`] says.
    pub(crate) burst: Mutex<Burst>,
    pub(super) times: Mutex<()>,
    /// The file has changed since it was last made stable.
    pub(crate) unsynced: AtomicBool,
    /// The file has changed since the source last answered a close of it.
    pub(crate) close_unanswered: AtomicBool,
    /// The last reported close answer was an error. The next close queries the source again, because a
    /// child's copy of the descriptor may have got the report.
    refused: AtomicBool,
    /// errno of a close answer that no program, sync or unmount has reported yet; 0: none.
    close_errno: AtomicI32,
    /// The last name is gone: dirty pages are dropped once the last handle is closed.
    pub(crate) doomed: AtomicBool,
    /// Backoffs for the compression of its pages: with any codec, and with LZ4.
    pub(crate) compressing: Backoff,
    pub(crate) lz4: Backoff,
    /// The object is dropped: another one may have its slot and descriptors. Set under the writeback lock.
    pub(crate) gone: AtomicBool,
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
            syncing: RwLock::new(()),
            dirty: Mutex::new(DirtyPages::default()),
            growing: AtomicU64::new(0),
            prefetcher: Mutex::new(Prefetcher::default()),
            errors: ErrorSequence::new(),
            identity: AtomicU64::new(0),
            identity_due_ns: AtomicU64::new(0),
            burst: Mutex::default(),
            times: Mutex::new(()),
            unsynced: AtomicBool::new(false),
            close_unanswered: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            close_errno: AtomicI32::new(0),
            doomed: AtomicBool::new(false),
            compressing: Backoff::default(),
            lz4: Backoff::default(),
            gone: AtomicBool::new(false),
        }
    }
    /// Its number.
    pub fn id(&self) -> ObjectId {
        self.id
    }
    pub(crate) fn slot_index(&self) -> u32 {
        self.slot
    }
    pub(crate) fn slot(&self) -> &ObjectSlot {
        self.seg.object(self.slot)
    }
    /// Prefetches the frames of a coming read into the processor's cache.
    pub fn prefetch(&self, offset: u64, len: usize) {
        terrace_shm::reader::prefetch(&self.seg, self.slot(), offset, len);
    }
    /// Stores the identity found in the file. Called before any content is cached.
    pub(crate) fn set_known(&self, known: &Known) {
        self.set_identity(known.identity);
        self.identity_due_ns.store(known.until, Ordering::Relaxed);
    }
    /// Stores the identity. The segment gets its low 32 bits, for the next terraced.
    fn set_identity(&self, identity: Option<u64>) {
        self.identity.store(identity.unwrap_or(0), Ordering::Relaxed);
        self.slot().identity.store(identity.unwrap_or(0) as u32, Ordering::Release);
    }
    /// Takes over the identity published by a dead terraced. After a change of the file it is void: the pages
    /// in memory are older.
    pub(crate) fn take_over_identity(&self, now: Option<u64>) {
        let published = self.slot().identity.load(Ordering::Acquire);
        self.set_identity(now.filter(|now| published != 0 && *now as u32 == published));
    }
    /// The file itself.
    pub fn source(&self) -> &SourceFile {
        &self.source
    }
    /// Size in bytes, as programs see it.
    pub fn size(&self) -> u64 {
        self.slot().size.load(Ordering::Acquire)
    }
    /// Event clock of the last change of content, for comparisons.
    pub fn write_clock(&self) -> u64 {
        self.slot().write_clock.load(Ordering::Acquire)
    }
    /// Sets or clears a reason for clients to use the mount path for this object.
    pub(crate) fn set_flag(&self, flag: u32, on: bool) {
        if on {
            self.slot().flags.fetch_or(flag, Ordering::SeqCst);
        } else {
            self.slot().flags.fetch_and(!flag, Ordering::SeqCst);
        }
    }
    /// Sends preload readers to the mount path, or back: an invisible writer may have the file open.
    pub fn set_slow(&self, slow: bool) {
        self.set_flag(FLAG_SLOW, slow);
    }
    /// Sends the preload path's readers to the mount path, or back: a writable mapping may exist. The preload
    /// server sets this flag, too, when a client announces a mapping; the counter of writers clears it.
    pub fn set_mapped(&self, mapped: bool) {
        self.set_flag(FLAG_MAPPED, mapped);
    }
    /// Shows clients whether the daemon sees each open of the file.
    pub fn set_watched(&self, watched: bool) {
        let field = &self.slot().times_known;
        match watched {
            true => field.fetch_or(WATCHED, Ordering::SeqCst),
            false => field.fetch_and(!WATCHED, Ordering::SeqCst),
        };
    }
    /// Whether the preload path's readers use the mount path for this file.
    pub fn is_slow(&self) -> bool {
        self.slot().flags.load(Ordering::SeqCst) != 0
    }
    /// Whether they do so because of a mapping.
    pub fn is_mapped(&self) -> bool {
        self.slot().flags.load(Ordering::SeqCst) & FLAG_MAPPED != 0
    }
    /// Pages with content that the source does not show yet, with those under writeback.
    pub fn dirty_pages(&self) -> u64 {
        self.dirty.lock().unwritten()
    }
    /// Whether the object has pages that are to be written, perhaps for the second time.
    pub fn has_unsynced_pages(&self) -> bool {
        self.dirty.lock().totals().all() > 0
    }
    /// Gives up the writer after the last close for writing, if no unwritten data remain. The writer is
    /// closed when the result is dropped.
    pub fn close_writer(&self) -> Option<Arc<DataFd>> {
        // Writes and writebacks use raw descriptor numbers under these locks. While one is under way, the
        // writer stays until the next close.
        let (_content, _writeback) = (self.content.try_write()?, self.writeback.try_lock()?);
        if self.dirty_pages() > 0 {
            return None;
        }
        self.note_close();
        self.source.close_writer(self.has_unsynced_pages())
    }
    /// Notes a change of the source's file that is about to begin.
    pub(crate) fn note_change(&self) {
        self.unsynced.store(true, Ordering::Relaxed);
        self.close_unanswered.store(true, Ordering::Relaxed);
    }
    /// Whether the source has yet to answer a close after writes, or its answer is not reported yet.
    pub fn has_unreported_close(&self) -> bool {
        let waits = [&self.close_unanswered, &self.refused].iter().any(|flag| flag.load(Ordering::Relaxed));
        waits || self.close_errno.load(Ordering::Relaxed) != 0
    }
    /// The source's answer to a close after all writes, for a program, a sync or an unmount.
    ///
    /// # Errors
    /// The source's error: it lost some of the data that it had accepted.
    pub fn take_close_error(&self) -> std::io::Result<()> {
        if self.refused.swap(false, Ordering::Relaxed) {
            self.close_unanswered.store(true, Ordering::Relaxed);
        }
        self.note_close();
        match self.close_errno.swap(0, Ordering::Relaxed) {
            0 => Ok(()),
            errno => {
                self.refused.store(true, Ordering::Relaxed);
                Err(std::io::Error::from_raw_os_error(errno))
            }
        }
    }
    /// Gets the source's close answer before the descriptors are closed. The next caller that can
    /// report it gets an error.
    fn note_close(&self) {
        if !self.close_unanswered.swap(false, Ordering::Relaxed) {
            return;
        }
        let Err(e) = self.source.answer_to_close() else { return };
        if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
            self.close_unanswered.store(true, Ordering::Relaxed); // The source has not answered.
        } else {
            tracing::warn!(
                "object {}: the source reports a write error at the close ({e}): data may be lost; the next sync or close fails",
                self.id
            );
            self.close_errno.store(e.raw_os_error().unwrap_or(libc::EIO), Ordering::Relaxed);
        }
    }
    /// Whether the source's file has no name left. The server answers: the kernel's copy of the attributes
    /// may be old. The server may also have lost the file.
    pub(crate) fn is_nameless(&self) -> bool {
        match self.source.links() {
            Ok(links) => links == 0,
            Err(err) => matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)),
        }
    }
    /// errno of the last writeback, if it failed.
    pub(crate) fn failing(&self) -> Option<i32> {
        Some(self.dirty.lock().errno).filter(|&errno| errno != 0)
    }

    /// The cursor of a new handle. It reports failures that no handle has reported yet.
    pub fn error_cursor(&self) -> ErrorCursor {
        self.errors.cursor()
    }
    pub(crate) fn note_error(&self, error: &std::io::Error) {
        self.errors.note(error);
    }
    /// Reports a failure that this handle has not reported yet.
    pub(crate) fn take_error(&self, cursor: &ErrorCursor) -> std::io::Result<()> {
        self.errors.take(cursor)
    }
}
