//! Readers of the clients' trace lanes: all records, or a weighted sample.

use std::sync::atomic::Ordering;
use terrace_api::capture::Lost;
use terrace_shm::protocol::queue;
use terrace_shm::ring::Ring;
use terrace_shm::trace::{LANE_BYTES, LANE_RECORDS, LANES, Span};

/// Time after which a reserved, empty place of a lane counts as a dead thread's.
const ABANDONED_NS: u64 = 50_000_000;
/// Upper bound of the loss in a sample, as a multiple of the pages in its records.
const LOST_MAX: f64 = 64.0;

/// The daemon's read positions in a client's lanes: the client can write to the shared ones.
#[derive(Debug, Default)]
pub(crate) struct Cursors([Cursor; LANES]);

#[derive(Debug, Default, Clone, Copy)]
struct Cursor {
    next: u64,
    /// The lane's count of lost pages at the last read.
    lost: u64,
    /// Time since which the next place is reserved and empty; 0: it is not.
    stuck_ns: u64,
    used: bool,
}

impl Cursors {
    /// Starts at the ends of the lanes; earlier records are skipped.
    pub(super) fn begin(ring: &Ring) -> Cursors {
        let mut cursors = Cursors::default();
        for (i, c) in cursors.0.iter_mut().enumerate() {
            let ends = ring.lane(i).ends;
            let (next, lost) = (ends.head.load(Ordering::Acquire), ends.lost.load(Ordering::Relaxed));
            *c = Cursor { next, lost, ..Cursor::default() };
            queue::release(&ends.tail, next);
        }
        cursors
    }

    /// Takes the records in the lanes, at most [`LANE_RECORDS`] of each.
    pub(super) fn drain(&mut self, ring: &Ring, now_ns: u64, lost: &mut Lost, take: &mut impl FnMut(Span)) {
        for (i, c) in self.0.iter_mut().enumerate() {
            let lane = ring.lane(i);
            let lost_by_now = lane.ends.lost.load(Ordering::Relaxed);
            lost.preload = lost.preload.saturating_add(lost_by_now.wrapping_sub(c.lost));
            c.lost = lost_by_now;
            let head = lane.ends.head.load(Ordering::Acquire);
            if head == c.next {
                continue;
            }
            c.used = true;
            if head.wrapping_sub(c.next) > LANE_RECORDS as u64 {
                // No client of terrace produces this.
                lost.unclear += LANE_RECORDS as u64;
                c.next = head;
            }
            while c.next != head {
                match lane.get(c.next) {
                    Some(span) => take(span),
                    None if c.stuck_ns == 0 => {
                        c.stuck_ns = now_ns;
                        break;
                    }
                    None if now_ns.saturating_sub(c.stuck_ns) < ABANDONED_NS => break,
                    None => lost.unclear += 1,
                }
                c.stuck_ns = 0;
                c.next = c.next.wrapping_add(1);
            }
            queue::release(&lane.ends.tail, c.next);
        }
    }

    pub(super) fn ready(&self, ring: &Ring) -> u64 {
        let ready =
            |(i, c): (usize, &Cursor)| ring.lane(i).ends.head.load(Ordering::Acquire).wrapping_sub(c.next);
        self.0.iter().enumerate().map(ready).filter(|&ready| ready <= LANE_RECORDS as u64).sum()
    }

    /// Takes every `every`th record of the lanes, starting with `first`. Its weight covers the records
    /// between, and lost ones. It does not read other records: they lie in other processors' caches.
    ///
    /// It skips a record that is still being written, and frees its place. Two threads may then write there
    /// at once. The mixed record is an untrusted claim, as all records are.
    pub(super) fn sample(&mut self, ring: &Ring, first: u64, every: u64, take: &mut impl FnMut(Span, f64)) {
        let mut spans = Vec::new();
        for (i, c) in self.0.iter_mut().enumerate() {
            let lane = ring.lane(i);
            let lost_by_now = lane.ends.lost.load(Ordering::Relaxed);
            let lost = lost_by_now.wrapping_sub(std::mem::replace(&mut c.lost, lost_by_now));
            let head = lane.ends.head.load(Ordering::Acquire);
            let ready = head.wrapping_sub(c.next);
            if ready > 0 && ready <= LANE_RECORDS as u64 {
                c.used = true;
                let places = (first..ready).step_by(every as usize);
                spans.extend(places.filter_map(|at| lane.get(c.next.wrapping_add(at))));
            }
            c.next = head;
            queue::release(&lane.ends.tail, head);
            let pages: u64 = spans.iter().map(|span: &Span| u64::from(span.pages)).sum();
            let lost_share = lost as f64 / (pages * every).max(1) as f64;
            // The client counts the loss. A loss of many times the lanes' capacity is not credible.
            let weight = every as f64 * (1.0 + lost_share.min(LOST_MAX));
            spans.drain(..).for_each(|span| take(span, weight));
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().filter(|c| c.used).count() as u64 * LANE_BYTES as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Ring {
        let fd = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, Ring::file_bytes(8) as u64).unwrap();
        Ring::attach(&fd, 8).unwrap()
    }

    fn span(page: u64, thread: u32) -> Span {
        Span { object: 7, page, pages: 2, miss: false, at_ns: 5, thread }
    }

    /// Number of records taken, and of pages that they stand for.
    fn sampled(cursors: &mut Cursors, ring: &Ring, first: u64, every: u64) -> (u64, f64) {
        let (mut count, mut pages) = (0, 0.0);
        cursors.sample(ring, first, every, &mut |span, weight| {
            count += 1;
            pages += f64::from(span.pages) * weight;
        });
        (count, pages)
    }

    #[test]
    fn part_of_the_records_stands_for_all() {
        let ring = ring();
        let mut cursors = Cursors::begin(&ring);
        for n in 0..1000 {
            ring.lane(3).push(span(n, 1));
        }
        assert_eq!(cursors.ready(&ring), 1000);
        assert_eq!(sampled(&mut cursors, &ring, 3, 10), (100, 2000.0));
        assert_eq!((cursors.ready(&ring), sampled(&mut cursors, &ring, 0, 1)), (0, (0, 0.0)));
        ring.lane(3).push(span(0, 1));
        assert_eq!(sampled(&mut cursors, &ring, 0, 1), (1, 2.0), "its place is free again");
    }

    #[test]
    fn records_without_room_are_weighed() {
        let ring = ring();
        let mut cursors = Cursors::begin(&ring);
        let all = 3 * LANE_RECORDS as u64;
        for n in 0..all {
            ring.lane(0).push(span(n, 1));
        }
        let (count, pages) = sampled(&mut cursors, &ring, 0, 8);
        assert_eq!((count, pages), (LANE_RECORDS as u64 / 8, 2.0 * all as f64));
        // An incredible count of lost pages is bounded.
        ring.lane(0).push(span(0, 1));
        ring.lane(0).ends.lost.fetch_add(1 << 60, Ordering::Relaxed);
        assert_eq!(sampled(&mut cursors, &ring, 0, 1), (1, 2.0 * (1.0 + LOST_MAX)));
        ring.lane(1).ends.head.store(1 << 60, Ordering::Relaxed);
        assert_eq!((cursors.ready(&ring), sampled(&mut cursors, &ring, 0, 1)), (0, (0, 0.0)));
    }
}
