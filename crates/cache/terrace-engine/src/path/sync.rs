//! Flush, fsync, and syncs of the whole source: written data become visible in the source, or stable.

use crate::context::Context;
use crate::file::errseq::ErrorCursor;
use crate::file::object::{Object, ObjectRef};
use crate::path::writeback::{self, Route, is_shortage};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::Ordering;
use terrace_shm::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;
/// Maximum bytes of a `flush` that the kernel's page cache keeps and writes later: small files are often
/// deleted soon. Larger data are dropped behind, because terrace has them in memory.
const KEPT_MAX: u64 = 256 << 10;

/// See [`crate::Engine::flush`].
pub(crate) fn flush(cx: &Context, o: &ObjectRef, range: Range<u64>) -> io::Result<()> {
    if o.doomed.load(Ordering::Relaxed) {
        return Ok(());
    }
    let _writeback = o.writeback.lock();
    // Undestaged pages are durable on a target: the source's device is left to urgent requests.
    let has_undestaged = o.burst.lock().target.is_some();
    let is_lazy = has_undestaged || o.dirty_pages() * PAGE <= KEPT_MAX;
    let route = if is_lazy { Route::PageCache } else { Route::DropBehind };
    writeback::write_back_locked(cx, o, range, route)
}

/// As [`crate::Engine::fsync`], in the source.
pub(crate) fn fsync(cx: &Context, o: &ObjectRef, data_only: bool, seen: &ErrorCursor) -> io::Result<()> {
    let writeback = o.writeback.lock();
    // Failures are counted for the object; the handle reports them below.
    let written = writeback::write_back_locked(cx, o, 0..u64::MAX, Route::Direct);
    if written.as_ref().is_err_and(is_shortage) {
        return written;
    }
    if o.dirty.lock().unstable.is_empty() {
        drop(writeback);
        let synced = sync(cx, o, data_only);
        if synced.as_ref().is_err_and(is_shortage) {
            return synced;
        }
    } else {
        let synced = stabilize_locked(cx, o, data_only);
        if synced.as_ref().is_err_and(is_shortage) {
            return synced;
        }
    }
    o.take_error(seen)
}

/// See [`crate::Engine::flush_all`].
pub(crate) fn flush_all(cx: &Context, sync: bool) -> io::Result<()> {
    write_all_back(cx, sync, |o| !o.is_nameless())
}

/// [`flush_all`], which reports only failures of objects with `counts`.
pub(crate) fn write_all_back(cx: &Context, sync: bool, counts: impl Fn(&Object) -> bool) -> io::Result<()> {
    let mut first = Ok(());
    let mut note = |o: Option<&Object>, result: io::Result<()>| {
        if first.is_ok() && result.is_err() && o.is_none_or(&counts) {
            first = result;
        }
    };
    let unwritten = cx.unwritten_objects();
    for o in &unwritten {
        note(Some(o), writeback::write_back(cx, o, 0..u64::MAX));
    }
    if sync {
        note(None, sync_root(cx));
        for o in cx.objects() {
            note(Some(&o), sync_foreign(cx, &o));
            note(Some(&o), o.take_close_error());
        }
    }
    for o in &unwritten {
        note(Some(o), stabilize(cx, o));
    }
    first
}

/// Makes everything on the source's file system stable, under the lock. The kernel reports each failure once
/// per descriptor: a thread without the report would take the pages for stable.
pub(crate) fn sync_root(cx: &Context) -> io::Result<()> {
    let Some(root) = cx.source_root.get() else { return Ok(()) };
    let _syncing = root.syncing.lock();
    let round = {
        let mut state = cx.state.lock();
        state.dirty.sync_round += 1;
        state.dirty.sync_round
    };
    cx.io.sync_fs(root.fd.as_raw_fd())?;
    for o in cx.unwritten_objects() {
        if o.source().stat().is_ok_and(|stat| root.reaches(stat.st_dev)) {
            cx.state.lock().end_sync(&o, round, None);
        }
    }
    cx.dirty_done.notify_all();
    Ok(())
}

/// Makes an object stable that no syncfs of the source reaches: on a server, or a file system mounted inside.
pub(crate) fn sync_foreign(cx: &Context, o: &Object) -> io::Result<()> {
    if !o.unsynced.load(Ordering::Relaxed) || o.doomed.load(Ordering::Relaxed) {
        return Ok(());
    }
    let _writeback = o.writeback.lock();
    sync_foreign_locked(cx, o)
}

pub(crate) fn sync_foreign_locked(cx: &Context, o: &Object) -> io::Result<()> {
    if o.gone.load(Ordering::Relaxed) || !o.unsynced.load(Ordering::Relaxed) {
        return Ok(());
    }
    let dev = o.source().stat()?.st_dev;
    if cx.source_root.get().is_some_and(|root| root.reaches(dev)) {
        return Ok(());
    }
    o.unsynced.store(false, Ordering::Relaxed);
    let is_stable = o.dirty.lock().unstable.is_empty();
    let synced = match is_stable {
        true => sync_by(cx, o, |fd| unless_lacking(cx.io.sync(fd, false))),
        false => stabilize_locked(cx, o, false),
    };
    synced.inspect_err(|_| o.unsynced.store(true, Ordering::Relaxed))
}

pub(crate) fn stabilize(cx: &Context, o: &Object) -> io::Result<()> {
    let _writeback = o.writeback.lock();
    stabilize_locked(cx, o, true)
}

/// fsync or fdatasync of an object without unstable pages. A failure also applies to pages that have become
/// unstable meanwhile.
pub(crate) fn sync(cx: &Context, o: &Object, data_only: bool) -> io::Result<()> {
    sync_by(cx, o, |fd| cx.io.sync(fd, data_only))
}

/// Ignores the error of a source without fsync: it must not fail a sync of everything.
fn unless_lacking(synced: io::Result<()>) -> io::Result<()> {
    let lacks =
        |e: &io::Error| matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP));
    synced.or_else(|e| if lacks(&e) { Ok(()) } else { Err(e) })
}

fn sync_by(cx: &Context, o: &Object, by: impl FnOnce(RawFd) -> io::Result<()>) -> io::Result<()> {
    let _syncing = o.syncing.read();
    let fd = match o.source().any() {
        Err(e) if is_shortage(&e) => return Err(e),
        fd => fd,
    };
    let synced = fd.and_then(|fd| by(fd.raw()));
    synced.inspect_err(|e| {
        o.note_error(e);
        cx.state.lock().end_sync(o, u64::MAX, Some(cx.clock.now_ns()));
        o.note_second_writeback();
    })
}

/// As [`stabilize`]; on failure the pages are dirty again. The caller holds the object's writeback lock, so
/// that no page becomes unstable meanwhile.
pub(crate) fn stabilize_locked(cx: &Context, o: &Object, data_only: bool) -> io::Result<()> {
    if o.dirty.lock().unstable.is_empty() || o.gone.load(Ordering::Relaxed) {
        return Ok(());
    }
    let _syncing = o.syncing.write();
    let synced = match o.source().syncer() {
        Ok(fd) => unless_lacking(cx.io.sync(fd.raw(), data_only)),
        // The file's mode may forbid the open: a syncfs replaces it, if it reaches the file.
        Err(e) => sync_root(cx).and(if o.dirty.lock().unstable.is_empty() { Ok(()) } else { Err(e) }),
    };
    if synced.as_ref().is_err_and(is_shortage) {
        return synced; // Nothing was tried: unstable pages stay so.
    }
    let lost = synced.is_err().then(|| cx.clock.now_ns());
    cx.state.lock().end_sync(o, u64::MAX, lost);
    match &synced {
        Ok(()) => cx.dirty_done.notify_all(),
        Err(_) => {
            o.note_second_writeback();
            writeback::note_outcome(cx, o, &synced);
        }
    }
    synced
}
