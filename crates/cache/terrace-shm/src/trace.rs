//! Lanes of a client's ring: records of its reads while a trace is recorded.
//!
//! A client's hit makes no system call, so only the client knows the order of its reads. While the header's
//! `tracing` is set, a client appends a record of each read to a lane of its ring. A lane is a bounded queue
//! with several threads as producers, and the daemon as consumer. A full lane drops and counts records; the
//! client never waits. Without a trace the lanes have no memory.
//!
//! The client may write anything here at any time. So the daemon keeps its own cursor, reads each word once,
//! and reads a bounded number of records at a time.

use crate::protocol::queue;
use crate::sync::{AtomicU64, Ordering};

/// Lanes of a ring: threads spread over them as over counter stripes.
pub const LANES: usize = 16;
/// Records of a lane.
pub const LANE_RECORDS: usize = 2048;
/// Bytes of a lane's records.
pub const LANE_BYTES: usize = LANE_RECORDS * size_of::<Record>();

/// Ends of a lane, each on a cache line of its own.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct LaneEnds {
    /// Records reserved by the client, ever.
    pub head: AtomicU64,
    /// Pages of records that found the lane full.
    pub lost: AtomicU64,
    _pad: [u64; 6],
    /// Records that the daemon has consumed.
    pub tail: AtomicU64,
}

/// One read, as recorded in a lane.
#[repr(C, align(32))]
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// Place in the lane + 1 once the record is whole.
    seq: AtomicU64,
    object: AtomicU64,
    /// `page << 24 | pages << 8 | miss`.
    span: AtomicU64,
    /// `at_ns << 22 | thread`, with the low 42 bits of the time: more than an hour.
    at: AtomicU64,
}

/// Bits of a thread's number: the kernel's largest is 2^22.
const THREAD_BITS: u32 = 22;

const _: () = assert!(size_of::<LaneEnds>() == 128 && size_of::<Record>() == 32);
const _: () =
    assert!(LANES * size_of::<LaneEnds>() <= crate::PAGE_SIZE && LANE_BYTES.is_multiple_of(crate::PAGE_SIZE));

/// Pages of one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Object id.
    pub object: u64,
    /// First page, below 2^40.
    pub page: u64,
    /// Number of pages.
    pub pages: u16,
    /// The pages were absent and read from the source.
    pub miss: bool,
    /// CLOCK_MONOTONIC, ns. [`Lane::get`] returns the low 42 bits, see [`Span::since`].
    pub at_ns: u64,
    /// The reading thread's id in its own PID namespace.
    pub thread: u32,
}

impl Span {
    fn word(&self) -> u64 {
        self.page << 24 | u64::from(self.pages) << 8 | u64::from(self.miss)
    }

    /// Restores the whole time from `now_ns`, which is not before it and at most an hour later.
    pub fn since(self, now_ns: u64) -> Span {
        let age = now_ns.wrapping_sub(self.at_ns) & (u64::MAX >> THREAD_BITS);
        Span { at_ns: now_ns.saturating_sub(age), ..self }
    }
}

/// A lane as mapped by either side.
#[derive(Debug, Clone, Copy)]
pub struct Lane<'a> {
    /// Its ends.
    pub ends: &'a LaneEnds,
    pub(crate) records: &'a [Record],
}

impl Lane<'_> {
    /// Client: appends, or counts the pages as lost.
    pub fn push(&self, span: Span) {
        let Some(at) = queue::reserve(&self.ends.head, &self.ends.tail, self.records.len() as u64) else {
            self.ends.lost.fetch_add(u64::from(span.pages), Ordering::Relaxed);
            return;
        };
        let r = &self.records[at as usize % self.records.len()];
        r.object.store(span.object, Ordering::Relaxed);
        r.span.store(span.word(), Ordering::Relaxed);
        let thread = u64::from(span.thread) & ((1 << THREAD_BITS) - 1);
        r.at.store(span.at_ns << THREAD_BITS | thread, Ordering::Relaxed);
        queue::publish(&r.seq, at);
    }

    /// Daemon: the record at `cursor`, once it is complete.
    pub fn get(&self, cursor: u64) -> Option<Span> {
        let r = &self.records[cursor as usize % self.records.len()];
        if !queue::is_there(&r.seq, cursor) {
            return None;
        }
        let (word, at) = (r.span.load(Ordering::Relaxed), r.at.load(Ordering::Relaxed));
        Some(Span {
            object: r.object.load(Ordering::Relaxed),
            page: word >> 24,
            pages: (word >> 8) as u16,
            miss: word & 1 != 0,
            at_ns: at >> THREAD_BITS,
            thread: at as u32 & ((1 << THREAD_BITS) - 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane() -> (LaneEnds, Vec<Record>) {
        (LaneEnds::default(), (0..4).map(|_| Record::default()).collect())
    }

    #[test]
    fn a_full_lane_counts_what_it_loses() {
        let (ends, records) = lane();
        let lane = Lane { ends: &ends, records: &records };
        let span =
            |page| Span { object: 7, page, pages: 3, miss: page % 2 == 1, at_ns: 1000 + page, thread: 77 };
        (0..6).for_each(|page| lane.push(span(page)));
        assert_eq!(ends.lost.load(Ordering::Relaxed), 6, "two records of three pages");
        assert_eq!([0, 1, 2, 3].map(|at| lane.get(at)), [0, 1, 2, 3].map(|page| Some(span(page))));
        ends.tail.store(4, Ordering::Release);
        assert_eq!(lane.get(4), None, "an old record is not taken for the next one");
        lane.push(span((1 << 40) - 1));
        assert_eq!(lane.get(4), Some(span((1 << 40) - 1)));
    }

    #[test]
    fn times_and_threads_share_a_word() {
        let (ends, records) = lane();
        let lane = Lane { ends: &ends, records: &records };
        let at_ns = (3 << 42) + 12_345;
        let span = Span { object: 7, page: 1, pages: 1, miss: false, at_ns, thread: (1 << 22) - 1 };
        lane.push(span);
        let found = lane.get(0).unwrap();
        assert_eq!((found.at_ns, found.thread), (12_345, (1 << 22) - 1));
        assert_eq!([at_ns, at_ns + 5_000_000, at_ns + (1 << 41)].map(|now| found.since(now)), [span; 3]);
    }
}
