//! An object: a regular file as the cache knows it.

use crate::file::backoff::Backoff;
use crate::file::burst::Burst;
use crate::file::dirty_pages::DirtyPages;
use crate::file::errseq::{ErrorCursor, ErrorSequence};
use crate::file::identity::Known;
use crate::file::source::{DataFd, SourceFile};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use terrace_policy::prefetch::Prefetcher;
use terrace_shm::layout::{FLAG_MAPPED, FLAG_SLOW};
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
    /// Held (write) while content or size changes; readers that must not see a half-done change hold it
    /// (read).
    pub(crate) content: RwLock<()>,
    /// Held while pages of the object are on their way to the source.
    pub(crate) writeback: Mutex<()>,
    /// Held (write) while unstable pages are made stable, and (read) by other syncs. The kernel reports each
    /// failure once a descriptor, and a thread that did not get the report must not take the pages for
    /// stable.
    pub(crate) syncing: RwLock<()>,
    /// Pages that the source does not have yet. Locked inside the state lock, or alone.
    pub(crate) dirty: Mutex<DirtyPages>,
    /// Size that a write under way has given the source already; 0: none. Writeback must not cut or lengthen that.
    pub(crate) growing: AtomicU64,
    /// Its readers' streams. Locked outside the state lock.
    pub(crate) prefetcher: Mutex<Prefetcher>,
    errors: ErrorSequence,
    /// Identity of the file when it was published; 0: not known.
    pub(crate) identity: AtomicU64,
    /// It was published soon after a change, and gets its identity later ([`crate::path::park`]): not before then. 0: it has one, or gets none.
    pub(crate) unproved_until: AtomicU64,
    /// What is known of its state in the source. Locked inside the writeback lock, outside those of targets and the state.
    pub(crate) burst: Mutex<Burst>,
    /// Guards the times in the slot.
    pub(super) times: Mutex<()>,
    /// Changed since its file was last made stable.
    pub(crate) unsynced: AtomicBool,
    /// Changed since the source last answered a close of it.
    pub(crate) unheard: AtomicBool,
    /// The last answer that was heard is a refusal: the next close has one of its own, as a copy of the descriptor in a child may have had that.
    refused: AtomicBool,
    /// errno of such an answer that no program, sync or unmount has; 0: none.
    close_errno: AtomicI32,
    /// The last name is gone: dirty pages are useless once the last handle is closed.
    pub(crate) doomed: AtomicBool,
    /// Tries to compress a page of it, and to do so with LZ4.
    pub(crate) compressing: Backoff,
    pub(crate) lz4: Backoff,
    /// Taken out of the books, its slot and descriptors may be another's. Set under the writeback lock.
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
            unproved_until: AtomicU64::new(0),
            burst: Mutex::default(),
            times: Mutex::new(()),
            unsynced: AtomicBool::new(false),
            unheard: AtomicBool::new(false),
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
    /// Its slot in the segment's object table.
    pub fn slot_index(&self) -> u32 {
        self.slot
    }
    /// Its slot.
    pub(crate) fn slot(&self) -> &ObjectSlot {
        self.seg.object(self.slot)
    }
    /// Has the processor fetch bytes that a read will copy soon, if they are in memory.
    pub fn prefetch(&self, offset: u64, len: usize) {
        terrace_shm::client::prefetch(&self.seg, self.slot(), offset, len);
    }
    /// Notes what a look at the file told of its identity. Nothing that was read before is cached.
    pub(crate) fn set_known(&self, known: &Known) {
        self.set_identity(known.identity);
        self.unproved_until.store(known.until, Ordering::Relaxed);
    }
    /// Notes the identity of the file. The segment has a mark of it, for the next terraced.
    fn set_identity(&self, identity: Option<u64>) {
        self.identity.store(identity.unwrap_or(0), Ordering::Relaxed);
        self.slot().identity.store(identity.unwrap_or(0) as u32, Ordering::Release);
    }
    /// Takes over the identity that a dead terraced published. A file changed since gets none: its pages in memory are older.
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
    /// Sets or clears a reason for clients to use the mount path for this object.
    pub(crate) fn set_flag(&self, flag: u32, on: bool) {
        if on {
            self.slot().flags.fetch_or(flag, Ordering::SeqCst);
        } else {
            self.slot().flags.fetch_and(!flag, Ordering::SeqCst);
        }
    }
    /// Sends the preload path's readers of this file to the mount path, or no longer: somebody has it open for writing behind the kernel's page cache.
    pub fn set_slow(&self, slow: bool) {
        self.set_flag(FLAG_SLOW, slow);
    }
    /// Likewise, because somebody may have mapped it through a descriptor that a client opened for writing. The preload server sets it, too, when the
    /// client announces it; who counts the writers takes it back.
    pub fn set_mapped(&self, mapped: bool) {
        self.set_flag(FLAG_MAPPED, mapped);
    }
    /// Are the preload path's readers of this file sent to the mount path?
    pub fn is_slow(&self) -> bool {
        self.slot().flags.load(Ordering::SeqCst) != 0
    }
    /// Likewise, and because of a mapping?
    pub fn is_mapped(&self) -> bool {
        self.slot().flags.load(Ordering::SeqCst) & FLAG_MAPPED != 0
    }
    /// Pages that the source does not show yet, those on their way among them.
    pub fn dirty_pages(&self) -> u64 {
        self.dirty.lock().unwritten()
    }
    /// Whether something of it may have to be written, or written once more.
    pub fn is_unsettled(&self) -> bool {
        self.dirty.lock().totals().all() > 0
    }
    /// Gives up the writer after the last close for writing, unless data are left to be written. The writer is closed when the result
    /// is dropped.
    pub fn close_writer(&self) -> Option<Arc<DataFd>> {
        // Writes and writebacks use plain descriptor numbers under these locks. If one is under way, the next close does it.
        let (_content, _writeback) = (self.content.try_write()?, self.writeback.try_lock()?);
        if self.dirty_pages() > 0 {
            return None;
        }
        self.note_close();
        self.source.close_writer(self.is_unsettled())
    }
    /// The source's file is about to be changed.
    pub(crate) fn note_change(&self) {
        self.unsynced.store(true, Ordering::Relaxed);
        self.unheard.store(true, Ordering::Relaxed);
    }
    /// Has the source still to answer a close of what was written, or waits its answer for a report?
    pub fn is_unheard(&self) -> bool {
        let waits = [&self.unheard, &self.refused].iter().any(|flag| flag.load(Ordering::Relaxed));
        waits || self.close_errno.load(Ordering::Relaxed) != 0
    }
    /// The source's answer to a close of all that was written, for a program, a sync or an unmount to report.
    ///
    /// # Errors
    /// The source's error: some of the data that it accepted is missing.
    pub fn hear_close(&self) -> std::io::Result<()> {
        if self.refused.swap(false, Ordering::Relaxed) {
            self.unheard.store(true, Ordering::Relaxed);
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
    /// Has the source answer before its descriptors are closed. The answer waits for the next one that can report it.
    fn note_close(&self) {
        if !self.unheard.swap(false, Ordering::Relaxed) {
            return;
        }
        let Err(e) = self.source.answer_to_close() else { return };
        if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
            self.unheard.store(true, Ordering::Relaxed); // The source has not answered.
        } else {
            tracing::warn!("object {}: the source refused at the close what was written: {e}", self.id);
            self.close_errno.store(e.raw_os_error().unwrap_or(libc::EIO), Ordering::Relaxed);
        }
    }
    /// The source's file has no name left. A server may not even know it then, and the kernel's copy of its attributes may be older.
    pub(crate) fn is_nameless(&self) -> bool {
        match self.source.links() {
            Ok(links) => links == 0,
            Err(err) => matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)),
        }
    }
    /// errno of its last writeback, if that failed.
    pub(crate) fn failing(&self) -> Option<i32> {
        Some(self.dirty.lock().errno).filter(|&errno| errno != 0)
    }

    /// The cursor of a new handle. A failure that no handle has reported yet is still reported to it.
    pub fn error_cursor(&self) -> ErrorCursor {
        self.errors.cursor()
    }
    pub(crate) fn note_error(&self, error: &std::io::Error) {
        self.errors.note(error);
    }
    /// Reports a failure that this handle has not heard of.
    pub(crate) fn take_error(&self, cursor: &ErrorCursor) -> std::io::Result<()> {
        self.errors.take(cursor)
    }
}
