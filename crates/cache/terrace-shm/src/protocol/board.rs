//! Files that programs write by their own calls while the cache serves them.
//!
//! The truth is the source's page cache; frames are copies. Pages share slots. A slot has two counts: `seq`
//! of begun writes, in memory that clients write, and `applied` of withdrawn ones, in the daemon's memory.
//!
//! ```text
//! write   enter, load the guard, begin, the program's own call, push the record, leave
//! daemon  take a record, begin_apply, withdraw the entries of its pages with new versions, stamp, apply
//! read    load the guard, is_settled, the hit; else the kernel's read, source_read
//! fill    load the guard, is_settled, note seq, version of the entry, read the source, is_unbegun; publish if
//!         the entry has the version
//! rebase  set the guard (slow, fresh board), flip, wait for is_quiet, flip, wait for is_quiet, take all
//!         records, withdraw the pages of slots that are not settled, set the guard (fresh board)
//! ```
//! A restarted daemon may take a record twice. Its rebase counts no record on an old board, and withdraws all
//! pages. The begin and the end of an object's guard are rebases from and to no board.
//!
//! *Invariant*: a settled slot has all writes answered before the read began withdrawn. The loads of
//! `is_settled` see a set of begun writes with as many members as the set of applied ones, which it contains.

use super::*;

/// A board's number and an object's flags in one word. Apart, a reader could combine flags from before a
/// rebase with the fresh board, on which all slots are settled, and read pages not yet withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guard(pub u32);

const FLAG_BITS: u32 = 8;

impl Guard {
    /// Maximum number of boards that a guard can name.
    pub const BOARDS_MAX: u32 = (1 << (u32::BITS - FLAG_BITS)) - 1;

    /// The guard of an object with these flags (8 bits). None: its writes are not counted.
    pub fn new(flags: u8, board: Option<u32>) -> Guard {
        debug_assert!(board.is_none_or(|n| n < Self::BOARDS_MAX));
        Guard(u32::from(flags) | board.map_or(0, |n| n + 1) << FLAG_BITS)
    }
    /// The flags. Any of them sends readers to the kernel.
    pub fn flags(self) -> u8 {
        self.0 as u8
    }
    /// The board that counts the object's writes.
    pub fn board(self) -> Option<u32> {
        (self.0 >> FLAG_BITS).checked_sub(1)
    }
}

/// Loads an object's guard, before any other step of a read, a fill or (after [`enter`]) a write. Acquire: a
/// guard without flags shows all that the rebase before it has withdrawn.
#[inline]
pub fn guard(word: &AtomicU32) -> Guard {
    Guard(word.load(Ordering::Acquire))
}

/// Daemon: sets an object's guard. Release: with the fresh board its renewed counts are visible, and with the
/// cleared flags all withdrawn entries.
pub fn set_guard(word: &AtomicU32, guard: Guard) {
    word.store(guard.0, Ordering::Release);
}

/// Writer: counts a write in each of its slots. The fence orders the counts before the call's stores to the
/// page cache. So a thread that sees any of these stores sees the counts, after [`source_read`].
#[inline]
pub fn begin<'a>(seqs: impl IntoIterator<Item = &'a AtomicU64>) {
    for seq in seqs {
        seq.fetch_add(1, Ordering::Relaxed);
    }
    fence(Ordering::Release);
}

/// Reader: true if no write of the slot is begun and not applied, before the look at the entry. `applied`
/// comes first: a write that begins and is applied between the loads would stand for one that is in flight.
/// Acquire: the withdrawals of the applied writes are visible, and their counts in `seq`. `seq` needs no
/// order: a late load sees more writes.
#[inline]
pub fn is_settled(seq: &AtomicU64, applied: &AtomicU64) -> bool {
    settled_at(seq, applied).is_some()
}

/// First look of a fill, before it notes the entry's version and reads the source: `seq` of a settled slot.
/// None: a write may be in flight. The order is that of [`is_settled`].
#[inline]
pub fn settled_at(seq: &AtomicU64, applied: &AtomicU64) -> Option<u64> {
    let done = applied.load(Ordering::Acquire);
    (seq.load(Ordering::Relaxed) == done).then_some(done)
}

/// Second look of a fill, after its read of the source: true if no write has begun on the slot since
/// [`settled_at`]. The content is whole then. The fence: a write with a visible store has a visible count, or
/// a guard with another board.
#[inline]
pub fn is_unbegun(word: &AtomicU32, seen: Guard, seq: &AtomicU64, at: u64) -> bool {
    source_read();
    seq.load(Ordering::Relaxed) == at && word.load(Ordering::Relaxed) == seen.0
}

/// Ends a read of the source. The fence orders what it saw before the loads of later reads: after the content
/// of a write in flight, they find the slot unsettled.
#[inline]
pub fn source_read() {
    fence(Ordering::Acquire);
}

/// Writer: notes on its board that a full queue took no record, before it leaves. The slots stay unsettled
/// until a rebase. Its grace period orders the note.
pub fn note_overflow(overflow: &AtomicU32) {
    overflow.store(1, Ordering::Relaxed);
}

/// Daemon: true if a board needs a rebase, because a record found its queue full.
pub fn has_overflowed(overflow: &AtomicU32) -> bool {
    overflow.load(Ordering::Relaxed) != 0
}

/// Daemon: begins to withdraw the entries of a record's pages. The fence orders the record before the entries:
/// a fill that notes a new version reads the write's content, or newer.
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

/// Daemon: settles a slot of a board without writers, before a guard names the board again. Release: a late
/// reader of the old board that sees the new count sees the withdrawals of the rebase that freed the board.
pub fn renew(seq: &AtomicU64, applied: &AtomicU64) {
    applied.store(seq.load(Ordering::Relaxed), Ordering::Release);
}

/// Writer: enters the grace period of `generation` before it loads the guard. Returns the index for
/// [`leave`]. The fence pairs with that of [`flip`]: the writer loads the new guard, or the daemon sees its
/// count.
#[inline]
pub fn enter(generation: &AtomicU32, writing: &[AtomicU32; 2]) -> usize {
    let i = generation.load(Ordering::Relaxed) as usize & 1;
    writing[i].fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    i
}

/// Writer: leaves after the push of its record. Release: the record is visible to the daemon that sees the
/// count of zero.
#[inline]
pub fn leave(writing: &[AtomicU32; 2], i: usize) {
    writing[i].fetch_sub(1, Ordering::Release);
}

/// Daemon: moves new writers to the other count, and returns the index of the one to wait for. A grace period
/// takes two flips, each with its wait: a writer with an old `generation` may enter any count. All writers
/// that loaded the guard from before the first flip's fence have left when both counts were zero. The flips
/// bound the wait, since new writers use the count that is not waited for.
pub fn flip(generation: &AtomicU32) -> usize {
    fence(Ordering::SeqCst);
    let old = generation.load(Ordering::Relaxed);
    generation.store(old.wrapping_add(1), Ordering::Relaxed);
    old as usize & 1
}

/// Daemon: true if a client has no writer in a count. Acquire pairs with [`leave`].
pub fn is_quiet(writing: &[AtomicU32; 2], i: usize) -> bool {
    writing[i].load(Ordering::Acquire) == 0
}

#[cfg(all(test, loom))]
mod tests;
