//! Power cuts and kills of the daemon at random times, while a target answers fsyncs. Acknowledged data stay,
//! and later changes by other programs, too.

mod faults;
mod growing;
mod spread;
mod volatile;

use super::*;
use crate::burst::replay::{Conflict, Decision, FileLookup, Replayed};
use crate::config::CompressedConfig;
use crate::path::throttle;
use crate::{AccessPath, Engine, EngineConfig, SegmentHandles, SystemClock};
use faults::Shifted;
use rustix::fs::{FallocateFlags, fallocate};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};
use terrace_testkit::rng::{Rng, seed};
use terrace_testkit::wait::wait_until;
use terrace_tier::{Access, DeviceConfig};
use terrace_tier::{Found, Geometry, SimCall, SimMedium, Source, Superblock, superblock};
use volatile::Volatile;

const PAGE: usize = 4096;
const FILES: usize = 2;
const PAGES: usize = 12;
/// Longest life: write intents may expire in a longer one.
const LIFE_MAX: Duration = Duration::from_secs(3);

/// Possible versions of a page: that of the last fsync, and those written since.
type Versions = BTreeSet<u32>;

struct Fixture {
    io: Arc<Volatile>,
    medium: Arc<SimMedium>,
    config: EngineConfig,
    handles: Arc<SegmentHandles>,
    engine: Arc<Engine>,
    clock: Arc<Shifted>,
    /// Begin of the next simulated boot of the machine.
    boots: i64,
    objects: Vec<ObjectRef>,
    /// Versions by file and page. 0: zeros.
    may_be: Vec<Vec<Versions>>,
    now: Vec<Vec<u32>>,
    next: u32,
    began: Instant,
    target_fsyncs: u64,
    /// A directory of the source's file system, for engines that get a source root.
    root: Option<File>,
}

fn content(version: u32) -> Vec<u8> {
    version.to_le_bytes().repeat(PAGE / 4)
}

fn formatted(regions: u32) -> Arc<SimMedium> {
    let geometry = Geometry::new(64 << 10, regions).unwrap();
    let medium = SimMedium::new(geometry.bytes());
    let source = Source { hash: 7, path: "/src".into() };
    superblock::format(&medium, &mut Superblock::new(source, geometry, 0).unwrap()).unwrap();
    Arc::new(medium)
}

fn config(medium: &Arc<SimMedium>) -> EngineConfig {
    let Found::Ours(found) = superblock::find(&**medium).unwrap() else { panic!("not formatted") };
    let of = crate::testing::device_config(Access::Medium(medium.clone()), found.geometry.bytes(), &found);
    let device = DeviceConfig { name: "burst".into(), ..of };
    EngineConfig {
        devices: vec![device],
        memory_bytes: 16 << 20,
        memory_max_bytes: Some(16 << 20),
        compressed: CompressedConfig { codec: None, ..CompressedConfig::default() },
        durable_in_tier: true,
        boot: Some((1, i64::MAX)),
        prefetch_workers: 0,
        huge_pages: false,
        ..EngineConfig::default()
    }
}

impl Fixture {
    fn new(regions: u32) -> Fixture {
        Fixture::with(regions, |_| {})
    }
    fn with(regions: u32, adjust: impl FnOnce(&mut EngineConfig)) -> Fixture {
        let file = |_| {
            let file = volatile::new_file();
            file.set_len((PAGES * PAGE) as u64).unwrap();
            file
        };
        let io = Arc::new(Volatile::over((0..FILES).map(file).collect()));
        let medium = formatted(regions);
        let mut config = config(&medium);
        adjust(&mut config);
        let clock = Arc::new(Shifted::default());
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let engine = Engine::start(config.clone(), handles.clone(), clock.clone(), io.clone()).unwrap();
        engine.serve().unwrap();
        let mut world = Fixture {
            io,
            medium,
            config,
            handles,
            engine,
            clock,
            boots: i64::MAX,
            objects: Vec::new(),
            may_be: vec![vec![Versions::from([0]); PAGES]; FILES],
            now: vec![vec![0; PAGES]; FILES],
            next: 1,
            began: Instant::now(),
            target_fsyncs: 0,
            root: None,
        };
        world.scanned();
        world.publish();
        world
    }
    fn scanned(&self) {
        let is_scanning = || on_target(&mut self.engine.cx.state.lock(), 0, |of| of.is_scanning());
        wait_until("the scan", || is_scanning() == Some(false));
    }
    fn publish(&mut self) {
        let object = |file: &File| {
            let meta = file.metadata().unwrap();
            self.engine.object(meta.ino(), file.as_raw_fd(), meta.len()).unwrap()
        };
        self.objects = self.io.files().iter().map(|file| object(file)).collect();
    }
    fn write(&mut self, file: usize, page: usize, pages: usize) {
        let pages = page..(page + pages).min(PAGES);
        let data: Vec<u8> = pages.clone().flat_map(|page| content(self.next + page as u32)).collect();
        self.engine.write(&self.objects[file], (pages.start * PAGE) as u64, &data).unwrap();
        for page in pages {
            let version = self.next + page as u32;
            self.may_be[file][page].insert(version);
            self.now[file][page] = version;
        }
        self.next += PAGES as u32;
    }
    fn fsync(&mut self, file: usize) {
        let cursor = self.objects[file].error_cursor();
        let before = self.dirty(file);
        self.engine.fsync(&self.objects[file], false, &cursor).unwrap();
        self.target_fsyncs += u64::from(before > 0 && self.dirty(file) > 0);
        self.acknowledge(file);
    }
    fn acknowledge(&mut self, file: usize) {
        for (may_be, now) in self.may_be[file].iter_mut().zip(&self.now[file]) {
            *may_be = [*now].into();
        }
    }
    fn dirty(&self, file: usize) -> u64 {
        self.objects[file].dirty_pages()
    }
    fn cut(&mut self, file: usize, page: usize) {
        let o = &self.objects[file];
        self.engine.truncate(o, (page * PAGE) as u64).unwrap();
        self.engine.truncate(o, (PAGES * PAGE) as u64).unwrap();
        for page in page..PAGES {
            // The source of these tests truncates durably.
            (self.may_be[file][page], self.now[file][page]) = ([0].into(), 0);
        }
    }
    fn punch(&mut self, file: usize, page: usize) {
        let range = (page * PAGE) as u64..((page + 1) * PAGE) as u64;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let o = &self.objects[file];
        let punched = self.engine.with_source(o, range.clone(), |_| {
            // Earlier writes reach the source before the hole.
            self.io.apply(|of| of == o.id(), || true);
            Ok(fallocate(self.io.file(file), flags, range.start, PAGE as u64)?)
        });
        punched.unwrap();
        (self.may_be[file][page], self.now[file][page]) = ([0].into(), 0);
    }
    fn check(&self) {
        for file in 0..FILES {
            let mut buf = vec![0; PAGES * PAGE];
            self.engine.read(&self.objects[file], 0, &mut buf, AccessPath::Preload).unwrap();
            for (page, buf) in buf.chunks(PAGE).enumerate() {
                assert!(buf == content(self.now[file][page]), "file {file} page {page}");
            }
        }
        assert_eq!(self.engine.check(), Vec::<String>::new());
    }
    /// Kills the daemon; the next one takes over.
    fn kill(&mut self) {
        self.next_terraced();
        assert_eq!(self.engine.undestaged().unwrap(), [], "files in memory keep their undestaged pages");
    }
    fn next_terraced(&mut self) {
        self.engine.halt();
        let (config, handles) = (self.config.clone(), self.handles.clone());
        self.engine = Engine::start(config, handles, self.clock.clone(), self.io.clone()).unwrap();
        let object =
            |file: &File| self.engine.reattach_object(file.metadata().unwrap().ino(), file.as_raw_fd());
        self.objects = self.io.files().iter().map(|file| object(file).unwrap()).collect();
        self.engine.recover_pages();
        self.engine.serve().unwrap();
    }
    /// Cuts the power and starts the next engine. Returns the pages written to the source, and conflicts.
    fn power_cut(&mut self, rng: &mut Rng) -> (u64, Vec<Conflict>) {
        self.engine.halt();
        self.medium.power_cut(rng);
        self.io.power_cut(rng);
        self.restart(self.config.boot.map(|(boot, _)| boot + 1))
    }
    fn restart(&mut self, boot: Option<u16>) -> (u64, Vec<Conflict>) {
        self.config.boot = boot.map(|boot| (boot, self.boots));
        self.handles = Arc::new(SegmentHandles::create(&self.config).unwrap());
        let (config, handles) = (self.config.clone(), self.handles.clone());
        self.engine = Engine::start(config, handles, self.clock.clone(), self.io.clone()).unwrap();
        self.engine.serve().unwrap();
        self.set_root();
        let (mut written, mut conflicts) = (0, Vec::new());
        for undestaged in self.engine.undestaged().unwrap_or_default() {
            match self.replay(undestaged.file, Decision::Keep) {
                Replayed::Written(pages) => written += pages,
                Replayed::Kept(why) => conflicts.push(why),
                Replayed::Dropped => {
                    assert!(self.objects.iter().all(|o| o.id() != undestaged.file), "the file is there");
                }
            }
        }
        self.scanned();
        self.publish();
        (written, conflicts)
    }
    fn set_root(&self) {
        if let Some(root) = &self.root {
            self.engine.set_source_root(root.as_fd()).unwrap();
        }
    }
    fn replay(&self, id: u64, decision: Decision) -> Replayed {
        let files = self.io.files();
        let file = files.iter().find(|file| file.metadata().unwrap().ino() == id);
        let at = file.map_or(FileLookup::Gone, |file| FileLookup::Found(file.as_raw_fd().into()));
        self.engine.replay(id, at, decision).unwrap()
    }
    /// Checks that each page of the source is an expected version, and takes it as the new state. False: a
    /// page is a mix of two versions.
    fn look(&mut self, what: &str) -> bool {
        let mut whole = true;
        for file in 0..FILES {
            let mut buf = vec![0; PAGES * PAGE];
            self.io.file(file).read_exact_at(&mut buf, 0).unwrap();
            for (page, buf) in buf.chunks(PAGE).enumerate() {
                let version = u32::from_le_bytes(buf[..4].try_into().unwrap());
                let may_be = &self.may_be[file][page];
                assert!(
                    is_of(buf, may_be),
                    "{what}: file {file} page {page} is {version}, not of {may_be:?}"
                );
                whole &= buf == content(version);
                (self.now[file][page], self.may_be[file][page]) = (version, [version].into());
            }
        }
        self.began = Instant::now();
        whole
    }
    fn step(&mut self, rng: &mut Rng) {
        let (file, page) = (rng.index(FILES), rng.index(PAGES));
        match rng.below(100) {
            0..40 => self.write(file, page, 1 + rng.index(4)),
            40..70 => self.fsync(file),
            70..75 => put_ahead(&self.engine.cx, &self.objects[file]),
            75..82 => self.engine.flush(&self.objects[file], 0..u64::MAX).unwrap(),
            82..84 => self.cut(file, page),
            84..86 => self.punch(file, page),
            86..89 => {
                self.engine.flush_all(true).unwrap();
                (0..FILES).for_each(|file| self.acknowledge(file));
            }
            89..92 => destage_due(&self.engine.cx, &self.engine.cx.devices.get(0).unwrap()),
            92..95 => {
                let id = self.objects[file].id();
                self.engine.forget_object(id).unwrap();
                self.publish();
            }
            95..97 => self.kill(),
            _ => self.check(),
        }
    }
}

/// Whether a page is one of these versions, or a mix of two after an unsynced write during the writeback.
fn is_of(page: &[u8], versions: &Versions) -> bool {
    versions.iter().any(|begin| {
        let begin = content(*begin);
        let same = page.iter().zip(&begin).take_while(|(a, b)| a == b).count();
        versions.iter().any(|end| page[same..] == content(*end)[same..])
    })
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.engine.halt();
    }
}

/// Several lives of one fixture, each ended by a power cut. Returns the pages written back after the cuts,
/// and the fsyncs answered by the target.
fn lives(seed: u64, regions: u32) -> (u64, u64) {
    let rng = &mut Rng::new(seed);
    let mut world = Fixture::with(regions, |config| spread::often(config, seed));
    let mut written = 0;
    for life in 0..4 {
        for _ in 0..rng.below(60) {
            world.step(rng);
        }
        world.check();
        let (pages, conflicts) = world.power_cut(rng);
        if world.began.elapsed() > LIFE_MAX {
            break;
        }
        assert_eq!(conflicts, [], "seed {seed} life {life}");
        written += pages;
        if !world.look(&format!("seed {seed} life {life}")) {
            eprintln!("seed {seed} life {life}: a page of two versions");
            break;
        }
        world.check();
    }
    (written, world.target_fsyncs)
}

#[test]
fn power_cuts_take_nothing_that_was_acknowledged() {
    let first = seed("power_cuts_take_nothing_that_was_acknowledged");
    let rounds = if std::env::var_os("TERRACE_SOAK").is_some() { 400 } else { 12 };
    let (mut written, mut target_fsyncs) = (0, 0);
    for round in 0..rounds {
        // A small log is sometimes full of undestaged pages.
        let (pages, answered) = lives(first + round, *Rng::new(first + round).pick(&[5, 8, 40]));
        (written, target_fsyncs) = (written + pages, target_fsyncs + answered);
    }
    assert!(
        written > rounds && target_fsyncs > 3 * rounds,
        "{written} pages written, {target_fsyncs} fsyncs of the target"
    );
}

/// A fixture with an undestaged page of file 0: version 2, over version 1 in the source.
fn with_undestaged_page() -> Fixture {
    let mut world = Fixture::new(8);
    world.write(0, 0, 1);
    world.fsync(0);
    world.write(0, 0, 1);
    world.fsync(0);
    assert_eq!((world.target_fsyncs, world.now[0][0]), (1, 1 + PAGES as u32));
    world
}

fn source_page(world: &Fixture) -> Vec<u8> {
    let mut buf = vec![0; PAGE];
    world.io.file(0).read_exact_at(&mut buf, 0).unwrap();
    buf
}

#[test]
fn change_by_others_after_a_power_cut_stays() {
    for decision in [Decision::Write, Decision::Discard] {
        let mut world = with_undestaged_page();
        world.engine.halt();
        world.medium.power_cut(&mut Rng::new(1));
        world.io.file(0).write_all_at(&content(77), 0).unwrap();
        assert_eq!(world.restart(Some(2)), (0, vec![Conflict::Changed]));
        assert!(source_page(&world) == content(77));
        // The file is served with the other program's content, and the source answers its fsyncs.
        world.now[0][0] = 77;
        world.check();
        world.write(0, 3, 1);
        world.fsync(0);
        world.write(0, 3, 1);
        world.fsync(0);
        assert_eq!(world.target_fsyncs, 1, "the target would take the new pages for the old run's");
        // The pages also survive a clean stop, and each start.
        world.engine.shutdown().unwrap();
        assert_eq!(world.restart(Some(3)), (0, vec![Conflict::Changed]));
        let id = world.objects[0].id();
        let (done, expected) = match decision {
            Decision::Write => (Replayed::Written(1), content(1 + PAGES as u32)),
            _ => (Replayed::Dropped, content(77)),
        };
        assert_eq!(world.replay(id, decision), done);
        assert!(source_page(&world) == expected);
        world.engine.halt();
        assert_eq!(world.restart(Some(4)), (0, vec![]));
    }
}

/// Without a reboot the source's state shows whether the file has changed, but not by which program.
#[test]
fn change_within_an_intent_is_a_conflict_on_the_same_boot() {
    let mut world = with_undestaged_page();
    world.engine.flush(&world.objects[0], 0..u64::MAX).unwrap();
    world.engine.halt();
    world.io.apply(|_| true, || true);
    assert_eq!(world.restart(Some(1)), (0, vec![Conflict::SameBoot]));
    let mut world = with_undestaged_page();
    world.engine.halt();
    assert_eq!(world.restart(Some(1)), (1, vec![]), "the file has not changed");
    assert!(source_page(&world) == content(1 + PAGES as u32));
}

#[test]
fn clean_end_leaves_no_undestaged_page() {
    let mut world = with_undestaged_page();
    world.engine.shutdown().unwrap();
    assert!(source_page(&world) == content(world.now[0][0]));
    let Found::Ours(found) = superblock::find(&*world.medium).unwrap() else { panic!("no superblock") };
    assert_eq!((found.clean, found.undestaged), (true, superblock::UndestagedMark::Destaged));
    assert_eq!(world.restart(Some(1)), (0, vec![]));
}

#[test]
fn target_is_left_alone_without_the_wish() {
    let mut world = Fixture::new(8);
    world.engine.halt();
    let fresh = formatted(8);
    world.config = EngineConfig { durable_in_tier: false, ..config(&fresh) };
    world.medium = fresh;
    world.restart(Some(1));
    for _ in 0..3 {
        world.write(0, 0, 4);
        world.fsync(0);
    }
    assert_eq!((world.target_fsyncs, world.dirty(0)), (0, 0));
    world.engine.shutdown().unwrap();
    let Found::Ours(found) = superblock::find(&*world.medium).unwrap() else { panic!("no superblock") };
    assert_eq!((found.undestaged, found.encode()[8]), (superblock::UndestagedMark::Never, 1));
}

#[test]
fn burst_is_as_large_as_writers_may_make_it() {
    let world = Fixture::with(64, |config| {
        (config.dirty_ratio, config.dirty_background_ratio) = (4, 1);
        config.writeback_interval = Duration::from_millis(1);
    });
    let (cx, o) = (&world.engine.cx, &world.objects[0]);
    let (background, limit) = (throttle::dirty_background(cx), throttle::dirty_limit(cx));
    let step = background / 2;
    world.engine.truncate(o, 2 * limit * PAGE as u64).unwrap();
    let write = |page: u64| {
        world.engine.write(o, page * PAGE as u64, &vec![1; step as usize * PAGE]).unwrap();
        world.engine.fsync(o, true, &o.error_cursor()).unwrap();
    };
    // The source answers the first fsync.
    write(0);
    assert_eq!(o.dirty_pages(), 0);
    let pages = limit / step * step;
    (0..pages).step_by(step as usize).for_each(write);
    std::thread::sleep(Duration::from_millis(50));
    assert!(
        pages > 2 * background && o.dirty_pages() == pages,
        "{} of {pages} are undestaged",
        o.dirty_pages()
    );
    // Further pages are admitted after writeback of others.
    write(pages);
    assert_eq!(o.dirty_pages(), 0);
    world.engine.shutdown().unwrap();
}

/// Concurrent writers of a file, writebacks, and truncates behind the written pages.
#[test]
fn fsyncs_and_writebacks_at_once_lose_nothing() {
    let rng = &mut Rng::new(seed("fsyncs_and_writebacks_at_once_lose_nothing"));
    for _ in 0..3 {
        let mut world = Fixture::with(8, |config| spread::often(config, rng.next_u64()));
        let (engine, o) = (world.engine.clone(), world.objects[0].clone());
        let ended = AtomicBool::new(false);
        let writer = |first: usize| {
            let (cursor, mut acked, mut version) = (o.error_cursor(), 0, 0);
            while !ended.load(Ordering::Relaxed) {
                version += 1;
                for page in first..first + 3 {
                    engine.write(&o, (page * PAGE) as u64, &content(version)).unwrap();
                }
                if version % 3 == 0 {
                    engine.fsync(&o, version % 2 == 0, &cursor).unwrap();
                    acked = version;
                }
            }
            (acked, version)
        };
        let ends = std::thread::scope(|scope| {
            let writers: Vec<_> = [0, 3, 6].map(|first| scope.spawn(move || writer(first))).into();
            let device = engine.cx.devices.get(0).unwrap();
            for _ in 0..40 {
                match rng.below(4) {
                    0 => engine.flush(&o, 0..u64::MAX).unwrap(),
                    1 => engine.flush_all(true).unwrap(),
                    2 => destage_due(&engine.cx, &device),
                    _ => engine.truncate(&o, ((9 + rng.index(3)) * PAGE) as u64).unwrap(),
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            ended.store(true, Ordering::Relaxed);
            writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
        });
        let began = Instant::now();
        let (_, conflicts) = world.power_cut(rng);
        if began.elapsed() > LIFE_MAX {
            continue;
        }
        assert_eq!(conflicts, []);
        let mut buf = vec![0; 9 * PAGE];
        world.io.file(0).read_exact_at(&mut buf, 0).unwrap();
        for (page, buf) in buf.chunks(PAGE).enumerate() {
            let (acked, last) = ends[page / 3];
            // A page under write may be a mix of two writes.
            for word in buf.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())) {
                assert!((acked..=last).contains(&word), "page {page}: {word} not in {acked}..={last}");
            }
        }
    }
}
