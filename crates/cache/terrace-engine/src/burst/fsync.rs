//! The burst buffer: with `[dirty] durable = "tier"`, an fsync returns once the file's dirty pages are
//! durable on a device.
//!
//! ```text
//!   fsync ──► source still at the base version? ──yes──► append new dirty pages ──► flush of the target ──► answer
//!                 │ no                              ▲
//!                 ├──► only grown: fsync there ─────┘ a new base version
//!                 └──► all dirty pages to the source, fsync there, destage-complete record, flush ──► answer, and a new base version
//! ```
//! Undestaged pages stay dirty in memory until the source has them. Only a replay after a power cut reads a
//! target (`burst/replay.rs`). So writes, truncates and writeback treat them like any dirty page. The
//! target's records follow these changes (`terrace-tier/src/scan/undestaged.rs`, `tier/intent.rs`).
//!
//! An fsync also promises the file's size and existence. After any change other than a write within the end,
//! it first makes the source durable without the missing pages. That state is the new base version
//! (`burst/base_version.rs`).

use crate::burst::base_version;
use crate::burst::spread::{append_all, spread};
use crate::context::{BurstHook, Context};
use crate::file::burst::Burst;
use crate::file::errseq::ErrorCursor;
use crate::file::identity::Identity;
use crate::file::object::{Object, ObjectId, ObjectRef};
use crate::path::sync;
use crate::path::writeback::{self, Route, is_shortage};
use crate::state::destage::DestageIndex;
use crate::tier::intent::{self, INTENT_NS, on_target};
use std::io;
use std::sync::atomic::Ordering;
use terrace_tier::DeviceIo;
use terrace_tier::Undestaged;
use terrace_tier::format::Record;

pub(crate) const HOOK: BurstHook = BurstHook { note_write, destage_locked, note_deleted };
/// Undestaged pages take at most 1/`UNDESTAGED_PART` of a target.
const UNDESTAGED_PART: u64 = 4;

/// As [`crate::Engine::fsync`], in the source or on a target.
pub(crate) fn fsync(cx: &Context, o: &ObjectRef, data_only: bool, seen: &ErrorCursor) -> io::Result<()> {
    if !cx.may_have_undestaged() {
        return sync::fsync(cx, o, data_only, seen);
    }
    intent::wait_for_scans(cx);
    let _writeback = o.writeback.lock();
    if cx.config.durable_in_tier {
        if is_ahead(cx, o) {
            put_ahead_locked(cx, o);
        }
        match base_version::renew(cx, o) {
            Ok(()) if write_to_target(cx, o) => {
                cx.last_target_fsync_ns.store(cx.clock.now_ns(), Ordering::Relaxed);
                return o.take_error(seen);
            }
            Ok(()) => {}
            Err(e) if is_shortage(&e) => return Err(e),
            Err(e) => return o.take_error(seen).and(Err(e)),
        }
    }
    let synced = sync_to_source(cx, o);
    if synced.as_ref().is_err_and(is_shortage) {
        return synced;
    }
    o.take_error(seen)
}

/// Announces a change of metadata in the source: mode, names, times.
pub(crate) fn change_metadata(cx: &Context, o: &Object) {
    drop(intent::change(cx, o));
}

/// Makes a file's dirty pages durable on a target. False: on none. The caller holds the writeback lock.
fn write_to_target(cx: &Context, o: &Object) -> bool {
    let mut burst = o.burst.lock();
    if !put(cx, o, &mut burst) {
        return false;
    }
    if !std::mem::take(&mut burst.unflushed) {
        return true;
    }
    let device = burst.target.and_then(|number| cx.devices.get(number));
    let flushed = device.is_some_and(|device| intent::flush(cx, &device));
    if !flushed {
        // The undestaged pages may not be durable: no later fsync may rely on them.
        burst.base_version = None;
    }
    flushed
}

/// Whether a file with undestaged pages has enough new dirty ones for a write ahead of its next fsync.
/// Programs sync such files often. An fsync should be short, because the kernel blocks writes through the
/// mount meanwhile. False also if the burst lock is taken.
fn is_ahead(cx: &Context, o: &Object) -> bool {
    let takes = |burst: &Burst| burst.target.is_some() && !burst.must_destage;
    o.dirty.lock().dirty.len() >= cx.config.tier_ahead_min
        && o.burst.try_lock().is_some_and(|burst| takes(&burst))
}

/// After a write: wakes the writeback thread if pages should go to the target ahead of an fsync.
fn note_write(cx: &Context, o: &Object) {
    if cx.config.durable_in_tier && is_ahead(cx, o) {
        cx.writeback_wakeup.signal();
    }
}

/// Writes dirty pages to targets ahead of the next fsync. Called by the writeback thread.
pub(crate) fn write_ahead(cx: &Context) {
    if !cx.config.durable_in_tier {
        return;
    }
    for o in cx.unwritten_objects().iter().filter(|o| is_ahead(cx, o)) {
        put_ahead(cx, o);
    }
}

fn put_ahead(cx: &Context, o: &Object) {
    let _writeback = o.writeback.lock();
    put_ahead_locked(cx, o);
}

/// Writes a file's dirty pages ahead. They need no further record: the target has the base version and the
/// write intents. The write runs without the burst lock, so writers that extend the file do not wait. The
/// caller holds the file's writeback lock.
fn put_ahead_locked(cx: &Context, o: &Object) {
    let (device, is_changed) = {
        let mut burst = o.burst.lock();
        let number = burst.target.filter(|_| !burst.must_destage);
        let Some(device) = number.and_then(|number| cx.devices.get(number)) else { return };
        burst.unflushed = true;
        (device, burst.base_version.is_none())
    };
    let (pages, since) = dirty_pages(o);
    let has_room = || {
        let _change = intent::change(cx, o);
        base_version::reserve(cx, o, &pages).is_ok()
    };
    let put = (!is_changed || has_room())
        && (!affords(cx, &device, pages.len()) || spread(cx, o, &device, pages, since, is_changed));
    if !put {
        // Prevents another attempt at the next write.
        o.burst.lock().must_destage = true;
    }
}

/// Dirty pages that are durable nowhere, and the time when the oldest became dirty.
fn dirty_pages(o: &Object) -> (Vec<u64>, u64) {
    let dirty = o.dirty.lock();
    (dirty.dirty.iter().copied().collect(), dirty.dirty_since)
}

/// Writes a file's dirty pages to a target, unless they are durable there. False: the target takes none. The
/// caller holds the file's writeback lock.
fn put(cx: &Context, o: &Object, burst: &mut Burst) -> bool {
    let Some(base_version) = burst.base_version else { return false };
    let is_unchanged =
        || Identity::of(o.source().as_path()).is_ok_and(|identity| identity.digest == base_version);
    let growing = o.growing.load(Ordering::Acquire) != 0;
    let gone = o.gone.load(Ordering::Relaxed);
    if burst.changing > 0 || growing || gone || !o.dirty.lock().unstable.is_empty() || !is_unchanged() {
        return false;
    }
    let (pages, since) = dirty_pages(o);
    if pages.is_empty() && (burst.target.is_none() || burst.recorded == Some(base_version)) {
        return true;
    }
    let device = match burst.target {
        Some(number) => cx.devices.get(number),
        None => intent::choose(cx, o),
    };
    let Some(device) = device.filter(|device| affords(cx, device, pages.len())) else { return false };
    burst.begin(o.slot(), device.number());
    burst.unflushed = true;
    let record = [Record::BaseVersion { object: o.id(), digest: base_version }];
    let put = match pages.is_empty() {
        // All pages were written ahead.
        true => intent::append_undestaged(cx, &device, &[], &record).is_some(),
        false => append_all(cx, o, &device, &pages, &record, since),
    };
    match put {
        true => burst.recorded = Some(base_version),
        false => burst.base_version = None,
    }
    put
}

/// Takes pages from the target's write budget. False: not enough is left.
fn affords(cx: &Context, device: &DeviceIo, pages: usize) -> bool {
    let mut state = cx.state.lock();
    if let Some(targets) = &mut state.targets {
        targets.begin_batch(cx.clock.now_ns());
    }
    on_target(&mut state, device.number(), |of| of.affords(pages as u32)) == Some(true)
}

/// Makes a file durable in the source, which destages its pages. The caller holds the writeback lock.
fn sync_to_source(cx: &Context, o: &Object) -> io::Result<()> {
    let before = o.burst.lock().changes;
    writeback::write_back_locked(cx, o, 0..u64::MAX, Route::Direct)?;
    if o.gone.load(Ordering::Relaxed) {
        return Ok(());
    }
    let durable = base_version::make_durable(cx, o)?;
    let mut burst = o.burst.lock();
    intent::complete_destage(cx, o, &mut burst).inspect_err(|e| o.note_error(e))?;
    base_version::take(cx, o, &mut burst, durable, before);
    Ok(())
}

/// Destages the file's undestaged pages. The caller holds the file's writeback lock.
///
/// # Errors
/// The source fails: the pages stay undestaged.
fn destage_locked(cx: &Context, o: &Object) -> io::Result<()> {
    if o.burst.lock().target.is_none() {
        return Ok(());
    }
    sync_to_source(cx, o)
}

/// Notes that the file is deleted. It stays undestaged until the deletion is durable in the source's file
/// system. A power cut before could bring it back.
fn note_deleted(cx: &Context, o: &Object) {
    let mut burst = o.burst.lock();
    if let Some(number) = burst.end(o.slot()) {
        on_target(&mut cx.state.lock(), number, |of| of.undestaged.deleted.push(o.id()));
    }
}

/// [`sync::flush_all`]; with `sync` no page is undestaged afterwards.
///
/// # Errors
/// The first failure, after all attempts.
pub(crate) fn flush_all(cx: &Context, sync: bool) -> io::Result<()> {
    let flushed = sync::flush_all(cx, sync);
    if !sync || !cx.may_have_undestaged() {
        return flushed;
    }
    let mut destaged = Ok(());
    for device in &cx.devices.all() {
        for id in undestaged_files(cx, device) {
            destaged = destaged.and(destage(cx, id));
        }
        complete_deleted(cx, device);
    }
    flushed.and(destaged)
}

fn undestaged_files(cx: &Context, device: &DeviceIo) -> Vec<ObjectId> {
    on_target(&mut cx.state.lock(), device.number(), |of| of.undestaged.files()).unwrap_or_default()
}

fn destage(cx: &Context, id: ObjectId) -> io::Result<()> {
    let Some(o) = cx.lookup_object(id) else { return Ok(()) };
    let _writeback = o.writeback.lock();
    // No program can read it any more.
    if o.doomed.load(Ordering::Relaxed) { Ok(()) } else { destage_locked(cx, &o) }
}

/// Writes destage-complete records of deleted files, after a sync of the source's file system.
fn complete_deleted(cx: &Context, device: &DeviceIo) {
    let deleted = on_target(&mut cx.state.lock(), device.number(), |of| of.undestaged.deleted.clone())
        .unwrap_or_default();
    if deleted.is_empty() || cx.source_root.get().is_none() || sync::sync_root(cx).is_err() {
        return;
    }
    write_completions(cx, device, &deleted, |undestaged, some| {
        undestaged.deleted.retain(|object| !some.contains(object));
        some.iter().for_each(|object| undestaged.complete(*object, true));
    });
}

/// Writes the destage-complete records for which the target had no room before.
fn retry_completions(cx: &Context, device: &DeviceIo) {
    let unrecorded = on_target(&mut cx.state.lock(), device.number(), |of| of.undestaged.unrecorded.clone())
        .unwrap_or_default();
    write_completions(cx, device, &unrecorded, |undestaged, some| {
        undestaged.unrecorded.retain(|object| !some.contains(object))
    });
}

/// Writes destage-complete records durably, in groups for `note`, until the target takes no more.
fn write_completions(
    cx: &Context,
    device: &DeviceIo,
    files: &[ObjectId],
    note: impl Fn(&mut DestageIndex, &[ObjectId]),
) {
    for some in files.chunks(32) {
        let records: Vec<Record> =
            some.iter().map(|object| Record::DestageComplete { object: *object }).collect();
        if !intent::write_records(cx, device, &records) {
            return;
        }
        on_target(&mut cx.state.lock(), device.number(), |of| note(&mut of.undestaged, some));
    }
}

/// Destages files of a target: those without dirty pages, and the oldest ones while they block its log.
/// Called by the target's own thread.
pub(crate) fn destage_due(cx: &Context, device: &DeviceIo) {
    if !device.may_have_undestaged() {
        return;
    }
    complete_deleted(cx, device);
    retry_completions(cx, device);
    for id in undestaged_files(cx, device) {
        let Some(o) = cx.lookup_object(id) else { continue };
        if cx.is_stopping() || device.is_ending() {
            return;
        }
        let in_the_way = on_target(&mut cx.state.lock(), device.number(), |of| {
            let most = of.log.capacity() / UNDESTAGED_PART;
            let due = of.log.due().map(|region| of.fillings[region as usize].0);
            // A failed target keeps no undestaged pages.
            !of.is_on() || of.undestaged.pages() > most || due.is_some_and(|lap| of.undestaged.blocks(lap))
        });
        if in_the_way == Some(true) || !o.has_unsynced_pages() {
            // The file's handles report a failure.
            let _ = destage(cx, id);
        }
    }
}

/// Stops new undestaged pages on a target to be removed, and destages the present ones.
///
/// # Errors
/// The source fails; the target keeps undestaged pages of an earlier run.
pub(crate) fn close(cx: &Context, device: &DeviceIo) -> io::Result<()> {
    refuse_left(cx, device)?;
    on_target(&mut cx.state.lock(), device.number(), |of| of.undestaged.closed = true);
    let destaged = undestaged_files(cx, device).into_iter().try_for_each(|id| destage(cx, id));
    complete_deleted(cx, device);
    let empty =
        on_target(&mut cx.state.lock(), device.number(), |of| of.undestaged.is_empty()) != Some(false);
    if destaged.is_ok() && empty {
        return Ok(());
    }
    on_target(&mut cx.state.lock(), device.number(), |of| of.undestaged.closed = false);
    destaged.and_then(|()| {
        Err(io::Error::other("deleted files may reappear after a power cut: sync the source, then repeat"))
    })
}

/// Refuses the removal of a target with undestaged pages of an earlier run.
///
/// # Errors
/// The target has such pages.
pub(crate) fn refuse_left(cx: &Context, device: &DeviceIo) -> io::Result<()> {
    match on_target(&mut cx.state.lock(), device.number(), |of| of.undestaged.pages_of_earlier_runs()) {
        None | Some(0) => Ok(()),
        _ => Err(io::Error::other(
            "the tier has data of an earlier run that the source lacks: unmount, and see `terrace recover`",
        )),
    }
}

/// Takes over the undestaged pages found by a scan. Memory or the source has their content if a dead terraced
/// of this segment wrote them. All others exist only on the target, even if their file is in memory, and stay
/// until a replay.
pub(crate) fn adopt(cx: &Context, device: &DeviceIo, undestaged: Undestaged) {
    let name = device.name();
    if undestaged.hidden || undestaged.damaged > 0 {
        tracing::error!(
            "tier {name} has {} damaged pages, or damaged keys that hide some: acknowledged writes that the source lacks may be lost",
            undestaged.damaged
        );
    }
    if !undestaged.files.is_empty() {
        tracing::warn!(
            "tier {name}: it alone has data of {} files; terrace writes them to the files, or keeps them for `terrace recover`",
            undestaged.files.len()
        );
    }
    for (id, file) in undestaged.files {
        let known = cx.lookup_object(id).filter(|o| Burst::has_begun(o.slot()));
        let mut burst = known.as_ref().map(|o| o.burst.lock()).filter(|burst| burst.target.is_none());
        if let (Some(burst), Some(o)) = (&mut burst, &known) {
            burst.begin(o.slot(), device.number());
            burst.intent_until = file.intents.map_or(0, |intents| intents.until.cast_signed());
            // Pages may have gone to the source since.
            burst.must_destage = true;
        }
        on_target(&mut cx.state.lock(), device.number(), |of| match burst {
            Some(_) => of.undestaged.note(id, file.since, file.pages.len() as u64),
            None => drop(of.undestaged.earlier.insert(id, file)),
        });
    }
}

/// For an unscannable target: a dead terraced's file with undestaged pages may have some here.
pub(crate) fn adopt_unknown(cx: &Context, device: &DeviceIo) {
    on_target(&mut cx.state.lock(), device.number(), |of| {
        of.undestaged.is_unknown = device.may_have_undestaged() && device.medium().takes_undestaged();
    });
    for o in cx.objects().iter().filter(|o| device.may_have_undestaged() && Burst::has_begun(o.slot())) {
        let mut burst = o.burst.lock();
        burst.target.get_or_insert(device.number());
        burst.must_destage = true;
        burst.intent_until = burst.intent_until.max(cx.clock.wall_ns() + INTENT_NS);
    }
}

#[cfg(test)]
mod tests;
