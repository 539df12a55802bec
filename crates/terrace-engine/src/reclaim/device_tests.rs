//! The engine with a tier on a device: contents, restarts, failures.

use crate::device::{FileMedium, Geometry, Source, Superblock, superblock};
use crate::io::testing::{Call, HookIo};
use crate::io::{BlockingIo, Io, IoVec};
use crate::segment::flag::REUSED;
use crate::state::State;
use crate::state::compressed::{WAS_HERE, WAS_READ};
use crate::{
    AccessPath, CompressedConfig, Engine, EngineConfig, ObjectRef, SegmentHandles, SystemClock,
    config::DeviceConfig,
};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;
use terrace_shm::Below;
use terrace_testkit::rng::Rng;
use terrace_testkit::wait::wait_until;

const PAGE: usize = 4096;
const FILES: u64 = 3;
const PAGES: u64 = 4096;
const TIER_BYTES: u64 = 64 << 20;

/// Source files of three times the memory, a tier that holds them, and what they should hold.
struct World {
    sources: Vec<File>,
    target: File,
    contents: Vec<Vec<u32>>,
    failing: Arc<AtomicBool>,
    source_reads: Arc<AtomicU64>,
    compressed: CompressedConfig,
}

/// Content of a page of a file after so many changes. Hardly compressible.
fn content(file: u64, page: u64, version: u32) -> Vec<u8> {
    let mut rng = Rng::new(file << 48 | page << 16 | u64::from(version));
    (0..PAGE / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

fn device_config(target: &File) -> DeviceConfig {
    let geometry = Geometry::plan(TIER_BYTES).unwrap();
    let medium = FileMedium::new(target.as_raw_fd(), Arc::new(BlockingIo::default()), TIER_BYTES);
    let superblock::Found::Ours(found) = superblock::find(&medium).unwrap() else { panic!("not formatted") };
    DeviceConfig {
        name: "test".into(),
        fd: target.as_raw_fd(),
        bytes: TIER_BYTES,
        region_bytes: geometry.region_bytes().into(),
        regions: geometry.regions(),
        tier_id: found.id.0,
        write_budget: None,
        rated_writes: None,
        read_ns: None,
        any_gain: true,
    }
}

impl World {
    fn new(compressed: CompressedConfig) -> World {
        let make = |file: u64| {
            let source = tempfile::tempfile().unwrap();
            for page in 0..PAGES {
                source.write_all_at(&content(file, page, 0), page * PAGE as u64).unwrap();
            }
            source
        };
        let target = tempfile::tempfile().unwrap();
        target.set_len(TIER_BYTES).unwrap();
        let medium = FileMedium::new(target.as_raw_fd(), Arc::new(BlockingIo::default()), TIER_BYTES);
        let source = Source { hash: 7, path: "/src".into() };
        let mut fresh = Superblock::new(source, Geometry::plan(TIER_BYTES).unwrap(), 0).unwrap();
        superblock::format(&medium, &mut fresh).unwrap();
        World {
            sources: (0..FILES).map(make).collect(),
            target,
            contents: vec![vec![0; PAGES as usize]; FILES as usize],
            failing: Arc::default(),
            source_reads: Arc::default(),
            compressed,
        }
    }
    fn config(&self) -> EngineConfig {
        EngineConfig {
            memory_bytes: 16 << 20,
            memory_max_bytes: Some(32 << 20),
            compressed: self.compressed,
            device: Some(device_config(&self.target)),
            ..EngineConfig::default()
        }
    }
    fn io(&self) -> Arc<dyn Io> {
        let (failing, reads) = (self.failing.clone(), self.source_reads.clone());
        Arc::new(HookIo::new(BlockingIo::default(), move |call| match call {
            Call::Read(n) => {
                reads.fetch_add(n as u64, Ordering::Relaxed);
                Ok(())
            }
            Call::Write(_) if failing.load(Ordering::Relaxed) => Err(rustix::io::Errno::IO.into()),
            _ => Ok(()),
        }))
    }
    /// An engine over a new segment, that has looked at the device.
    fn start(&self) -> (Arc<Engine>, Vec<ObjectRef>) {
        self.start_on(self.io())
    }
    fn start_on(&self, io: Arc<dyn Io>) -> (Arc<Engine>, Vec<ObjectRef>) {
        let config = self.config();
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let engine = Engine::start(config, handles, Arc::new(SystemClock), io).unwrap();
        engine.serve().unwrap();
        let object = |file: u64| {
            let source = &self.sources[file as usize];
            engine.object(100 + file, source.as_raw_fd(), PAGES * PAGE as u64).unwrap()
        };
        let objects = (0..FILES).map(object).collect();
        wait_until("the scan", || !engine.cx.state.lock().device.as_ref().unwrap().is_scanning());
        (engine, objects)
    }
    fn read(&self, engine: &Engine, objects: &[ObjectRef], file: u64, page: u64) {
        let mut buf = vec![0; PAGE];
        let o = &objects[file as usize];
        engine.read(o, page * PAGE as u64, &mut buf, AccessPath::Preload).unwrap();
        let version = self.contents[file as usize][page as usize];
        assert!(buf == content(file, page, version), "file {file} page {page} version {version}");
    }
    fn write(&mut self, engine: &Engine, objects: &[ObjectRef], file: u64, page: u64) {
        let version = &mut self.contents[file as usize][page as usize];
        *version += 1;
        let new = content(file, page, *version);
        engine.write(&objects[file as usize], page * PAGE as u64, &new).unwrap();
    }
    /// Reads pages at random, and writes one in `writes_in`, if that is not 0.
    fn work(&mut self, engine: &Engine, objects: &[ObjectRef], rng: &mut Rng, steps: u64, writes_in: u64) {
        for _ in 0..steps {
            let (file, page) = (rng.below(FILES), rng.below(PAGES / 2) + rng.below(PAGES / 2));
            match writes_in > 0 && rng.below(writes_in.max(1)) == 0 {
                true => self.write(engine, objects, file, page),
                false => self.read(engine, objects, file, page),
            }
        }
    }
    fn read_all(&self, engine: &Engine, objects: &[ObjectRef]) {
        (0..FILES).for_each(|file| (0..PAGES).for_each(|page| self.read(engine, objects, file, page)));
    }
}

fn device_pages(engine: &Engine) -> u64 {
    engine.cx.state.lock().device.as_ref().unwrap().log.live()
}

fn without_compression() -> CompressedConfig {
    CompressedConfig { codec: None, ..CompressedConfig::default() }
}

#[test]
fn pages_that_leave_memory_are_read_from_the_device() {
    let mut w = World::new(without_compression());
    let (engine, objects) = w.start();
    let mut rng = Rng::new(1);
    w.read_all(&engine, &objects);
    assert!(device_pages(&engine) > PAGES, "{} pages are on the device", device_pages(&engine));
    w.work(&engine, &objects, &mut rng, 20_000, 0);
    let device = engine.stats().tiers.pop().unwrap();
    assert!(device.hits > 2_000 && device.promoted > 2_000, "{device:?}");
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

#[test]
fn written_page_is_never_read_from_an_old_slot() {
    for compressed in [without_compression(), CompressedConfig::default()] {
        let mut w = World::new(compressed);
        let (engine, objects) = w.start();
        let mut rng = Rng::new(2);
        w.work(&engine, &objects, &mut rng, 40_000, 5);
        engine.truncate(&objects[0], 1000 * PAGE as u64).unwrap();
        engine.truncate(&objects[0], PAGES * PAGE as u64).unwrap();
        let mut buf = vec![1; PAGE];
        for page in 1000..PAGES {
            engine.read(&objects[0], page * PAGE as u64, &mut buf, AccessPath::Preload).unwrap();
            assert!(buf == [0; PAGE], "page {page} is beyond what was cut");
        }
        (0..PAGES).for_each(|page| w.read(&engine, &objects, 1, page));
        assert_eq!(engine.check(), Vec::<String>::new());
        let row = engine.stats().tiers.pop().unwrap();
        assert!(row.reinserted * 4 <= row.demoted, "one page in five is written again: {row:?}");
        engine.shutdown().unwrap();
    }
}

#[test]
fn page_read_often_is_remembered_when_its_slot_goes() {
    let w = World::new(without_compression());
    let (engine, objects) = w.start();
    w.read_all(&engine, &objects);
    let slot_of = |state: &State, page| {
        let place = state.pages.index.find(objects[0].slot_index(), page)?;
        let Some(Below::Device(slot)) = state.pages.index.get(place).below() else { return None };
        Some((place, slot))
    };
    let [often, seldom] = {
        let state = engine.cx.state.lock();
        let mut there = (0..PAGES).filter(|page| slot_of(&state, *page).is_some());
        [there.next().unwrap(), there.next_back().unwrap()]
    };
    let drop_slot_of = |(page, hits)| {
        let mut state = engine.cx.state.lock();
        let (place, slot) = slot_of(&state, page).unwrap();
        (0..hits).for_each(|_| _ = state.device.as_mut().unwrap().note_hit(slot));
        state.drop_slot(slot, objects[0].id(), page);
        state.pages.index.get(place).shadow()
    };
    assert_eq!([(often, 4), (seldom, 3)].map(drop_slot_of), [WAS_READ, WAS_HERE]);
    let is_reused = |page| {
        w.read(&engine, &objects, 0, page);
        let state = engine.cx.state.lock();
        let place = state.pages.index.find(objects[0].slot_index(), page).unwrap();
        let frame = state.pages.index.get(place).frame().unwrap();
        state.pages.flags(frame).load(Ordering::Relaxed) & REUSED != 0
    };
    assert_eq!([often, seldom].map(is_reused), [true, false], "worth a write when it leaves memory");
    engine.shutdown().unwrap();
}

#[test]
fn restart_begins_warm_and_reads_no_source() {
    let mut w = World::new(without_compression());
    let (engine, objects) = w.start();
    let mut rng = Rng::new(3);
    w.work(&engine, &objects, &mut rng, 20_000, 50);
    w.read_all(&engine, &objects);
    engine.flush_all(true).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    engine.shutdown().unwrap();
    let before = device_pages(&engine);
    drop((engine, objects));
    let (engine, objects) = w.start();
    wait_until("parked pages", || engine.cx.state.lock().device.as_ref().unwrap().parked.is_empty());
    let found = device_pages(&engine);
    assert!(found * 10 >= before * 9 && found > 2 * PAGES, "{found} of {before} pages");
    w.read_all(&engine, &objects);
    let row = engine.stats().tiers.pop().unwrap();
    // With those that were read ahead.
    assert!(row.promoted * 10 >= found * 9, "{} of {found} pages", row.promoted);
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

#[test]
fn file_changed_meanwhile_is_cold() {
    let mut w = World::new(without_compression());
    let (engine, objects) = w.start();
    w.read_all(&engine, &objects);
    std::thread::sleep(Duration::from_millis(30));
    engine.shutdown().unwrap();
    drop((engine, objects));
    // With its old mtime, as a careful forger would.
    let mtime = w.sources[1].metadata().unwrap().modified().unwrap();
    w.sources[1].write_all_at(&content(1, 7, 1), 7 * PAGE as u64).unwrap();
    w.contents[1][7] = 1;
    w.sources[1].set_modified(mtime).unwrap();
    let (engine, objects) = w.start();
    w.read_all(&engine, &objects);
    let row = engine.stats().tiers.pop().unwrap();
    assert!(row.promoted > PAGES && row.promoted <= 2 * PAGES, "{} pages: of two files", row.promoted);
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

#[test]
fn file_that_is_forgotten_comes_back_with_its_pages() {
    let mut w = World::new(without_compression());
    let (engine, mut objects) = w.start();
    w.work(&engine, &objects, &mut Rng::new(4), 5_000, 20);
    w.read_all(&engine, &objects);
    engine.flush_all(true).unwrap();
    std::thread::sleep(Duration::from_millis(60));
    let before = device_pages(&engine);
    engine.forget_object(objects[2].id()).unwrap();
    assert_eq!(engine.check(), Vec::<String>::new());
    let parked = engine.cx.state.lock().device.as_ref().unwrap().parked.len();
    assert_eq!(parked, 1, "{before} pages before");
    objects[2] = engine.object(102, w.sources[2].as_raw_fd(), PAGES * PAGE as u64).unwrap();
    wait_until("parked pages", || engine.cx.state.lock().device.as_ref().unwrap().parked.is_empty());
    w.read_all(&engine, &objects);
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

#[test]
fn device_that_fails_leaves_the_cache_serving() {
    let mut w = World::new(without_compression());
    let (engine, objects) = w.start();
    w.work(&engine, &objects, &mut Rng::new(5), 5_000, 0);
    w.failing.store(true, Ordering::Relaxed);
    w.work(&engine, &objects, &mut Rng::new(6), 10_000, 0);
    let row = engine.stats().tiers.pop().unwrap();
    assert!(row.state.starts_with("off: "), "{}", row.state);
    w.failing.store(false, Ordering::Relaxed);
    w.work(&engine, &objects, &mut Rng::new(7), 10_000, 5);
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

/// A run of pages, some of them on the device, is one read of the source.
#[test]
fn short_gaps_on_the_device_are_read_from_the_source() {
    let mut w = World::new(without_compression());
    let (engine, objects) = w.start();
    w.work(&engine, &objects, &mut Rng::new(9), 20_000, 0);
    // Only the source has every fourth page of those that are on the device.
    let mut cut = Vec::new();
    let mut state = engine.cx.state.lock();
    for page in 0..PAGES {
        let place = state.pages.index.find(objects[0].slot_index(), page);
        let below = place.and_then(|place| state.pages.index.get(place).below());
        if let (Some(Below::Device(slot)), Some(place), true) = (below, place, page % 4 == 0) {
            state.pages.make_absent(place, 0);
            let device = state.device.as_mut().unwrap();
            device.kill(slot);
            device.bury(objects[0].id(), page, page);
        }
        cut.push(below.is_some());
    }
    drop(state);
    // From a page that is absent now to another, with nothing in memory between them.
    let first =
        (0..PAGES as usize - 5).step_by(4).find(|at| cut[*at..at + 5].iter().all(|there| *there)).unwrap();
    let before = w.source_reads.load(Ordering::Relaxed);
    let mut buf = vec![0; 5 * PAGE];
    engine.read(&objects[0], (first * PAGE) as u64, &mut buf, AccessPath::Preload).unwrap();
    assert_eq!(w.source_reads.load(Ordering::Relaxed) - before, 1);
    for (i, is) in buf.chunks(PAGE).enumerate() {
        assert!(is == content(0, (first + i) as u64, 0), "page {i}");
    }
    assert_eq!(engine.check(), Vec::<String>::new());
    w.work(&engine, &objects, &mut Rng::new(10), 10_000, 5);
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

/// What the device has of a long run is read there, and the rest from the source, for one miss.
#[test]
fn long_run_is_read_from_both_places_at_once() {
    let w = World::new(without_compression());
    let (engine, objects) = w.start();
    w.read_all(&engine, &objects);
    const RUN: usize = 48;
    let o = &objects[0];
    let mut state = engine.cx.state.lock();
    let places: Vec<_> = (0..PAGES).map(|page| state.pages.index.find(o.slot_index(), page)).collect();
    let slot =
        |state: &State, page: usize| match places[page].and_then(|at| state.pages.index.get(at).below()) {
            Some(Below::Device(slot)) => Some(slot),
            _ => None,
        };
    let all_there = |at: &usize| (*at..at + RUN).all(|page| slot(&state, page).is_some());
    let first = (1..PAGES as usize - RUN).find(all_there).expect("a long run is on the device");
    // The first third and the last: more than a short gap lies between them.
    for page in (first..first + 12).chain(first + RUN - 12..first + RUN) {
        let slot = slot(&state, page).unwrap();
        state.pages.make_absent(places[page].unwrap(), 0);
        let device = state.device.as_mut().unwrap();
        device.kill(slot);
        device.bury(o.id(), page as u64, page as u64);
    }
    drop(state);
    let hits = || engine.stats().tiers.pop().unwrap().hits;
    let before = hits();
    let mut buf = vec![0; RUN * PAGE];
    engine.read(o, (first * PAGE) as u64, &mut buf, AccessPath::Preload).unwrap();
    for (i, is) in buf.chunks(PAGE).enumerate() {
        assert!(is == content(0, (first + i) as u64, 0), "page {i}");
    }
    assert_eq!(hits() - before, RUN as u64 - 24, "pages that the device gave");
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

/// Calls to one file that fail, end after half a page, take long, or do not end until the trouble is over.
#[derive(Debug)]
struct Troubled {
    inner: BlockingIo,
    target: RawFd,
    trouble: Arc<AtomicU8>,
    hanging: Arc<AtomicBool>,
}

const NONE: u8 = 0;
const FAILS: u8 = 1;
const SHORT: u8 = 2;
const SLOW: u8 = 3;
const HANGS: u8 = 4;

impl Troubled {
    fn of(w: &World) -> Arc<Troubled> {
        let (trouble, hanging) = (Arc::default(), Arc::default());
        Arc::new(Troubled { inner: BlockingIo::default(), target: w.target.as_raw_fd(), trouble, hanging })
    }
    fn set(&self, trouble: u8) {
        self.trouble.store(trouble, Ordering::Release);
    }
    fn now(&self, fd: RawFd) -> u8 {
        if fd == self.target { self.trouble.load(Ordering::Acquire) } else { NONE }
    }
}

impl Io for Troubled {
    unsafe fn read(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<usize> {
        match self.now(fd) {
            FAILS => return Err(rustix::io::Errno::IO.into()),
            SHORT => {
                let part = [IoVec { ptr: bufs[0].ptr, len: bufs[0].len / 2 }];
                // SAFETY: a part of what the caller promises.
                return unsafe { self.inner.read(fd, offset, &part) };
            }
            SLOW => std::thread::sleep(Duration::from_millis(1)),
            HANGS => {
                self.hanging.store(true, Ordering::Release);
                wait_until("the end of the trouble", || self.now(fd) != HANGS);
            }
            _ => {}
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.read(fd, offset, bufs) }
    }
    unsafe fn write(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<()> {
        if self.now(fd) == SLOW {
            std::thread::sleep(Duration::from_millis(20));
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.write(fd, offset, bufs) }
    }
    fn sync(&self, fd: RawFd, data_only: bool) -> io::Result<()> {
        self.inner.sync(fd, data_only)
    }
    fn sync_fs(&self, fd: RawFd) -> io::Result<()> {
        self.inner.sync_fs(fd)
    }
    fn truncate(&self, fd: RawFd, size: u64) -> io::Result<()> {
        self.inner.truncate(fd, size)
    }
}

#[test]
fn device_with_failing_short_or_slow_calls_shows_no_wrong_page() {
    let mut w = World::new(without_compression());
    let io = Troubled::of(&w);
    let (engine, objects) = w.start_on(io.clone());
    let mut rng = Rng::new(8);
    w.read_all(&engine, &objects);
    for trouble in [FAILS, SHORT, SLOW] {
        w.work(&engine, &objects, &mut rng, 10_000, 0);
        assert!(device_pages(&engine) > 1000, "trouble {trouble}: {}", device_pages(&engine));
        let hits = engine.stats().tiers.pop().unwrap().hits;
        io.set(trouble);
        w.work(&engine, &objects, &mut rng, 2_000, 5);
        io.set(NONE);
        let during = engine.stats().tiers.pop().unwrap().hits - hits;
        assert_eq!(during > 0, trouble == SLOW, "trouble {trouble}: {during} hits");
        w.work(&engine, &objects, &mut rng, 5_000, 5);
        assert_eq!(engine.check(), Vec::<String>::new());
    }
    engine.shutdown().unwrap();
}

/// Neither the state lock nor a file's is held while the device is read.
#[test]
fn hanging_read_of_the_device_holds_up_nobody_else() {
    let mut w = World::new(without_compression());
    let io = Troubled::of(&w);
    let (engine, objects) = w.start_on(io.clone());
    w.read_all(&engine, &objects);
    let on_device = |page: &u64| {
        let state = engine.cx.state.lock();
        let place = state.pages.index.find(objects[0].slot_index(), *page);
        place.is_some_and(|place| matches!(state.pages.index.get(place).below(), Some(Below::Device(_))))
    };
    let page = (0..PAGES).find(on_device).unwrap();
    w.read(&engine, &objects, 1, 7);
    io.set(HANGS);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut buf = vec![0; PAGE];
            engine.read(&objects[0], page * PAGE as u64, &mut buf, AccessPath::Preload).unwrap();
            buf
        });
        wait_until("the read", || io.hanging.load(Ordering::Acquire));
        w.read(&engine, &objects, 1, 7);
        w.write(&engine, &objects, 1, 7);
        w.read(&engine, &objects, 1, 7);
        assert!(!reader.is_finished());
        io.set(NONE);
        assert!(reader.join().unwrap() == content(0, page, 0));
    });
    engine.shutdown().unwrap();
}

#[test]
fn damaged_slot_is_read_from_the_source() {
    let w = World::new(without_compression());
    let (engine, objects) = w.start();
    w.read_all(&engine, &objects);
    let noise = content(9, 9, 9);
    for at in (1 << 20..TIER_BYTES).step_by(3 * PAGE) {
        w.target.write_all_at(&noise, at).unwrap();
    }
    w.read_all(&engine, &objects);
    assert_eq!(engine.check(), Vec::<String>::new());
    assert!(engine.cx.state.lock().device.as_ref().unwrap().events.damaged > 0);
    engine.shutdown().unwrap();
}

#[test]
fn check_finds_a_key_that_nothing_names() {
    let w = World::new(without_compression());
    let (engine, objects) = w.start();
    w.read_all(&engine, &objects);
    assert_eq!(engine.check(), Vec::<String>::new());
    let mut state = engine.cx.state.lock();
    let on_device = |page| {
        let place = state.pages.index.find(objects[0].slot_index(), page)?;
        let Some(Below::Device(slot)) = state.pages.index.get(place).below() else { return None };
        Some((page, place, slot))
    };
    let (page, place, slot) = (0..PAGES).find_map(on_device).unwrap();
    // As if a change of the page had left no tombstone.
    state.pages.make_absent(place, 0);
    state.device.as_mut().unwrap().kill(slot);
    drop(state);
    let bad = engine.check();
    assert!(bad.len() == 1 && bad[0].contains(&format!("page {page}: nothing names")), "{bad:?}");
    engine.cx.state.lock().device.as_mut().unwrap().bury(objects[0].id(), page, page);
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}
