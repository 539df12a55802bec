//! Detects stale pages in the kernel's page cache: recent reads that a write may have overtaken.
//!
//! The kernel copies a write into its page cache, unlocks the whole pages, and then sends the request
//! (fs/fuse/file.c, `fuse_fill_write_pages`). If the page cache is emptied in between, a read may fill it
//! again and end before the write. The older content then stays in the page cache for good. So each finished
//! write checks for such a read, and drops its range from the page cache.
//!
//! The kernel pins the pages of a write under way: only emptying the file's whole page cache drops them.
//! [`Emptied`] records these operations. A handle that bypasses the page cache causes them with each mapping
//! and write. The daemon causes one by a reply after which the kernel keeps no content. At other times reads
//! are not recorded and writes check nothing.
//!
//! The kernel numbers requests in the order of its queue: reads with larger numbers than the write are
//! suspect. The time between unlocking and queueing shows in no number, so any read of the last seconds is
//! suspect, too.
//!
//! Records of reads are a table of fixed size, hashed by file and position. A shared slot costs a needless
//! drop.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

/// Slots of the table: 64 KiB.
const SLOTS: u64 = 4096;
/// Bytes of a file that share a slot.
const BLOCK: u64 = 64 << 10;
/// Longest time from the unlocking of a write's pages until its request arrives, on a very busy machine.
const LINGERS_NS: u64 = Duration::from_secs(5).as_nanos() as u64;

/// Whether the kernel's page cache of a file may have been emptied recently.
#[derive(Debug, Default)]
pub(crate) struct Emptied {
    /// Handles that are open past the page cache.
    bypassing: AtomicU32,
    /// When the page cache was emptied last.
    at: LastEvent,
}

impl Emptied {
    pub(crate) fn begin_bypass(&self) {
        self.bypassing.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn bypassing(&self) -> u32 {
        self.bypassing.load(Ordering::Relaxed)
    }

    pub(crate) fn end_bypass(&self) {
        self.note();
        self.bypassing.fetch_sub(1, Ordering::Relaxed);
    }

    /// The kernel is about to drop its pages of the file.
    pub(crate) fn note(&self) {
        self.at.note();
    }

    /// Whether the page cache may have been emptied at `now` or shortly before.
    pub(crate) fn of_late(&self, now: u64) -> bool {
        self.bypassing() > 0 || self.at.within(LINGERS_NS, now)
    }
}

/// Time of the last event.
#[derive(Debug, Default)]
pub(crate) struct LastEvent(AtomicU64);

impl LastEvent {
    pub(crate) fn note(&self) {
        self.0.fetch_max(now(), Ordering::Relaxed);
    }

    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether an event was recorded within `time` ns before `now`, or later.
    pub(crate) fn within(&self, time: u64, now: u64) -> bool {
        let at = self.0.load(Ordering::Relaxed);
        at > 0 && at.saturating_add(time) > now
    }
}

/// The last read of a block.
#[derive(Debug, Default)]
struct Slot {
    /// The largest request number.
    unique: AtomicU64,
    /// Time of the last read, as [`now`].
    at: AtomicU64,
}

#[derive(Debug)]
pub(crate) struct RecentReads {
    slots: Box<[Slot]>,
    /// Until this time earlier reads are unknown: a daemon has crashed.
    blind_until: AtomicU64,
}

impl RecentReads {
    pub(crate) fn new() -> RecentReads {
        RecentReads { slots: (0..SLOTS).map(|_| Slot::default()).collect(), blind_until: AtomicU64::new(0) }
    }

    /// A restarted daemon does not know its predecessor's reads. The kernel resends the last ones from now
    /// on.
    pub(crate) fn note_restart(&self) {
        self.blind_until.store(now() + LINGERS_NS, Ordering::Relaxed);
    }

    /// Request `unique` is about to read this range of a file for the kernel's page cache.
    pub(crate) fn note(&self, nodeid: u64, range: Range<u64>, unique: u64) {
        let now = now();
        for slot in self.slots(nodeid, range) {
            slot.unique.fetch_max(unique, Ordering::Relaxed);
            slot.at.fetch_max(now, Ordering::Relaxed);
        }
        // Pairs with the fence of `overtook`: the read sees the written content, or the write sees this
        // record.
        fence(Ordering::SeqCst);
    }

    /// Whether the kernel's page cache may have older content of this range than a finished write. `unique`
    /// is the write's request and `came` its arrival. `past_it` is when the writer opened the file past the
    /// page cache. The kernel drops the range of such a write once and may then send it in many requests.
    pub(crate) fn overtook(
        &self,
        nodeid: u64,
        range: Range<u64>,
        unique: u64,
        came: u64,
        past_it: Option<u64>,
    ) -> bool {
        fence(Ordering::SeqCst);
        let suspect_from = (came - LINGERS_NS).min(past_it.unwrap_or(u64::MAX));
        self.slots(nodeid, range).any(|slot| {
            slot.unique.load(Ordering::Relaxed) > unique || slot.at.load(Ordering::Relaxed) > suspect_from
        })
    }

    /// After a crash every write is suspect for some seconds.
    pub(crate) fn is_blind(&self, came: u64) -> bool {
        came < self.blind_until.load(Ordering::Relaxed)
    }

    fn slots(&self, nodeid: u64, range: Range<u64>) -> impl Iterator<Item = &Slot> {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        blocks.map(move |block| {
            let mixed = (nodeid.rotate_left(32) ^ block).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            &self.slots[((mixed >> 32) % SLOTS) as usize]
        })
    }
}

/// Nanoseconds of the coarse monotonic clock plus `LINGERS_NS`, so that an unset time (0) is never recent.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 + LINGERS_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_asked_after_a_write_and_answered_before_is_suspect() {
        let recent_reads = RecentReads::new();
        assert!(!recent_reads.overtook(7, 0..4096, 10, now(), None), "nothing was read");
        recent_reads.note(7, 0..1 << 20, 12);
        let much_later = now() + 2 * LINGERS_NS;
        assert!(recent_reads.overtook(7, 4096..8192, 10, much_later, None));
        assert!(recent_reads.overtook(7, (1 << 20) - 1..1 << 20, 10, much_later, None));
        assert!(
            !recent_reads.overtook(7, 4096..8192, 14, much_later, None),
            "an answer that was there before the write"
        );
        assert!(!recent_reads.overtook(7, 1 << 30..(1 << 30) + 1, 10, much_later, None), "elsewhere");
        assert!(!recent_reads.overtook(8, 4096..8192, 10, much_later, None), "another file");
    }

    #[test]
    fn so_is_any_read_of_the_last_seconds() {
        let recent_reads = RecentReads::new();
        recent_reads.note(7, 0..4096, 12);
        assert!(recent_reads.overtook(7, 0..100, 14, now(), None));
        let later = now() + LINGERS_NS + 1_000_000_000;
        assert!(!recent_reads.overtook(7, 0..100, 14, later, None));
    }

    #[test]
    fn to_a_writer_past_the_page_cache_all_reads_since_its_open_are() {
        let (recent_reads, before) = (RecentReads::new(), now() - 1);
        recent_reads.note(7, 0..4096, 12);
        let later = now() + LINGERS_NS + 1_000_000_000;
        assert!(recent_reads.overtook(7, 0..100, 14, later, Some(before)));
        assert!(
            !recent_reads.overtook(7, 0..100, 14, later, Some(now() + 1_000_000_000)),
            "opened after the read"
        );
    }

    #[test]
    fn after_a_crash_every_write_is_suspect_for_a_while() {
        let recent_reads = RecentReads::new();
        assert!(!recent_reads.is_blind(now()));
        recent_reads.note_restart();
        assert!(recent_reads.is_blind(now()));
        assert!(!recent_reads.is_blind(now() + LINGERS_NS));
    }

    #[test]
    fn page_cache_counts_as_emptied_during_and_after_bypass() {
        let emptied = Emptied::default();
        assert!(!emptied.of_late(now()));
        emptied.begin_bypass();
        assert!(emptied.of_late(now() + 2 * LINGERS_NS));
        emptied.end_bypass();
        assert!(emptied.of_late(now()));
        assert!(!emptied.of_late(now() + LINGERS_NS));
    }
}
