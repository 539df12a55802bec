//! Writeback with failures at the worst moment: each test blocks or fails one I/O call.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use terrace_engine::{AccessPath, Engine, EngineConfig, ObjectRef, SegmentHandles, SystemClock};
use terrace_io::testing::{Call, HookIo};
use terrace_io::{BlockingIo, Io};
use terrace_sync::{Condvar, Mutex};

/// Blocks callers until it is opened.
#[derive(Debug, Default)]
struct Gate {
    /// Closed; a caller has arrived.
    state: Mutex<(bool, bool)>,
    moved: Condvar,
}

impl Gate {
    fn close(&self) {
        *self.state.lock() = (true, false);
    }
    fn open(&self) {
        self.state.lock().0 = false;
        self.moved.notify_all();
    }
    fn pass(&self) {
        let mut state = self.state.lock();
        state.1 = true;
        self.moved.notify_all();
        self.moved.wait_while(&mut state, |state| state.0);
    }
    fn wait_for_somebody(&self) {
        self.moved.wait_while(&mut self.state.lock(), |state| !state.1);
    }
}

struct Fixture {
    dir: tempfile::TempDir,
    config: EngineConfig,
    handles: Arc<SegmentHandles>,
    io: Arc<dyn Io>,
    engine: Arc<Engine>,
    files: Vec<OwnedFd>,
}

impl Fixture {
    fn new(hook: impl Fn(Call) -> io::Result<()> + Send + Sync + 'static) -> Fixture {
        let config = EngineConfig {
            memory_bytes: 16 << 20,
            memory_max_bytes: Some(16 << 20),
            writeback_interval: Duration::from_secs(600),
            ..EngineConfig::default()
        };
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let io: Arc<dyn Io> = Arc::new(HookIo::new(BlockingIo::default(), hook));
        let engine =
            Engine::start(config.clone(), handles.clone(), Arc::new(SystemClock), io.clone()).unwrap();
        engine.serve().unwrap();
        let mut rig = Fixture { dir, config, handles, io, engine, files: Vec::new() };
        for id in 1..=3 {
            File::create(rig.path(id)).unwrap();
            let flags = rustix::fs::OFlags::PATH;
            rig.files.push(rustix::fs::open(rig.path(id), flags, rustix::fs::Mode::empty()).unwrap());
        }
        rig
    }
    fn path(&self, id: u64) -> PathBuf {
        self.dir.path().join(format!("f{id}"))
    }
    fn object(&self, id: u64) -> ObjectRef {
        let size = std::fs::metadata(self.path(id)).unwrap().len();
        self.engine.object(id, self.files[id as usize - 1].as_raw_fd(), size).unwrap()
    }
    /// Sets the source root, as a mount does.
    fn with_root(self) -> Fixture {
        let flags = rustix::fs::OFlags::PATH;
        let root = rustix::fs::open(self.dir.path(), flags, rustix::fs::Mode::empty()).unwrap();
        self.engine.set_source_root(root.as_fd()).unwrap();
        self
    }
    /// terraced dies; another one takes over the segment.
    fn crash(&mut self) {
        self.engine.halt();
        self.engine =
            Engine::start(self.config.clone(), self.handles.clone(), Arc::new(SystemClock), self.io.clone())
                .unwrap();
        for (id, fd) in (1..).zip(&self.files) {
            self.engine.reattach_object(id, fd.as_raw_fd());
        }
        self.engine.recover_pages();
        self.engine.serve().unwrap();
    }
    fn check(&self) {
        let bad = self.engine.check();
        assert!(bad.is_empty(), "{bad:#?}");
    }
}

fn failed<T>(errno: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(errno))
}

/// The writeback of all dirty pages fails in one thread; another thread relies on it.
fn a_writeback_that_others_wait_for_fails(relies: impl Fn(&Fixture, &ObjectRef) -> io::Result<()> + Sync) {
    let (gate, broken) = (Arc::new(Gate::default()), Arc::new(AtomicBool::new(true)));
    let (g, b) = (gate.clone(), broken.clone());
    let rig = Fixture::new(move |call| match call {
        Call::Write(_) => {
            g.pass();
            if b.load(Ordering::Relaxed) { failed(libc::EIO) } else { Ok(()) }
        }
        _ => Ok(()),
    });
    let o = rig.object(1);
    rig.engine.write(&o, 0, &[7; 8192]).unwrap();
    gate.close();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| rig.engine.fsync(&o, false, &o.error_cursor()));
        gate.wait_for_somebody();
        assert_eq!(o.dirty_pages(), 2, "what is on its way is not written");
        assert_eq!(rig.engine.dirty_report(10).bytes, 8192);
        let other = scope.spawn(|| relies(&rig, &o));
        // Lets the other thread reach its wait.
        std::thread::sleep(Duration::from_millis(100));
        gate.open();
        assert!(writer.join().unwrap().is_err());
        assert_eq!(other.join().unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
    });
    rig.check();
    broken.store(false, Ordering::Relaxed);
    let mut back = [0; 8192];
    rig.engine.read(&rig.object(1), 0, &mut back, AccessPath::Preload).unwrap();
    assert_eq!(back, [7; 8192]);
    rig.engine.shutdown().unwrap();
    assert_eq!(std::fs::read(rig.path(1)).unwrap(), [7; 8192]);
}

#[test]
fn an_object_whose_writeback_fails_under_way_is_not_forgotten() {
    a_writeback_that_others_wait_for_fails(|rig, _| rig.engine.forget_object(1));
}

#[test]
fn pages_whose_writeback_fails_under_way_are_not_dropped() {
    a_writeback_that_others_wait_for_fails(|rig, o| rig.engine.with_source(o, 0..8192, |_| Ok(())));
}

#[test]
fn a_flush_of_all_hears_of_a_writeback_that_fails_under_way() {
    a_writeback_that_others_wait_for_fails(|rig, _| rig.engine.flush_all(false));
    a_writeback_that_others_wait_for_fails(|rig, o| rig.engine.flush(o, 0..u64::MAX));
}

#[test]
fn a_file_that_cannot_be_written_is_no_trouble_to_others() {
    let bad_inode = Arc::new(Mutex::new(0));
    let bad = bad_inode.clone();
    let rig = Fixture::new(move |call| match call {
        Call::Write(fd) => {
            // SAFETY: the engine keeps the descriptor open while it writes.
            let stat = rustix::fs::fstat(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) })?;
            if stat.st_ino == *bad.lock() { failed(libc::ENOSPC) } else { Ok(()) }
        }
        _ => Ok(()),
    });
    *bad_inode.lock() = std::fs::metadata(rig.path(1)).unwrap().ino();
    let (sick, well) = (rig.object(1), rig.object(2));
    let chunk = vec![3u8; 256 << 10];
    let mut written = 0;
    let error = loop {
        match rig.engine.write(&sick, written, &chunk) {
            Ok(n) => written += n as u64,
            Err(e) => break e,
        }
        assert!(written < 16 << 20, "the writer must be stopped at the dirty limit");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    for i in 0..64 {
        let n = rig.engine.write(&well, i * chunk.len() as u64, &chunk).unwrap();
        assert_eq!(n, chunk.len());
    }
    rig.engine.fsync(&well, false, &well.error_cursor()).unwrap();
    rig.check();
    *bad_inode.lock() = 0;
    rig.engine.shutdown().unwrap();
    assert_eq!(std::fs::read(rig.path(1)).unwrap(), vec![3; written as usize]);
    assert_eq!(std::fs::read(rig.path(2)).unwrap(), vec![3; 16 << 20]);
}

/// The source has no name for the file; programs with a descriptor of it still have its pages.
#[test]
fn nameless_file_fails_no_flush_of_all() {
    let rig = Fixture::new(|call| match call {
        Call::Write(_) => failed(libc::ENOSPC),
        _ => Ok(()),
    });
    let o = rig.object(1);
    rig.engine.write(&o, 0, &[7; 8192]).unwrap();
    assert!(rig.engine.flush_all(true).is_err());
    assert_eq!(rig.engine.dirty_report(1).bytes, 8192);
    std::fs::remove_file(rig.path(1)).unwrap();
    rig.engine.flush_all(true).unwrap();
    assert_eq!(rig.engine.dirty_report(1).bytes, 0, "nothing that could be lost");
    assert!(rig.engine.fsync(&o, false, &o.error_cursor()).is_err(), "handles still report it");
    let mut back = [0; 8192];
    rig.engine.read(&o, 0, &mut back, AccessPath::Preload).unwrap();
    assert_eq!(back, [7; 8192]);
    rig.check();
}

/// The kernel's page cache takes `bytes` bytes at a close, and drops them: the device refuses them.
fn pages_that_the_kernel_loses_are_dirty_again(bytes: usize) {
    let broken = Arc::new(AtomicBool::new(true));
    let b = broken.clone();
    let rig = Fixture::new(move |call| match call {
        Call::Sync(_) | Call::SyncFs if b.load(Ordering::Relaxed) => failed(libc::EIO),
        _ => Ok(()),
    });
    let (o, content, pages) = (rig.object(1), vec![7; bytes], bytes.div_ceil(4096) as u64);
    let (first, second) = (o.error_cursor(), o.error_cursor());
    // Whole pages and a part of one, by a close; then a request to evict all.
    rig.engine.write(&o, 0, &content).unwrap();
    rig.engine.flush(&o, 0..u64::MAX).unwrap();
    assert_eq!(o.dirty_pages(), 0, "the source shows them");
    assert!(std::fs::read(rig.path(1)).unwrap() == content);
    assert_eq!(rig.engine.stats().writeback.unstable, pages, "no call has waited for the device");
    rig.engine.drop_clean();
    let e = rig.engine.fsync(&o, false, &first).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EIO));
    assert_eq!(o.dirty_pages(), pages);
    rig.check();
    File::options().write(true).open(rig.path(1)).unwrap().write_all_at(&vec![0; bytes], 0).unwrap();
    assert!(rig.engine.forget_object(1).is_err(), "not before they are stable");
    broken.store(false, Ordering::Relaxed);
    assert!(rig.engine.fsync(&o, false, &second).is_err(), "every handle reports it");
    rig.engine.fsync(&o, false, &first).unwrap_err();
    rig.engine.fsync(&o, false, &first).unwrap();
    assert!(std::fs::read(rig.path(1)).unwrap() == content);
    assert_eq!(rig.engine.stats().writeback.unstable, 0);
    rig.check();
    rig.engine.shutdown().unwrap();
}

#[test]
fn pages_that_the_kernel_lost_are_dirty_again() {
    pages_that_the_kernel_loses_are_dirty_again(5000);
}

/// More than the kernel's page cache may keep.
#[test]
fn close_of_a_large_file_waits_for_no_device() {
    pages_that_the_kernel_loses_are_dirty_again(1_000_000);
}

/// The source after a crash of terraced with unstable pages. `meanwhile` gets the file before it.
fn after_a_crash_with_unstable_pages(meanwhile: impl FnOnce(&File)) -> Vec<u8> {
    let mut rig = Fixture::new(|_| Ok(()));
    let o = rig.object(1);
    rig.engine.write(&o, 0, &[7; 5000]).unwrap();
    rig.engine.flush(&o, 0..u64::MAX).unwrap();
    drop(o);
    // File times have the resolution of the clock's ticks.
    std::thread::sleep(Duration::from_millis(20));
    meanwhile(&File::options().write(true).open(rig.path(1)).unwrap());
    rig.crash();
    rig.check();
    rig.engine.flush_all(true).unwrap();
    let shown = std::fs::read(rig.path(1)).unwrap();
    rig.engine.shutdown().unwrap();
    shown
}

/// As above, and terraced dies before it learns of the failure. The kernel changes no time when it drops a
/// page.
#[test]
fn next_daemon_remembers_unstable_pages() {
    let shown = after_a_crash_with_unstable_pages(|file| {
        let time = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(&[0; 5000], 0).unwrap();
        file.set_modified(time).unwrap();
    });
    assert!(shown == [7; 5000]);
}

#[test]
fn writes_of_others_into_a_closed_file_outlive_a_crash() {
    let shown = after_a_crash_with_unstable_pages(|file| file.write_all_at(&[9; 100], 4950).unwrap());
    assert!(shown[..4950] == [7; 4950] && shown[4950..] == [9; 100], "{} bytes", shown.len());
}

/// A program has set the mtime of its file. After a crash the pages are written again, and the mtime stays.
#[test]
fn a_time_that_was_set_outlives_a_crash() {
    let set = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let mut rig = Fixture::new(|_| Ok(()));
    let o = rig.object(1);
    rig.engine.write(&o, 0, &[7; 5000]).unwrap();
    rig.engine.flush(&o, 0..u64::MAX).unwrap();
    o.adopt_mtime(1_000_000_000_000_000_000);
    let time = |rig: &Fixture| std::fs::metadata(rig.path(1)).unwrap().modified().unwrap();
    assert_eq!(time(&rig), set);
    drop(o);
    rig.crash();
    assert_eq!(rig.object(1).dirty_pages(), 2);
    rig.engine.flush_all(true).unwrap();
    assert_eq!(time(&rig), set);
    rig.engine.shutdown().unwrap();
}

#[test]
fn unstable_pages_do_not_fill_the_memory() {
    let rig = Fixture::new(|_| Ok(())).with_root();
    let o = rig.object(1);
    let chunk = vec![3u8; 64 << 10];
    for i in 0..512 {
        rig.engine.write(&o, i * chunk.len() as u64, &chunk).unwrap();
        rig.engine.flush(&o, 0..u64::MAX).unwrap();
        let w = rig.engine.stats().writeback;
        assert!(w.dirty + w.writeback + w.unstable <= w.dirty_limit, "{w:?}");
    }
    rig.check();
    rig.engine.shutdown().unwrap();
}

#[test]
fn flush_of_all_syncs_source_once_and_reaches_forgotten_files() {
    let (files, roots) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (f, r) = (files.clone(), roots.clone());
    let rig = Fixture::new(move |call| {
        match call {
            Call::Sync(_) => drop(f.fetch_add(1, Ordering::Relaxed)),
            Call::SyncFs => drop(r.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
        Ok(())
    })
    .with_root();
    for id in 1..=3 {
        rig.engine.write(&rig.object(id), 0, &[7; 4096]).unwrap();
    }
    rig.engine.forget_object(1).unwrap();
    rig.engine.flush_all(true).unwrap();
    assert_eq!((files.load(Ordering::Relaxed), roots.load(Ordering::Relaxed)), (0, 1));
    // Names may have changed, though no file has.
    rig.engine.flush_all(true).unwrap();
    assert_eq!((files.load(Ordering::Relaxed), roots.load(Ordering::Relaxed)), (0, 2));
    rig.engine.shutdown().unwrap();
}

/// Without a source root, and for other file systems mounted in the source.
#[test]
fn files_beyond_a_sync_of_the_source_are_synced_one_by_one() {
    let files = Arc::new(AtomicU32::new(0));
    let f = files.clone();
    let rig = Fixture::new(move |call| {
        f.fetch_add(u32::from(matches!(call, Call::Sync(_))), Ordering::Relaxed);
        Ok(())
    });
    rig.engine.write(&rig.object(1), 0, &[7; 4096]).unwrap();
    rig.engine.write(&rig.object(2), 0, &[7; 4096]).unwrap();
    rig.object(3);
    rig.engine.forget_object(1).unwrap();
    assert_eq!(files.load(Ordering::Relaxed), 1, "synced before it is forgotten");
    rig.engine.flush_all(true).unwrap();
    rig.engine.flush_all(true).unwrap();
    assert_eq!(files.load(Ordering::Relaxed), 2, "each file once");
    rig.engine.shutdown().unwrap();
}

#[test]
fn pages_on_their_way_count_against_the_dirty_limit() {
    let gate = Arc::new(Gate::default());
    let g = gate.clone();
    let rig = Fixture::new(move |call| {
        if let Call::Write(_) = call {
            g.pass();
        }
        Ok(())
    });
    let limit = rig.engine.stats().writeback.dirty_limit;
    let (one, two) = (rig.object(1), rig.object(2));
    gate.close();
    std::thread::scope(|scope| {
        let data = vec![5u8; (limit as usize - 1) * 4096];
        rig.engine.write(&one, 0, &data).unwrap();
        scope.spawn(|| rig.engine.fsync(&one, false, &one.error_cursor()).unwrap());
        gate.wait_for_somebody();
        scope.spawn(|| rig.engine.write(&two, 0, &[6; 64 << 10]).unwrap());
        std::thread::sleep(Duration::from_millis(300));
        let w = rig.engine.stats().writeback;
        gate.open();
        assert!(w.dirty + w.writeback <= limit, "{w:?}");
        assert!(w.throttled == 1, "{w:?}");
    });
    rig.check();
    rig.engine.shutdown().unwrap();
}

#[test]
fn a_time_set_after_a_write_outlives_the_daemon() {
    let mut rig = Fixture::new(|_| Ok(()));
    let o = rig.object(1);
    rig.engine.write(&o, 0, &[7; 5000]).unwrap();
    let set = 1_000_000_000_500_000_000;
    let time = std::time::UNIX_EPOCH + Duration::from_nanos(set);
    File::options().write(true).open(rig.path(1)).unwrap().set_modified(time).unwrap();
    o.adopt_mtime(set as i64);
    let of_a_write = {
        let o = rig.object(2);
        rig.engine.write(&o, 0, &[7; 4096]).unwrap();
        o.times().unwrap()
    };
    drop(o);
    rig.crash();
    assert_eq!(rig.object(1).times().unwrap().0, set as i64);
    assert_eq!(rig.object(2).times(), Some(of_a_write));
    rig.engine.flush_all(false).unwrap();
    assert_eq!(std::fs::metadata(rig.path(1)).unwrap().modified().unwrap(), time);
    let written = std::fs::metadata(rig.path(2)).unwrap();
    assert_eq!(written.mtime() * 1_000_000_000 + written.mtime_nsec(), of_a_write.0);
    rig.engine.shutdown().unwrap();
}

/// A writeback may read the old mtime just before the change, and restore it just after.
#[test]
fn a_time_set_during_a_writeback_stays() {
    let rig = Fixture::new(|_| Ok(()));
    let o = rig.object(1);
    rig.engine.write(&o, 0, &[7; 4096]).unwrap();
    rig.engine.flush(&o, 0..u64::MAX).unwrap();
    let set = 1_000_000_000_500_000_000;
    // The source no longer has the program's mtime when the cache is notified.
    o.adopt_mtime(set as i64);
    let time = std::time::UNIX_EPOCH + Duration::from_nanos(set);
    assert_eq!(std::fs::metadata(rig.path(1)).unwrap().modified().unwrap(), time);
    rig.engine.shutdown().unwrap();
}

/// The last page is written back while the extension of the file by a write fails.
#[test]
fn a_growth_that_fails_leaves_the_size_alone() {
    let engine = Arc::new(Mutex::new(None::<(Arc<Engine>, ObjectRef)>));
    let e = engine.clone();
    let rig = Fixture::new(move |call| {
        let armed = if call == Call::Truncate { e.lock().take() } else { None };
        let Some((engine, o)) = armed else { return Ok(()) };
        std::thread::spawn(move || engine.flush(&o, 0..u64::MAX)).join().unwrap()?;
        failed(libc::EFBIG)
    });
    let o = rig.object(1);
    rig.engine.write(&o, 0, &[7; 5000]).unwrap();
    *engine.lock() = Some((rig.engine.clone(), o.clone()));
    let error = rig.engine.write(&o, 1 << 30, &[8]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
    assert_eq!(std::fs::metadata(rig.path(1)).unwrap().len(), 5000);
    rig.engine.shutdown().unwrap();
}
