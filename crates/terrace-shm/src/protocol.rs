//! The lock-free protocols between the daemon (one writer at a time) and any number of readers.
//!
//! A page is a sequence lock whose sequence is its index entry. The writer makes the entry something else *before* it
//! touches the frame, and publishes it *after*; a reader copies between two looks at the entry and believes the copy only
//! if both looks agree. Source: H.-J. Boehm, "Can seqlocks get along with programming language memory models?", 2012.

use crate::entry::Entry;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// First look of a reader.
#[inline]
pub fn look(entry: &AtomicU64) -> Entry {
    Entry(entry.load(Ordering::Acquire))
}

/// Second look of a reader, after it copied: true if its copy is the content for which `seen` stands.
#[inline]
pub fn unchanged(entry: &AtomicU64, seen: Entry) -> bool {
    fence(Ordering::Acquire);
    entry.load(Ordering::Relaxed) == seen.0
}

/// Makes an entry `next` (Absent or Busy) and orders that before any later store to its old frame.
/// Writer only. After this call the frame may be overwritten or reused.
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

/// Publishes a copy of the content, and orders that before any later store to where it stood. Writer only. After this call the
/// old place may be overwritten or reused.
#[inline]
pub fn replace(entry: &AtomicU64, next: Entry) {
    entry.store(next.0, Ordering::Release);
    fence(Ordering::Release);
}

/// Announces to readers that an index node is reused for another run of pages: a reader that walked through
/// it sees the reuse epoch moved and walks again. Writer only.
#[inline]
pub fn begin_reuse(epoch: &AtomicU64) {
    epoch.store(epoch.load(Ordering::Relaxed) + 1, Ordering::Release);
    fence(Ordering::Release);
}

/// True if no node was reused since the reader loaded `seen` (with Acquire) before its walk.
#[inline]
pub fn same_epoch(epoch: &AtomicU64, seen: u64) -> bool {
    // The caller has just done the acquire fence of `unchanged`.
    epoch.load(Ordering::Relaxed) == seen
}

/// The version of an absent page before its content was read from the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageVersion {
    /// `Entry::identity` or [`NO_LEAF`].
    pub identity: u64,
    /// Event clock before the look.
    pub clock: u64,
}

/// `PageVersion::identity` when the run had no leaf.
pub const NO_LEAF: u64 = u64::MAX;

/// Moves the event clock and returns the new time. Writer only.
#[inline]
pub fn tick(clock: &AtomicU64) -> u64 {
    let now = clock.load(Ordering::Relaxed) + 1;
    clock.store(now, Ordering::Release);
    now
}

/// Notes that the content of an object changes. Writer only, after the entries of the pages that change were
/// withdrawn: a reader that still saw one of them absent had read the clock before this moment. If the stamp
/// came first, a reader could find the clock moved and a page that is about to change still absent, and be
/// taken for one that came after the change.
#[inline]
pub fn stamp(clock: &AtomicU64, write_clock: &AtomicU64) -> u64 {
    let now = tick(clock);
    write_clock.store(now, Ordering::Release);
    now
}

/// True if data read from the source after `seen` are the content of the page, absent at the time of the call
/// with the identity `now`. An entry is enough; without one, any change of the object counts as a change of
/// the page.
#[inline]
pub fn same_version(seen: PageVersion, now: u64, write_clock: &AtomicU64) -> bool {
    if seen.identity == NO_LEAF { unwritten_since(seen, write_clock) } else { now == seen.identity }
}

/// True if nothing at all was written to the object since `seen`.
#[inline]
pub fn unwritten_since(seen: PageVersion, write_clock: &AtomicU64) -> bool {
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
    pub const READY: u64 = 2;

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
    /// Client (giving up) or daemon (done): the slot has no owner any more.
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

/// A bounded queue with many producers and one consumer, in which the sequence number of each place shows
/// that it is filled. Source: D. Vyukov, "Bounded MPMC queue"; ours loses records instead of waiting, and the
/// consumer keeps its own cursor.
pub mod queue {
    use super::*;

    /// Producer: a place, as a number that only grows. None: the queue is full.
    #[inline]
    pub fn reserve(head: &AtomicU64, tail: &AtomicU64, places: u64) -> Option<u64> {
        let mut at = head.load(Ordering::Relaxed);
        loop {
            // Acquire: the consumer's reads of the place come before our writes there.
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
    pub fn is_there(seq: &AtomicU64, at: u64) -> bool {
        seq.load(Ordering::Acquire) == at.wrapping_add(1)
    }
    /// Consumer: all places before `at` may be filled anew.
    #[inline]
    pub fn release(tail: &AtomicU64, at: u64) {
        tail.store(at, Ordering::Release);
    }
}

/// A place whose content is replaced while nobody is at it: the number of those who are, and a bit while it is closed.
/// Who finds it closed does not wait.
pub mod place {
    use super::*;

    const CLOSED: u32 = 1 << 31;

    /// User: until `leave` the content stays. False: it is being replaced.
    #[inline]
    pub fn enter(users: &AtomicU32) -> bool {
        if users.fetch_add(1, Ordering::Acquire) & CLOSED == 0 {
            return true;
        }
        leave(users);
        false
    }
    /// User: is done.
    #[inline]
    pub fn leave(users: &AtomicU32) {
        users.fetch_sub(1, Ordering::Release);
    }
    /// Owner: true if nobody is there; nobody comes in until `open`.
    pub fn close(users: &AtomicU32) -> bool {
        users.compare_exchange(0, CLOSED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
    /// Owner: the content is replaced.
    pub fn open(users: &AtomicU32) {
        // Not a store: some may just be finding it closed, and are yet to leave.
        users.fetch_sub(CLOSED, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod tests;
