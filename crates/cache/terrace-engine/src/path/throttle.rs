//! Throttling of writers while too many pages are unwritten, as in the kernel's balance_dirty_pages. Dirty
//! pages, pages under writeback and unstable ones count, because their frames cannot be reused.
//!
//! A file with failing writeback delays only its own writers, until such files alone exceed the limit. A
//! writer gets the error after a whole pass of writeback.

use crate::context::Context;
use crate::file::object::Object;
use crate::state::State;
use rustix::io::Errno;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Longest sleep of a waiting writer without a wake-up.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy)]
pub(crate) struct WritebackWait {
    pass: u64,
    /// Pages written back before.
    arrived: u64,
}

impl WritebackWait {
    fn new(state: &State) -> WritebackWait {
        // A pass under way may be past the pages that block this writer.
        WritebackWait { pass: state.dirty.passes_begun + 1, arrived: state.dirty.arrived }
    }
}

/// Number of pages above which writers wait.
pub(crate) fn dirty_limit(cx: &Context) -> u64 {
    u64::from(cx.pool_frames()) * u64::from(cx.config.dirty_ratio) / 100
}

/// Number of pages above which background writeback starts.
pub(crate) fn dirty_background(cx: &Context) -> u64 {
    u64::from(cx.pool_frames()) * u64::from(cx.config.dirty_background_ratio) / 100
}

/// Whether more pages are unwritten than background writeback allows, or writers wait. Undestaged pages stay
/// until writers need their room. Their writeback voids the base version (`burst/fsync.rs`), and fsyncs then
/// wait for the source.
pub(crate) fn is_much(cx: &Context, state: &State) -> bool {
    let totals = state.dirty.totals;
    // Undestaged pages of failing files count as failing, too.
    let hurried = totals.reclaimable().saturating_sub(totals.undestaged);
    // Above the limit without a waiting writer: the pool has shrunk.
    let is_full = totals.reclaimable() > dirty_limit(cx) || state.dirty.waiting > 0;
    hurried > dirty_background(cx) || is_full
}

/// Waits until `pages` more of the object may become dirty.
pub(crate) fn wait_for_room(cx: &Context, o: &Object, pages: u64) -> io::Result<()> {
    // Few unwritten pages are far from the limit: no need for the contended state lock.
    if cx.unwritten.load(Ordering::Relaxed) + pages <= dirty_limit(cx) {
        return Ok(());
    }
    let mut state = cx.state.lock();
    if admits(cx, &state, o, pages) {
        return Ok(());
    }
    cx.counters.throttled.fetch_add(1, Ordering::Relaxed);
    let mut wait = WritebackWait::new(&state);
    while !admits(cx, &state, o, pages) && !cx.stopping.load(Ordering::Relaxed) {
        keep_waiting(cx, &state, o, &mut wait)?;
        wait_for_writeback(cx, &mut state);
    }
    Ok(())
}

/// Waits once until writeback makes frames clean. The caller keeps `wait` over all its calls.
pub(crate) fn wait_for_frames(cx: &Context, o: &Object, wait: &mut Option<WritebackWait>) -> io::Result<()> {
    let mut state = cx.state.lock();
    let wait = wait.get_or_insert_with(|| WritebackWait::new(&state));
    keep_waiting(cx, &state, o, wait)?;
    if cx.stopping.load(Ordering::Relaxed) {
        return Err(Errno::IO.into());
    }
    wait_for_writeback(cx, &mut state);
    Ok(())
}

fn admits(cx: &Context, state: &State, o: &Object, pages: u64) -> bool {
    let (totals, limit) = (state.dirty.totals, dirty_limit(cx));
    let counted = if o.failing().is_some() { totals.all() } else { totals.all() - totals.failing };
    // With nothing unwritten, a single write may exceed the limit.
    totals.failing <= limit && (counted == 0 || counted + pages <= limit)
}

/// An error if waiting cannot help.
fn keep_waiting(cx: &Context, state: &State, o: &Object, wait: &mut WritebackWait) -> io::Result<()> {
    if state.dirty.passes_ended < wait.pass {
        return Ok(());
    }
    let blocked = state.dirty.arrived == wait.arrived && state.dirty.totals.failing > dirty_limit(cx);
    let others = Some(state.dirty.failing_errno()).filter(|&errno| blocked && errno != 0);
    if let Some(errno) = o.failing().or(others) {
        return Err(io::Error::from_raw_os_error(errno));
    }
    *wait = WritebackWait::new(state);
    Ok(())
}

fn wait_for_writeback(cx: &Context, state: &mut terrace_sync::MutexGuard<'_, State>) {
    cx.writeback_wakeup.signal();
    state.dirty.waiting += 1;
    cx.dirty_done.wait_for(state, LOOK_EVERY);
    state.dirty.waiting -= 1;
}
