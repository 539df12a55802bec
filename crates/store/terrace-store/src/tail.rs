//! The tail of the record log, in the segment's user region. An append is a short copy. The tail survives a
//! kill of the process if another process holds the segment.
//!
//! Positions are offsets in the log file; the byte at position `p` is at `p % RING`. Bytes below `flushed`
//! are in the file; bytes from there to `committed` are only here. Each of two places describes the tail of
//! one log file. When the log is compacted, the other place takes over by one store of the selector.

use crate::segment::Segment;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of the ring, bytes: the maximum of unwritten log.
pub(crate) const RING: u64 = 1 << 20;
/// Bytes to prefetch for the next record: the size of most records.
const AHEAD: usize = 256;
/// Offset of the ring: it begins on its own page.
const RING_AT: usize = 4096;
const MAGIC: u64 = u64::from_le_bytes(*b"TERRTAIL");

/// Header of the user region: the store that used the segment last.
#[repr(C)]
struct Shared {
    /// Set while a store is open over the segment.
    magic: AtomicU64,
    store: AtomicU64,
    /// Set once an engine has run over the segment: its pages may be taken over.
    used: AtomicU64,
    /// Index of the current place.
    selector: AtomicU64,
    places: [Place; 2],
}

#[repr(C)]
struct Place {
    generation: AtomicU64,
    flushed: AtomicU64,
    committed: AtomicU64,
}

const _: () = assert!(size_of::<Shared>() <= RING_AT);

#[derive(Debug)]
pub(crate) struct Tail {
    /// Keeps the mapping alive.
    _segment: Segment,
    base: NonNull<u8>,
}

// SAFETY: the header consists of atomics. Ring bytes are written under the lock of the log's end. They are
// read under the lock of its file, only up to `committed`, which is published after they were written.
unsafe impl Send for Tail {}
// SAFETY: as above.
unsafe impl Sync for Tail {}

/// The tail that a dead process left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    pub store: u64,
    pub generation: u64,
}

impl Tail {
    pub(crate) fn new(segment: &Segment) -> Tail {
        let (base, bytes) = segment.0.user_region();
        assert!(bytes >= RING_AT + RING as usize, "a segment has room for the tail");
        Tail { _segment: segment.clone(), base }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the region is mapped as long as the segment, and page-aligned. It consists of atomics, for
        // which all bytes are valid.
        unsafe { self.base.cast::<Shared>().as_ref() }
    }

    fn place(&self) -> &Place {
        let shared = self.shared();
        &shared.places[(shared.selector.load(Ordering::Acquire) & 1) as usize]
    }

    /// The tail of a process that died with the store open, if any.
    pub(crate) fn left(&self) -> Option<Left> {
        let shared = self.shared();
        (shared.magic.load(Ordering::Acquire) == MAGIC).then(|| Left {
            store: shared.store.load(Ordering::Relaxed),
            generation: self.place().generation.load(Ordering::Relaxed),
        })
    }

    /// Whether an engine has run over the segment before. Marks it as used.
    pub(crate) fn take_use(&self) -> bool {
        self.shared().used.swap(1, Ordering::AcqRel) == 1
    }

    /// Marks the store as open over this segment.
    pub(crate) fn begin(&self, store: u64) {
        self.shared().store.store(store, Ordering::Relaxed);
        self.shared().magic.store(MAGIC, Ordering::Release);
    }

    /// Marks the store as closed: the tail is empty.
    pub(crate) fn end(&self) {
        self.shared().magic.store(0, Ordering::Release);
    }

    /// Starts the tail of the log file `generation` behind its records, at `at`.
    pub(crate) fn switch(&self, generation: u64, at: u64) {
        let shared = self.shared();
        let other = (shared.selector.load(Ordering::Relaxed) & 1) ^ 1;
        let place = &shared.places[other as usize];
        place.generation.store(generation, Ordering::Relaxed);
        place.flushed.store(at, Ordering::Relaxed);
        place.committed.store(at, Ordering::Relaxed);
        shared.selector.store(other, Ordering::Release);
    }

    /// Position up to which the file has the records.
    pub(crate) fn flushed(&self) -> u64 {
        self.place().flushed.load(Ordering::Acquire)
    }

    /// Position of the end of all records.
    pub(crate) fn committed(&self) -> u64 {
        self.place().committed.load(Ordering::Acquire)
    }

    /// Sets the position up to which the file has the records. The caller holds the lock of the log's file.
    pub(crate) fn set_flushed(&self, at: u64) {
        self.place().flushed.store(at, Ordering::Release);
    }

    /// Appends bytes; the ring must have room. The caller holds the lock of the log's end.
    pub(crate) fn append(&self, bytes: &[u8]) {
        let at = self.committed();
        debug_assert!(at + bytes.len() as u64 - self.flushed() <= RING);
        for (to, part) in pieces(at, bytes.len()) {
            // SAFETY: the piece lies in the ring. No other thread reads it: it is beyond `committed`.
            unsafe { self.ring(to).copy_from_nonoverlapping(bytes[part.clone()].as_ptr(), part.len()) };
        }
        let end = at + bytes.len() as u64;
        self.place().committed.store(end, Ordering::Release);
        // Prefetches the place of the next record. No cache holds it after a turn of the ring, and the lock's
        // release would wait for the stores.
        terrace_engine::prefetch(self.ring((end % RING) as usize), AHEAD);
    }

    /// The bytes `[from, to)`, in at most two pieces, each with its position. The caller holds the lock of
    /// the log's file.
    pub(crate) fn unflushed(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, &[u8])> {
        debug_assert!(to - from <= RING && to <= self.committed());
        pieces(from, (to - from) as usize).map(move |(place, part)| {
            // SAFETY: the piece lies in the ring, below `committed`. It is not written again before `flushed`
            // has passed it.
            let bytes = unsafe { std::slice::from_raw_parts(self.ring(place), part.len()) };
            (from + part.start as u64, bytes)
        })
    }

    fn ring(&self, place: usize) -> *mut u8 {
        // SAFETY: below RING, so within the region (see `new`).
        unsafe { self.base.as_ptr().add(RING_AT + place) }
    }
}

/// Splits `len` bytes from position `at` at the ring's end: at most two pairs of ring offset and byte range.
fn pieces(at: u64, len: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let place = (at % RING) as usize;
    let first = len.min(RING as usize - place);
    [(place, 0..first), (0, first..len)].into_iter().filter(|(_, part)| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::StoreOptions;

    #[test]
    fn bytes_come_back_across_the_end_of_the_ring() {
        let options = StoreOptions { memory_bytes: 16 << 20, ..StoreOptions::default() };
        let segment = Segment::create(&options).unwrap();
        let tail = Tail::new(&segment);
        assert_eq!(tail.left(), None);
        tail.switch(5, RING - 10);
        tail.begin(9);
        tail.append(&(0..30).collect::<Vec<u8>>());
        let again = Tail::new(&segment);
        assert_eq!(again.left(), Some(Left { store: 9, generation: 5 }));
        assert_eq!((again.flushed(), again.committed()), (RING - 10, RING + 20));
        let back: Vec<(u64, Vec<u8>)> =
            again.unflushed(RING - 10, RING + 20).map(|(at, bytes)| (at, bytes.to_vec())).collect();
        assert_eq!(back, [(RING - 10, (0..10).collect()), (RING, (10..30).collect::<Vec<u8>>())]);
        again.switch(6, 64);
        assert_eq!((tail.flushed(), tail.committed()), (64, 64));
        assert_eq!(tail.left(), Some(Left { store: 9, generation: 6 }));
        tail.end();
        assert_eq!(again.left(), None);
    }
}
