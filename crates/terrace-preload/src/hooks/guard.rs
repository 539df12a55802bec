//! The guard around every decision of a hook.

use crate::connection;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a decision of ours. A bug in it closes the preload path for the process instead of ending the program.
#[inline]
pub fn guard<T: Default>(decide: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(decide)) {
        Ok(t) => t,
        Err(panic) => {
            // Dropping the payload could panic again; it is small, and this happens once.
            std::mem::forget(panic);
            connection::turn_off();
            T::default()
        }
    }
}
