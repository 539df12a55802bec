//! The ring of one client process: counters, and slots for page fills (pages that the client has read from
//! the source).
//!
//! ```text
//! page 0   counters: STRIPES x 128 bytes; ends of the lanes: LANES x 128 bytes
//! page 1   descriptors: 64 bytes x slots (at most 64)
//! page 2   counters of reads of targets: STRIPES x 128 bytes
//! page 3.. one content page a slot
//! then     records of the lanes, which have memory while a trace is recorded
//! ```
//! The client may write anything here at any time. The daemon therefore reads each descriptor field once,
//! validates it, and copies content before it uses it.

use crate::device_table::TARGETS_MAX;
use crate::layout::PAGE_SIZE;
use crate::mapping::Mapping;
pub use crate::protocol::NO_LEAF;
use crate::sync::{AtomicU64, Ordering};
use crate::trace::{LANE_BYTES, LANE_RECORDS, LANES, Lane, LaneEnds, Record};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Counter stripes: a client's threads spread over them, so that plain increments rarely collide.
pub(crate) const STRIPES: usize = 16;
/// Maximum number of slots of a ring.
pub const SLOTS_MAX: usize = 64;
/// First page of content.
const CONTENT_AT: usize = 3;

/// Counters of a client. Increments are plain load + store: threads that share a stripe may lose updates.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Counters {
    /// Pages copied out of frames.
    pub hits: AtomicU64,
    /// Bytes of those pages.
    pub hit_bytes: AtomicU64,
    /// Pages read from the source by the client.
    pub misses: AtomicU64,
    /// Bytes of those pages.
    pub miss_bytes: AtomicU64,
    /// Reads that took the mount path.
    pub fallbacks: AtomicU64,
    /// Pages put into the ring.
    pub fills: AtomicU64,
    /// Page fills given up because no slot was free.
    pub fills_dropped: AtomicU64,
    /// Optimistic copies that had to be repeated.
    pub retries: AtomicU64,
    /// Pages decoded from the compressed pool; they count as hits, too.
    pub tier_hits: AtomicU64,
    /// Reads of the source: each one of adjacent pages.
    pub reads: AtomicU64,
    /// Time of these reads, ns.
    pub read_ns: AtomicU64,
}

/// Counters of a client's reads of targets, by target number.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct TargetCounters {
    /// Pages read.
    pub hits: [AtomicU64; TARGETS_MAX],
    /// Time of these reads, ns.
    pub read_ns: [AtomicU64; TARGETS_MAX],
}

/// One page fill.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct PageFill {
    /// See [`crate::protocol::slot`].
    pub state: AtomicU64,
    /// Object id.
    pub object: AtomicU64,
    /// Page index in the object.
    pub page: AtomicU64,
    /// The version in the index before the client's read: `Entry::identity`, or NO_LEAF.
    pub seen: AtomicU64,
    /// Event clock before that version was loaded.
    pub clock: AtomicU64,
    /// Bytes valid in the content page; 0 = key only, the daemon reads the page itself.
    pub len: AtomicU64,
    /// Number of the client thread's processor plus one; 0: not known.
    pub cpu: AtomicU64,
    _pad: u64,
}

const _: () = assert!(size_of::<Counters>() == 128 && size_of::<LaneEnds>() == 128);
const _: () = assert!((STRIPES + LANES) * 128 <= PAGE_SIZE);
const _: () = assert!(size_of::<TargetCounters>() == 128 && STRIPES * 128 <= PAGE_SIZE);
const _: () = assert!(size_of::<PageFill>() == 64 && SLOTS_MAX * 64 <= PAGE_SIZE);

/// A mapped ring.
#[derive(Debug)]
pub struct Ring {
    map: Mapping,
    slots: usize,
}

impl Ring {
    /// Bytes of memory of a ring with `slots` slots, without a trace.
    pub fn bytes(slots: usize) -> usize {
        (CONTENT_AT + slots) * PAGE_SIZE
    }
    /// Bytes of the memory file of such a ring.
    pub fn file_bytes(slots: usize) -> usize {
        Ring::bytes(slots) + LANES * LANE_BYTES
    }
    /// Maps a ring of `slots` slots.
    pub fn attach(fd: impl AsFd, slots: usize) -> io::Result<Ring> {
        check(fd.as_fd(), slots)?;
        Ok(Ring { map: Mapping::new(fd.as_fd(), Ring::file_bytes(slots), true, PAGE_SIZE)?, slots })
    }
    /// Maps another ring with the same number of slots in place of this one.
    ///
    /// # Safety
    /// No thread uses a slot or a lane meanwhile. Concurrent counts go to one ring or the other.
    pub unsafe fn replace(&self, fd: impl AsFd) -> io::Result<()> {
        check(fd.as_fd(), self.slots)?;
        // SAFETY: all of it is atomics, and the rest is the caller's promise.
        unsafe { self.map.replace(fd.as_fd()) }
    }
    /// The mapping.
    pub fn memory(&self) -> &Mapping {
        &self.map
    }
    /// Slots.
    pub fn slots(&self) -> usize {
        self.slots
    }
    /// The counters of stripe `i % STRIPES`.
    #[inline]
    pub fn counters(&self, i: usize) -> &Counters {
        // SAFETY: within page 0; all atomics.
        unsafe { &*self.map.as_ptr().cast::<Counters>().add(i % STRIPES) }
    }
    /// The counters of reads of targets of stripe `i % STRIPES`.
    #[inline]
    pub fn target_counters(&self, i: usize) -> &TargetCounters {
        // SAFETY: within page 2; all atomics.
        unsafe { &*self.map.as_ptr().add(2 * PAGE_SIZE).cast::<TargetCounters>().add(i % STRIPES) }
    }
    /// Descriptor `i`.
    #[inline]
    pub fn fill(&self, i: usize) -> &PageFill {
        assert!(i < self.slots);
        // SAFETY: within page 1; all atomics.
        unsafe { &*self.map.as_ptr().add(PAGE_SIZE).cast::<PageFill>().add(i) }
    }
    /// Content page of slot `i`.
    #[inline]
    pub fn content(&self, i: usize) -> *mut u8 {
        assert!(i < self.slots);
        // SAFETY: in bounds.
        unsafe { self.map.as_ptr().add((CONTENT_AT + i) * PAGE_SIZE) }
    }
    /// Lane `i % LANES`.
    #[inline]
    pub fn lane(&self, i: usize) -> Lane<'_> {
        let records = Ring::bytes(self.slots) + i % LANES * LANE_BYTES;
        // SAFETY: behind the counters in page 0, behind the content pages, and inside the mapping; all atomics.
        unsafe {
            let base = self.map.as_ptr();
            let ends = &*base.add(STRIPES * size_of::<Counters>()).cast::<LaneEnds>().add(i % LANES);
            let records = std::slice::from_raw_parts(base.add(records).cast::<Record>(), LANE_RECORDS);
            Lane { ends, records }
        }
    }
    /// Daemon: returns the memory of the records to the system.
    pub fn forget_lanes(&self) {
        let (start, len) = (Ring::bytes(self.slots), LANES * LANE_BYTES);
        // SAFETY: a part of this mapping, which reads as zero afterwards. All of it is atomics.
        unsafe {
            let lanes = self.map.as_ptr().add(start).cast();
            let _ = rustix::mm::madvise(lanes, len, rustix::mm::Advice::LinuxRemove);
        }
    }
    /// Sum of a counter over all stripes.
    pub fn sum(&self, f: impl Fn(&Counters) -> &AtomicU64) -> u64 {
        (0..STRIPES).map(|i| f(self.counters(i)).load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
    /// Pages read from each target, and the time of these reads, ns: sums over all stripes.
    pub fn sums_of_targets(&self) -> ([u64; TARGETS_MAX], [u64; TARGETS_MAX]) {
        let sum = |f: &dyn Fn(&TargetCounters) -> &AtomicU64| {
            let of = |i| f(self.target_counters(i)).load(Ordering::Relaxed);
            (0..STRIPES).map(of).fold(0, u64::wrapping_add)
        };
        let hits = std::array::from_fn(|n| sum(&|c| &c.hits[n]));
        (hits, std::array::from_fn(|n| sum(&|c| &c.read_ns[n])))
    }
}

/// Whether this is the memory file of a ring with `slots` slots.
fn check(fd: BorrowedFd<'_>, slots: usize) -> io::Result<()> {
    let is_one =
        slots > 0 && slots <= SLOTS_MAX && rustix::fs::fstat(fd)?.st_size as usize >= Ring::file_bytes(slots);
    // Without a text, because the client may be inside an allocator.
    if is_one { Ok(()) } else { Err(rustix::io::Errno::INVAL.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Span;

    #[test]
    fn lanes_have_memory_while_they_are_used() {
        let fd = crate::map::memfd("ring", Ring::file_bytes(8)).unwrap();
        let ring = Ring::attach(&fd, 8).unwrap();
        let kept = || rustix::fs::fstat(&fd).unwrap().st_blocks as usize * 512;
        let span = Span { object: 1, page: 2, pages: 3, miss: false, at_ns: 4, thread: 5 };
        // SAFETY: the last content page.
        unsafe { ring.content(7).write_bytes(7, PAGE_SIZE) };
        let before = kept();
        ring.lane(LANES - 1).push(span);
        ring.target_counters(STRIPES - 1).read_ns[TARGETS_MAX - 1].store(9, Ordering::Relaxed);
        assert_eq!(ring.sums_of_targets(), ([0; TARGETS_MAX], [0, 0, 0, 0, 0, 0, 0, 9]));
        assert_eq!(ring.lane(LANES - 1).get(0), Some(span));
        assert!(kept() > before);
        ring.forget_lanes();
        assert!(kept() <= before + 2 * PAGE_SIZE, "the pages of the counters stay");
        assert_eq!(ring.lane(LANES - 1).get(0), None);
        // SAFETY: as above.
        assert_eq!(unsafe { ring.content(7).read() }, 7);
    }
}
