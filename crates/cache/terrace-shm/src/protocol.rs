//! The lock-free protocols between the daemon (one writer at a time) and any number of readers.
//!
//! A page is a sequence lock: its index entry is the sequence. The writer changes the entry *before* it
//! writes to the frame, and publishes it *after*. A reader copies between two loads of the entry and uses the
//! copy only if both are equal. Source: H.-J. Boehm, "Can seqlocks get along with programming language memory
//! models?", 2012.

use crate::entry::Entry;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

pub mod writes;

/// First load of a reader.
#[inline]
pub fn look(entry: &AtomicU64) -> Entry {
    Entry(entry.load(Ordering::Acquire))
}

/// Second load of a reader, after its copy: true if the copy is the content of `seen`.
#[inline]
pub(crate) fn unchanged(entry: &AtomicU64, seen: Entry) -> bool {
    fence(Ordering::Acquire);
    entry.load(Ordering::Relaxed) == seen.0
}

/// Sets an entry to `next` (Absent or Busy), ordered before any later store to its old frame. Writer only.
/// The frame may then be overwritten or reused.
#[inline]
pub fn withdraw(entry: &AtomicU64, next: Entry) {
    entry.store(next.0, Ordering::Relaxed);
    fence(Ordering::Release);
}

/// Publishes content written before this call. Writer only.
#[inline]
pub fn publish(entry: &AtomicU64, next: Entry) {
    entry.store(next.0, Ordering::Release);
}

/// Publishes a copy of the content, ordered before any later store to the old place. Writer only. The old
/// place may then be overwritten or reused.
#[inline]
pub fn replace(entry: &AtomicU64, next: Entry) {
    entry.store(next.0, Ordering::Release);
    fence(Ordering::Release);
}

/// Announces the reuse of an index node for another run of pages. Readers that walked through it see the new
/// epoch, and walk again. Writer only.
#[inline]
pub(crate) fn begin_reuse(epoch: &AtomicU64) {
    epoch.store(epoch.load(Ordering::Relaxed) + 1, Ordering::Release);
    fence(Ordering::Release);
}

/// True if no node was reused since the reader loaded `seen` (with Acquire) before its walk.
#[inline]
pub(crate) fn same_epoch(epoch: &AtomicU64, seen: u64) -> bool {
    // The caller has just done the acquire fence of `unchanged`.
    epoch.load(Ordering::Relaxed) == seen
}

/// The version of an absent page before a read of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageVersion {
    /// `Entry::identity` or [`NO_LEAF`].
    pub identity: u64,
    /// Event clock before the load of the entry.
    pub clock: u64,
}

/// `PageVersion::identity` when the run had no leaf.
pub const NO_LEAF: u64 = u64::MAX;

/// Moves the event clock and returns the new time. Writer only.
#[inline]
pub(crate) fn tick(clock: &AtomicU64) -> u64 {
    let now = clock.load(Ordering::Relaxed) + 1;
    clock.store(now, Ordering::Release);
    now
}

/// Records a change of an object's content. Writer only, after the withdrawal of the changed pages' entries.
/// So a reader that saw an old absent entry had read the clock before. In the other order a reader with the
/// new clock could see an old absent entry, and would count as a reader after the change.
#[inline]
pub fn stamp(clock: &AtomicU64, write_clock: &AtomicU64) -> u64 {
    let now = tick(clock);
    write_clock.store(now, Ordering::Release);
    now
}

/// True if data read from the source after `seen` are the content of the page, now absent with identity
/// `now`. The entry decides; without one, any change of the object counts as a change of the page.
#[inline]
pub fn same_version(seen: PageVersion, now: u64, write_clock: &AtomicU64) -> bool {
    if seen.identity == NO_LEAF { unwritten_since(seen, write_clock) } else { now == seen.identity }
}

/// True if the object was not written since `seen`.
#[inline]
pub(crate) fn unwritten_since(seen: PageVersion, write_clock: &AtomicU64) -> bool {
    write_clock.load(Ordering::Acquire) <= seen.clock
}

/// States of a slot for page fills: the client owns it from CLAIMED to READY, the daemon from READY to FREE.
pub mod slot {
    use super::*;

    /// No owner.
    pub const FREE: u64 = 0;
    /// A client thread fills it.
    pub const CLAIMED: u64 = 1;
    /// Filled, for the daemon.
    pub(crate) const READY: u64 = 2;

    /// Client: takes a free slot.
    #[inline]
    pub fn claim(state: &AtomicU64) -> bool {
        state.load(Ordering::Relaxed) == FREE
            && state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
    /// Client: gives a claimed slot to the daemon.
    #[inline]
    pub fn ready(state: &AtomicU64) {
        state.store(READY, Ordering::Release);
    }
    /// Client (giving up) or daemon (done): frees the slot.
    #[inline]
    pub fn free(state: &AtomicU64) {
        state.store(FREE, Ordering::Release);
    }
    /// Daemon: true if the slot holds a page fill.
    #[inline]
    pub fn is_ready(state: &AtomicU64) -> bool {
        state.load(Ordering::Acquire) == READY
    }
}

/// A bounded queue with many producers and one consumer. A place's sequence number shows that it is filled.
/// Source: D. Vyukov, "Bounded MPMC queue". This one drops records and never waits; the consumer keeps its
/// own cursor.
pub mod queue {
    use super::*;

    /// Producer: reserves a place, numbered in ascending order. None: the queue is full.
    #[inline]
    pub(crate) fn reserve(head: &AtomicU64, tail: &AtomicU64, places: u64) -> Option<u64> {
        let mut at = head.load(Ordering::Relaxed);
        loop {
            // Acquire: the consumer's reads of the place come before the producer's writes there.
            if at.wrapping_sub(tail.load(Ordering::Acquire)) >= places {
                return None;
            }
            match head.compare_exchange_weak(at, at.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(at),
                Err(now) => at = now,
            }
        }
    }
    /// Producer: the place is filled.
    #[inline]
    pub fn publish(seq: &AtomicU64, at: u64) {
        seq.store(at.wrapping_add(1), Ordering::Release);
    }
    /// Consumer: true if the place is filled for this round.
    #[inline]
    pub(crate) fn is_there(seq: &AtomicU64, at: u64) -> bool {
        seq.load(Ordering::Acquire) == at.wrapping_add(1)
    }
    /// Consumer: frees all places before `at`.
    #[inline]
    pub fn release(tail: &AtomicU64, at: u64) {
        tail.store(at, Ordering::Release);
    }
}

/// A place for content, replaced only without users: their number, and a bit while it is closed. A thread
/// that finds it closed does not wait.
pub mod place {
    use super::*;

    const CLOSED: u32 = 1 << 31;

    /// User: the content stays until `leave`. False: it is being replaced.
    #[inline]
    pub fn enter(users: &AtomicU32) -> bool {
        if users.fetch_add(1, Ordering::Acquire) & CLOSED == 0 {
            return true;
        }
        leave(users);
        false
    }
    /// User: leaves the place.
    #[inline]
    pub fn leave(users: &AtomicU32) {
        users.fetch_sub(1, Ordering::Release);
    }
    /// Owner: closes the place if it has no user. No user enters until `open`.
    pub fn close(users: &AtomicU32) -> bool {
        users.compare_exchange(0, CLOSED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
    /// Owner: the content is replaced.
    pub fn open(users: &AtomicU32) {
        // Not a store: threads that just found it closed must still leave.
        users.fetch_sub(CLOSED, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod tests;
