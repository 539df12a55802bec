//! The thread `store-files`: after each sync of the store it writes the files of buckets that have them.

use super::turn::write_all_out;
use crate::durable::Retry;
use crate::state::StoreState;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Runs until the store is closed, and finishes the turn that it has begun.
pub(crate) fn run(state: &StoreState) {
    let mut failed = Retry::default();
    loop {
        // What has failed is tried again without a wake-up.
        state.files_wake.wait(failed.left().unwrap_or(Duration::MAX));
        if state.closed.load(Ordering::Acquire) {
            return;
        }
        if !failed.pauses() {
            failed.note(&write_all_out(state));
        }
    }
}
