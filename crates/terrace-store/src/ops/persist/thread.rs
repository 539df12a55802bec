//! The thread `store-files`: after each sync of the store it writes the files of buckets that have them.

use super::turn::write_all_out;
use crate::durable::LOOK_EVERY;
use crate::state::StoreState;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Runs until the store is closed, and finishes the turn that it has begun.
pub(crate) fn run(state: &StoreState) {
    let mut failed = None::<Instant>;
    loop {
        // What has failed is left alone for so long, and tried again without a wake-up.
        let left = failed.map_or(Duration::MAX, |failed| LOOK_EVERY.saturating_sub(failed.elapsed()));
        state.files_wake.wait(left);
        if state.closed.load(Ordering::Acquire) {
            return;
        }
        if failed.is_some_and(|failed| failed.elapsed() < LOOK_EVERY) {
            continue;
        }
        failed = match write_all_out(state) {
            Ok(()) => None,
            Err(e) => {
                if failed.is_none() {
                    tracing::error!("{e}; tried again every second");
                }
                Some(Instant::now())
            }
        };
    }
}
