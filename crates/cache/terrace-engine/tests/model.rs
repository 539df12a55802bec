//! The engine against a model: random operations on a few files, compared byte for byte with plain vectors.
//! With faults, with crashes of the daemon, and with little memory for constant eviction.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use terrace_api::stats::Stats;
use terrace_engine::{
    AccessPath, Admit, CompressedConfig, CompressionMode, Engine, EngineConfig, ObjectRef, SegmentHandles,
    SystemClock,
};
use terrace_io::testing::{Faults, ShortCalls, SimIo};
use terrace_io::{BlockingIo, Io, UringIo};
use terrace_testkit::rng::{Rng, seed};

struct Fixture {
    dir: tempfile::TempDir,
    config: EngineConfig,
    handles: Arc<SegmentHandles>,
    io: Arc<dyn Io>,
    engine: Arc<Engine>,
    paths: HashMap<u64, OwnedFd>,
    model: HashMap<u64, Vec<u8>>,
}

const FILES: u64 = 3;
/// Largest size of a file; all files together far exceed the 16 MiB of memory.
const SIZE_MAX: u64 = 16 << 20;

impl Fixture {
    fn new(policy: &str, io: Arc<dyn Io>) -> Fixture {
        Fixture::with(EngineConfig { policy: policy.into(), ..EngineConfig::default() }, io)
    }
    fn with(config: EngineConfig, io: Arc<dyn Io>) -> Fixture {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let config = EngineConfig { memory_bytes: 16 << 20, memory_max_bytes: Some(64 << 20), ..config };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let engine =
            Engine::start(config.clone(), handles.clone(), Arc::new(SystemClock), io.clone()).unwrap();
        engine.serve().unwrap();
        let mut w =
            Fixture { dir, config, handles, io, engine, paths: HashMap::new(), model: HashMap::new() };
        for id in 1..=FILES {
            File::create(w.path(id)).unwrap();
            let flags = rustix::fs::OFlags::PATH;
            w.paths.insert(id, rustix::fs::open(w.path(id), flags, rustix::fs::Mode::empty()).unwrap());
            w.model.insert(id, Vec::new());
        }
        w
    }
    fn path(&self, id: u64) -> std::path::PathBuf {
        self.dir.path().join(format!("f{id}"))
    }
    fn object(&self, id: u64) -> ObjectRef {
        let size = std::fs::metadata(self.path(id)).unwrap().len();
        self.engine.object(id, self.paths[&id].as_raw_fd(), size).unwrap()
    }
    /// terraced dies; another one takes over the segment.
    fn crash(&mut self) {
        self.engine.halt();
        let engine =
            Engine::start(self.config.clone(), self.handles.clone(), Arc::new(SystemClock), self.io.clone())
                .unwrap();
        for (id, fd) in &self.paths {
            engine.reattach_object(*id, fd.as_raw_fd());
        }
        let found = engine.recover_pages();
        assert!(found.objects <= FILES as usize);
        engine.serve().unwrap();
        self.engine = engine;
    }
    fn read_and_compare(&self, id: u64, offset: u64, len: usize, access: AccessPath) {
        let o = self.object(id);
        let mut buf = vec![0xaa; len];
        let n = loop {
            match self.engine.read(&o, offset, &mut buf, access) {
                Ok(n) => break n,
                Err(e) => assert_eq!(e.raw_os_error(), Some(5), "only injected errors"),
            }
        };
        let m = &self.model[&id];
        let from = (offset as usize).min(m.len());
        let want = &m[from..m.len().min(from + len)];
        assert_eq!(n, want.len(), "file {id}, offset {offset}, len {len}: length");
        if let Some(i) = (0..n).find(|&i| buf[i] != want[i]) {
            panic!(
                "file {id}, byte {} (read at {offset}+{len}, {access:?}): {} instead of {}",
                from + i,
                buf[i],
                want[i]
            );
        }
    }
    fn write(&mut self, rng: &mut Rng, id: u64) {
        let offset = if rng.below(4) == 0 { self.model[&id].len() as u64 } else { rng.below(SIZE_MAX) };
        let len = match rng.below(4) {
            0 => rng.below(100) + 1,
            1 => 4096,
            2 => rng.below(20_000) + 1,
            _ => rng.below(300_000) + 1,
        };
        let offset = if rng.below(3) == 0 { offset / 4096 * 4096 } else { offset };
        let byte = rng.next_u64() as u8;
        let data: Vec<u8> = (0..len).map(|i| byte.wrapping_add((i % 251) as u8)).collect();
        let o = self.object(id);
        let mut done = 0;
        while done < data.len() {
            match self.engine.write(&o, offset + done as u64, &data[done..]) {
                Ok(n) => done += n,
                Err(e) => assert!(matches!(e.raw_os_error(), Some(5 | 28)), "unexpected: {e}"),
            }
        }
        let m = self.model.get_mut(&id).unwrap();
        let end = (offset + len) as usize;
        if m.len() < end {
            m.resize(end, 0);
        }
        m[offset as usize..end].copy_from_slice(&data);
    }
    fn step(&mut self, rng: &mut Rng, crashes: bool) {
        let id = rng.below(FILES) + 1;
        // Operations that empty the cache are rarer in runs under memory pressure.
        let compresses = self.config.compressed.codec.is_some();
        let pressed = compresses && rng.below(16) > 0;
        match rng.below(if pressed { 91 } else { 100 }) {
            0..4 => {
                let o = self.object(id);
                let (first, pages) = (rng.below(SIZE_MAX / 4096), rng.below(600));
                match rng.below(3) {
                    0 => self.engine.wont_need(&o, first, pages),
                    _ => self.engine.will_need(&o, first, pages),
                }
            }
            4..40 => {
                let access =
                    [AccessPath::Fuse, AccessPath::FuseDirect, AccessPath::Preload][rng.below(3) as usize];
                self.read_and_compare(id, rng.below(SIZE_MAX), rng.below(200_000) as usize, access);
            }
            40..75 => self.write(rng, id),
            75..80 => {
                let size = rng.below(SIZE_MAX);
                let o = self.object(id);
                self.engine.truncate(&o, size).unwrap();
                self.model.get_mut(&id).unwrap().resize(size as usize, 0);
                assert_eq!(o.size(), size);
            }
            80..84 => self.punch(rng, id),
            84..88 => {
                let o = self.object(id);
                let cursor = o.error_cursor();
                if self.engine.fsync(&o, rng.below(2) == 0, &cursor).is_ok() {
                    assert_eq!(std::fs::read(self.path(id)).unwrap(), self.model[&id], "source after fsync");
                }
            }
            88..91 => {
                let _ = self.engine.flush(&self.object(id), 0..u64::MAX);
            }
            91..94 => {
                self.engine.drop_clean();
            }
            94..96 => {
                let bytes = (16 + rng.below(if compresses { 2 } else { 48 })) << 20;
                let _ = self.engine.resize(bytes);
                self.config.memory_bytes = bytes;
            }
            96..98 if crashes => self.crash(),
            _ => {
                // The kernel forgets the inode, and looks it up again later.
                let _ = self.engine.forget_object(id);
            }
        }
    }
    fn punch(&mut self, rng: &mut Rng, id: u64) {
        let (from, len) = (rng.below(SIZE_MAX), rng.below(100_000) + 1);
        let o = self.object(id);
        let done = self.engine.with_source(&o, from..from + len, |source| {
            let fd = File::options().write(true).open(source.proc_path())?;
            let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            Ok(rustix::fs::fallocate(fd, flags, from, len)?)
        });
        if done.is_ok() {
            let m = self.model.get_mut(&id).unwrap();
            let (a, b) = ((from as usize).min(m.len()), ((from + len) as usize).min(m.len()));
            m[a..b].fill(0);
        }
    }
    fn finish(&self) {
        let bad = self.engine.check();
        assert!(bad.is_empty(), "check: {bad:#?}");
        for id in 1..=FILES {
            self.read_and_compare(id, 0, SIZE_MAX as usize + 400_000, AccessPath::FuseDirect);
        }
        let stats = self.engine.stats();
        assert!(stats.memory.used_bytes <= stats.memory.limit_bytes, "over the limit: {:?}", stats.memory);
    }
}

fn run(policy: &str, io: Arc<dyn Io>, steps: usize, crashes: bool, lull: impl Fn()) {
    run_in(Fixture::new(policy, io), steps, crashes, lull);
}

fn run_in(mut w: Fixture, steps: usize, crashes: bool, lull: impl Fn()) -> Stats {
    let mut rng = Rng::new(seed("engine-model"));
    for i in 0..steps {
        w.step(&mut rng, crashes);
        if w.config.compressed.codec.is_some() {
            // Leaves time to the reclaim thread: requests without a free frame do not wait for it.
            std::thread::sleep(std::time::Duration::from_micros(300));
        }
        if i % 100 == 99 {
            let bad = w.engine.check();
            assert!(bad.is_empty(), "check after step {i}: {bad:#?}");
        }
    }
    lull();
    w.finish();
    let stats = w.engine.stats();
    w.engine.shutdown().unwrap();
    for id in 1..=FILES {
        assert_eq!(std::fs::read(w.path(id)).unwrap(), w.model[&id], "source after shutdown");
    }
    stats
}

#[test]
fn agrees_with_the_model_under_every_policy() {
    for policy in terrace_policy::NAMES {
        println!("policy {policy}");
        run(policy, Arc::new(BlockingIo::default()), 600, false, || {});
    }
}

/// A compressed tier with a fixed minimum of memory that admits all pages.
fn compressing() -> EngineConfig {
    let compressed = CompressedConfig {
        codec: Some(CompressionMode::Mixed),
        min_percent: 25,
        max_percent: 50,
        admit: Admit::All,
        ..CompressedConfig::default()
    };
    EngineConfig { compressed, ..EngineConfig::default() }
}

#[test]
fn agrees_with_the_model_with_a_compressed_tier() {
    let stats = run_in(Fixture::with(compressing(), Arc::new(BlockingIo::default())), 2000, false, || {});
    let tier = stats.compressed.unwrap();
    assert!(tier.stored_pages > 50, "{tier:?} {:?}", stats.reclaim);
}

#[test]
fn agrees_with_the_model_with_compressed_tier_crashes_faults() {
    let faults = Faults { read_eio: 20, write_eio: 20, sync_eio: 20, slow: 5, ..Faults::default() };
    let io = Arc::new(SimIo::new(UringIo::new().unwrap(), seed("engine-model"), faults));
    let calm = io.clone();
    run_in(Fixture::with(compressing(), io), 1500, true, move || calm.set(Faults::default()));
}

#[test]
fn agrees_with_the_model_across_crashes() {
    run("strata", Arc::new(UringIo::new().unwrap()), 1500, true, || {});
}

/// Faults of the device, and short calls below them.
fn agrees_under_faults(short: &ShortCalls, inner: impl Io + 'static) {
    let faults =
        Faults { read_eio: 20, write_eio: 20, write_enospc: 20, sync_eio: 20, slow: 5, ..Faults::default() };
    let io = Arc::new(SimIo::new(inner, seed("engine-model"), faults));
    let calm = io.clone();
    run("strata", io, 1000, true, move || {
        calm.set(Faults::default());
        short.set(0);
    });
}

#[test]
fn agrees_with_the_model_under_faults() {
    let short = ShortCalls::new(seed("engine-model"), 300);
    agrees_under_faults(&short, BlockingIo::with_short_calls(short.clone()));
}

#[test]
fn agrees_with_the_model_under_faults_of_io_uring() {
    let short = ShortCalls::new(seed("engine-model"), 300);
    agrees_under_faults(&short, UringIo::with_short_calls(short.clone()).unwrap());
}

/// terraced died in a truncate, after that of the source and before that of the cache.
#[test]
fn a_crash_within_a_truncate_leaves_no_old_bytes_beyond_the_end() {
    let mut w = Fixture::new("strata", Arc::new(BlockingIo::default()));
    let o = w.object(1);
    w.engine.write(&o, 0, &[7; 40_000]).unwrap();
    drop(o);
    File::options().write(true).open(w.path(1)).unwrap().set_len(10_000).unwrap();
    w.crash();
    let bad = w.engine.check();
    assert!(bad.is_empty(), "{bad:#?}");
    let o = w.object(1);
    assert_eq!(o.size(), 10_000);
    w.engine.truncate(&o, 10_000).unwrap();
    w.engine.truncate(&o, 40_000).unwrap();
    w.model.insert(1, [vec![7; 10_000], vec![0; 30_000]].concat());
    w.read_and_compare(1, 0, 40_000, AccessPath::FuseDirect);
    w.engine.shutdown().unwrap();
}

#[test]
fn failed_writeback_fails_each_handle_once_and_page_stays_dirty() {
    let io = Arc::new(SimIo::new(BlockingIo::default(), 1, Faults { write_eio: 1000, ..Faults::default() }));
    let w = Fixture::new("strata", io.clone());
    let o = w.object(1);
    let (a, b) = (o.error_cursor(), o.error_cursor());
    w.engine.write(&o, 0, &[7; 8192]).unwrap();
    assert_eq!(w.engine.fsync(&o, false, &a).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(o.dirty_pages(), 2);
    io.set(Faults::default());
    assert!(w.engine.fsync(&o, false, &a).is_ok(), "reported once");
    assert_eq!(
        w.engine.fsync(&o, false, &b).unwrap_err().raw_os_error(),
        Some(5),
        "the other handle hears of it too"
    );
    assert_eq!(std::fs::read(w.path(1)).unwrap(), [7; 8192]);
    assert_eq!(o.dirty_pages(), 0);
    w.engine.shutdown().unwrap();
}

#[test]
fn a_full_device_is_an_error_to_the_writer_and_loses_nothing() {
    let io =
        Arc::new(SimIo::new(BlockingIo::default(), 1, Faults { write_enospc: 1000, ..Faults::default() }));
    let w = Fixture::new("strata", io.clone());
    let o = w.object(1);
    let chunk = vec![3u8; 1 << 20];
    let mut written = 0;
    let error = loop {
        match w.engine.write(&o, written, &chunk) {
            Ok(n) => written += n as u64,
            Err(e) => break e,
        }
        assert!(written < 64 << 20, "the writer must be stopped at the dirty limit");
    };
    assert_eq!(error.raw_os_error(), Some(28));
    io.set(Faults::default());
    let mut back = vec![0; written as usize];
    assert_eq!(w.engine.read(&o, 0, &mut back, AccessPath::Preload).unwrap(), written as usize);
    assert!(back.iter().all(|&b| b == 3));
    w.engine.shutdown().unwrap();
    assert_eq!(std::fs::metadata(w.path(1)).unwrap().len(), written);
}

/// Concurrent readers and writers: each page holds one repeated number; a reader must never see two.
#[test]
fn no_torn_page_under_concurrent_readers_and_writers() {
    let s = seed("engine-model");
    let w = Fixture::new("strata", Arc::new(BlockingIo::default()));
    let o = w.object(1);
    let pages = 6000u64;
    for p in 0..pages {
        w.engine.write(&o, p * 4096, &1u64.to_le_bytes().repeat(512)).unwrap();
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for t in 0..3 {
            let (o, engine, stop) = (&o, &w.engine, &stop);
            scope.spawn(move || {
                let mut rng = Rng::new(s.wrapping_add(t));
                let mut buf = vec![0u8; 16384];
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let p = rng.below(pages - 4);
                    engine.read(o, p * 4096, &mut buf, AccessPath::FuseDirect).unwrap();
                    for page in buf.chunks(4096) {
                        assert!(page.chunks(8).all(|c| c == &page[..8]), "torn page near {p}");
                    }
                }
            });
        }
        let mut rng = Rng::new(s);
        for i in 2..20_000u64 {
            w.engine.write(&o, rng.below(pages) * 4096, &i.to_le_bytes().repeat(512)).unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    let bad = w.engine.check();
    assert!(bad.is_empty(), "{bad:#?}");
    w.engine.shutdown().unwrap();
}
