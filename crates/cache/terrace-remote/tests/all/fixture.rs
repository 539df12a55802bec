//! An engine with one target in a store: source files, their expected content, and instances.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use terrace_engine::{
    AccessPath, CompressedConfig, Engine, EngineConfig, ObjectRef, SegmentHandles, SystemClock,
};
use terrace_io::{BlockingIo, Io, IoVec};
use terrace_remote::Target;
use terrace_testkit::rng::Rng;
use terrace_testkit::wait::wait_until;
use terrace_tier::Medium;
use terrace_tier::target::{Others, TargetError, TargetRequest};
use terrace_tier::{Access, DeviceConfig};

pub(crate) const PAGE: usize = 4096;
pub(crate) const FILES: u64 = 2;
pub(crate) const PAGES: u64 = 4096;
const MEMORY: u64 = 16 << 20;
/// Additional duration of a source read, so that a hit in the store saves time.
const SLOWER_THAN_FILES: Duration = Duration::from_micros(400);
const SLOWER_THAN_A_SERVER: Duration = Duration::from_millis(3);

/// Source files of twice the memory, and the path of a target that can hold them.
pub(crate) struct Fixture {
    dir: tempfile::TempDir,
    pub path: PathBuf,
    sources: Vec<File>,
    contents: Vec<Vec<u32>>,
    slower: Duration,
}

pub(crate) struct Life {
    pub engine: Arc<Engine>,
    pub objects: Vec<ObjectRef>,
    pub handles: Arc<SegmentHandles>,
    pub target: Arc<Target>,
    pub medium: Arc<dyn Medium>,
}

/// Content of a page after `version` changes.
fn content(file: u64, page: u64, version: u32) -> Vec<u8> {
    Rng::new(file << 48 | page << 16 | u64::from(version)).bytes(PAGE)
}

#[derive(Debug)]
struct Slow(BlockingIo, Duration);

impl Io for Slow {
    unsafe fn read(&self, fd: i32, offset: u64, bufs: &[IoVec]) -> std::io::Result<usize> {
        std::thread::sleep(self.1);
        // SAFETY: the caller upholds the contract of `Io::read`.
        unsafe { self.0.read(fd, offset, bufs) }
    }
    unsafe fn write(&self, fd: i32, offset: u64, bufs: &[IoVec]) -> std::io::Result<()> {
        // SAFETY: the caller upholds the contract of `Io::write`.
        unsafe { self.0.write(fd, offset, bufs) }
    }
    fn sync(&self, fd: i32, data_only: bool) -> std::io::Result<()> {
        self.0.sync(fd, data_only)
    }
    fn sync_fs(&self, fd: i32) -> std::io::Result<()> {
        self.0.sync_fs(fd)
    }
    fn truncate(&self, fd: i32, size: u64) -> std::io::Result<()> {
        self.0.truncate(fd, size)
    }
}

impl Fixture {
    /// A fixture with a target at `path`. None: in a directory beside the sources.
    pub(crate) fn new(path: Option<String>) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let slower = if path.is_some() { SLOWER_THAN_A_SERVER } else { SLOWER_THAN_FILES };
        std::fs::create_dir(dir.path().join("src")).unwrap();
        let path = path.unwrap_or_else(|| format!("fs://{}/store", dir.path().display())).into();
        let source = |file: u64| {
            let name = dir.path().join(format!("src/{file}"));
            let source = File::options().create_new(true).read(true).write(true).open(name).unwrap();
            for page in 0..PAGES {
                source.write_all_at(&content(file, page, 0), page * PAGE as u64).unwrap();
            }
            source
        };
        let sources = (0..FILES).map(source).collect();
        Fixture { path, sources, contents: vec![vec![0; PAGES as usize]; FILES as usize], slower, dir }
    }

    /// The directory of the store.
    pub(crate) fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// A request for a target of `size` bytes.
    pub(crate) fn request(&self, size: Option<u64>) -> TargetRequest {
        TargetRequest {
            path: self.path.clone(),
            size,
            source: self.dir.path().join("src"),
            memory_bytes: MEMORY * 8,
            format: false,
            others: Others::default(),
        }
    }

    pub(crate) fn open(&self) -> Result<Target, TargetError> {
        terrace_remote::open(&self.request(Some(48 << 20)), std::process::id() as i32)
    }

    /// Starts an instance, and waits until it has scanned the target.
    pub(crate) fn start(&self) -> Life {
        let life = self.live(Arc::new(self.open().unwrap()), None);
        self.settle(&life);
        life
    }

    /// The next daemon after a daemon's death: memory and lock stay.
    pub(crate) fn restart(&self, life: Life) -> Life {
        life.engine.halt();
        let Life { engine, objects, handles, target, medium } = life;
        drop((engine, objects, medium));
        self.live(target, Some(handles))
    }

    pub(crate) fn settle(&self, life: &Life) {
        wait_until("the scan", || self.row(life).state != "scanning");
    }

    fn live(&self, target: Arc<Target>, handles: Option<Arc<SegmentHandles>>) -> Life {
        let medium = target.medium().unwrap();
        let config = config(&target, medium.clone());
        let is_new = handles.is_none();
        let handles = handles.unwrap_or_else(|| Arc::new(SegmentHandles::create(&config).unwrap()));
        let io = Arc::new(Slow(BlockingIo::default(), self.slower));
        let engine = Engine::start(config, handles.clone(), Arc::new(SystemClock), io).unwrap();
        let object = |file: u64| {
            let fd = self.sources[file as usize].as_raw_fd();
            match is_new {
                true => engine.object(100 + file, fd, PAGES * PAGE as u64).unwrap(),
                false => engine.reattach_object(100 + file, fd).unwrap(),
            }
        };
        let objects = if is_new { Vec::new() } else { (0..FILES).map(object).collect() };
        if !is_new {
            engine.recover_pages();
        }
        engine.serve().unwrap();
        let objects = if is_new { (0..FILES).map(object).collect() } else { objects };
        Life { engine, objects, handles, target, medium }
    }

    /// Starts the next instance after an orderly end: it must have the target's pages, and read them from
    /// there. Returns their number.
    pub(crate) fn restart_warm(&self, life: Life) -> u64 {
        life.engine.shutdown().unwrap();
        let before = self.row(&life).pages;
        drop(life);
        let life = self.start();
        wait_until("its pages", || self.row(&life).pages * 10 >= before * 9);
        self.read_all(&life);
        let row = self.row(&life);
        assert!(row.promoted * 10 >= before * 8, "{before}: {row:?}");
        self.check(&life);
        life.engine.shutdown().unwrap();
        before
    }

    /// The target's row in `terrace stat`.
    pub(crate) fn row(&self, life: &Life) -> terrace_api::tiers::TierRow {
        life.engine.stats().tiers.pop().unwrap()
    }

    pub(crate) fn read(&self, life: &Life, file: u64, page: u64) {
        let mut buf = vec![0; PAGE];
        let o = &life.objects[file as usize];
        life.engine.read(o, page * PAGE as u64, &mut buf, AccessPath::Preload).unwrap();
        let version = self.contents[file as usize][page as usize];
        assert!(buf == content(file, page, version), "file {file} page {page} version {version}");
    }

    /// Reads random pages. If `writes_in` is not 0, one access in so many is a write.
    pub(crate) fn work(&mut self, life: &Life, rng: &mut Rng, steps: u64, writes_in: u64) {
        for _ in 0..steps {
            let (file, page) = (rng.below(FILES), rng.below(PAGES / 2) + rng.below(PAGES / 2));
            if writes_in > 0 && rng.below(writes_in) == 0 {
                let version = &mut self.contents[file as usize][page as usize];
                *version += 1;
                let new = content(file, page, *version);
                life.engine.write(&life.objects[file as usize], page * PAGE as u64, &new).unwrap();
            } else {
                self.read(life, file, page);
            }
        }
    }

    /// Reads all pages. Returns the longest duration of a read.
    pub(crate) fn read_all(&self, life: &Life) -> Duration {
        let mut longest = Duration::ZERO;
        for (file, page) in (0..FILES).flat_map(|file| (0..PAGES).map(move |page| (file, page))) {
            let began = Instant::now();
            self.read(life, file, page);
            longest = longest.max(began.elapsed());
        }
        longest
    }

    /// Flushes everything to the source, and waits until the next change gets a different time.
    pub(crate) fn flush(&self, life: &Life) {
        life.engine.flush_all(true).unwrap();
        std::thread::sleep(Duration::from_millis(30));
    }

    pub(crate) fn check(&self, life: &Life) {
        assert_eq!(life.engine.check(), Vec::<String>::new());
    }
}

fn config(target: &Target, medium: Arc<dyn Medium>) -> EngineConfig {
    let geometry = target.superblock.geometry;
    let device = DeviceConfig {
        number: 0,
        name: "store".to_owned(),
        access: Access::Medium(medium),
        bytes: geometry.bytes(),
        region_bytes: geometry.region_bytes().into(),
        regions: geometry.regions(),
        first_region: 0,
        level: 0,
        tier_id: target.superblock.id.0,
        write_budget: None,
        rated_writes: None,
        read_ns: None,
        write_ns: None,
        always_faster: true,
    };
    EngineConfig {
        devices: vec![device],
        memory_bytes: MEMORY,
        memory_max_bytes: Some(MEMORY * 2),
        compressed: CompressedConfig { codec: None, ..CompressedConfig::default() },
        ..EngineConfig::default()
    }
}
