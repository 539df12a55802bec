//! The thread `store-sync`: writes the tail out, syncs as the policy says, and writes the log anew.

use super::{anew, sync};
use crate::error::Result;
use crate::options::SyncPolicy;
use crate::state::StoreState;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often it looks without a wake-up, and how long it leaves alone what has failed.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Runs until the store is closed. `write_files`: what follows when everything is durable.
pub(crate) fn run(state: &StoreState, write_files: impl Fn(&StoreState) -> Result<()>) {
    let every = match state.sync {
        SyncPolicy::Every(every) => Some(every),
        SyncPolicy::Always | SyncPolicy::Never => None,
    };
    let (mut synced, mut failed) = (Instant::now(), None::<Instant>);
    while !state.closed.load(Ordering::Acquire) {
        state.wake.wait(every.map_or(LOOK_EVERY, |every| every.saturating_sub(synced.elapsed())));
        if failed.is_some_and(|failed| failed.elapsed() < LOOK_EVERY) {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        }
        let mut result = if state.log.has_piece() { state.log.flush() } else { Ok(()) };
        let mut files = Ok(());
        let is_time = every.is_some_and(|every| synced.elapsed() >= every);
        if result.is_ok() && (is_time || state.heap.should_release()) {
            result = sync::sync(state);
            // Files of buckets that cannot be written hold up nothing else.
            files = if result.is_ok() { write_files(state) } else { Ok(()) };
            synced = Instant::now();
        }
        if result.is_ok() && anew::is_due(state) {
            result = anew::write_anew(state);
        }
        if let Err(e) = &result.and(files) {
            if failed.is_none() {
                tracing::error!("{e}; tried again every second");
            }
            failed = Some(Instant::now());
            synced = Instant::now();
        } else {
            failed = None;
        }
    }
}
