//! Writeback: dirty pages go to the source, in file order and in large pieces.
//!
//! A page under writeback keeps its frame (flag WRITEBACK), and a write meanwhile makes it dirty again. After
//! a failed writeback the page is dirty again, and every open handle reports the error at its next fsync. The
//! same applies if the kernel fails to write a page from its page cache: see [`crate::state::dirty`].

use crate::context::Context;
use crate::file::object::Object;
use crate::file::source::DataFd;
use crate::state::dirty::WritebackOutcome;
use crate::tier::intent;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrace_io::{IoVec, WriteOp};
use terrace_shm::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;
/// Pages collected under one state lock.
const BATCH: usize = 2048;

/// Route of pages to the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// Direct I/O, where the source allows it: the device has the pages afterwards.
    Direct,
    /// Into the kernel's page cache, which writes them later. They are unstable.
    PageCache,
    /// Through the kernel's page cache, which writes them at once and drops them. They are unstable, too.
    DropBehind,
}

#[derive(Clone, Copy)]
pub(crate) struct InFlightPage {
    pub(crate) page: u64,
    pub(crate) frame: u32,
}

/// Writes back the dirty pages of `range`. The source has the data then; the device may not.
pub(crate) fn write_back(cx: &Context, o: &Object, range: Range<u64>) -> io::Result<()> {
    let _writeback = o.writeback.lock();
    write_back_locked(cx, o, range, Route::Direct)
}

/// As [`write_back`], by `route`. The caller holds the object's writeback lock, so no page is under writeback
/// before. After it, each page has arrived or is dirty.
pub(crate) fn write_back_locked(cx: &Context, o: &Object, range: Range<u64>, route: Route) -> io::Result<()> {
    if o.gone.load(Ordering::Relaxed) {
        return Ok(());
    }
    let (mut next, end) = (range.start / PAGE, range.end.div_ceil(PAGE));
    let mut result = Ok(());
    while next < end && result.is_ok() {
        let in_flight = take_dirty(cx, o, next..end);
        let Some(last) = in_flight.last() else { break };
        next = last.page + 1;
        let _change = intent::change_pages(cx, o);
        result = write_out(cx, o, &in_flight, route);
        note_outcome(cx, o, &result);
    }
    restore_times(cx, o);
    result
}

/// Writes back these pages if they are still dirty and not undestaged. No target has an older version of
/// them. After a failure they are dirty again, without a report, because no caller has relied on them. The
/// caller holds the object's writeback lock, and a write intent for the change.
pub(crate) fn write_back_pages(cx: &Context, o: &Object, pages: &[u64], route: Route) -> io::Result<()> {
    write_out(cx, o, &take_still_dirty(cx, o, pages), route)
}

pub(crate) fn restore_times(cx: &Context, o: &Object) {
    if o.restore_due() {
        let _change = intent::change(cx, o);
        o.restore_times();
    }
}

pub(crate) fn note_outcome(cx: &Context, o: &Object, result: &io::Result<()>) {
    let errno = result.as_ref().err().map_or(0, errno);
    // Without a descriptor there was no write: waiters get the error, handles do not.
    if let Err(e) = result
        && !is_shortage(e)
    {
        o.note_error(e);
        cx.counters.writeback_errors.fetch_add(1, Ordering::Relaxed);
        if o.failing().is_none_or(is_shortage_errno) {
            tracing::warn!(
                "object {}: the source refuses written data ({e}); they stay in memory, and terrace tries again",
                o.id()
            );
        }
    }
    cx.state.lock().dirty.note_outcome(o, errno, cx.clock.now_ns());
    cx.dirty_done.notify_all();
}

/// Puts the first dirty pages of a range under writeback: they count as clean, but cannot be evicted.
fn take_dirty(cx: &Context, o: &Object, pages: Range<u64>) -> Vec<InFlightPage> {
    let mut state = cx.state.lock();
    let first = o.dirty.lock().first(pages, BATCH);
    let mut in_flight = Vec::with_capacity(first.len());
    for page in first {
        let frame = state.begin_writeback(o, page);
        in_flight.push(InFlightPage { page, frame });
    }
    in_flight
}

/// As [`take_dirty`], for given pages, without undestaged ones.
pub(crate) fn take_still_dirty(cx: &Context, o: &Object, pages: &[u64]) -> Vec<InFlightPage> {
    let mut state = cx.state.lock();
    let still: Vec<u64> = {
        let dirty = o.dirty.lock();
        pages.iter().copied().filter(|page| dirty.dirty.contains(page)).collect()
    };
    still.into_iter().map(|page| InFlightPage { page, frame: state.begin_writeback(o, page) }).collect()
}

fn write_out(cx: &Context, o: &Object, in_flight: &[InFlightPage], route: Route) -> io::Result<()> {
    o.note_change();
    let (mut ops, tail) = match operations(cx, o, in_flight, route) {
        Ok(ops) => ops,
        Err(e) => {
            complete_writeback(cx, o, in_flight, std::iter::repeat(WritebackOutcome::Failed));
            return Err(e);
        }
    };
    // SAFETY: frames under writeback stay where they are until `complete_writeback`.
    unsafe { cx.io.write_batch(&mut ops) };
    // The source may have refused direct I/O meanwhile.
    let is_direct = o.source().open_writer().is_some_and(|writer| writer.direct());
    let outcome = |op: &WriteOp| match op.result {
        Err(_) => WritebackOutcome::Failed,
        Ok(()) if !is_direct || tail.as_ref().is_some_and(|tail| tail.raw() == op.fd) => {
            WritebackOutcome::Unstable
        }
        Ok(()) => WritebackOutcome::Arrived,
    };
    // Operations are in the order of the pages, and cover all of them.
    let outcomes =
        ops.iter().flat_map(|op| std::iter::repeat_n(outcome(op), bytes(&op.bufs).div_ceil(PAGE_SIZE)));
    complete_writeback(cx, o, in_flight, outcomes);
    cx.counters.written_back.fetch_add(in_flight.len() as u64, Ordering::Relaxed);
    ops.into_iter().map(|op| op.result).find(|r| r.is_err()).unwrap_or(Ok(()))
}

/// Adjacent pages become one operation. A partial last page goes through the page cache: a direct write would
/// extend the file. Also returns the descriptor for the page cache, if used.
fn operations(
    cx: &Context,
    o: &Object,
    in_flight: &[InFlightPage],
    route: Route,
) -> io::Result<(Vec<WriteOp>, Option<Arc<DataFd>>)> {
    let size = o.size().max(o.growing.load(Ordering::Acquire));
    let writer = o.source().writer()?;
    let cached = route != Route::Direct || !writer.direct();
    let drop_behind = route == Route::DropBehind;
    let mut tail = None;
    let mut ops: Vec<WriteOp> = Vec::new();
    for g in in_flight {
        let at = g.page * PAGE;
        debug_assert!(at < size, "dirty page beyond the end");
        let len = size.saturating_sub(at).min(PAGE) as usize;
        let fd =
            if cached || len < PAGE_SIZE { tail.insert(o.source().buffered()?).raw() } else { writer.raw() };
        let ptr = cx.handles.segment.frame(g.frame);
        match ops.last_mut() {
            Some(op)
                if op.fd == fd
                    && op.offset + bytes(&op.bufs) as u64 == at
                    && bytes(&op.bufs) < cx.config.io_max_bytes =>
            {
                match op.bufs.last_mut() {
                    Some(b) if b.ptr.wrapping_add(b.len) == ptr => b.len += len,
                    _ => op.bufs.push(IoVec { ptr, len }),
                }
            }
            _ => {
                let bufs = vec![IoVec { ptr, len }];
                ops.push(WriteOp { fd, offset: at, bufs, drop_behind, result: Ok(()) });
            }
        }
    }
    Ok((ops, tail))
}

fn complete_writeback(
    cx: &Context,
    o: &Object,
    in_flight: &[InFlightPage],
    outcomes: impl Iterator<Item = WritebackOutcome>,
) {
    let now = cx.clock.now_ns();
    let mut state = cx.state.lock();
    for (g, outcome) in in_flight.iter().zip(outcomes) {
        state.end_writeback(o, g.page, g.frame, outcome, now);
    }
}

fn bytes(bufs: &[IoVec]) -> usize {
    bufs.iter().map(|b| b.len).sum()
}

/// Whether the error is a lack of descriptors.
pub(crate) fn is_shortage(e: &io::Error) -> bool {
    e.raw_os_error().is_some_and(is_shortage_errno)
}

fn is_shortage_errno(errno: i32) -> bool {
    matches!(errno, libc::EMFILE | libc::ENFILE)
}

fn errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(libc::EIO)
}
