//! Recorder of page accesses to a live instance, for the simulator.
//!
//! *Picture*: the mount path notes spans of pages in a list. Only a client sees its hits, so it notes hits
//! and misses in lanes of its ring ([`terrace_shm::trace`]). Every millisecond the recorder collects both. It
//! holds them back for a moment, sorts them by time, and passes them on.
//!
//! All buffers are bounded, and no read or write waits for the recorder: accesses without room count as lost.
//! Records in a lane are untrusted. The recorder drops unknown objects and pages, and uses times for the
//! order only. Without a recording, a request on the mount path costs one more load.

pub use crate::access_log::Kind;
use crate::access_log::{NOTED_MAX, Noted};
use crate::context::Context;
use crate::file::object::ObjectId;
use crate::observe::lanes::Cursors;
use crate::rings::Rings;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use terrace_api::capture::Lost;
use terrace_shm::PAGE_SIZE;
use terrace_shm::ring::Ring;
use terrace_shm::trace::Span;

const PAGE: u64 = PAGE_SIZE as u64;
/// Largest number of spans held back for sorting.
const PENDING_MAX: usize = 32_768;
/// Time for which a span is held back, since threads and processes report at different times.
const HOLD_NS: u64 = 5_000_000;

/// Interval of calls of the recorder. The lanes are dimensioned for the fastest reader at this rate.
pub const LOOK_EVERY: Duration = Duration::from_millis(1);

/// One access to one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Time since the start of the recording, ns.
    pub at_ns: u64,
    /// The file: its inode number on the mount.
    pub object: ObjectId,
    /// Page index in the file.
    pub page: u64,
    /// Path and result.
    pub kind: Kind,
}

/// State of recordings: whether one is under way, and its memory.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    taken: AtomicBool,
    bytes: AtomicU64,
}

impl Recording {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Collects a recording. Call [`Recorder::look`] every [`LOOK_EVERY`].
#[derive(Debug)]
pub struct Recorder {
    cx: Arc<Context>,
    rings: Arc<Rings>,
    recording: Arc<Recording>,
    /// Clients and the read positions in their lanes.
    lanes: Vec<(Arc<Ring>, Cursors)>,
    start_ns: u64,
    /// Sorted by time, except for records since the last call.
    pending: Vec<Noted>,
    gathered: Vec<Noted>,
    lost: Lost,
}

impl Recorder {
    /// Starts a recording; it ends when the recorder is dropped. None: another one is under way.
    pub(crate) fn begin(cx: Arc<Context>, rings: Arc<Rings>, recording: Arc<Recording>) -> Option<Recorder> {
        if recording.taken.swap(true, Ordering::AcqRel) {
            return None;
        }
        let begin = |ring: Arc<Ring>| {
            let cursors = Cursors::begin(&ring);
            (ring, cursors)
        };
        rings.keep_leaving();
        let lanes = rings.all().into_iter().map(begin).collect();
        let (pending, gathered) = (Vec::new(), Vec::new());
        let start_ns = cx.clock.now_ns();
        cx.handles.segment.header().tracing.store(1, Ordering::Release);
        Some(Recorder { cx, rings, recording, lanes, start_ns, pending, gathered, lost: Lost::default() })
    }

    /// Passes on records that are old enough, in order of time.
    ///
    /// # Errors
    /// As `sink`.
    pub fn look(&mut self, sink: &mut dyn FnMut(Access) -> io::Result<()>) -> io::Result<()> {
        let now = self.cx.clock.now_ns();
        self.gather(now);
        self.hand_on(now.saturating_sub(HOLD_NS), sink)
    }

    /// Ends the recording and passes on the rest.
    ///
    /// # Errors
    /// As `sink`.
    pub fn finish(mut self, sink: &mut dyn FnMut(Access) -> io::Result<()>) -> io::Result<Lost> {
        self.cx.handles.segment.header().tracing.store(0, Ordering::Release);
        self.gather(self.cx.clock.now_ns());
        self.hand_on(u64::MAX, sink)?;
        Ok(self.lost)
    }

    /// Takes a sample of about `max` of the present spans with their weights, evenly chosen. They are neither
    /// sorted nor checked.
    pub(crate) fn sample(&mut self, max: u64, samples: &mut Vec<(Noted, f64)>) {
        let now = self.cx.clock.now_ns();
        let (main, lost) = self.cx.access_log.take();
        let live = self.follow_clients();
        let in_lanes: u64 = self.lanes.iter().map(|(ring, cursors)| cursors.ready(ring)).sum();
        let every = (main.len() as u64 + in_lanes).div_ceil(max).max(1);
        // Random: otherwise the same thread could come first in each millisecond.
        let first = RandomState::new().hash_one(now) % every;
        let pages: u64 = main.iter().map(|noted| noted.pages).sum();
        let weight = every as f64 * (1.0 + lost as f64 / pages.max(1) as f64);
        samples.extend(
            main.into_iter().skip(first as usize).step_by(every as usize).map(|noted| (noted, weight)),
        );
        let mut bytes = 0;
        for (ring, cursors) in &mut self.lanes {
            cursors.sample(ring, first, every, &mut |span, weight| samples.push((noted(span, now), weight)));
            bytes += cursors.bytes();
        }
        self.forget_ended(&live);
        let held = samples.capacity() * size_of::<(Noted, f64)>() + NOTED_MAX * size_of::<Noted>();
        self.recording.bytes.store(bytes + held as u64, Ordering::Relaxed);
    }

    /// Lost accesses so far.
    pub fn lost(&self) -> Lost {
        self.lost
    }

    /// Takes the records of both paths.
    fn gather(&mut self, now_ns: u64) {
        let (main, lost) = self.cx.access_log.take();
        self.lost.fuse = self.lost.fuse.saturating_add(lost);
        let bytes = self.gather_lanes(now_ns);
        self.check(now_ns);
        // Appended in order: the stable sort keeps it within a path where the clock is too coarse.
        let all = main.into_iter().chain(self.gathered.drain(..));
        for n in all {
            if self.pending.len() < PENDING_MAX {
                self.pending.push(n);
            } else if matches!(n.kind, Kind::PreloadHit | Kind::PreloadMiss) {
                self.lost.preload = self.lost.preload.saturating_add(n.pages);
            } else {
                self.lost.fuse = self.lost.fuse.saturating_add(n.pages);
            }
        }
        self.pending.sort_by_key(|n| n.at_ns);
        let held = (self.pending.capacity() + self.gathered.capacity() + NOTED_MAX) * size_of::<Noted>();
        self.recording.bytes.store(bytes + held as u64, Ordering::Relaxed);
    }

    /// Takes the records of clients, also of ended ones. Returns the memory of their lanes.
    fn gather_lanes(&mut self, now_ns: u64) -> u64 {
        let live = self.follow_clients();
        let mut bytes = 0;
        for (ring, cursors) in &mut self.lanes {
            let take = &mut |span| self.gathered.push(noted(span, now_ns));
            cursors.drain(ring, now_ns, &mut self.lost, take);
            bytes += cursors.bytes();
        }
        self.forget_ended(&live);
        bytes
    }

    /// Adds the lanes of new clients, and of clients that have ended since. Returns the live clients.
    fn follow_clients(&mut self) -> Vec<Arc<Ring>> {
        let live = self.rings.all();
        let leaving = self.rings.take_leaving();
        // By address: this runs for up to a thousand clients every millisecond. `lanes` holds the rings, so
        // no address is reused.
        let mut known: HashSet<*const Ring> = self.lanes.iter().map(|(ring, _)| Arc::as_ptr(ring)).collect();
        // A client that leaves between the two listings is in both.
        let new = live.iter().chain(&leaving).filter(|ring| known.insert(Arc::as_ptr(ring)));
        self.lanes.extend(new.map(|ring| (ring.clone(), Cursors::default())));
        live
    }

    fn forget_ended(&mut self, live: &[Arc<Ring>]) {
        let live: HashSet<*const Ring> = live.iter().map(Arc::as_ptr).collect();
        self.lanes.retain(|(ring, _)| live.contains(&Arc::as_ptr(ring)));
    }

    /// Drops clients' impossible records: of missing files or pages, or outside the recording's time.
    fn check(&mut self, now_ns: u64) {
        let mut ends: HashMap<ObjectId, u64> = self.gathered.iter().map(|n| (n.object, 0)).collect();
        if ends.is_empty() {
            return;
        }
        {
            let state = self.cx.state.lock();
            for (id, end) in &mut ends {
                *end = state.objects.get(id).map_or(0, |o| o.size().div_ceil(PAGE));
            }
        }
        let (start, lost) = (self.start_ns, &mut self.lost);
        self.gathered.retain_mut(|n| {
            if n.at_ns < start {
                return false; // Left over from an earlier recording.
            }
            let end = ends.get(&n.object).copied().unwrap_or(0);
            let pages = end.saturating_sub(n.page).min(n.pages);
            lost.unclear += n.pages - pages;
            (n.pages, n.at_ns) = (pages, n.at_ns.min(now_ns));
            pages > 0
        });
    }

    fn hand_on(&mut self, until_ns: u64, sink: &mut dyn FnMut(Access) -> io::Result<()>) -> io::Result<()> {
        let ripe = self.pending.partition_point(|n| n.at_ns <= until_ns);
        for n in self.pending.drain(..ripe) {
            let at_ns = n.at_ns.saturating_sub(self.start_ns);
            for page in n.page..n.page + n.pages {
                sink(Access { at_ns, object: n.object, page, kind: n.kind })?;
            }
        }
        Ok(())
    }
}

fn noted(span: Span, now_ns: u64) -> Noted {
    let span = span.since(now_ns.saturating_add(HOLD_NS));
    let kind = if span.miss { Kind::PreloadMiss } else { Kind::PreloadHit };
    Noted {
        object: span.object,
        page: span.page,
        pages: span.pages.into(),
        at_ns: span.at_ns,
        kind,
        tid: span.thread,
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.cx.handles.segment.header().tracing.store(0, Ordering::Release);
        for ring in self.rings.all() {
            ring.forget_lanes();
        }
        self.rings.drop_leaving();
        self.cx.access_log.take();
        self.recording.bytes.store(0, Ordering::Relaxed);
        self.recording.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;
    use crate::testing::started;
    use crate::{AccessPath, EngineConfig, SystemClock};
    use std::os::fd::AsRawFd;
    use terrace_io::testing::NullIo;

    fn engine() -> Arc<Engine> {
        let config = EngineConfig {
            memory_bytes: 16 << 20,
            memory_max_bytes: Some(16 << 20),
            readahead_max_bytes: 0,
            ..EngineConfig::default()
        };
        started(config, Arc::new(SystemClock), NullIo)
    }

    fn all(recorder: Recorder) -> (Vec<(u64, Kind)>, Lost) {
        let mut got = Vec::new();
        let lost = recorder.finish(&mut |a| {
            got.push((a.page, a.kind));
            Ok(())
        });
        (got, lost.unwrap())
    }

    #[test]
    fn mount_reads_and_writes_are_recorded_in_order() {
        let engine = engine();
        let file = tempfile::tempfile().unwrap();
        let o = engine.object(7, file.as_raw_fd(), 1 << 20).unwrap();
        let mut buf = [0; 8192];
        engine.read(&o, 0, &mut buf, AccessPath::FuseDirect).unwrap();
        let recorder = engine.record().unwrap();
        assert!(engine.record().is_none(), "one at a time");
        engine.read(&o, 100, &mut buf[..50], AccessPath::FuseDirect).unwrap();
        engine.write(&o, 5 * 4096, &buf[..10]).unwrap();
        engine.read(&o, 4096, &mut buf[..4096], AccessPath::FuseDirect).unwrap();
        engine.read(&o, 100 * 4096, &mut buf, AccessPath::FuseDirect).unwrap();
        let miss = Kind::MountMiss;
        let expected = [(0, Kind::MountHit), (5, Kind::Write), (1, Kind::MountHit), (100, miss), (101, miss)];
        assert_eq!(all(recorder), (expected.to_vec(), Lost::default()));
        engine.read(&o, 0, &mut buf, AccessPath::FuseDirect).unwrap();
        let recorder = engine.record().unwrap();
        assert_eq!(all(recorder), (Vec::new(), Lost::default()), "nothing is noted between two recordings");
    }

    #[test]
    fn records_without_room_are_counted() {
        let engine = engine();
        let file = tempfile::tempfile().unwrap();
        let o = engine.object(7, file.as_raw_fd(), 1 << 20).unwrap();
        let recorder = engine.record().unwrap();
        for _ in 0..NOTED_MAX + 5 {
            engine.cx.note_access(&o, 4096, 8192, Kind::MountHit);
        }
        let (got, lost) = all(recorder);
        assert_eq!((got.len(), lost.fuse), (2 * NOTED_MAX, 10));
        assert_eq!(engine.recording.bytes(), 0);
    }
}
