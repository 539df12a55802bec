//! What is known of a file's state in the source, for fsyncs that a tier answers (`path/burst.rs`).

use std::sync::atomic::Ordering;
use terrace_shm::ObjectSlot;

/// Books of one file, behind a lock of their own: inside the object's writeback lock, outside those of targets and the state.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    /// Digest of its identity and state, which is durable in the source. None: that is not known, or has changed.
    pub base: Option<u64>,
    /// The target that has pages of it that the source lacks, or had.
    pub target: Option<usize>,
    /// The last base that the target was told.
    pub recorded: Option<u64>,
    /// Pages were written there since it was last flushed for this file.
    pub unflushed: bool,
    /// What that target has of a page may be older than what the source has, or its base may be missing: the source answers until the target is told that
    /// nothing is owed.
    pub must_settle: bool,
    /// Until when that target says that the source may be changed (ns since 1970); 0: it may not.
    pub permit: i64,
    /// Changes of the source that have begun, and how many are under way.
    pub changes: u64,
    pub changing: u32,
    /// When the last of them began, by this machine's clock (ns since 1970).
    pub changed_at: i64,
    /// The source's clock was found to be this machine's: else its times tell nothing about permits.
    pub in_step: bool,
}

impl Burst {
    /// The target gets pages of the file. The segment knows, for the next terraced.
    pub(crate) fn begin(&mut self, slot: &ObjectSlot, target: usize) {
        slot.owes.store(1, Ordering::Release);
        if self.target.replace(target).is_none() {
            (self.must_settle, self.recorded) = (false, None);
        }
    }
    /// It has none any more that the source lacks, or is told by others: which target that was.
    pub(crate) fn end(&mut self, slot: &ObjectSlot) -> Option<usize> {
        slot.owes.store(0, Ordering::Release);
        (self.permit, self.unflushed, self.must_settle) = (0, false, false);
        self.target.take()
    }
    /// Whether a terraced of this segment, which may be dead, has begun so.
    pub(crate) fn has_begun(slot: &ObjectSlot) -> bool {
        slot.owes.load(Ordering::Acquire) != 0
    }
}
