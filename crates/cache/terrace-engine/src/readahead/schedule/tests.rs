//! Tests of a follower in an engine: recorded orders are fetched ahead, wrong schedules end themselves.

use super::*;
use crate::testing::{sparse_object, started};
use crate::{AccessPath, Engine, EngineConfig, SystemClock};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use terrace_api::schedule::{self, Span};
use terrace_io::testing::NullIo;
use terrace_testkit::rng::Rng;

const PAGES: u64 = 10_000;

/// Files by number; the number of held ones.
struct Files {
    objects: Vec<Option<ObjectRef>>,
    held: Arc<AtomicU64>,
}

impl ScheduledFiles for Files {
    fn open(&mut self, file: u32) -> Option<ObjectRef> {
        let object = self.objects[file as usize].clone()?;
        self.held.fetch_add(1, Ordering::Relaxed);
        Some(object)
    }
    fn release(&mut self, _: u32) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Fixture {
    engine: Arc<Engine>,
    o: ObjectRef,
    held: Arc<AtomicU64>,
    _file: File,
}

impl Fixture {
    fn new() -> Fixture {
        let config = EngineConfig {
            memory_bytes: 16 << 20,
            memory_max_bytes: Some(16 << 20),
            readahead_max_bytes: 0,
            ..EngineConfig::default()
        };
        let engine = started(config, Arc::new(SystemClock), NullIo);
        let (o, file) = sparse_object(&engine, 1, PAGES * 4096);
        engine.serve().unwrap();
        Fixture { engine, o, held: Arc::default(), _file: file }
    }

    /// Follows a schedule of single pages of two files, of which the second does not exist.
    fn follow(&self, pages: &[(u32, u64)]) {
        let file = schedule::File { path: "f".into(), bytes: 0, changed_ns: 0 };
        let mut schedule = Schedule { files: vec![file.clone(), file], spans: Vec::new() };
        pages.iter().for_each(|&(file, first)| schedule.push(Span { file, first, pages: 1 }));
        let files = Files { objects: vec![Some(self.o.clone()), None], held: self.held.clone() };
        self.engine.follow(&schedule, Box::new(files)).unwrap();
    }

    fn shown(&self) -> stats::Schedule {
        self.engine.stats().prefetch.schedule.unwrap_or_default()
    }
    fn read(&self, page: u64) {
        let mut buf = vec![0; 4096];
        assert_eq!(self.engine.read(&self.o, page * 4096, &mut buf, AccessPath::FuseDirect).unwrap(), 4096);
    }
    fn misses(&self) -> u64 {
        self.engine.stats().fuse.misses
    }
    /// Waits with a limit: the assertion that fails afterwards gives more information than a hang.
    fn wait(&self, mut until: impl FnMut(&stats::Schedule) -> bool) {
        for _ in 0..2000 {
            if until(&self.shown()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    /// Waits until eight pages beyond `read` were fetched or skipped, or all.
    fn wait_ahead(&self, read: usize, of: usize) {
        self.wait(|shown| shown.fetched + self.misses() >= (read + 8).min(of) as u64);
    }
    fn finish(self) {
        self.engine.halt();
        assert_eq!(self.held.load(Ordering::Relaxed), 0, "files are given back");
        let state = self.engine.cx.state.lock();
        assert_eq!((state.claimed, state.in_flight.len()), (0, 0));
        drop(state);
        assert_eq!(self.engine.check(), Vec::<String>::new());
        assert_eq!(self.engine.cx.followed.bytes.load(Ordering::Relaxed), 0);
    }
}

fn shuffled(rng: &mut Rng) -> Vec<u64> {
    let mut pages: Vec<u64> = (0..PAGES).collect();
    rng.shuffle(&mut pages);
    pages
}

#[test]
fn a_recorded_random_order_is_fetched_ahead() {
    let w = Fixture::new();
    let pages = &shuffled(&mut Rng::new(1))[..1000];
    w.follow(&pages.iter().map(|&page| (0, page)).collect::<Vec<_>>());
    for (n, &page) in pages.iter().enumerate() {
        w.wait_ahead(n, 1000);
        w.read(page);
    }
    w.wait(|shown| shown.state == ScheduleState::Done);
    let (shown, misses) = (w.shown(), w.misses());
    assert_eq!(shown.state, ScheduleState::Done, "{shown:?}");
    assert!(misses < 20 && shown.fetched > 950 && shown.unused == 0, "{misses} misses, {shown:?}");
    assert_eq!(shown.used, shown.fetched);
    w.finish();
}

#[test]
fn a_wrong_schedule_stops_itself() {
    let w = Fixture::new();
    let mut rng = Rng::new(1);
    w.follow(&shuffled(&mut rng).into_iter().map(|page| (0, page)).collect::<Vec<_>>());
    for page in shuffled(&mut rng) {
        if w.shown().state == ScheduleState::Useless {
            break;
        }
        w.read(page);
        std::thread::sleep(Duration::from_micros(50));
    }
    let shown = w.shown();
    assert_eq!(shown.state, ScheduleState::Useless, "{shown:?}");
    assert!(shown.fetched < 600 && shown.used * 2 < shown.fetched, "{shown:?}");
    let fetched = w.engine.stats().prefetch.fetched;
    (0..500).for_each(|page| w.read(page));
    assert_eq!(w.engine.stats().prefetch.fetched, fetched, "it is over");
    w.finish();
}

#[test]
fn files_that_are_not_there_are_passed_over() {
    let w = Fixture::new();
    let pages: Vec<(u32, u64)> = (0..200).map(|n| (u32::from(n % 3 == 0), n * 7)).collect();
    w.follow(&pages);
    let there: Vec<u64> = pages.iter().filter(|(file, _)| *file == 0).map(|(_, page)| *page).collect();
    for (n, &page) in there.iter().enumerate() {
        w.wait_ahead(n, there.len());
        w.read(page);
    }
    w.wait(|shown| shown.state == ScheduleState::Done);
    let shown = w.shown();
    assert_eq!((shown.state, shown.files_left_out, shown.unused), (ScheduleState::Done, 1, 0), "{shown:?}");
    assert!(w.misses() < 20, "{} misses, {shown:?}", w.misses());
    w.finish();
}

/// The program ends in the middle, or the engine does.
#[test]
fn an_engine_ends_under_its_follower() {
    let w = Fixture::new();
    let spans = Schedule {
        files: vec![schedule::File { path: "f".into(), bytes: 0, changed_ns: 0 }],
        spans: vec![Span { file: 0, first: 0, pages: PAGES }],
    };
    let files = Files { objects: vec![Some(w.o.clone())], held: w.held.clone() };
    w.engine.follow(&spans, Box::new(files)).unwrap();
    w.wait(|shown| shown.fetched >= 32);
    assert!((32..=64).contains(&w.shown().fetched), "{:?}", w.shown());
    w.finish();
}

#[test]
fn a_schedule_has_a_maximum_of_memory() {
    let files = vec![schedule::File { path: "f".into(), bytes: 0, changed_ns: 0 }];
    let schedule = Schedule { files, spans: vec![Span { file: 0, first: 5, pages: 1 << 40 }] };
    let cut = pieces(&schedule, 16 << 20);
    assert_eq!(cut.len() as u64, (1 << 20) / Follower::bytes(1));
    assert_eq!((cut[1].first, cut[1].pages), (5 + PIECE_PAGES, PIECE_PAGES as u32));
}
