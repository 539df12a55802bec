//! The journal: a request that was done before a crash, but not answered, is not done again.
//!
//! The kernel resends every request that a killed daemon had not answered, with bit 63 set in its number.
//! Most requests can be repeated. Those that change names cannot: a second mkdir would return EEXIST although
//! the first, unanswered one succeeded. So each such request puts its number into a durable slot first, and
//! clears the slot after the answer. A resent request that finds its number there derives the outcome from
//! the source. If the name is there (or gone, or another inode's), the first try succeeded. The kernel holds
//! the directory's lock over the request, so no other request can have changed the name.
//!
//! No resend claims the slot of a request that was answered before the crash. The slot is freed `RESEND_MAX`
//! after the resend request, however long the recovery took.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use terrace_sync::Mutex;

use super::durable::{Durable, JOURNAL_MAX};
use crate::kernel::{Caller, RESENT};

/// Resent requests come first: this long after the resend request, all of them are read.
const RESEND_MAX: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Journal {
    durable: Arc<Durable>,
    /// One bit a slot, set while taken.
    taken: [AtomicU64; JOURNAL_MAX / 64],
    /// Slots that an earlier daemon left, by request.
    left: Mutex<HashMap<u64, usize>>,
    any_left: AtomicBool,
    /// Time of the resend request to the kernel.
    resend_requested_at: OnceLock<Instant>,
}

impl Journal {
    /// The journal of the region, with the slots of an earlier daemon.
    pub(crate) fn new(durable: Arc<Durable>) -> Self {
        let mut left = HashMap::new();
        let taken: [AtomicU64; JOURNAL_MAX / 64] = Default::default();
        for (slot, record) in durable.journal.iter().enumerate() {
            let unique = record.unique.load(Ordering::Acquire);
            if unique != 0 {
                left.insert(unique, slot);
                taken[slot / 64].fetch_or(1 << (slot % 64), Ordering::Relaxed);
            }
        }
        // Slots that the layout does not have are taken for ever.
        for slot in durable.journal.len()..JOURNAL_MAX {
            taken[slot / 64].fetch_or(1 << (slot % 64), Ordering::Relaxed);
        }
        let any_left = AtomicBool::new(!left.is_empty());
        Self { durable, taken, left: Mutex::new(left), any_left, resend_requested_at: OnceLock::new() }
    }

    /// Records the time of the resend request to the kernel.
    pub(crate) fn note_resend_requested(&self) {
        let _ = self.resend_requested_at.set(Instant::now());
    }

    /// Begins a request. The journal records nothing until `Op::intend` or `Op::counted`.
    pub(crate) fn begin(&self, caller: Caller) -> Op<'_> {
        let mut op = Op { journal: self, caller, slot: None, replayed: None };
        if self.any_left.load(Ordering::Acquire) {
            self.claim_left(&mut op);
        }
        op
    }

    fn claim_left(&self, op: &mut Op<'_>) {
        let mut left = self.left.lock();
        if op.is_resent() {
            if let Some(slot) = left.remove(&op.unique()) {
                let record = &self.durable.journal[slot];
                op.slot = Some(slot);
                op.replayed = Some(Replayed {
                    before: record.before.load(Ordering::Relaxed),
                    counted: record.counted.load(Ordering::Relaxed),
                });
            }
        } else if self.resend_requested_at.get().is_some_and(|at| at.elapsed() > RESEND_MAX) {
            for (_, slot) in left.drain() {
                self.free(slot);
            }
        }
        self.any_left.store(!left.is_empty(), Ordering::Release);
    }

    fn take(&self) -> usize {
        loop {
            for (word, bits) in self.taken.iter().enumerate() {
                let seen = bits.load(Ordering::Relaxed);
                let bit = (!seen).trailing_zeros();
                if bit < 64 && bits.fetch_or(1 << bit, Ordering::AcqRel) & (1 << bit) == 0 {
                    return word * 64 + bit as usize;
                }
            }
            // More requests at once than slots: the limit on threads makes this rare, not impossible, since
            // restarts leave stale slots.
            std::thread::yield_now();
        }
    }

    fn free(&self, slot: usize) {
        self.durable.journal[slot].unique.store(0, Ordering::Release);
        self.taken[slot / 64].fetch_and(!(1 << (slot % 64)), Ordering::AcqRel);
    }
}

/// Result of the first try of a resent request.
#[derive(Clone, Copy, Debug)]
struct Replayed {
    before: u64,
    counted: u64,
}

/// A request under way. Drop it after the answer has been sent.
#[derive(Debug)]
pub struct Op<'a> {
    journal: &'a Journal,
    pub(crate) caller: Caller,
    slot: Option<usize>,
    replayed: Option<Replayed>,
}

impl Op<'_> {
    pub(crate) fn unique(&self) -> u64 {
        self.caller.unique & !RESENT
    }

    pub(crate) fn is_resent(&self) -> bool {
        self.caller.unique & RESENT != 0
    }

    /// Whether the first try of this request may have done its work.
    pub(crate) fn is_replayed(&self) -> bool {
        self.replayed.is_some()
    }

    /// The inode that the first try found under the name to be changed.
    pub(crate) fn before(&self) -> Option<u64> {
        self.replayed.map(|replayed| replayed.before)
    }

    /// Records that the request is about to change names. `before` is the inode now under the name (0: none).
    pub(crate) fn intend(&mut self, before: u64) {
        if self.slot.is_none() {
            let slot = self.journal.take();
            let record = &self.journal.durable.journal[slot];
            record.before.store(before, Ordering::Relaxed);
            record.counted.store(0, Ordering::Relaxed);
            record.unique.store(self.unique(), Ordering::Release);
            self.slot = Some(slot);
        }
    }

    /// Whether the request has changed anything, or recorded that it will.
    pub(crate) fn has_begun(&self) -> bool {
        self.slot.is_some()
    }

    /// Whether the lookup count of `nodeid` is to be raised for this request. The first try may have done so.
    pub(crate) fn counts(&self, nodeid: u64) -> bool {
        self.replayed.is_none_or(|replayed| replayed.counted != nodeid)
    }

    /// Records that the lookup count of `nodeid` was raised. A kill between raising and recording leaves the
    /// count one too high, which keeps an inode longer than needed. The other order could drop one in use.
    pub(crate) fn counted(&mut self, nodeid: u64) {
        self.intend(0);
        let slot = self.slot.expect("intend takes a slot");
        self.journal.durable.journal[slot].counted.store(nodeid, Ordering::Release);
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.journal.free(slot);
        }
    }
}

/// In a listing with attributes, the slot's count is one of entries.
impl Op<'_> {
    /// Number of entries that the first try of this listing had counted.
    pub(crate) fn entries_counted(&self) -> u64 {
        self.replayed.map_or(0, |replayed| replayed.counted)
    }

    /// Records the number of counted entries. As in `counted`, a kill can leave the last one's count too
    /// high.
    pub(crate) fn entry_counted(&mut self, entries: u64) {
        self.counted(entries.max(self.entries_counted()));
    }
}

#[cfg(test)]
mod tests {
    use super::super::durable::tests::region;
    use super::super::durable::{DurableLayout, DurableRegion};
    use super::*;

    const LAYOUT: DurableLayout = DurableLayout { inodes_max: 4, handles_max: 4, journal_max: 8 };

    fn caller(unique: u64) -> Caller {
        Caller { uid: 0, gid: 0, tid: 1, unique }
    }

    fn journal(region: DurableRegion, fresh: bool) -> Journal {
        let durable = if fresh { Durable::create(region, LAYOUT) } else { Durable::open(region, LAYOUT) };
        Journal::new(Arc::new(durable.unwrap()))
    }

    #[test]
    fn an_unanswered_request_is_known_after_a_restart() {
        let region = region(LAYOUT);
        let first = journal(region, true);
        let mut answered = first.begin(caller(10));
        answered.intend(5);
        drop(answered);
        let mut killed = first.begin(caller(12));
        killed.intend(77);
        killed.counted(78);
        std::mem::forget(killed);

        let second = journal(region, false);
        assert!(!second.begin(caller(10 | RESENT)).is_replayed());
        let op = second.begin(caller(12 | RESENT));
        assert_eq!(op.before(), Some(77));
        assert!(!op.counts(78));
        assert!(op.counts(79));
        drop(op);
        assert!(!second.begin(caller(12 | RESENT)).is_replayed(), "claimed once");
    }

    #[test]
    fn leftover_requests_are_kept_until_long_after_the_resend() {
        let region = region(LAYOUT);
        let first = journal(region, true);
        let mut killed = first.begin(caller(12));
        killed.intend(77);
        std::mem::forget(killed);
        let left = |journal: &Journal| {
            drop(journal.begin(caller(14)));
            journal.left.lock().len()
        };
        let second = journal(region, false);
        assert_eq!(left(&second), 1, "nothing was resent yet, however long ago the start was");
        second.resend_requested_at.set(Instant::now() - 2 * RESEND_MAX).unwrap();
        assert_eq!(left(&second), 0);
    }

    #[test]
    fn slots_are_never_shared() {
        let journal = journal(region(LAYOUT), true);
        let mut ops: Vec<_> = (1..=8).map(|unique| journal.begin(caller(unique))).collect();
        ops.iter_mut().for_each(|op| op.intend(0));
        let mut slots: Vec<_> = ops.iter().map(|op| op.slot.unwrap()).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..8).collect::<Vec<_>>());
        drop(ops);
        let mut again = journal.begin(caller(9));
        again.intend(0);
        assert_eq!(again.slot, Some(0));
    }
}
