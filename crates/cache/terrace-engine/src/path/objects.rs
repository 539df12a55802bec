//! Creation of objects, and their end: a forgotten object is written back first, a discarded one drops its
//! dirty pages.

use crate::context::Context;
use crate::file::object::{Object, ObjectId, ObjectRef};
use crate::file::source::{PathFd, SourceFile};
use crate::path::{sync, writeback};
use crate::tier::park;
use std::io;
use std::sync::atomic::Ordering;

/// As [`crate::Engine::object`]. `flags`: for its slot.
pub(crate) fn object(
    cx: &Context,
    id: ObjectId,
    path_fd: PathFd,
    size: u64,
    flags: u32,
) -> io::Result<ObjectRef> {
    // With devices an object begins with a read of the file's identity, needless for a published one.
    if cx.has_devices()
        && let Some(o) = cx.lookup_object(id)
    {
        return Ok(o);
    }
    let source = SourceFile::new(path_fd);
    // Before any read of content: later content is not older than this identity.
    let known = park::identity_of(cx, source.as_path());
    let mut state = cx.state.lock();
    if let Some(o) = state.objects.get(&id) {
        return Ok(o.clone());
    }
    let seg = cx.handles.segment.clone();
    let published = state.add_object(id, size, flags, |slot| Object::new(id, slot, seg, source));
    let o = published.ok_or(rustix::io::Errno::NFILE)?;
    o.set_known(&known);
    if state.begin_restore(&o) {
        cx.wake_devices();
    }
    Ok(o)
}

/// See [`crate::Engine::forget_object`].
pub(crate) fn forget_object(cx: &Context, id: ObjectId) -> io::Result<()> {
    let Some(o) = cx.lookup_object(id) else { return Ok(()) };
    let _content = o.content.write();
    let _writeback = o.writeback.lock();
    if o.gone.load(Ordering::Relaxed) {
        return Ok(());
    }
    if !o.doomed.load(Ordering::Relaxed) {
        writeback::write_back_locked(cx, &o, 0..u64::MAX, writeback::Route::Direct)?;
        sync::sync_foreign_locked(cx, &o)?;
        sync::stabilize_locked(cx, &o, true)?;
        (cx.burst.destage_locked)(cx, &o)?;
    }
    (cx.burst.note_deleted)(cx, &o);
    let digest = if cx.has_devices() { park::valid_identity(cx, &o) } else { None };
    let mut state = cx.state.lock();
    state.forget(&o, digest.filter(|_| !o.doomed.load(Ordering::Relaxed)));
    o.gone.store(true, Ordering::Relaxed);
    Ok(())
}

/// See [`crate::Engine::discard_object`].
pub(crate) fn discard_object(cx: &Context, id: ObjectId) {
    let Some(o) = cx.lookup_object(id) else { return };
    o.doomed.store(true, Ordering::Relaxed);
    let _content = o.content.write();
    let _writeback = o.writeback.lock();
    if !o.gone.load(Ordering::Relaxed) {
        cx.state.lock().drop_pages(&o, 0, u64::MAX);
        (cx.burst.note_deleted)(cx, &o);
    }
}
