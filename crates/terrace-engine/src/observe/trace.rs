//! Records of accesses to a live mount, page by page, for the simulator.
//!
//! *Picture*: the mount path notes spans of pages in a list. Each client of the preload path notes its own,
//! hits and misses, in lanes of its ring ([`terrace_shm::trace`]), because only the client sees a hit. Every
//! millisecond the recorder gathers both, holds them back for a moment, sorts them by time, and passes them
//! on.
//!
//! Everything is bounded, no read or write waits for the recorder, and accesses without room are counted as
//! lost. Records in a lane are a client's claims: objects and pages that do not exist are dropped, and times
//! are used for order only. While nothing is recorded, a request on the mount path costs one load more.

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
/// Spans held back for the sake of order.
const PENDING_MAX: usize = 32_768;
/// How long a span is held back, since threads and processes report theirs at different times.
const HOLD_NS: u64 = 5_000_000;

/// How often a recorder should look: lanes are made for the fastest reader at this pace.
pub const LOOK_EVERY: Duration = Duration::from_millis(1);

/// One access to one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Since the recording began, nanoseconds.
    pub at_ns: u64,
    /// The file: its inode number on the mount.
    pub object: ObjectId,
    /// Page index in the file.
    pub page: u64,
    /// How.
    pub kind: Kind,
}

/// Whether a recording is under way, and its memory.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    /// There is a recorder.
    taken: AtomicBool,
    /// Memory of the recording.
    bytes: AtomicU64,
}

impl Recording {
    /// Memory that the recording takes just now.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Gathers a recording. Call it every [`LOOK_EVERY`].
#[derive(Debug)]
pub struct Recorder {
    cx: Arc<Context>,
    rings: Arc<Rings>,
    recording: Arc<Recording>,
    /// The clients whose lanes are read, and how far.
    lanes: Vec<(Arc<Ring>, Cursors)>,
    start_ns: u64,
    /// In order of time, except for records since the last look.
    pending: Vec<Noted>,
    gathered: Vec<Noted>,
    lost: Lost,
}

impl Recorder {
    /// Begins a recording; it ends when the recorder is dropped. None: there is one already.
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
    /// Those of `sink`.
    pub fn look(&mut self, sink: &mut dyn FnMut(Access) -> io::Result<()>) -> io::Result<()> {
        let now = self.cx.clock.now_ns();
        self.gather(now);
        self.hand_on(now.saturating_sub(HOLD_NS), sink)
    }

    /// Ends the recording and passes on the rest of it.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn finish(mut self, sink: &mut dyn FnMut(Access) -> io::Result<()>) -> io::Result<Lost> {
        self.cx.handles.segment.header().tracing.store(0, Ordering::Release);
        self.gather(self.cx.clock.now_ns());
        self.hand_on(u64::MAX, sink)?;
        Ok(self.lost)
    }

    /// Takes some `max` of the spans that are there, evenly chosen, in no order and as clients claim them; and how many each stands for.
    pub(crate) fn sample(&mut self, max: u64, samples: &mut Vec<(Noted, f64)>) {
        let now = self.cx.clock.now_ns();
        let (main, lost) = self.cx.access_log.take();
        let live = self.follow_clients();
        let in_lanes: u64 = self.lanes.iter().map(|(ring, cursors)| cursors.ready(ring)).sum();
        let every = (main.len() as u64 + in_lanes).div_ceil(max).max(1);
        // By chance: who always comes first in a millisecond shall not always be chosen.
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

    /// Accesses missing so far.
    pub fn lost(&self) -> Lost {
        self.lost
    }

    /// Takes the records of both paths.
    fn gather(&mut self, now_ns: u64) {
        let (main, lost) = self.cx.access_log.take();
        self.lost.fuse = self.lost.fuse.saturating_add(lost);
        let bytes = self.gather_lanes(now_ns);
        self.check(now_ns);
        // Within one path the order is known even where its clock is too coarse.
        let all = main.into_iter().chain(self.gathered.drain(..));
        for n in all {
            if self.pending.len() < PENDING_MAX {
                self.pending.push(n);
            } else if matches!(n.kind, Kind::FastHit | Kind::FastMiss) {
                self.lost.preload = self.lost.preload.saturating_add(n.pages);
            } else {
                self.lost.fuse = self.lost.fuse.saturating_add(n.pages);
            }
        }
        self.pending.sort_by_key(|n| n.at_ns);
        let held = (self.pending.capacity() + self.gathered.capacity() + NOTED_MAX) * size_of::<Noted>();
        self.recording.bytes.store(bytes + held as u64, Ordering::Relaxed);
    }

    /// Takes the records of clients, also of clients that have ended. Returns the memory of their lanes.
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

    /// Looks at the lanes of clients that came, too, and of those that have ended since; returns those that live.
    fn follow_clients(&mut self) -> Vec<Arc<Ring>> {
        let live = self.rings.all();
        let leaving = self.rings.take_leaving();
        // By address: a thousand clients are looked at every millisecond. Whose address is known is held, so that nobody else gets it.
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

    /// Keeps only possible records of clients: pages of files that exist, times within the recording.
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

/// A client's record as the daemon keeps it.
fn noted(span: Span, now_ns: u64) -> Noted {
    let span = span.since(now_ns.saturating_add(HOLD_NS));
    let kind = if span.miss { Kind::FastMiss } else { Kind::FastHit };
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
    use crate::io::testing::NullIo;
    use crate::testing::started;
    use crate::{AccessPath, EngineConfig, SystemClock};
    use std::os::fd::AsRawFd;

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
        let miss = Kind::MainMiss;
        let expected = [(0, Kind::MainHit), (5, Kind::Write), (1, Kind::MainHit), (100, miss), (101, miss)];
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
            engine.cx.note_access(&o, 4096, 8192, Kind::MainHit);
        }
        let (got, lost) = all(recorder);
        assert_eq!((got.len(), lost.fuse), (2 * NOTED_MAX, 10));
        assert_eq!(engine.recording.bytes(), 0);
    }
}
