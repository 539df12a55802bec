//! A simulated source that loses unsynced data at a power cut, as an implementation of the engine's I/O.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrace_io::{BlockingIo, Io, IoVec, WriteOp};
use terrace_sync::Mutex;
use terrace_testkit::rng::Rng;

type Meanwhile = Box<dyn FnOnce() + Send>;

/// The source. Reads see unsynced data, too.
#[derive(Default)]
pub(super) struct Volatile {
    inner: BlockingIo,
    files: Mutex<Vec<Arc<File>>>,
    writes: Mutex<Vec<(u64, u64, Vec<u8>)>>,
    /// Files that survive a power cut: the durable size, and larger sizes set since.
    sizes: Mutex<BTreeMap<u64, Vec<u64>>>,
    /// Power cuts lose some of these sizes, too.
    pub(crate) loses_sizes: AtomicBool,
    /// Called once, at the end of the next sync of a file.
    pub(crate) meanwhile: Mutex<Option<Meanwhile>>,
    /// A write asked for immediate writeback from the page cache.
    pub(crate) hurried: AtomicBool,
    pub(crate) written: AtomicU64,
    pub(crate) failing: AtomicBool,
    /// Allocations and writes fail with ENOSPC.
    pub(crate) full: AtomicBool,
    /// The next sync of a file fails; the kernel reports a failure once.
    pub(crate) failing_syncs: AtomicBool,
}

impl fmt::Debug for Volatile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Volatile")
    }
}

/// A file that is not durable.
pub(super) fn new_file() -> File {
    tempfile::tempfile_in("/var/tmp").unwrap()
}

fn inode(fd: RawFd) -> u64 {
    rustix::fs::fstat(unsafe_borrow(fd)).unwrap().st_ino
}

fn unsafe_borrow(fd: RawFd) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: the engine keeps it open during the call.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
}

impl Volatile {
    pub(super) fn over(files: Vec<File>) -> Volatile {
        Volatile { files: Mutex::new(files.into_iter().map(Arc::new).collect()), ..Volatile::default() }
    }
    pub(super) fn files(&self) -> Vec<Arc<File>> {
        self.files.lock().clone()
    }
    pub(super) fn file(&self, number: usize) -> Arc<File> {
        self.files.lock()[number].clone()
    }
    pub(super) fn replace(&self, number: usize, file: File) -> Arc<File> {
        std::mem::replace(&mut self.files.lock()[number], Arc::new(file))
    }
    /// Whether the file survives a power cut.
    pub(super) fn is_there(&self, number: usize) -> bool {
        self.sizes.lock().contains_key(&self.file(number).metadata().unwrap().ino())
    }
    fn note_sizes(&self, which: impl Fn(u64) -> bool) {
        for file in self.files() {
            let meta = file.metadata().unwrap();
            if which(meta.ino()) {
                self.sizes.lock().insert(meta.ino(), vec![meta.len()]);
            }
        }
    }
    pub(super) fn apply(&self, which: impl Fn(u64) -> bool, mut keeps: impl FnMut() -> bool) {
        for (of, at, bytes) in self.writes.lock().extract_if(.., |(of, ..)| which(*of)) {
            let files = self.files();
            let file = files.iter().find(|file| file.metadata().unwrap().ino() == of);
            if keeps()
                && let Some(file) = file
            {
                file.write_all_at(&bytes, at).unwrap();
            }
        }
    }
    /// Cuts the power. Each unsynced write may be lost, and perhaps the last extensions of files.
    pub(super) fn power_cut(&self, rng: &mut Rng) {
        let kept = *rng.pick(&[0, 50, 100]);
        self.apply(|_| true, || rng.chance(kept));
        for file in self.files().iter().filter(|_| self.loses_sizes.load(Ordering::Relaxed)) {
            let sizes = self.sizes.lock().remove(&file.metadata().unwrap().ino());
            if let Some(sizes) = sizes.filter(|sizes| sizes.len() > 1) {
                file.set_len(*rng.pick(&sizes)).unwrap();
            }
        }
        self.note_sizes(|_| true);
    }
}

impl Io for Volatile {
    unsafe fn read(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<usize> {
        // Locked before the read of the file: a sync moves the writes there.
        let (of, writes) = (inode(fd), self.writes.lock());
        // SAFETY: the caller's promise.
        let n = unsafe { self.inner.read(fd, offset, bufs)? };
        for (_, at, bytes) in writes.iter().filter(|(file, ..)| *file == of) {
            let mut start = offset;
            for buf in bufs {
                for (i, byte) in bytes.iter().enumerate() {
                    let to = at + i as u64;
                    if (start..start + buf.len as u64).contains(&to) && to < offset + n as u64 {
                        // SAFETY: within the caller's buffer.
                        unsafe { *buf.ptr.add((to - start) as usize) = *byte };
                    }
                }
                start += buf.len as u64;
            }
        }
        Ok(n)
    }
    unsafe fn write(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<()> {
        if self.failing.load(Ordering::Relaxed) {
            return Err(rustix::io::Errno::IO.into());
        }
        if self.full.load(Ordering::Relaxed) {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        // SAFETY: the caller's promise.
        let bytes = bufs.iter().flat_map(|b| unsafe { std::slice::from_raw_parts(b.ptr, b.len) });
        let bytes: Vec<u8> = bytes.copied().collect();
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.writes.lock().push((inode(fd), offset, bytes));
        Ok(())
    }
    unsafe fn write_batch(&self, ops: &mut [WriteOp]) {
        for op in ops {
            self.hurried.fetch_or(op.drop_behind, Ordering::Relaxed);
            // SAFETY: the caller's promise.
            op.result = unsafe { self.write(op.fd, op.offset, &op.bufs) };
        }
    }
    fn sync(&self, fd: RawFd, _data_only: bool) -> io::Result<()> {
        if self.failing_syncs.swap(false, Ordering::Relaxed) {
            return Err(rustix::io::Errno::IO.into());
        }
        let of = inode(fd);
        self.apply(|file| file == of, || true);
        self.note_sizes(|file| file == of);
        let meanwhile = self.meanwhile.lock().take();
        meanwhile.into_iter().for_each(|act| act());
        Ok(())
    }
    fn sync_fs(&self, _fd: RawFd) -> io::Result<()> {
        self.apply(|_| true, || true);
        self.note_sizes(|_| true);
        Ok(())
    }
    fn truncate(&self, fd: RawFd, size: u64) -> io::Result<()> {
        let of = inode(fd);
        let before = rustix::fs::fstat(unsafe_borrow(fd)).unwrap().st_size as u64;
        match (self.sizes.lock().get_mut(&of), size < before) {
            // A truncate is durable, with all earlier changes of the size.
            (Some(sizes), true) => *sizes = vec![size],
            (Some(sizes), false) => sizes.push(size),
            (None, _) => {}
        }
        self.writes.lock().retain_mut(|(file, at, bytes)| {
            if *file == of {
                bytes.truncate(size.saturating_sub(*at) as usize);
            }
            !bytes.is_empty()
        });
        self.inner.truncate(fd, size)
    }
    fn allocate(&self, fd: RawFd, range: Range<u64>) -> io::Result<()> {
        if self.full.load(Ordering::Relaxed) {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        self.inner.allocate(fd, range)
    }
}
