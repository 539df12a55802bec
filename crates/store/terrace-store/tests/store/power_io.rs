//! Simulated power cuts, as an implementation of the engine's I/O. Synced bytes survive. Later writes
//! survive in whole, in part, or not at all.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_io::{BlockingIo, Io, IoVec};
use terrace_testkit::rng::Rng;

const PAGE: usize = 4096;
const SECTOR: usize = 512;

/// Blocking I/O that a test can end.
#[derive(Debug)]
pub(crate) struct PowerIo {
    inner: BlockingIo,
    dir: PathBuf,
    state: Mutex<State>,
    pub reads: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Writes and syncs until the cut.
    left: Option<u64>,
    is_dead: bool,
    /// By inode.
    files: HashMap<u64, Image>,
    /// Durable names, and their inodes.
    names: HashMap<OsString, u64>,
}

/// A file: its durable content, the changes since, and a descriptor that keeps its inode number from being
/// reused.
#[derive(Debug)]
struct Image {
    durable: Vec<u8>,
    since: Vec<Change>,
    _fd: OwnedFd,
}

#[derive(Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Size(usize),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write(at, data) => {
                bytes.resize(bytes.len().max(at + data.len()), 0);
                bytes[*at..at + data.len()].copy_from_slice(data);
            }
            Change::Size(size) => bytes.resize(*size, 0),
        }
    }

    /// Applies the part of a change that reached the device: any pages, some partly.
    fn apply_some(&self, bytes: &mut Vec<u8>, kept: u64, rng: &mut Rng) {
        let Change::Write(at, data) = self else {
            if rng.chance(kept) {
                self.apply(bytes);
            }
            return;
        };
        let mut done = 0;
        while done < data.len() {
            let n = (PAGE - (at + done) % PAGE).min(data.len() - done);
            let mut part = (0, n);
            if rng.chance(5) {
                let sectors = n.div_ceil(SECTOR);
                part.0 = (rng.index(sectors) * SECTOR).min(n);
                part.1 = (part.0 + rng.index(sectors + 1) * SECTOR).min(n);
            }
            if rng.chance(kept) && part.0 < part.1 {
                let from = done + part.0;
                Change::Write(at + from, data[from..done + part.1].to_vec()).apply(bytes);
            }
            done += n;
        }
    }
}

fn listing(dir: &Path) -> HashMap<OsString, u64> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name(), entry.metadata().unwrap().ino())).collect()
}

fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: the caller of `Io` keeps the descriptor open during the call.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

impl PowerIo {
    /// Everything in the directory counts as durable.
    pub(crate) fn over(dir: &Path) -> PowerIo {
        let mut state = State { names: listing(dir), ..State::default() };
        for (name, inode) in &state.names {
            let path = dir.join(name);
            let fd = std::fs::File::open(&path).unwrap().into();
            let image = Image { durable: std::fs::read(&path).unwrap(), since: Vec::new(), _fd: fd };
            state.files.insert(*inode, image);
        }
        PowerIo {
            inner: BlockingIo::default(),
            dir: dir.to_owned(),
            state: Mutex::new(state),
            reads: AtomicU64::default(),
        }
    }

    /// Cuts the power after so many writes and syncs.
    pub(crate) fn cut_after(&self, calls: u64) {
        self.state.lock().unwrap().left = Some(calls);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.state.lock().unwrap().is_dead
    }

    /// Writes the directory as it is after the power cut to `to`.
    pub(crate) fn image(&self, to: &Path, rng: &mut Rng) {
        let state = self.state.lock().unwrap();
        let names = if rng.chance(50) { state.names.clone() } else { listing(&self.dir) };
        for (name, inode) in names {
            let mut bytes = Vec::new();
            if let Some(image) = state.files.get(&inode) {
                bytes.clone_from(&image.durable);
                let kept = *rng.pick(&[0, 30, 50, 90, 100]);
                image.since.iter().for_each(|change| change.apply_some(&mut bytes, kept, rng));
            }
            std::fs::write(to.join(name), bytes).unwrap();
        }
    }

    /// Records a change, unless the power is cut.
    fn change(&self, fd: RawFd, change: Change) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.is_dead {
            return Err(rustix::io::Errno::IO.into());
        }
        let inode = rustix::fs::fstat(borrow(fd))?.st_ino;
        let copy = borrow(fd).try_clone_to_owned()?;
        let fresh = || Image { durable: Vec::new(), since: Vec::new(), _fd: copy };
        state.files.entry(inode).or_insert_with(fresh).since.push(change);
        state.count()
    }

    /// Makes the current content of the file durable.
    fn synced(&self, fd: RawFd) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.is_dead {
            return Err(rustix::io::Errno::IO.into());
        }
        state.count()?;
        let stat = rustix::fs::fstat(borrow(fd))?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory {
            state.names = listing(&self.dir);
        } else if let Some(image) = state.files.get_mut(&stat.st_ino) {
            let Image { durable, since, .. } = image;
            since.drain(..).for_each(|change| change.apply(durable));
        }
        Ok(())
    }
}

impl State {
    fn count(&mut self) -> io::Result<()> {
        self.left = self.left.map(|left| left.saturating_sub(1));
        self.is_dead = self.left == Some(0);
        if self.is_dead { Err(rustix::io::Errno::IO.into()) } else { Ok(()) }
    }
}

impl Io for PowerIo {
    unsafe fn read(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<usize> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `Io::read`.
        unsafe { self.inner.read(fd, offset, bufs) }
    }
    unsafe fn write(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<()> {
        let mut data = Vec::new();
        for buf in bufs {
            // SAFETY: the caller of `Io` keeps the buffer valid.
            data.extend_from_slice(unsafe { std::slice::from_raw_parts(buf.ptr, buf.len) });
        }
        self.change(fd, Change::Write(offset as usize, data))?;
        // SAFETY: the caller upholds the contract of `Io::write`.
        unsafe { self.inner.write(fd, offset, bufs) }
    }
    fn sync(&self, fd: RawFd, _data_only: bool) -> io::Result<()> {
        self.synced(fd)
    }
    fn sync_fs(&self, _fd: RawFd) -> io::Result<()> {
        unreachable!("the store syncs files")
    }
    fn truncate(&self, fd: RawFd, size: u64) -> io::Result<()> {
        self.change(fd, Change::Size(size as usize))?;
        self.inner.truncate(fd, size)
    }
}
