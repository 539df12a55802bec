//! The thread `store-sync`: writes the tail out, syncs by policy, and compacts the log.

use super::retry::{PAUSE, Retry};
use super::{anew, sync};
use crate::options::SyncPolicy;
use crate::state::StoreState;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Runs until the store is closed. Files of buckets are written by another thread, since that may take long.
pub(crate) fn run(state: &StoreState) {
    let every = match state.sync {
        SyncPolicy::Every(every) => Some(every),
        SyncPolicy::Always | SyncPolicy::Never => None,
    };
    let (mut synced, mut failed) = (Instant::now(), Retry::default());
    while !state.closed.load(Ordering::Acquire) {
        state.wake.wait(every.map_or(PAUSE, |every| every.saturating_sub(synced.elapsed())));
        if failed.pauses() {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        let mut result = if state.log.has_piece() { state.log.flush().map(drop) } else { Ok(()) };
        let is_time = every.is_some_and(|every| synced.elapsed() >= every);
        // Room that a sync releases can go to the log.
        let is_short = state.log.is_short() && state.heap.space().retired_bytes() > 0;
        if result.is_ok()
            && (is_time || is_short || state.heap.should_release() || state.log.journal.is_long())
        {
            result = sync::sync(state);
            if result.is_ok() && !state.persisting.lock().is_empty() {
                state.files_wake.signal();
            }
            synced = Instant::now();
        }
        if result.is_ok() && anew::is_due(state) {
            result = anew::write_anew(state);
        }
        failed.note(&result);
        if result.is_err() {
            synced = Instant::now();
        }
    }
}
