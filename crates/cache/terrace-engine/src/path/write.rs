//! Writes, truncates, and operations on the source that exclude concurrent accesses through the cache.
//!
//! Path of a write: [`write`] -> `throttle`, then for each batch of pages `prepare` (state lock: frames,
//! entries Busy) -> `fill_for_write` (rest of partly written pages) -> copy -> `commit` (state lock: dirty
//! bit, then publish).

use crate::access_log::Kind;
use crate::context::Context;
use crate::file::identity::Known;
use crate::file::object::{Object, ObjectRef};
use crate::file::source::SourceFile;
use crate::path::fetch::{self, Piece};
use crate::path::{promote, sync, throttle, writeback};
use crate::state::NotPromoted;
use crate::tier::{intent, park};
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use terrace_io::IoVec;
use terrace_policy::InsertReason;
use terrace_shm::entry::Below;
use terrace_shm::index::Place;
use terrace_shm::protocol::withdraw;
use terrace_shm::{Entry, PAGE_SIZE};

const PAGE: u64 = PAGE_SIZE as u64;
/// Pages changed under one pair of state locks.
const BATCH: usize = 64;

struct ChangedPage {
    page: u64,
    place: Place,
    frame: u32,
    /// Bytes of the page that the write covers.
    from: usize,
    to: usize,
    /// The page was resident before, so its frame has content.
    resident: bool,
    shadow: u32,
}

/// Reason why a batch cannot be prepared.
enum PrepareError {
    /// No frame: all are dirty or in use.
    Frames,
    /// No index node.
    Index,
    /// This page is compressed, and the write covers only a part of it.
    Compressed(u64),
}

/// See [`crate::Engine::write`].
pub(crate) fn write(cx: &Context, o: &ObjectRef, offset: u64, data: &[u8]) -> io::Result<usize> {
    if data.is_empty() {
        return Ok(0);
    }
    let end = offset.checked_add(data.len() as u64).filter(|&e| e <= i64::MAX as u64).ok_or(Errno::FBIG)?;
    throttle::wait_for_room(cx, o, data.len().div_ceil(PAGE_SIZE) as u64)?;
    let _content = o.content.write();
    let old_size = o.size();
    // Opens the source for writing now, so that the writer gets an error before the writeback.
    let writer = o.source().writer()?;
    let source = writer.raw();
    let _change = (end > old_size).then(|| intent::change(cx, o));
    if end > old_size {
        cx.io.truncate(source, end)?;
        // Set after the truncate: if that fails, writeback of the last page must not extend the file.
        o.growing.store(end, Ordering::Release);
    }
    let written = write_pages(cx, o, old_size, offset, data);
    // Data written before an error stay, as in any file system.
    let end = offset + *written.as_ref().unwrap_or(&0) as u64;
    if end > old_size {
        o.slot().size.store(end, Ordering::Release);
    }
    end_growth(cx, o, source)?;
    let done = written?;
    o.note_write(cx.clock.wall_ns());
    (cx.burst.note_write)(cx, o);
    if cx.is_traced() {
        cx.note_access(o, offset, done, Kind::Write);
    }
    cx.counters.writes.fetch_add(1, Ordering::Relaxed);
    cx.counters.write_bytes.fetch_add(done as u64, Ordering::Relaxed);
    Ok(done)
}

/// Ends the growth of the source. Truncates it if the write was shorter than planned.
fn end_growth(cx: &Context, o: &Object, source: std::os::fd::RawFd) -> io::Result<()> {
    let announced = o.growing.load(Ordering::Relaxed);
    if announced > o.size() {
        let _writeback = o.writeback.lock();
        cx.io.truncate(source, o.size())?;
    }
    o.growing.store(0, Ordering::Release);
    Ok(())
}

fn write_pages(cx: &Context, o: &Object, old_size: u64, offset: u64, data: &[u8]) -> io::Result<usize> {
    let (mut done, mut wait) = (0, None);
    while done < data.len() {
        let step = match write_batch(cx, o, old_size, offset + done as u64, &data[done..]) {
            Ok(Ok(n)) => Ok(n),
            Ok(Err(PrepareError::Frames)) => throttle::wait_for_frames(cx, o, &mut wait).map(|()| 0),
            Ok(Err(PrepareError::Compressed(page))) => match promote::promote_page(cx, o, page) {
                Err(NotPromoted::NoFrame) => throttle::wait_for_frames(cx, o, &mut wait).map(|()| 0),
                Ok(()) | Err(NotPromoted::Gone) => Ok(0),
            },
            Ok(Err(PrepareError::Index)) => {
                let n = (PAGE_SIZE - (offset as usize + done) % PAGE_SIZE).min(data.len() - done);
                write_through(cx, o, offset + done as u64, &data[done..done + n]).map(|()| n)
            }
            Err(e) => Err(e),
        };
        match step {
            Ok(n) => done += n,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Changes the first pages of a write. Returns the bytes done. The object's content lock is held.
fn write_batch(
    cx: &Context,
    o: &Object,
    old_size: u64,
    at: u64,
    data: &[u8],
) -> io::Result<Result<usize, PrepareError>> {
    let batch = match prepare(cx, o, at, data.len()) {
        Ok(batch) => batch,
        Err(error) => return Ok(Err(error)),
    };
    let (good, failed) = match fill_for_write(cx, o, &batch, old_size) {
        Ok(()) => (batch.len(), None),
        Err((good, e)) => (good, Some(e)),
    };
    let mut done = 0;
    for c in &batch[..good] {
        let n = c.to - c.from;
        // SAFETY: the entry is Busy, so readers discard what they copy; the content lock keeps writers out.
        unsafe {
            let frame = cx.handles.segment.frame(c.frame).add(c.from);
            std::ptr::copy_nonoverlapping(data[done..done + n].as_ptr(), frame, n);
        }
        done += n;
    }
    commit(cx, o, &batch[..good]);
    let Some(e) = failed else { return Ok(Ok(done)) };
    abandon(cx, &batch[good..]);
    if good == 0 { Err(e) } else { Ok(Ok(done)) }
}

/// Makes the entries of the first pages of `[at, at + len)` Busy, with a frame each.
fn prepare(cx: &Context, o: &Object, at: u64, len: usize) -> Result<Vec<ChangedPage>, PrepareError> {
    let mut batch = Vec::with_capacity(BATCH.min(len / PAGE_SIZE + 2));
    let near = cx.near_caller();
    let mut state = cx.state.lock();
    let (mut pos, mut error) = (at, None);
    while pos < at + len as u64 && batch.len() < BATCH {
        let page = pos / PAGE;
        let from = (pos % PAGE) as usize;
        let to = PAGE_SIZE.min(from + (at + len as u64 - pos) as usize);
        let Some(place) = state.pages.index.ensure(o.slot_index(), page) else {
            error = Some(PrepareError::Index);
            break;
        };
        if let Some(below) = state.pages.index.get(place).below() {
            if to - from < PAGE_SIZE && matches!(below, Below::Compressed(_)) {
                // The write needs the rest of the page, and decompression must not run under the lock.
                error = Some(PrepareError::Compressed(page));
                break;
            }
            state.invalidate(place);
        }
        let e = state.pages.index.get(place);
        let (frame, resident) = match e.frame() {
            Some(frame) => (frame, true),
            None => match state.claim_near(near) {
                Some(frame) => (frame, false),
                None => {
                    error = Some(PrepareError::Frames);
                    break;
                }
            },
        };
        let clock = state.pages.index.tick();
        withdraw(state.pages.index.entry(place), Entry::busy(frame, clock));
        if !resident {
            state.map_frame(place, frame);
        }
        batch.push(ChangedPage { page, place, frame, from, to, resident, shadow: e.shadow() });
        pos += (to - from) as u64;
    }
    // After all entries are Busy: see `protocol::stamp`.
    state.pages.note_change(o);
    cx.wake_reclaim_if_low(&state);
    match error {
        Some(error) if batch.is_empty() => Err(error),
        _ => Ok(batch),
    }
}

/// Reads the parts of pages that the write does not cover. On an error: the first failed page.
fn fill_for_write(
    cx: &Context,
    o: &Object,
    batch: &[ChangedPage],
    old_size: u64,
) -> Result<(), (usize, io::Error)> {
    let mut at_source = Vec::new();
    for (i, c) in batch.iter().enumerate() {
        if c.resident || (c.from == 0 && c.to == PAGE_SIZE) {
            continue;
        }
        if c.page * PAGE < old_size {
            at_source.push(i);
        } else {
            // SAFETY: the entry is Busy and the frame new: no reader uses it.
            unsafe { cx.handles.segment.frame(c.frame).write_bytes(0, PAGE_SIZE) };
        }
    }
    if at_source.is_empty() {
        return Ok(());
    }
    // At most the first page and the last one.
    let piece = |&i: &usize| {
        let ChangedPage { page, frame, .. } = &batch[i];
        Piece { object: o, first: *page, frames: std::slice::from_ref(frame) }
    };
    let pieces: Vec<Piece<'_>> = at_source.iter().map(piece).collect();
    let results = fetch::read_pieces(cx, &pieces);
    at_source.into_iter().zip(results).try_for_each(|(i, result)| result.map_err(|e| (i, e)))
}

fn commit(cx: &Context, o: &Object, batch: &[ChangedPage]) {
    let now = cx.clock.now_ns();
    let mut state = cx.state.lock();
    for c in batch {
        state.mark_dirty(o, c.page, c.frame, now);
        state.pages.publish_present(c.place, c.frame);
        state.sampler.write(c.frame, c.resident);
        if !c.resident {
            state.lru_add(c.frame, c.shadow, InsertReason::Write);
        }
    }
    if throttle::is_much(cx, &state) {
        cx.writeback_wakeup.signal();
    }
}

fn abandon(cx: &Context, batch: &[ChangedPage]) {
    let mut state = cx.state.lock();
    for c in batch {
        if c.resident {
            state.pages.publish_present(c.place, c.frame);
        } else {
            state.release(c.place, c.frame, 0);
        }
    }
}

/// Writes a piece of one page directly to the source, when the index is full.
fn write_through(cx: &Context, o: &Object, at: u64, data: &[u8]) -> io::Result<()> {
    let _change = intent::change_pages(cx, o);
    let fd = o.source().buffered()?;
    let mut copy = data.to_vec();
    let buf = IoVec { ptr: copy.as_mut_ptr(), len: copy.len() };
    // SAFETY: `copy` lives until the call returns.
    unsafe { cx.io.write(fd.raw(), at, &[buf])? };
    let mut state = cx.state.lock();
    state.drop_pages(o, at / PAGE, at / PAGE);
    Ok(())
}

/// See [`crate::Engine::truncate`].
pub(crate) fn truncate(cx: &Context, o: &ObjectRef, size: u64) -> io::Result<()> {
    let _content = o.content.write();
    let _writeback = o.writeback.lock();
    (cx.burst.destage_locked)(cx, o)?;
    let _change = intent::change(cx, o);
    let writer = o.source().writer()?;
    o.note_change();
    let old = o.size();
    cx.state.lock().pages.note_change(o);
    if size < old {
        // Readers see the new end before the pages go: no reader sees zeros instead of data.
        o.slot().size.store(size, Ordering::Release);
    }
    if let Err(e) = cx.io.truncate(writer.raw(), size) {
        o.slot().size.store(old, Ordering::Release);
        return Err(e);
    }
    if size < old {
        cx.state.lock().drop_beyond(o, size);
    } else {
        o.slot().size.store(size, Ordering::Release);
        cx.state.lock().pages.note_change(o);
    }
    o.note_write(cx.clock.wall_ns());
    o.restore_times();
    Ok(())
}

/// See [`crate::Engine::with_source`].
pub(crate) fn with_source<T>(
    cx: &Context,
    o: &ObjectRef,
    range: Range<u64>,
    f: impl FnOnce(&SourceFile) -> io::Result<T>,
) -> io::Result<T> {
    let _content = o.content.write();
    let _writeback = o.writeback.lock();
    writeback::write_back_locked(cx, o, range.clone(), writeback::Route::Direct)?;
    sync::stabilize_locked(cx, o, true)?;
    (cx.burst.destage_locked)(cx, o)?;
    let _change = intent::change(cx, o);
    let (first, last) =
        (range.start / PAGE, range.end.div_ceil(PAGE).saturating_sub(1).max(range.start / PAGE));
    // Before and after `f`: a thread with old content must not publish it.
    cx.state.lock().drop_pages(o, first, last);
    o.note_change();
    let result = f(o.source());
    cx.state.lock().drop_pages(o, first, last);
    let st = o.source().stat()?;
    o.slot().size.store(st.st_size as u64, Ordering::Release);
    o.adopt_times();
    result
}

/// See [`crate::Engine::reload`].
pub(crate) fn reload(cx: &Context, o: &ObjectRef) -> io::Result<()> {
    let _content = o.content.write();
    // Before any later read of content. A write in flight may have set the file's times already: the identity of a
    // file with announced writes waits for them (`Engine::renew_identity`).
    let known = match cx.config.announced_writes {
        true => Known::default(),
        false => park::identity_of(cx, o.source().as_path()),
    };
    // Under one lock: an announced write must not set a size in between.
    let mut state = cx.state.lock();
    let size = o.source().stat()?.st_size as u64;
    state.drop_pages(o, 0, u64::MAX);
    o.slot().size.store(size, Ordering::Release);
    // A fill with the old size ends in zeros: it must not be published.
    state.drop_pages(o, 0, u64::MAX);
    o.set_known(&known);
    Ok(())
}

/// See [`crate::Engine::reload_if_changed`].
pub(crate) fn reload_if_changed(cx: &Context, o: &ObjectRef) -> io::Result<()> {
    let identity = o.identity.load(Ordering::Relaxed);
    let now = park::identity_of(cx, o.source().as_path()).identity;
    if identity != 0 && now == Some(identity) {
        // The object may have been published with an older size. Under the lock, as in `reload`.
        let _state = cx.state.lock();
        o.slot().size.store(o.source().stat()?.st_size as u64, Ordering::Release);
        return Ok(());
    }
    reload(cx, o)
}
