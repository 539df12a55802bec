//! Test fixture: an engine with device tiers, its sources and targets, and the expected content.

use crate::state::State;
use crate::state::device::Device;
use crate::{AccessPath, CompressedConfig, Engine, EngineConfig, ObjectRef, SegmentHandles, SystemClock};
use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use terrace_io::testing::{Call, HookIo};
use terrace_io::{BlockingIo, Io, IoVec};
use terrace_sync::{Mutex, MutexGuard};
use terrace_testkit::rng::Rng;
use terrace_testkit::wait::wait_until;
use terrace_tier::{Access, DeviceConfig, FileMedium, Geometry, Source, Superblock, superblock};

pub(super) const PAGE: usize = 4096;
pub(super) const FILES: u64 = 3;
pub(super) const PAGES: u64 = 4096;
pub(super) const TIER_BYTES: u64 = 64 << 20;

const NOISE_BYTES: usize = 256 << 10;

/// Source files of three times the memory, targets of device tiers, and the expected versions.
pub(super) struct Fixture {
    /// Dropped first: the engines end before their files close, also in a failed test. Otherwise their
    /// threads would use other tests' descriptor numbers.
    pub(crate) running: Running,
    pub(crate) sources: Vec<File>,
    /// Targets with their tiers.
    pub(crate) targets: Vec<(File, u8)>,
    pub(crate) placement: &'static str,
    pub(crate) contents: Vec<Vec<u32>>,
    pub(crate) failing: Arc<AtomicBool>,
    pub(crate) source_reads: Arc<AtomicU64>,
    pub(crate) compressed: CompressedConfig,
    /// See [`EngineConfig::boot`].
    pub(crate) boot: Option<(u16, i64)>,
    pub(crate) announced_writes: bool,
}

/// Engines, halted at the end.
#[derive(Default)]
pub(super) struct Running(Mutex<Vec<Arc<Engine>>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().iter().for_each(|engine| engine.halt());
    }
}

/// Content of a page after `version` changes. Hardly compressible.
pub(super) fn content(file: u64, page: u64, version: u32) -> Vec<u8> {
    static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut rng = Rng::new(1);
        (0..NOISE_BYTES / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
    });
    let name = file << 48 | page << 16 | u64::from(version);
    let from = Rng::new(name).below((NOISE_BYTES - PAGE) as u64) as usize;
    let mut content = NOISE[from..from + PAGE].to_vec();
    content[..8].copy_from_slice(&name.to_le_bytes());
    content
}

pub(super) fn target(bytes: u64) -> File {
    let target = tempfile::tempfile().unwrap();
    target.set_len(bytes).unwrap();
    let medium = FileMedium::new(target.as_raw_fd(), Arc::new(BlockingIo::default()), bytes);
    let source = Source { hash: 7, path: "/src".into() };
    let mut fresh = Superblock::new(source, Geometry::plan(bytes).unwrap(), 0).unwrap();
    superblock::format(&medium, &mut fresh).unwrap();
    target
}

pub(super) fn device_config(number: usize, (target, level): &(File, u8), first_region: u32) -> DeviceConfig {
    let bytes = target.metadata().unwrap().len();
    let medium = FileMedium::new(target.as_raw_fd(), Arc::new(BlockingIo::default()), bytes);
    let superblock::Found::Ours(found) = superblock::find(&medium).unwrap() else { panic!("not formatted") };
    let first = crate::testing::device_config(Access::File(target.as_raw_fd()), bytes, &found);
    DeviceConfig { number, name: format!("test-{level}"), first_region, level: *level, ..first }
}

impl Fixture {
    pub(super) fn new(compressed: CompressedConfig) -> Fixture {
        Fixture::with(compressed, &[(TIER_BYTES, 0)])
    }
    /// A fixture with targets of these sizes and tiers.
    pub(super) fn with(compressed: CompressedConfig, targets: &[(u64, u8)]) -> Fixture {
        let make = |file: u64| {
            let source = tempfile::tempfile().unwrap();
            for page in 0..PAGES {
                source.write_all_at(&content(file, page, 0), page * PAGE as u64).unwrap();
            }
            source
        };
        let sources = (0..FILES).map(make).collect();
        // A target keeps no page of files that have just changed.
        std::thread::sleep(crate::file::identity::SETTLES);
        Fixture {
            running: Running::default(),
            sources,
            targets: targets.iter().map(|(bytes, level)| (target(*bytes), *level)).collect(),
            placement: "min-io-time",
            contents: vec![vec![0; PAGES as usize]; FILES as usize],
            failing: Arc::default(),
            source_reads: Arc::default(),
            compressed,
            boot: None,
            announced_writes: false,
        }
    }
    pub(super) fn config(&self) -> EngineConfig {
        let mut regions = 0;
        let device = |(number, target)| {
            let config = device_config(number, target, regions);
            regions += config.regions;
            config
        };
        EngineConfig {
            devices: self.targets.iter().enumerate().map(device).collect(),
            placement: self.placement.into(),
            memory_bytes: 16 << 20,
            memory_max_bytes: Some(32 << 20),
            compressed: self.compressed,
            boot: self.boot,
            announced_writes: self.announced_writes,
            ..EngineConfig::default()
        }
    }
    pub(super) fn io(&self) -> Arc<dyn Io> {
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
    /// An engine over a new segment, after the scan of its targets.
    pub(super) fn start(&self) -> (Arc<Engine>, Vec<ObjectRef>) {
        self.start_on(self.io())
    }
    pub(super) fn start_on(&self, io: Arc<dyn Io>) -> (Arc<Engine>, Vec<ObjectRef>) {
        let config = self.config();
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        self.start_over(config, handles, io)
    }
    fn start_over(
        &self,
        config: EngineConfig,
        handles: Arc<SegmentHandles>,
        io: Arc<dyn Io>,
    ) -> (Arc<Engine>, Vec<ObjectRef>) {
        let engine = Engine::start(config, handles, Arc::new(SystemClock), io).unwrap();
        self.running.0.lock().push(engine.clone());
        engine.serve().unwrap();
        let object = |file: u64| {
            let source = &self.sources[file as usize];
            engine.object(100 + file, source.as_raw_fd(), PAGES * PAGE as u64).unwrap()
        };
        let objects = (0..FILES).map(object).collect();
        self.scanned(&engine);
        (engine, objects)
    }
    /// An engine over the given new memory files.
    pub(super) fn start_on_files(
        &self,
        config: EngineConfig,
        handles: Arc<SegmentHandles>,
    ) -> (Arc<Engine>, Vec<ObjectRef>) {
        self.start_over(config, handles, Troubled::of(self))
    }
    /// The next engine over the memory files of a killed one.
    pub(super) fn start_after_a_kill(
        &self,
        config: EngineConfig,
        handles: Arc<SegmentHandles>,
    ) -> (Arc<Engine>, Vec<ObjectRef>) {
        let engine = Engine::start(config, handles, Arc::new(SystemClock), Troubled::of(self)).unwrap();
        let object = |file: u64| {
            let source = &self.sources[file as usize];
            engine.reattach_object(100 + file, source.as_raw_fd()).unwrap()
        };
        let objects = (0..FILES).map(object).collect();
        engine.recover_pages();
        self.running.0.lock().push(engine.clone());
        engine.serve().unwrap();
        self.scanned(&engine);
        (engine, objects)
    }
    pub(super) fn scanned(&self, engine: &Engine) {
        wait_until("the scan", || !all(engine).iter().any(Device::is_scanning));
    }
    pub(super) fn read(&self, engine: &Engine, objects: &[ObjectRef], file: u64, page: u64) {
        let mut buf = vec![0; PAGE];
        let o = &objects[file as usize];
        engine.read(o, page * PAGE as u64, &mut buf, AccessPath::Preload).unwrap();
        let version = self.contents[file as usize][page as usize];
        assert!(buf == content(file, page, version), "file {file} page {page} version {version}");
    }
    pub(super) fn write(&mut self, engine: &Engine, objects: &[ObjectRef], file: u64, page: u64) {
        let version = &mut self.contents[file as usize][page as usize];
        *version += 1;
        let new = content(file, page, *version);
        engine.write(&objects[file as usize], page * PAGE as u64, &new).unwrap();
    }
    /// Truncates the first file to 1,000 pages and extends it again: the truncated part reads as zeros.
    pub(super) fn cut(&self, engine: &Engine, objects: &[ObjectRef]) {
        engine.truncate(&objects[0], 1000 * PAGE as u64).unwrap();
        engine.truncate(&objects[0], PAGES * PAGE as u64).unwrap();
        let mut buf = vec![1; PAGE];
        for page in 1000..PAGES {
            engine.read(&objects[0], page * PAGE as u64, &mut buf, AccessPath::Preload).unwrap();
            assert!(buf == [0; PAGE], "page {page} is beyond what was cut");
        }
    }
    /// Reads pages at random, and writes one of each `writes_in` (0: none).
    pub(super) fn work(
        &mut self,
        engine: &Engine,
        objects: &[ObjectRef],
        rng: &mut Rng,
        steps: u64,
        writes_in: u64,
    ) {
        for _ in 0..steps {
            let (file, page) = (rng.below(FILES), rng.below(PAGES / 2) + rng.below(PAGES / 2));
            match writes_in > 0 && rng.below(writes_in.max(1)) == 0 {
                true => self.write(engine, objects, file, page),
                false => self.read(engine, objects, file, page),
            }
        }
    }
    pub(super) fn read_all(&self, engine: &Engine, objects: &[ObjectRef]) {
        (0..FILES).for_each(|file| (0..PAGES).for_each(|page| self.read(engine, objects, file, page)));
    }
}

pub(super) struct All<'a>(MutexGuard<'a, State>);

impl Deref for All<'_> {
    type Target = Vec<Device>;
    fn deref(&self) -> &Vec<Device> {
        &self.0.targets.as_ref().unwrap().all
    }
}

impl DerefMut for All<'_> {
    fn deref_mut(&mut self) -> &mut Vec<Device> {
        &mut self.0.targets.as_mut().unwrap().all
    }
}

pub(super) fn all(engine: &Engine) -> All<'_> {
    All(engine.cx.state.lock())
}

pub(super) fn device_pages(engine: &Engine) -> u64 {
    all(engine).iter().map(|device| device.log.live()).sum()
}

pub(super) fn without_compression() -> CompressedConfig {
    CompressedConfig { codec: None, ..CompressedConfig::default() }
}

/// I/O with trouble on one target: errors, short reads, delays, or a hang until the trouble ends. Sources are
/// slower than targets.
#[derive(Debug)]
pub(super) struct Troubled {
    inner: BlockingIo,
    targets: Vec<RawFd>,
    trouble: Arc<AtomicU8>,
    pub(crate) hanging: Arc<AtomicBool>,
}

/// Additional time per page of a source.
const SOURCE_SLOWER: Duration = Duration::from_micros(40);

pub(super) const NONE: u8 = 0;
pub(super) const FAILS: u8 = 1;
pub(super) const SHORT: u8 = 2;
pub(super) const SLOW: u8 = 3;
pub(super) const HANGS: u8 = 4;

impl Troubled {
    /// The first target may get trouble.
    pub(super) fn of(w: &Fixture) -> Arc<Troubled> {
        let (trouble, hanging) = (Arc::default(), Arc::default());
        let targets = w.targets.iter().map(|(target, _)| target.as_raw_fd()).collect();
        Arc::new(Troubled { inner: BlockingIo::default(), targets, trouble, hanging })
    }
    pub(super) fn set(&self, trouble: u8) {
        self.trouble.store(trouble, Ordering::Release);
    }
    fn now(&self, fd: RawFd) -> u8 {
        if fd == self.targets[0] { self.trouble.load(Ordering::Acquire) } else { NONE }
    }
}

impl Io for Troubled {
    unsafe fn read(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<usize> {
        let (began, pages) = (Instant::now(), bufs.iter().map(|buf| buf.len).sum::<usize>() / PAGE);
        while !self.targets.contains(&fd) && began.elapsed() < SOURCE_SLOWER * pages as u32 {}
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
