//! The exported functions. Each is a guard around a decision, and the real call after it.
//!
//! The real call stands outside `catch_unwind` and in a frame without destructors: read, open and close are cancellation
//! points, and glibc cancels a thread by unwinding it.

mod close;
mod make;
mod open;
mod process;
mod read;
mod write_back;

use crate::{connection, next};
pub use process::watch_forks;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a decision of ours. A bug in it closes the preload path for the process instead of ending the program.
#[inline]
fn guard<T: Default>(decide: impl FnOnce() -> T) -> T {
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

/// Finds the real functions.
pub fn resolve() {
    next::resolve();
    process::resolve();
}
