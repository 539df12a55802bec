//! An object: a regular file as the cache knows it.

use crate::file::backoff::Backoff;
use crate::file::burst::Burst;
use crate::file::dirty_pages::DirtyPages;
use crate::file::errseq::{ErrorCursor, ErrorSequence};
use crate::file::source::{DataFd, SourceFile};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// What is known of its state in the source. Locked inside the writeback lock, outside those of targets and the state.
    pub(crate) burst: Mutex<Burst>,
    /// Guards the times in the slot.
    pub(super) times: Mutex<()>,
    /// Changed since its file was last made stable.
    pub(crate) unsynced: AtomicBool,
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
            burst: Mutex::default(),
            times: Mutex::new(()),
            unsynced: AtomicBool::new(false),
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
        self.source.close_writer(self.is_unsettled())
    }
    /// The source's file has no name left.
    pub(crate) fn is_nameless(&self) -> bool {
        self.source.stat().is_ok_and(|stat| stat.st_nlink == 0)
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
