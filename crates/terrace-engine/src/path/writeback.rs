//! Dirty pages to the source, in file order and in large pieces.
//!
//! A page under writeback keeps its frame (flag WRITEBACK) and may be written again meanwhile: it is then
//! dirty anew. A page whose writeback fails is dirty again, and every open handle reports it at its next
//! fsync. The same holds for a page that the kernel's page cache has taken and the kernel cannot write: see
//! [`crate::state::dirty`].

use crate::context::Context;
use crate::file::object::Object;
use crate::file::source::DataFd;
use crate::io::{IoVec, WriteOp};
use crate::path::permit;
use crate::state::State;
use crate::state::dirty::WritebackOutcome;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrace_shm::{PAGE_SIZE, State as EntryState};

const PAGE: u64 = PAGE_SIZE as u64;
/// Pages collected under one state lock.
const BATCH: usize = 2048;
/// Clean pages between two dirty ones that are written with them, in one operation instead of two.
const GAP_MAX: u64 = 4;

/// A page on its way.
#[derive(Clone, Copy)]
struct InFlightPage {
    page: u64,
    frame: u32,
}

/// Writes back the dirty pages of `range`. The source has the data then; the device may not.
pub(crate) fn write_back(cx: &Context, o: &Object, range: Range<u64>) -> io::Result<()> {
    let _writeback = o.writeback.lock();
    write_back_locked(cx, o, range, false)
}

/// As [`write_back`], through the kernel's page cache if `cached`. The caller holds the object's writeback lock, so
/// nothing is on its way at the start, and at the end everything has arrived or is dirty.
pub(crate) fn write_back_locked(cx: &Context, o: &Object, range: Range<u64>, cached: bool) -> io::Result<()> {
    if o.gone.load(Ordering::Relaxed) {
        return Ok(());
    }
    let (mut next, end) = (range.start / PAGE, range.end.div_ceil(PAGE));
    let mut result = Ok(());
    while next < end && result.is_ok() {
        let going = take_dirty(cx, o, next..end);
        let Some(last) = going.last() else { break };
        next = last.page + 1;
        o.unsynced.store(true, Ordering::Relaxed);
        let _change = permit::change(cx, o);
        result = write_out(cx, o, &going, cached);
        note_outcome(cx, o, &result);
    }
    if o.restore_due() {
        let _change = permit::change(cx, o);
        o.restore_times();
    }
    result
}

pub(crate) fn note_outcome(cx: &Context, o: &Object, result: &io::Result<()>) {
    let errno = result.as_ref().err().map_or(0, errno);
    // Without a descriptor nothing was tried: waiters get the error, handles do not.
    if let Err(e) = result
        && !is_shortage(e)
    {
        o.note_error(e);
        cx.counters.writeback_errors.fetch_add(1, Ordering::Relaxed);
        if o.failing().is_none_or(is_shortage_errno) {
            tracing::warn!("object {}: writeback failed: {e}; its pages stay dirty", o.id());
        }
    }
    cx.state.lock().dirty.note_outcome(o, errno, cx.clock.now_ns());
    cx.dirty_done.notify_all();
}

/// Takes the first dirty pages of a range on their way: clean in the books, but not evictable.
fn take_dirty(cx: &Context, o: &Object, pages: Range<u64>) -> Vec<InFlightPage> {
    let mut state = cx.state.lock();
    let first = o.dirty.lock().first(pages, BATCH);
    let mut going = Vec::with_capacity(first.len());
    // A target's copies of clean pages would be given up for it.
    let closes_gaps = o.is_private() && state.targets.is_none();
    for page in first {
        let gap = going.last().map_or(page, |before: &InFlightPage| before.page + 1)..page;
        if closes_gaps && gap.end - gap.start <= GAP_MAX {
            close_gap(&mut state, o, gap, cx.clock.now_ns(), &mut going);
        }
        let frame = state.begin_writeback(o, page);
        going.push(InFlightPage { page, frame });
    }
    going
}

/// Takes the clean pages of a gap, too, as if they were dirty, if all of them are in frames. A page that is being changed may not hold its content yet.
fn close_gap(state: &mut State, o: &Object, gap: Range<u64>, now_ns: u64, going: &mut Vec<InFlightPage>) {
    let clean = |page: u64| {
        let entry = state.pages.index.get(state.pages.index.find(o.slot_index(), page)?);
        let frame = entry.frame().filter(|_| entry.state() == EntryState::Present)?;
        (state.pages.flags(frame).load(Ordering::Relaxed) == 0).then_some(InFlightPage { page, frame })
    };
    let Some(pages) = gap.map(clean).collect::<Option<Vec<_>>>() else { return };
    for clean in pages {
        state.mark_dirty(o, clean.page, clean.frame, now_ns);
        state.begin_writeback(o, clean.page);
        going.push(clean);
    }
}

fn write_out(cx: &Context, o: &Object, going: &[InFlightPage], cached: bool) -> io::Result<()> {
    let (mut ops, tail) = match operations(cx, o, going, cached) {
        Ok(ops) => ops,
        Err(e) => {
            complete_writeback(cx, o, going, std::iter::repeat(WritebackOutcome::Failed));
            return Err(e);
        }
    };
    // SAFETY: frames under writeback stay where they are until `complete_writeback`.
    unsafe { cx.io.write_batch(&mut ops) };
    let outcome = |op: &WriteOp| match op.result {
        Err(_) => WritebackOutcome::Failed,
        Ok(()) if tail.as_ref().is_some_and(|tail| tail.raw() == op.fd) => WritebackOutcome::Unstable,
        Ok(()) => WritebackOutcome::Arrived,
    };
    // Operations are in the order of the pages, and cover each of them.
    let outcomes =
        ops.iter().flat_map(|op| std::iter::repeat_n(outcome(op), bytes(&op.bufs).div_ceil(PAGE_SIZE)));
    complete_writeback(cx, o, going, outcomes);
    cx.counters.written_back.fetch_add(going.len() as u64, Ordering::Relaxed);
    ops.into_iter().map(|op| op.result).find(|r| r.is_err()).unwrap_or(Ok(()))
}

/// Adjacent pages become one operation. The last page of a file whose size is no multiple of a page goes through
/// the page cache, cut at the size: a direct write would lengthen the file. With it the descriptor of those that go
/// through the page cache, if there are some.
fn operations(
    cx: &Context,
    o: &Object,
    going: &[InFlightPage],
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
            _ => ops.push(WriteOp { fd, offset: at, bufs: vec![IoVec { ptr, len }], result: Ok(()) }),
        }
    }
    Ok((ops, tail))
}

fn complete_writeback(
    cx: &Context,
    o: &Object,
    going: &[InFlightPage],
    outcomes: impl Iterator<Item = WritebackOutcome>,
) {
    let now = cx.clock.now_ns();
    let mut state = cx.state.lock();
    for (g, outcome) in going.iter().zip(outcomes) {
        state.end_writeback(o, g.page, g.frame, outcome, now);
    }
}

fn bytes(bufs: &[IoVec]) -> usize {
    bufs.iter().map(|b| b.len).sum()
}

/// True if no descriptor was available.
pub(crate) fn is_shortage(e: &io::Error) -> bool {
    e.raw_os_error().is_some_and(is_shortage_errno)
}

fn is_shortage_errno(errno: i32) -> bool {
    matches!(errno, libc::EMFILE | libc::ENFILE)
}

fn errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use crate::io::BlockingIo;
    use crate::testing::{sparse_object, started};
    use crate::{EngineConfig, SystemClock};
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use terrace_shm::PAGE_SIZE;

    const PAGES: u64 = 32;

    /// What stands in the file in each page after pages 2, 4, 5, 8 and 20 were written over, others having been changed behind the cache.
    fn written(is_private: bool) -> Vec<u8> {
        let config = EngineConfig { memory_bytes: 16 << 20, ..EngineConfig::default() };
        let engine = started(config, Arc::new(SystemClock), BlockingIo::default());
        let (o, file) = sparse_object(&engine, 1, PAGES * PAGE_SIZE as u64);
        if is_private {
            o.make_private();
        }
        let errors = o.error_cursor();
        let write = |page: u64, byte: u8| {
            let done = engine.write(&o, page * PAGE_SIZE as u64, &[byte; PAGE_SIZE]).unwrap();
            assert_eq!(done, PAGE_SIZE);
        };
        (0..PAGES).for_each(|page| write(page, 1));
        engine.fsync(&o, true, &errors).unwrap();
        engine.drop_pages(&o, 7, 1);
        file.write_all_at(&vec![9; PAGES as usize * PAGE_SIZE], 0).unwrap();
        [2, 4, 5, 8, 20].into_iter().for_each(|page| write(page, 2));
        engine.fsync(&o, true, &errors).unwrap();
        let mut bytes = vec![0; PAGES as usize * PAGE_SIZE];
        file.read_exact_at(&mut bytes, 0).unwrap();
        engine.halt();
        bytes.chunks(PAGE_SIZE).map(|page| page[0]).collect()
    }

    #[test]
    fn writeback_closes_small_gaps_of_private_files_only() {
        let expect = |own: &[usize], clean: &[usize]| {
            let byte = |page| {
                if own.contains(&page) {
                    2
                } else if clean.contains(&page) {
                    1
                } else {
                    9
                }
            };
            (0..PAGES as usize).map(byte).collect::<Vec<_>>()
        };
        let own = [2, 4, 5, 8, 20];
        assert_eq!(written(false), expect(&own, &[]));
        // Page 7 was not in memory, so that the gap before 8 stays; that before 20 is large.
        assert_eq!(written(true), expect(&own, &[3]));
    }
}
