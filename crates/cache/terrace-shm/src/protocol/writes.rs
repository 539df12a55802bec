//! Writes of programs to files that the cache serves meanwhile.
//!
//! The truth is the source's page cache; frames are copies. Pages share slots. A slot has two counts: `seq`
//! of begun writes, in memory that clients write, and `applied` of withdrawn ones, in the daemon's memory.
//! Each write has a record in its client's page, as long as it is not applied.
//!
//! ```text
//! write   claim a record, begin (record, then counts), the program's own call, finish the record
//! daemon  take a finished record, withdraw the entries of its pages with new versions, stamp, perhaps read
//!         the pages again and publish them, apply
//! read    is_settled, then the hit; else the kernel's read
//! fill    version of the entry, read of the source; publish if the entry still has the version
//! repair  unsettled (seq), no writer in `bare`, no record of the slot in flight: withdraw all pages of the
//!         slot, stamp their objects, settle
//! ```
//! A client without a free record counts the write in its `bare` instead. Its slots stay unsettled until a
//! repair, as those of a client that died, and of a record that a killed daemon had taken. So a lost record
//! costs hits, never a stale read: the daemon counts a record at most once.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// States of a record: the client owns it until it is finished, then the daemon.
pub mod record {
    use super::*;

    /// No owner.
    pub const FREE: u32 = 0;
    const CLAIMED: u32 = 1;
    const BEGUN: u32 = 2;
    const FINISHED: u32 = 3;

    /// Client: takes a free record. The caller fills its fields.
    #[inline]
    pub fn claim(state: &AtomicU32) -> bool {
        state.load(Ordering::Relaxed) == FREE
            && state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
    /// Client: the write begins. Release: the fields are visible with the state.
    #[inline]
    pub(super) fn begin(state: &AtomicU32) {
        state.store(BEGUN, Ordering::Release);
    }
    /// Client: the program's call has returned. Release: its stores are visible to the daemon, which takes the
    /// record.
    #[inline]
    pub fn finish(state: &AtomicU32) {
        state.store(FINISHED, Ordering::Release);
    }
    /// Daemon: true if the record is to be taken.
    #[inline]
    pub fn is_finished(state: &AtomicU32) -> bool {
        state.load(Ordering::Acquire) == FINISHED
    }
    /// Daemon: true if a client may be inside the write, or the daemon has not taken the record. Repairs use
    /// it after their load of `seq`.
    #[inline]
    pub fn is_in_flight(state: &AtomicU32) -> bool {
        matches!(state.load(Ordering::Acquire), BEGUN | FINISHED)
    }
    /// Daemon: frees the record before its pages are withdrawn. If the daemon dies in between, the slots stay
    /// unsettled. In the other order a second daemon could count the record twice.
    #[inline]
    pub fn free(state: &AtomicU32) {
        state.store(FREE, Ordering::Release);
    }
}

/// Writer: announces a write with its claimed record, before the program's call. A repair that sees a count
/// sees the record. The fence orders the counts before the call's stores to the page cache: a thread that
/// sees any of these stores sees the counts, after [`source_read`].
#[inline]
pub fn begin<'a>(state: &AtomicU32, seqs: impl IntoIterator<Item = &'a AtomicU64>) {
    record::begin(state);
    count(seqs);
}

/// Writer without a free record: the same with a count of such writers.
#[inline]
pub fn begin_bare<'a>(bare: &AtomicU32, seqs: impl IntoIterator<Item = &'a AtomicU64>) {
    bare.fetch_add(1, Ordering::Relaxed);
    count(seqs);
}

/// Writer without a record: the call has returned. Release: its stores are visible to the repair that finds
/// no such writer.
#[inline]
pub fn finish_bare(bare: &AtomicU32) {
    bare.fetch_sub(1, Ordering::Release);
}

#[inline]
fn count<'a>(seqs: impl IntoIterator<Item = &'a AtomicU64>) {
    for seq in seqs {
        seq.fetch_add(1, Ordering::Release);
    }
    fence(Ordering::Release);
}

/// Reader: true if no write of the slot is begun and not applied, before the look at the entry. `applied`
/// comes first: a write that begins and is applied between the loads would stand for one that is in flight.
/// Acquire: the withdrawals of the applied writes are visible, and their counts in `seq`. `seq` needs no
/// order: a late load sees more writes.
#[inline]
pub fn is_settled(seq: &AtomicU64, applied: &AtomicU64) -> bool {
    let applied = applied.load(Ordering::Acquire);
    seq.load(Ordering::Relaxed) == applied
}

/// Ends a read of the source. The fence orders its content before the loads of later reads: after the content
/// of a write in flight, they find the slot unsettled.
#[inline]
pub fn source_read() {
    fence(Ordering::Acquire);
}

/// Daemon: begins to withdraw the entries of a taken record, or of a repair after its looks at `bare` and at
/// the records. The fence orders the writes before the entries: a fill that notes a new version reads their
/// content, or newer.
#[inline]
pub fn begin_apply() {
    fence(Ordering::Release);
}

/// Daemon: counts a record in one of its slots, after the entries of all its pages are withdrawn and the
/// object is stamped. Release: a reader with the new count sees the withdrawals and the write's own count.
/// No other thread writes `applied`.
#[inline]
pub fn apply(applied: &AtomicU64) {
    applied.store(applied.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
}

/// Repair: the count of begun writes of an unsettled slot, before the looks at `bare` and at the records.
/// Acquire: the record of each counted write is visible, or a later state of it.
pub fn unsettled(seq: &AtomicU64, applied: &AtomicU64) -> Option<u64> {
    let begun = seq.load(Ordering::Acquire);
    (begun != applied.load(Ordering::Relaxed)).then_some(begun)
}

/// Repair: true if no writer without a record is inside its call.
pub fn has_no_bare(bare: &AtomicU32) -> bool {
    bare.load(Ordering::Acquire) == 0
}

/// Repair: settles a slot at the count of [`unsettled`], after the withdrawal of all its pages. Writes that
/// have begun since keep it unsettled.
pub fn settle(applied: &AtomicU64, begun: u64) {
    applied.store(begun, Ordering::Release);
}

#[cfg(all(test, loom))]
mod tests;
