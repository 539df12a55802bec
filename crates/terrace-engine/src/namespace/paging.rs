//! What was read for the kernel's page cache of late, and which writes that may have made wrong there.
//!
//! The kernel copies a write into its page cache, unlocks each page that is whole then, and asks us only after that (fs/fuse/file.c,
//! `fuse_fill_write_pages`). If the page cache loses the page in between, as by a shared mapping of a file that is open past the page cache,
//! by a file opened anew, or under pressure, then a read that fills it again is asked for after the write, and may be answered before it: by
//! another thread of ours. What it brings would stay in the kernel's page cache for good, older than the write. So a write looks,
//! when it is done, whether such a read has overtaken it; what the page cache has of its range is dropped then.
//!
//! Requests have numbers in the order in which the kernel queues them, so that a read with a larger number than the write's is suspect, however long ago
//! it was answered. The moment between unlocking and queueing shows in no number. Where the page cache is emptied by design,
//! because the file is open past it, any read of the last second is suspect: also that which a kernel before 6.18 lets into its page cache while
//! it writes past it.
//!
//! The books are a table of fixed size, hashed by file and place: two that share a slot cost a needless drop.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

/// Slots of the table: 64 KiB.
const SLOTS: u64 = 4096;
/// Bytes of a file that share a slot.
const BLOCK: u64 = 64 << 10;
/// How long a thread of the kernel's may stand between unlocking the pages of a write and queueing it, on a machine that is very busy.
const LINGERS: Duration = Duration::from_secs(1);

/// The last read of a block.
#[derive(Debug, Default)]
struct Slot {
    /// The largest number of a request.
    unique: AtomicU64,
    /// When the last one came, ns of the coarse monotonic clock.
    at: AtomicU64,
}

/// The reads of late.
#[derive(Debug)]
pub(crate) struct Paging {
    slots: Box<[Slot]>,
}

impl Paging {
    pub(crate) fn new() -> Paging {
        Paging { slots: (0..SLOTS).map(|_| Slot::default()).collect() }
    }

    /// Request `unique` is about to read this range of a file for the kernel's page cache.
    pub(crate) fn note(&self, nodeid: u64, range: Range<u64>, unique: u64) {
        let now = now();
        for slot in self.slots(nodeid, range) {
            slot.unique.fetch_max(unique, Ordering::Relaxed);
            slot.at.store(now, Ordering::Relaxed);
        }
        // With that of `overtook`: either the read sees what was written, or the write sees the note.
        fence(Ordering::SeqCst);
    }

    /// Request `unique` has written this range: may the kernel's page cache have what was there before? `bypassed`: somebody has the file
    /// open past it.
    pub(crate) fn overtook(&self, nodeid: u64, range: Range<u64>, unique: u64, bypassed: bool) -> bool {
        fence(Ordering::SeqCst);
        let since = now().saturating_sub(LINGERS.as_nanos() as u64);
        self.slots(nodeid, range).any(|slot| {
            slot.unique.load(Ordering::Relaxed) > unique
                || bypassed && slot.at.load(Ordering::Relaxed) > since
        })
    }

    fn slots(&self, nodeid: u64, range: Range<u64>) -> impl Iterator<Item = &Slot> {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        blocks.map(move |block| {
            let mixed = (nodeid.rotate_left(32) ^ block).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            &self.slots[((mixed >> 32) % SLOTS) as usize]
        })
    }
}

/// Never 0, so that an unused slot is older than any.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 + LINGERS.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_was_asked_for_after_the_write_and_answered_before_it_is_suspect() {
        let paging = Paging::new();
        assert!(!paging.overtook(7, 0..4096, 10, true), "nothing was read");
        paging.note(7, 0..1 << 20, 12);
        assert!(paging.overtook(7, 4096..8192, 10, false));
        assert!(paging.overtook(7, (1 << 20) - 1..1 << 20, 10, false));
        assert!(!paging.overtook(7, 4096..8192, 14, false), "an answer that was there before the write");
        assert!(!paging.overtook(7, 1 << 30..(1 << 30) + 1, 10, false), "elsewhere");
        assert!(!paging.overtook(8, 4096..8192, 10, false), "another file");
    }

    #[test]
    fn where_the_page_cache_is_emptied_by_design_any_read_of_late_is_suspect() {
        let paging = Paging::new();
        paging.note(7, 0..4096, 12);
        assert!(paging.overtook(7, 0..100, 14, true));
        std::thread::sleep(LINGERS + Duration::from_millis(100));
        assert!(!paging.overtook(7, 0..100, 14, true));
    }
}
