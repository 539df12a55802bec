//! The thread `store-files`: after each sync it writes the files of persistent buckets.

use super::turn::write_all_out;
use crate::durable::Retry;
use crate::state::StoreState;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Runs until the store is closed. Completes a turn that has begun.
pub(crate) fn run(state: &StoreState) {
    let mut failed = Retry::default();
    loop {
        // Failed work is retried without a wake-up.
        state.files_wake.wait(failed.left().unwrap_or(Duration::MAX));
        if state.closed.load(Ordering::Acquire) {
            return;
        }
        if !failed.pauses() {
            failed.note(&write_all_out(state));
        }
    }
}
