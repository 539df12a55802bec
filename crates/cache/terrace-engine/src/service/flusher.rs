//! Background writeback: a thread writes back old dirty pages, and the oldest ones while there are too many.

use crate::burst::fsync;
use crate::context::Context;
use crate::file::object::{Object, ObjectRef};
use crate::path::{sync, throttle, writeback};
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrace_shm::PAGE_SIZE;

const PAGE: u64 = PAGE_SIZE as u64;
/// Maximum number of objects with unstable pages for single syncs instead of one syncfs.
const SYNC_EACH_MAX: usize = 8;
/// Pause after a failed writeback of an object, which spares a failing device.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// A burst is over this long after the last fsync answered by a target. Closed files with pages on a target
/// then become stable in the source. An earlier sync would delay further commits.
const BURST_OVER: Duration = Duration::from_secs(1);

/// Unwritten data at one moment.
#[derive(Debug, Clone, Default)]
pub struct DirtyReport {
    /// Bytes, all files together.
    pub bytes: u64,
    /// Number of files with unwritten data.
    pub files_total: u64,
    /// Files with most unwritten data, in descending order: path and bytes.
    pub files: Vec<(String, u64)>,
}

pub(crate) fn writeback_loop(cx: &Context) {
    while !cx.stopping.load(Ordering::Acquire) {
        cx.writeback_wakeup.wait(cx.config.writeback_interval);
        let pass = {
            let mut state = cx.state.lock();
            state.dirty.passes_begun += 1;
            state.dirty.passes_begun
        };
        fsync::write_ahead(cx);
        write_back_due(cx);
        stabilize_due(cx);
        cx.state.lock().dirty.passes_ended = pass;
        cx.dirty_done.notify_all();
    }
}

fn too_much(cx: &Context) -> bool {
    throttle::is_much(cx, &cx.state.lock())
}

fn is_old(cx: &Context, since: u64) -> bool {
    cx.clock.now_ns().saturating_sub(since) >= cx.config.dirty_expire.as_nanos() as u64
}

/// Writes back expired pages, and the oldest objects while there are too many.
fn write_back_due(cx: &Context) {
    let mut objects: Vec<(u64, ObjectRef)> = cx
        .unwritten_objects()
        .into_iter()
        .map(|o| {
            let since = o.dirty.lock().dirty_since;
            (since, o)
        })
        .collect();
    objects.sort_by_key(|(since, _)| *since);
    for (since, o) in objects {
        let (none, failed_at) = {
            let dirty = o.dirty.lock();
            (
                dirty.dirty.is_empty() && dirty.undestaged.is_empty(),
                Some(dirty.failed_at).filter(|_| dirty.errno != 0),
            )
        };
        let resting =
            failed_at.is_some_and(|at| cx.clock.now_ns().saturating_sub(at) < RETRY_AFTER.as_nanos() as u64);
        if none || resting || o.doomed.load(Ordering::Relaxed) {
            continue;
        }
        if failed_at.is_some() || is_old(cx, since) || too_much(cx) {
            // The object's handles report a failure.
            let _ = writeback::write_back(cx, &o, 0..u64::MAX);
        }
    }
}

/// Makes old unstable pages stable, and any while there are too many. After a burst also unstable pages of
/// closed files with pages on a target.
pub(crate) fn stabilize_due(cx: &Context) {
    let much = too_much(cx);
    let since = cx.clock.now_ns().saturating_sub(cx.last_target_fsync_ns.load(Ordering::Relaxed));
    let is_over = since >= BURST_OVER.as_nanos() as u64;
    // A locked burst is in progress.
    let has_undestaged = |o: &Object| o.burst.try_lock().is_some_and(|burst| burst.target.is_some());
    let mut due = cx.unwritten_objects();
    due.retain(|o| {
        let may_go = much || is_over && has_undestaged(o);
        let dirty = o.dirty.lock();
        !dirty.unstable.is_empty() && (may_go || is_old(cx, dirty.unstable_since))
    });
    if due.len() > SYNC_EACH_MAX
        && let Err(e) = sync::sync_root(cx)
    {
        tracing::warn!("the source cannot be synced as a whole ({e}); terrace syncs each file");
    }
    for o in due {
        let _ = sync::stabilize(cx, &o);
    }
}

/// Data that are not yet in the source, with the names of the `files_max` files that have most of them.
pub(crate) fn dirty_report(cx: &Context, files_max: usize) -> DirtyReport {
    let mut sizes: Vec<(u64, ObjectRef)> =
        cx.unwritten_objects().into_iter().map(|o| (o.dirty_pages() * PAGE, o)).collect();
    // Data of a file without a name cannot be lost. Only failing files are checked, to spare the source.
    let lost = |o: &Object| !(o.doomed.load(Ordering::Relaxed) || o.failing().is_some() && o.is_nameless());
    sizes.retain(|(bytes, o)| *bytes > 0 && lost(o));
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
