//! Dirty pages to the source: by age, by the dirty limits, on fsync; in file order and in large pieces.
//!
//! A page under writeback keeps its frame (flag WRITEBACK) and may be written again meanwhile: it is then dirty anew. A
//! page whose writeback fails is dirty again, and every open handle hears of it at its next fsync. So it is with a page that
//! the kernel's page cache has taken and the kernel cannot write: see [`crate::dirt`].

use crate::dirt::Fate;
use crate::engine::Engine;
use crate::io::{IoVec, WriteOp};
use crate::object::{ErrorCursor, Object, ObjectRef};
use crate::source::DataFd;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrace_shm::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;
/// Pages collected under one core lock.
const BATCH: usize = 2048;
/// Dirty bytes up to which `flush` hands data to the kernel's page cache instead of waiting for the device.
const VISIBLE_BUFFERED_MAX: u64 = 256 << 10;
/// Objects with unstable pages that are synced one by one; if there are more, the whole source is.
const SYNC_EACH_MAX: usize = 8;
/// How long the writeback thread leaves an object alone whose writeback has failed: a failing device is not hammered.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// A page on its way.
#[derive(Clone, Copy)]
struct Going {
    page: u64,
    frame: u32,
}

/// The directory that the mount serves, to make everything on its file system stable at once.
#[derive(Debug)]
pub(crate) struct SourceRoot {
    dev: u64,
    fd: OwnedFd,
    /// Held while it is synced.
    syncing: Mutex<()>,
}

/// What was unwritten at one moment.
#[derive(Debug, Clone, Default)]
pub struct DirtyReport {
    /// Bytes, all files together.
    pub bytes: u64,
    /// Files that have some.
    pub files_total: u64,
    /// Those with most, most first: path and bytes.
    pub files: Vec<(String, u64)>,
}

/// Objects written back.
impl Engine {
    /// Makes what was written visible to those who go round the mount (close, SEEK_HOLE, ...). Small amounts go through
    /// the kernel's page cache, which is quick; durability is fsync's business.
    ///
    /// # Errors
    /// The first failure; the pages stay dirty.
    pub fn flush(&self, o: &ObjectRef, range: Range<u64>) -> io::Result<()> {
        if o.doomed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _writeback = o.writeback.lock();
        let small = o.dirty_pages() * PAGE <= VISIBLE_BUFFERED_MAX;
        self.write_back_locked(o, range, small)
    }

    /// Makes all that was written so far durable in the source, and reports writebacks that failed since `seen`.
    ///
    /// # Errors
    /// A failure that this handle has not heard of.
    pub fn fsync(&self, o: &ObjectRef, data_only: bool, seen: &ErrorCursor) -> io::Result<()> {
        let writeback = o.writeback.lock();
        // Failures are counted against the object; the handle hears of them below.
        let written = self.write_back_locked(o, 0..u64::MAX, false);
        if written.as_ref().is_err_and(is_shortage) {
            return written;
        }
        if o.dirt.lock().unstable.is_empty() {
            drop(writeback);
            let synced = self.sync(o, data_only);
            if synced.as_ref().is_err_and(is_shortage) {
                return synced;
            }
        } else {
            let _ = self.stabilize_locked(o, data_only);
        }
        o.take_error(seen)
    }

    /// Writes everything back; with `sync`, also makes it stable, with all names of the source.
    ///
    /// # Errors
    /// The first failure, after all was tried.
    pub fn flush_all(&self, sync: bool) -> io::Result<()> {
        let mut first = Ok(());
        let mut note = |result: io::Result<()>| {
            if first.is_ok() {
                first = result;
            }
        };
        let unwritten = self.unwritten_objects();
        for o in &unwritten {
            note(self.write_back(o, 0..u64::MAX));
        }
        if sync {
            note(self.sync_root());
            for o in self.objects() {
                note(self.sync_foreign(&o));
            }
        }
        for o in &unwritten {
            note(self.stabilize(o));
        }
        first
    }

    /// Writes back the dirty pages of `range`. The source has the data then; the device may not.
    pub(crate) fn write_back(&self, o: &Object, range: Range<u64>) -> io::Result<()> {
        let _writeback = o.writeback.lock();
        self.write_back_locked(o, range, false)
    }

    /// As [`Engine::write_back`], through the kernel's page cache if `cached`. The caller holds the object's writeback lock, so
    /// nothing is on its way at the start, and at the end everything has arrived or is dirty.
    pub(crate) fn write_back_locked(&self, o: &Object, range: Range<u64>, cached: bool) -> io::Result<()> {
        if o.gone.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (mut next, end) = (range.start / PAGE, range.end.div_ceil(PAGE));
        let mut result = Ok(());
        while next < end && result.is_ok() {
            let going = self.take_dirty(o, next..end);
            let Some(last) = going.last() else { break };
            next = last.page + 1;
            o.unsynced.store(true, Ordering::Relaxed);
            result = self.write_out(o, &going, cached);
            self.note_outcome(o, &result);
        }
        o.restore_times();
        result
    }

    fn note_outcome(&self, o: &Object, result: &io::Result<()>) {
        let errno = result.as_ref().err().map_or(0, errno);
        // For want of a descriptor nothing was tried: whoever waits for it is told, and handles are not.
        if let Err(e) = result
            && !is_shortage(e)
        {
            o.note_error(e);
            self.counts.writeback_errors.fetch_add(1, Ordering::Relaxed);
            if o.failing().is_none() {
                tracing::warn!("object {}: writeback failed: {e}; its pages stay dirty", o.id());
            }
        }
        self.core.lock().note_outcome(o, errno, self.clock.now_ns());
        self.dirty_done.notify_all();
    }

    /// Takes the first dirty pages of a range on their way: clean in the books, but not evictable.
    fn take_dirty(&self, o: &Object, pages: Range<u64>) -> Vec<Going> {
        let mut core = self.core.lock();
        let first: Vec<u64> = o.dirt.lock().dirty.range(pages).take(BATCH).copied().collect();
        let mut going = Vec::with_capacity(first.len());
        for page in first {
            let place = core.index.find(o.slot_index(), page).expect("a dirty page has a place");
            let frame = core.index.get(place).frame().expect("a dirty page has a frame");
            core.begin_writeback(o, page, frame);
            going.push(Going { page, frame });
        }
        going
    }

    fn write_out(&self, o: &Object, going: &[Going], cached: bool) -> io::Result<()> {
        let (mut ops, tail) = match self.operations(o, going, cached) {
            Ok(ops) => ops,
            Err(e) => {
                self.settle(o, going, std::iter::repeat(Fate::Failed));
                return Err(e);
            }
        };
        // SAFETY: frames under writeback stay where they are until `settle`.
        unsafe { self.io.write_batch(&mut ops) };
        let fate = |op: &WriteOp| match op.result {
            Err(_) => Fate::Failed,
            Ok(()) if tail.as_ref().is_some_and(|tail| tail.raw() == op.fd) => Fate::Unstable,
            Ok(()) => Fate::Arrived,
        };
        // Operations are in the order of the pages, and cover each of them.
        let fates =
            ops.iter().flat_map(|op| std::iter::repeat_n(fate(op), bytes(&op.bufs).div_ceil(PAGE_SIZE)));
        self.settle(o, going, fates);
        self.counts.written_back.fetch_add(going.len() as u64, Ordering::Relaxed);
        ops.into_iter().map(|op| op.result).find(|r| r.is_err()).unwrap_or(Ok(()))
    }

    /// Adjacent pages become one operation. The last page of a file whose size is no multiple of a page goes through
    /// the page cache, cut at the size: a direct write would lengthen the file. With it the descriptor of those that go
    /// through the page cache, if there are some.
    fn operations(
        &self,
        o: &Object,
        going: &[Going],
        cached: bool,
    ) -> io::Result<(Vec<WriteOp>, Option<Arc<DataFd>>)> {
        let size = o.size().max(o.growing.load(Ordering::Acquire));
        let writer = o.source().writer()?;
        let cached = cached || !writer.direct();
        let mut tail = None;
        let mut ops: Vec<WriteOp> = Vec::new();
        for g in going {
            let at = g.page * PAGE;
            debug_assert!(at < size, "dirty page beyond the end");
            let len = size.saturating_sub(at).min(PAGE) as usize;
            let fd = if cached || len < PAGE_SIZE {
                tail.insert(o.source().buffered()?).raw()
            } else {
                writer.raw()
            };
            let ptr = self.handles.segment.frame(g.frame);
            match ops.last_mut() {
                Some(op)
                    if op.fd == fd
                        && op.offset + bytes(&op.bufs) as u64 == at
                        && bytes(&op.bufs) < self.config.io_max_bytes =>
                {
                    match op.bufs.last_mut() {
                        Some(b) if b.ptr.wrapping_add(b.len) == ptr => b.len += len,
                        _ => op.bufs.push(IoVec { ptr, len }),
                    }
                }
                _ => ops.push(WriteOp { fd, offset: at, bufs: vec![IoVec { ptr, len }], result: Ok(()) }),
            }
        }
        Ok((ops, tail))
    }

    fn settle(&self, o: &Object, going: &[Going], fates: impl Iterator<Item = Fate>) {
        let now = self.clock.now_ns();
        let mut core = self.core.lock();
        for (g, fate) in going.iter().zip(fates) {
            core.end_writeback(o, g.page, g.frame, fate, now);
        }
    }
}

/// What the kernel's page cache has taken, made stable.
impl Engine {
    /// Says which directory the mount serves.
    ///
    /// # Errors
    /// The directory cannot be opened for reading: files are made stable one by one then.
    pub fn set_source_root(&self, root: BorrowedFd<'_>) -> io::Result<()> {
        let path = format!("/proc/self/fd/{}", root.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let dev = rustix::fs::fstat(&fd)?.st_dev;
        let _ = self.source_root.set(SourceRoot { dev, fd, syncing: Mutex::new(()) });
        Ok(())
    }

    /// Makes everything on the source's file system stable. The lock is held all the while: the kernel tells each failure
    /// once a descriptor, and who did not hear of it must not take the pages for stable.
    fn sync_root(&self) -> io::Result<()> {
        let Some(root) = self.source_root.get() else { return Ok(()) };
        let _syncing = root.syncing.lock();
        let round = {
            let mut core = self.core.lock();
            core.dirt.sync_round += 1;
            core.dirt.sync_round
        };
        self.io.sync_fs(root.fd.as_raw_fd())?;
        for o in self.unwritten_objects() {
            if o.source().stat().is_ok_and(|stat| stat.st_dev == root.dev) {
                self.core.lock().end_sync(&o, round, None);
            }
        }
        self.dirty_done.notify_all();
        Ok(())
    }

    /// Makes an object stable that a sync of the source does not reach, because a file system is mounted in the source.
    fn sync_foreign(&self, o: &Object) -> io::Result<()> {
        if !o.unsynced.load(Ordering::Relaxed) || o.doomed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _writeback = o.writeback.lock();
        self.sync_foreign_locked(o)
    }

    pub(crate) fn sync_foreign_locked(&self, o: &Object) -> io::Result<()> {
        if o.gone.load(Ordering::Relaxed) || !o.unsynced.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.source_root.get().map(|root| root.dev) == Some(o.source().stat()?.st_dev) {
            return Ok(());
        }
        o.unsynced.store(false, Ordering::Relaxed);
        let synced = if o.dirt.lock().unstable.is_empty() {
            self.sync(o, false)
        } else {
            self.stabilize_locked(o, false)
        };
        synced.inspect_err(|_| o.unsynced.store(true, Ordering::Relaxed))
    }

    /// Makes an object's unstable pages stable.
    fn stabilize(&self, o: &Object) -> io::Result<()> {
        let _writeback = o.writeback.lock();
        self.stabilize_locked(o, true)
    }

    /// fsync or fdatasync of an object without unstable pages. If it fails, it fails for those too that have become so
    /// meanwhile.
    fn sync(&self, o: &Object, data_only: bool) -> io::Result<()> {
        let _syncing = o.syncing.read();
        let fd = match o.source().any() {
            Err(e) if is_shortage(&e) => return Err(e),
            fd => fd,
        };
        let synced = fd.and_then(|fd| self.io.sync(fd.raw(), data_only));
        synced.inspect_err(|e| {
            o.note_error(e);
            self.core.lock().end_sync(o, u64::MAX, Some(self.clock.now_ns()));
            o.owe_times();
        })
    }

    /// As [`Engine::stabilize`]; if it fails they are dirty again. The caller holds the object's writeback lock, so that no
    /// page becomes unstable meanwhile.
    pub(crate) fn stabilize_locked(&self, o: &Object, data_only: bool) -> io::Result<()> {
        if o.dirt.lock().unstable.is_empty() || o.gone.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _syncing = o.syncing.write();
        let synced = match o.source().syncer() {
            Ok(fd) => self.io.sync(fd.raw(), data_only),
            // Its mode may forbid it. Then with all others, if that reaches it.
            Err(e) => self.sync_root().and(if o.dirt.lock().unstable.is_empty() { Ok(()) } else { Err(e) }),
        };
        let lost = synced.is_err().then(|| self.clock.now_ns());
        self.core.lock().end_sync(o, u64::MAX, lost);
        match &synced {
            Ok(()) => drop(self.dirty_done.notify_all()),
            Err(_) => {
                o.owe_times();
                self.note_outcome(o, &synced);
            }
        }
        synced
    }
}

/// Writeback in the background.
impl Engine {
    /// Pages above which background writeback starts.
    pub(crate) fn dirty_background(&self) -> u64 {
        u64::from(self.pool_frames()) * u64::from(self.config.dirty_background_percent) / 100
    }

    /// Body of the writeback thread.
    pub(crate) fn writeback_loop(&self) {
        while !self.stopping.load(Ordering::Acquire) {
            self.writeback_bell.wait(self.config.writeback_interval);
            let pass = {
                let mut core = self.core.lock();
                core.dirt.passes_begun += 1;
                core.dirt.passes_begun
            };
            self.write_back_due();
            self.stabilize_due();
            self.core.lock().dirt.passes_ended = pass;
            self.dirty_done.notify_all();
        }
    }

    /// There is more than background writeback allows, or somebody waits.
    fn too_much(&self) -> bool {
        let core = self.core.lock();
        core.dirt.totals.reclaimable() > self.dirty_background() || core.dirt.waiting > 0
    }

    fn is_old(&self, since: u64) -> bool {
        self.clock.now_ns().saturating_sub(since) >= self.config.dirty_expire.as_nanos() as u64
    }

    /// Writes back what is too old, and what is too much, oldest object first.
    fn write_back_due(&self) {
        let mut objects: Vec<(u64, ObjectRef)> = self
            .unwritten_objects()
            .into_iter()
            .map(|o| {
                let since = o.dirt.lock().dirty_since;
                (since, o)
            })
            .collect();
        objects.sort_by_key(|(since, _)| *since);
        for (since, o) in objects {
            let (none, failed_at) = {
                let dirt = o.dirt.lock();
                (dirt.dirty.is_empty(), Some(dirt.failed_at).filter(|_| dirt.errno != 0))
            };
            let resting = failed_at
                .is_some_and(|at| self.clock.now_ns().saturating_sub(at) < RETRY_AFTER.as_nanos() as u64);
            if none || resting || o.doomed.load(Ordering::Relaxed) {
                continue;
            }
            if failed_at.is_some() || self.is_old(since) || self.too_much() {
                // The object's handles hear of a failure.
                let _ = self.write_back(&o, 0..u64::MAX);
            }
        }
    }

    /// Makes stable what is unstable for too long, or too much.
    fn stabilize_due(&self) {
        let much = self.too_much();
        let mut due = self.unwritten_objects();
        due.retain(|o| {
            let dirt = o.dirt.lock();
            !dirt.unstable.is_empty() && (much || self.is_old(dirt.unstable_since))
        });
        if due.len() > SYNC_EACH_MAX
            && let Err(e) = self.sync_root()
        {
            tracing::warn!("the source cannot be synced: {e}");
        }
        for o in due {
            let _ = self.stabilize(&o);
        }
    }

    /// What the source does not have yet, naming the `files_max` files with most of it.
    pub fn dirty_report(&self, files_max: usize) -> DirtyReport {
        let mut sizes: Vec<(u64, ObjectRef)> =
            self.unwritten_objects().into_iter().map(|o| (o.dirty_pages() * PAGE, o)).collect();
        sizes.retain(|(bytes, o)| *bytes > 0 && !o.doomed.load(Ordering::Relaxed));
        sizes.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        let path = |o: &Object| {
            let path = std::fs::read_link(o.source().proc_path());
            path.map_or_else(|_| format!("inode {}", o.id()), |p| p.display().to_string())
        };
        DirtyReport {
            bytes: sizes.iter().map(|(bytes, _)| bytes).sum(),
            files_total: sizes.len() as u64,
            files: sizes.iter().take(files_max).map(|(bytes, o)| (path(o), *bytes)).collect(),
        }
    }
}

fn bytes(bufs: &[IoVec]) -> usize {
    bufs.iter().map(|b| b.len).sum()
}

/// No descriptor is to be had at this moment.
fn is_shortage(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

fn errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(libc::EIO)
}
