//! Writers wait while too many pages are unwritten, as in the kernel's balance_dirty_pages: dirty pages,
//! pages under writeback and unstable ones count, because their frames cannot be reused.
//!
//! A file that cannot be written delays its own writers: its pages count against them and not against others,
//! until such files alone exceed the limit. A failure is reported only after a whole pass of writeback.

use crate::context::Context;
use crate::file::object::Object;
use crate::state::State;
use rustix::io::Errno;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a waiting writer looks again without a wake-up.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The state before a writer waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WritebackWait {
    /// The pass of writeback that it waits for.
    pass: u64,
    /// Pages that had arrived before.
    arrived: u64,
}

impl WritebackWait {
    fn new(state: &State) -> WritebackWait {
        // A pass that has begun already may be past the pages that this writer needs.
        WritebackWait { pass: state.dirty.passes_begun + 1, arrived: state.dirty.arrived }
    }
}

/// Pages above which writers wait.
pub(crate) fn dirty_limit(cx: &Context) -> u64 {
    u64::from(cx.pool_frames()) * u64::from(cx.config.dirty_ratio) / 100
}

/// Pages above which background writeback starts.
pub(crate) fn dirty_background(cx: &Context) -> u64 {
    u64::from(cx.pool_frames()) * u64::from(cx.config.dirty_background_ratio) / 100
}

/// More is unwritten than background writeback leaves alone, or writers wait for it. Pages that are durable on a target can wait until writers need their room:
/// writeback of a file ends its base (`path/burst.rs`), and its fsyncs wait for the source then.
pub(crate) fn is_much(cx: &Context, state: &State) -> bool {
    let totals = state.dirty.totals;
    // What is owed of files that fail counts as failing, too.
    let hurried = totals.reclaimable().saturating_sub(totals.owed);
    // Above the limit without a writer that waits: the pool has become smaller.
    let is_full = totals.reclaimable() > dirty_limit(cx) || state.dirty.waiting > 0;
    hurried > dirty_background(cx) || is_full
}

/// Waits until `pages` more of the object may become dirty.
pub(crate) fn wait_for_room(cx: &Context, o: &Object, pages: u64) -> io::Result<()> {
    // Without the state lock, for which writers wait: while few pages are unwritten it does not matter whose they are.
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

/// Waits a while for frames that writeback is to make clean. `wait` is the caller's for the whole of its waiting.
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
    // With nothing unwritten, a single write may be as large as it likes.
    totals.failing <= limit && (counted == 0 || counted + pages <= limit)
}

/// An error if waiting is of no use.
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
