//! Burst state of a file: its base version, its target, and changes of the source. Fsyncs that a tier answers
//! need it (`burst/fsync.rs`).

use std::sync::atomic::Ordering;
use terrace_shm::ObjectSlot;

/// Burst state of one file. Its lock is inside the writeback lock, outside those of targets and state.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    /// Digest of the file's identity and state, durable in the source. None: not known, or changed since.
    pub base_version: Option<u64>,
    /// The target that has, or had, pages that the source lacks.
    pub(crate) target: Option<usize>,
    /// The last base version recorded on the target.
    pub(crate) recorded: Option<u64>,
    /// Pages were written to the target since its last flush for this file.
    pub(crate) unflushed: bool,
    /// The target may have an older version of a page than the source, or lack the base version. The source
    /// answers fsyncs until the target has a destage-complete record.
    pub must_destage: bool,
    /// End of the write intent recorded on the target (ns since 1970); 0: the source may not be changed.
    pub intent_until: i64,
    /// Changes of the source: how many have begun, and how many are under way.
    pub(crate) changes: u64,
    pub(crate) changing: u32,
    /// Begin of the last change, by this machine's clock (ns since 1970).
    pub(crate) changed_at: i64,
    /// The source's clock agrees with this machine's, so that its times are evidence for write intents.
    pub(crate) in_step: bool,
}

impl Burst {
    /// Notes in the segment, too, that the target gets pages of the file: the next terraced reads it.
    pub(crate) fn begin(&mut self, slot: &ObjectSlot, target: usize) {
        slot.has_undestaged.store(1, Ordering::Release);
        if self.target.replace(target).is_none() {
            (self.must_destage, self.recorded) = (false, None);
        }
    }
    /// Ends the file's use of a target: no page is undestaged, or `DestageIndex::deleted` takes over.
    /// Returns the target.
    pub(crate) fn end(&mut self, slot: &ObjectSlot) -> Option<usize> {
        slot.has_undestaged.store(0, Ordering::Release);
        (self.intent_until, self.unflushed, self.must_destage) = (0, false, false);
        self.target.take()
    }
    /// Whether a terraced of this segment, possibly dead, has called `begin`.
    pub(crate) fn has_begun(slot: &ObjectSlot) -> bool {
        slot.has_undestaged.load(Ordering::Acquire) != 0
    }
}
