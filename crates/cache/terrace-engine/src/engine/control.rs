//! Control of a running engine: memory, staging, statistics, recordings.

use super::Engine;
use crate::file::object::ObjectRef;
use crate::observe::earning::{self, Earning};
use crate::observe::lru::{self, Refused};
use crate::observe::trace::Recorder;
use crate::observe::{check, stat};
use crate::path::{prefetch, resize};
use crate::readahead::window;
use crate::reclaim;
use crate::service::flusher::{self, DirtyReport};
use crate::tier::demote;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrace_api::lru::{Evicted, Lru};
use terrace_api::mrc::Mrc;
use terrace_api::numa::Numa;
use terrace_api::stats::Stats;
use terrace_policy::prefetch::Span;

/// Attempts to start a recording while the NUMA observer records a window.
const RECORDER_TRIES: u32 = 200;
const RECORDER_PAUSE: Duration = Duration::from_millis(5);

/// Administration of a live instance.
impl Engine {
    /// Sets the memory limit of a live instance and waits until it is in force.
    ///
    /// # Errors
    /// `InvalidInput` under the minimum or beyond the segment's size; a failed writeback, which restores the
    /// old limit.
    pub fn resize(&self, bytes: u64) -> io::Result<()> {
        resize::resize(&self.cx, bytes)
    }
    /// Raises the limit to the segment's size; the ceiling then decides alone.
    pub fn resize_auto(&self) {
        resize::resize_auto(&self.cx);
    }
    /// True if no user has set the limit.
    pub fn memory_is_auto(&self) -> bool {
        self.handles().segment.header().limit_is_auto.load(Ordering::Relaxed) != 0
    }
    /// Time that the cache saves, as input for its sizing.
    pub fn earning(&self) -> Earning {
        earning::earning(&self.cx, &self.sampling)
    }
    /// The memory limit set by the user, bytes.
    pub fn memory_limit(&self) -> u64 {
        self.cx.memory.load(Ordering::Relaxed)
    }
    /// Sets the ceiling: memory below the limit while the machine has no more (`u64::MAX`: none). Clean pages
    /// above it go at once, dirty ones after writeback. The user's limit stays.
    pub fn set_ceiling(&self, bytes: u64) {
        resize::set_ceiling(&self.cx, bytes);
    }
    /// Hint: pages from `first` on will be read. Absent ones are fetched in the background, if there is room.
    pub fn will_need(&self, o: &ObjectRef, first: u64, pages: u64) {
        window::will_need(&self.cx, o, Span { first, pages });
    }
    /// Hint: pages from `first` on are no longer needed. The clean ones leave their frames in the background.
    pub fn wont_need(&self, o: &ObjectRef, first: u64, pages: u64) {
        window::wont_need(&self.cx, o, Span { first, pages });
    }
    /// Drops the clean ones among these pages now. Returns their number.
    pub fn drop_pages(&self, o: &ObjectRef, first: u64, pages: u64) -> u64 {
        prefetch::drop_clean(&self.cx, o, Span { first, pages })
    }
    /// Eviction takes the resident ones among these pages last, for `time`. Returns the number of pages
    /// pinned: pins may hold half of the pool.
    pub fn pin(&self, o: &ObjectRef, first: u64, pages: u64, time: Duration) -> u64 {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        prefetch::pin(&self.cx, o, Span { first, pages }, self.cx.clock.now_ns().saturating_add(time))
    }
    /// Moves this range's clean pages, used at most once, from DRAM to device tier `level` (0: the fastest),
    /// without admission. Returns how many pages of the range are then on device tiers.
    pub fn stage_down(&self, o: &ObjectRef, first: u64, pages: u64, level: u8) -> u64 {
        demote::stage_down(&self.cx, o, Span { first, pages }, level)
    }
    /// Evicts all clean pages. Returns their number.
    pub fn drop_clean(&self) -> u64 {
        reclaim::drop_clean(&self.cx)
    }
    /// Data not yet in the source, with the names of the `files_max` files that have most of them.
    pub fn dirty_report(&self, files_max: usize) -> DirtyReport {
        flusher::dirty_report(&self.cx, files_max)
    }
    /// A snapshot of the counters and sizes.
    pub fn stats(&self) -> Stats {
        stat::stats(&self.cx, &self.rings)
    }
    /// The policy's lists. The count runs in pieces, so that requests go on. The sums miss pages that come
    /// and go meanwhile.
    pub fn lru(&self) -> Lru {
        lru::show(&self.cx)
    }
    /// Opens a generation; pages used since the last aging join the youngest one before. Returns the new
    /// generation's number.
    ///
    /// # Errors
    /// The policy has no generations.
    pub fn lru_age(&self) -> Result<u64, Refused> {
        lru::age(&self.cx)
    }
    /// Evicts the generations up to `seq`, at most `pages` pages. Unwritten and recently used pages move to
    /// younger generations instead.
    ///
    /// # Errors
    /// No generations; a generation that is too young.
    pub fn lru_evict(&self, seq: u64, pages: u64) -> Result<Evicted, Refused> {
        lru::evict(&self.cx, seq, pages)
    }
    /// Estimated hit ratios at other sizes of memory.
    pub fn mrc(&self) -> Mrc {
        self.sampling.mrc()
    }
    /// Starts a recording; it ends when the recorder is dropped. None: another one is running.
    pub fn record(&self) -> Option<Recorder> {
        let begin = || Recorder::begin(self.cx.clone(), self.rings.clone(), self.recording.clone());
        // A window of the NUMA observer also is a recording, and ends soon.
        let mut left = RECORDER_TRIES;
        loop {
            let begun = begin();
            if begun.is_some() || left == 0 || !self.numa.is_observing() {
                return begun;
            }
            left -= 1;
            std::thread::sleep(RECORDER_PAUSE);
        }
    }
    /// Traffic between threads and memory nodes, and the recommended moves.
    pub fn numa(&self) -> Numa {
        self.numa.report()
    }
    /// Disagreements between index, frames, policy and dirty sets; empty = none. Holds the state lock.
    pub fn check(&self) -> Vec<String> {
        check::check(&self.cx)
    }
}
