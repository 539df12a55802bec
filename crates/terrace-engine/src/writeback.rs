//! Dirty pages to the source: by age, by the dirty limits, on fsync; in file order and in large pieces.
//!
//! A page under writeback keeps its frame (flag WRITEBACK) and may be written again meanwhile: it is then dirty anew. A
//! page whose writeback fails is dirty again, and every open handle hears of it at its next fsync.

use crate::engine::Engine;
use crate::io::{IoVec, WriteOp};
use crate::object::{ErrorCursor, Object, ObjectRef};
use crate::segment::flag::{DIRTY, WRITEBACK};
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrace_shm::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;
/// Pages collected under one core lock.
const BATCH: usize = 2048;
/// Dirty bytes up to which `flush_visible` hands data to the kernel's page cache instead of waiting for the device.
const VISIBLE_BUFFERED_MAX: u64 = 256 << 10;

/// A page on its way.
#[derive(Clone, Copy)]
struct Going {
    page: u64,
    frame: u32,
}

impl Engine {
    /// Writes back the dirty pages of `range`. The source has the data then; the device may not.
    ///
    /// # Errors
    /// The first failure; the pages stay dirty.
    pub fn flush(&self, o: &ObjectRef, range: Range<u64>) -> io::Result<()> {
        self.write_back(o, range)
    }

    /// Makes what was written visible to those who go round the mount (close, SEEK_HOLE, ...). Small amounts go through
    /// the kernel's page cache, which is quick; durability is fsync's business.
    ///
    /// # Errors
    /// The first failure; the pages stay dirty.
    pub fn flush_visible(&self, o: &ObjectRef, range: Range<u64>) -> io::Result<()> {
        if o.doomed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let small = o.dirty_pages() * PAGE <= VISIBLE_BUFFERED_MAX;
        self.write_back_as(o, range, small).map(|_| ())
    }

    /// Makes all that was written so far durable in the source, and reports writebacks that failed since `seen`.
    ///
    /// # Errors
    /// A failure that this handle has not heard of.
    pub fn fsync(&self, o: &ObjectRef, data_only: bool, seen: &ErrorCursor) -> io::Result<()> {
        // Failures are counted against the object by write_back; the handle hears of them below.
        let _ = self.write_back(o, 0..u64::MAX);
        let synced = o.source().any().and_then(|f| self.io.sync(f.raw(), data_only));
        if let Err(e) = synced {
            o.note_error(&e);
        }
        o.take_error(seen)
    }

    /// Writes everything back; with `sync`, also makes it durable.
    ///
    /// # Errors
    /// The first failure, after all was tried.
    pub fn flush_all(&self, sync: bool) -> io::Result<()> {
        let mut first = Ok(());
        for o in self.objects() {
            let wrote = o.dirty_pages() > 0 || o.times().is_some();
            let mut r = self.write_back(&o, 0..u64::MAX);
            if sync && wrote && r.is_ok() {
                r = o.source().any().and_then(|f| self.io.sync(f.raw(), false));
            }
            // An object that was forgotten meanwhile was written back by that.
            let known = self.lookup_object(o.id()).is_some_and(|now| Arc::ptr_eq(&now, &o));
            if known && first.is_ok() {
                first = r;
            }
        }
        first
    }

    pub(crate) fn write_back(&self, o: &Object, range: Range<u64>) -> io::Result<()> {
        self.write_back_as(o, range, false).map(|_| ())
    }

    /// Writes back the dirty pages of `range`, through the kernel's page cache if `buffered`. Pages written.
    fn write_back_as(&self, o: &Object, range: Range<u64>, buffered: bool) -> io::Result<usize> {
        if o.dirty.lock().is_empty() {
            // Perhaps another thread has them on the way: what it took must have arrived.
            drop(o.writeback.lock());
            return Ok(0);
        }
        let _writeback = o.writeback.lock();
        let (mut next, end) = (range.start / PAGE, range.end.div_ceil(PAGE));
        let mut written = 0;
        let mut result = Ok(());
        while next < end {
            let going = self.take_dirty(o, next..end);
            let Some(last) = going.last() else { break };
            next = last.page + 1;
            written += going.len();
            if let Err(e) = self.write_out(o, &going, buffered) {
                o.note_error(&e);
                self.counts.writeback_errors.fetch_add(1, Ordering::Relaxed);
                result = Err(e);
                break;
            }
        }
        o.restore_times();
        self.dirty_done.notify_all();
        result.map(|()| written)
    }

    /// Takes the first dirty pages of a range on their way: clean in the books, but not evictable.
    fn take_dirty(&self, o: &Object, pages: Range<u64>) -> Vec<Going> {
        let mut core = self.core.lock();
        let first: Vec<u64> = o.dirty.lock().range(pages).take(BATCH).copied().collect();
        let mut going = Vec::with_capacity(first.len());
        for page in first {
            let place = core.index.find(o.slot_index(), page).expect("a dirty page has a place");
            let frame = core.index.get(place).frame().expect("a dirty page has a frame");
            self.handles.frame_flags(frame).fetch_or(WRITEBACK, Ordering::Release);
            core.clean(o, page, frame);
            going.push(Going { page, frame });
        }
        going
    }

    fn write_out(&self, o: &Object, going: &[Going], buffered: bool) -> io::Result<()> {
        let mut ops = match self.operations(o, going, buffered) {
            Ok(ops) => ops,
            Err(e) => {
                self.settle(o, going, |_| false);
                return Err(e);
            }
        };
        // SAFETY: frames under writeback stay where they are until `settle`.
        unsafe { self.io.write_batch(&mut ops) };
        let failed: Vec<Range<u64>> = ops
            .iter()
            .filter(|op| op.result.is_err())
            .map(|op| op.offset / PAGE..(op.offset + bytes(&op.bufs) as u64).div_ceil(PAGE))
            .collect();
        self.settle(o, going, |page| !failed.iter().any(|r| r.contains(&page)));
        self.counts.written_back.fetch_add(going.len() as u64, Ordering::Relaxed);
        ops.into_iter().map(|op| op.result).find(|r| r.is_err()).unwrap_or(Ok(()))
    }

    /// Adjacent pages become one operation. The last page of a file whose size is no multiple of a page goes through
    /// the page cache, cut at the size: a direct write would lengthen the file.
    fn operations(&self, o: &Object, going: &[Going], buffered: bool) -> io::Result<Vec<WriteOp>> {
        let size = o.size().max(o.growing.load(Ordering::Acquire));
        let writer = o.source().writer()?;
        let mut ops: Vec<WriteOp> = Vec::new();
        for g in going {
            let at = g.page * PAGE;
            debug_assert!(at < size, "dirty page beyond the end");
            let len = size.saturating_sub(at).min(PAGE) as usize;
            let cut = len < PAGE_SIZE;
            let through_cache = buffered || (cut && writer.direct());
            let fd: RawFd = if through_cache { o.source().buffered()?.raw() } else { writer.raw() };
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
        Ok(ops)
    }

    /// The pages have arrived, or are dirty again.
    fn settle(&self, o: &Object, going: &[Going], arrived: impl Fn(u64) -> bool) {
        let now = self.clock.now_ns();
        let mut core = self.core.lock();
        for g in going {
            if !arrived(g.page) {
                core.soil(o, g.page, g.frame, now);
            }
            self.handles.frame_flags(g.frame).fetch_and(!WRITEBACK, Ordering::Release);
        }
    }

    /// Dirty pages above which background writeback starts.
    pub(crate) fn dirty_background(&self) -> u64 {
        u64::from(self.pool_frames()) * u64::from(self.config.dirty_background_percent) / 100
    }
    /// Dirty pages above which writers wait.
    pub(crate) fn dirty_limit(&self) -> u64 {
        u64::from(self.pool_frames()) * u64::from(self.config.dirty_percent) / 100
    }

    /// Body of the writeback thread.
    pub(crate) fn writeback_loop(&self) {
        while !self.stopping.load(Ordering::Acquire) {
            self.writeback_bell.wait(self.config.writeback_interval);
            let failed = self.write_back_due();
            self.writeback_errno.store(failed.as_ref().map_or(0, errno), Ordering::Relaxed);
            if failed.is_some() {
                // Do not hammer a device that fails; writers learn of it through writeback_errno.
                self.dirty_done.notify_all();
                std::thread::sleep(Duration::from_millis(200));
            }
        }
    }

    /// Writes back what is too old, and what is too much, oldest object first. The last failure.
    fn write_back_due(&self) -> Option<io::Error> {
        let mut objects: Vec<(u64, ObjectRef)> = self
            .objects()
            .into_iter()
            .map(|o| (o.dirty_since.load(Ordering::Relaxed), o))
            .filter(|(since, _)| *since != 0)
            .collect();
        objects.sort_by_key(|(since, _)| *since);
        let mut failed = None;
        for (since, o) in objects {
            let old = self.clock.now_ns().saturating_sub(since) >= self.config.dirty_expire.as_nanos() as u64;
            let much = self.core.lock().dirty_pages > self.dirty_background();
            if !(old || much) || o.doomed.load(Ordering::Relaxed) {
                continue;
            }
            if let Err(e) = self.write_back(&o, 0..u64::MAX) {
                tracing::warn!("object {}: writeback failed: {e}; its pages stay dirty", o.id());
                failed = Some(e);
            }
        }
        failed
    }

    /// Objects with data that the source does not have yet, and how many bytes.
    pub fn dirty_report(&self) -> Vec<(String, u64)> {
        let mut report: Vec<(String, u64)> = self
            .objects()
            .iter()
            .filter(|o| o.dirty_pages() > 0 && !o.doomed.load(Ordering::Relaxed))
            .map(|o| {
                let path = std::fs::read_link(o.source().proc_path());
                (
                    path.map_or_else(|_| format!("inode {}", o.id()), |p| p.display().to_string()),
                    o.dirty_pages() * PAGE,
                )
            })
            .collect();
        report.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        report
    }
}

fn bytes(bufs: &[IoVec]) -> usize {
    bufs.iter().map(|b| b.len).sum()
}

fn errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(libc::EIO)
}

const _: () = assert!(DIRTY & WRITEBACK == 0);
