//! The heap: the file of blobs' bytes, an object of the engine, with the allocator of its room.
//!
//! The file grows in large steps. Each step reserves its blocks before use, so that an accepted put can
//! always be written back.

use crate::error::{Error, Result};
use crate::space::{Claim, Extent, PAGE, Space};
use rustix::fs::FallocateFlags;
use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use terrace_engine::{AccessPath, Engine, ErrorCursor, ObjectRef};
use terrace_sync::{Mutex, MutexGuard};

/// The heap grows by an eighth of its size, within these bounds (bytes).
const STEP_MIN: u64 = 1 << 20;
const STEP_MAX: u64 = 256 << 20;
/// Bytes of one write; a multiple of the page size.
const CHUNK: usize = 256 << 10;
/// Retired room above which a sync is due, bytes.
const RETIRED: u64 = 32 << 20;
/// Number of retired extents above which a sync is due: each takes memory.
const RETIRED_LEN: usize = 1 << 17;

thread_local! {
    static GATHERED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
pub(crate) struct Heap {
    engine: Arc<Engine>,
    object: ObjectRef,
    seen: ErrorCursor,
    file: Arc<OwnedFd>,
    path: PathBuf,
    capacity: Option<u64>,
    space: Arc<Mutex<Space>>,
    growing: Mutex<()>,
    /// The heap was written since the last sync began.
    changed: AtomicBool,
    /// Held during a sync: another thread must not see its bytes as durable before it ends.
    syncing: Mutex<()>,
}

fn is_release_due(space: &Space) -> bool {
    space.retired_bytes() > RETIRED.max(space.bytes() / 8) || space.retired_len() > RETIRED_LEN
}

impl Heap {
    pub(crate) fn new(
        engine: Arc<Engine>,
        object: ObjectRef,
        file: Arc<OwnedFd>,
        path: PathBuf,
        capacity: Option<u64>,
        space: Space,
    ) -> Heap {
        let seen = object.error_cursor();
        let space = Arc::new(Mutex::new(space));
        let counted = space.clone();
        engine.count_also(move || counted.lock().memory());
        Heap {
            engine,
            object,
            seen,
            file,
            path,
            capacity,
            space,
            growing: Mutex::new(()),
            changed: AtomicBool::new(true),
            syncing: Mutex::new(()),
        }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn space(&self) -> MutexGuard<'_, Space> {
        self.space.lock()
    }

    /// Whether enough room is retired for a sync.
    pub(crate) fn should_release(&self) -> bool {
        is_release_due(&self.space.lock())
    }

    /// Retires an extent that the record with this number has replaced. Returns whether a sync is due.
    pub(crate) fn retire(&self, number: u64, extent: Extent) -> bool {
        let mut space = self.space.lock();
        space.retire(number, extent);
        is_release_due(&space)
    }

    /// Allocates room for a blob of `bytes`. The caller writes it, or frees it.
    ///
    /// # Errors
    /// The disk is full, or the store's own maximum is reached.
    pub(crate) fn claim(&self, bytes: u64) -> Result<Claim> {
        loop {
            let size = {
                let mut space = self.space.lock();
                if let Some(claim) = space.claim(bytes) {
                    return Ok(claim);
                }
                space.bytes()
            };
            if let Err(e) = self.grow(size, bytes) {
                let last = if e.is_full() { self.space.lock().claim_last(bytes) } else { None };
                return last.ok_or(e);
            }
        }
    }

    /// Grows the file by at least `bytes`, unless another thread has grown it since it had `size`.
    fn grow(&self, size: u64, bytes: u64) -> Result<()> {
        let _growing = self.growing.lock();
        if self.space.lock().bytes() != size {
            return Ok(());
        }
        let needed = bytes.div_ceil(PAGE) * PAGE;
        if self.fill_holes(needed / PAGE)? {
            return Ok(());
        }
        let room = self.capacity.map_or(u64::MAX, |max| (max / PAGE * PAGE).saturating_sub(size));
        if room < needed {
            return Err(Error::Full { path: self.path.clone(), capacity: self.capacity });
        }
        let step = (size / 8 / PAGE * PAGE).clamp(STEP_MIN, STEP_MAX).max(needed).min(room);
        let step = self.reserve_most(size, step, needed)?;
        // The engine learns the new size from a write at the new end.
        self.write_all(size + step - PAGE, &[0; PAGE as usize])?;
        self.space.lock().grow((size + step) / PAGE);
        Ok(())
    }

    /// Reserves blocks for free pages again, `needed` of them adjacent. Returns false if there are not as
    /// many.
    fn fill_holes(&self, needed: u64) -> Result<bool> {
        let taken = self.space.lock().take_holes(needed, needed.max(STEP_MIN / PAGE));
        let Some((page, pages)) = taken else { return Ok(false) };
        let reserved = self.reserve_most(page * PAGE, pages * PAGE, needed * PAGE);
        let filled = reserved.as_ref().map_or(0, |bytes| bytes / PAGE);
        let mut space = self.space.lock();
        space.add_free((page, filled));
        space.add_holes((page + filled, pages - filled));
        reserved.map(|_| true)
    }

    /// Gives blocks of free pages back to the file system, up to `bytes` if there are as many. Returns the
    /// bytes given back.
    pub(crate) fn give_back(&self, bytes: u64) -> u64 {
        let mut given = 0;
        while given < bytes {
            let most = (bytes - given).div_ceil(PAGE);
            let Some(run) = self.space.lock().take_free(most) else { break };
            let (from, len) = (run.0 * PAGE, run.1 * PAGE);
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Cached pages of the run go first: a later writeback would allocate blocks that are not
            // reserved.
            let punched = self.engine.with_source(&self.object, from..from + len, |_| {
                rustix::fs::fallocate(&*self.file, flags, from, len).map_err(io::Error::from)
            });
            if punched.is_err() {
                self.space.lock().add_free(run);
                break;
            }
            self.space.lock().add_holes(run);
            given += len;
        }
        given
    }

    /// Reserves `most` bytes, or just `needed` if the disk has no more. Returns the bytes reserved.
    fn reserve_most(&self, from: u64, most: u64, needed: u64) -> Result<u64> {
        match self.reserve(from, most) {
            Err(e) if e.is_full() && most > needed => self.reserve(from, needed).map(|()| needed),
            reserved => reserved.map(|()| most),
        }
    }

    fn reserve(&self, from: u64, bytes: u64) -> Result<()> {
        match rustix::fs::fallocate(&*self.file, FallocateFlags::KEEP_SIZE, from, bytes) {
            // The file system has no fallocate.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            Err(e) => Err(Error::io(&self.path, "reserve room", e.into())),
        }
    }

    /// Writes a blob of `size` bytes from several parts into its claimed room. On an error the room is free
    /// again.
    ///
    /// # Errors
    /// Writeback fails, and memory has no room for more dirty pages.
    pub(crate) fn fill(&self, claim: &Claim, parts: &[&[u8]], size: u64) -> Result<()> {
        let extent = claim.extent;
        if extent.units == 0 {
            return Ok(());
        }
        // A partly written page must be read first. So a page of this blob alone is written whole.
        let len = match extent.is_pages() {
            true => size.div_ceil(PAGE) * PAGE,
            false if claim.fresh => PAGE,
            false => size,
        };
        let written = match parts {
            [one] if len == size => self.write_all(extent.offset(), one),
            _ => self.gather(extent.offset(), parts, len as usize),
        };
        if written.is_err() {
            if claim.fresh {
                self.space.lock().offer(extent);
            }
            self.space.lock().free(extent);
        } else if claim.fresh {
            self.space.lock().offer(extent);
        }
        written
    }

    /// Writes the parts one after the other, then zeros up to `len` bytes.
    fn gather(&self, offset: u64, parts: &[&[u8]], len: usize) -> Result<()> {
        GATHERED.with_borrow_mut(|buffer| {
            let (mut parts, mut done) = (parts.iter().copied(), 0);
            let mut part: &[u8] = parts.next().unwrap_or_default();
            while done < len {
                let want = CHUNK.min(len - done);
                buffer.clear();
                while buffer.len() < want {
                    let (now, rest) = part.split_at(part.len().min(want - buffer.len()));
                    buffer.extend_from_slice(now);
                    part = rest;
                    if part.is_empty() {
                        match parts.next() {
                            Some(next) => part = next,
                            None => buffer.resize(want, 0),
                        }
                    }
                }
                self.write_all(offset + done as u64, buffer)?;
                done += want;
            }
            Ok(())
        })
    }

    /// Writes bytes within an extent of a blob, or within claimed room.
    ///
    /// # Errors
    /// As [`Heap::fill`].
    pub(crate) fn write_all(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        let result = loop {
            if done == data.len() {
                break Ok(());
            }
            match self.engine.write(&self.object, offset + done as u64, &data[done..]) {
                Ok(n) if n > 0 => done += n,
                Ok(_) => break Err(self.error("write", io::ErrorKind::WriteZero.into())),
                Err(e) => break Err(self.error("write", e)),
            }
        };
        // Set after the write: if set before, a concurrent sync would clear it and miss the bytes.
        self.changed.store(true, Ordering::Release);
        result
    }

    /// Like [`Heap::write_all`], at the end of a blob of `size` bytes in whole pages. Fills a new last page
    /// with zeros, since a partly written page must be read first.
    ///
    /// # Errors
    /// As [`Heap::fill`].
    pub(crate) fn write_end(&self, base: u64, size: u64, data: &[u8]) -> Result<()> {
        let (begin, end) = (base + size, base + size + data.len() as u64);
        let is_new_page = begin.is_multiple_of(PAGE) || begin / PAGE != end / PAGE;
        match is_new_page && !end.is_multiple_of(PAGE) {
            true => self.gather(begin, &[data], (end.next_multiple_of(PAGE) - begin) as usize),
            false => self.write_all(begin, data),
        }
    }

    /// Reads bytes of an extent.
    ///
    /// # Errors
    /// The device fails; the file is shorter than its extents.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            match self.engine.read(&self.object, at, &mut buf[done..], AccessPath::FuseDirect) {
                Ok(n) if n > 0 => done += n,
                Ok(_) => {
                    let what = format!("the file ends before byte {at} of a blob");
                    return Err(Error::Damaged { path: self.path.clone(), what });
                }
                Err(e) => return Err(self.error("read", e)),
            }
        }
        Ok(())
    }

    /// Prefetches bytes of an extent into the CPU caches for a read that follows, if they are in memory.
    pub(crate) fn prefetch(&self, offset: u64, len: usize) {
        self.object.prefetch(offset, len);
    }

    /// Makes all bytes written before the call durable. Returns whether there were any.
    ///
    /// # Errors
    /// A writeback or the sync failed; the unwritten bytes stay in memory.
    pub(crate) fn sync(&self) -> Result<bool> {
        let _syncing = self.syncing.lock();
        if !self.changed.swap(false, Ordering::AcqRel) {
            return Ok(false);
        }
        match self.engine.fsync(&self.object, true, &self.seen) {
            Ok(()) => Ok(true),
            Err(e) => {
                self.changed.store(true, Ordering::Release);
                Err(self.error("sync", e))
            }
        }
    }

    /// Frees an extent that no record names, not even one that a power cut could bring back.
    pub(crate) fn free(&self, extent: Extent) {
        if extent.units > 0 {
            self.space.lock().free(extent);
        }
    }

    /// Unlocks the store. A forked process may still hold the descriptor, and with it the lock.
    pub(crate) fn unlock(&self) {
        let _ = rustix::fs::flock(&*self.file, rustix::fs::FlockOperation::Unlock);
    }

    fn error(&self, action: &'static str, source: io::Error) -> Error {
        Error::io(&self.path, action, source)
    }
}
