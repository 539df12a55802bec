//! Wakes a thread that has something to do now and then.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A wish that is not lost while its receiver is busy.
///
/// Of the standard library: a thread that waits in parking_lot stands in a table of the process, which a forked child inherits. There its memory is the next
/// thread's, which cuts the table's lists, and wake-ups are lost.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    asked: Mutex<bool>,
    condvar: Condvar,
}

impl Wake {
    fn asked(&self) -> MutexGuard<'_, bool> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn signal(&self) {
        let mut asked = self.asked();
        if !*asked {
            *asked = true;
            self.condvar.notify_one();
        }
    }

    /// Waits for a wish, at most so long.
    pub(crate) fn wait(&self, at_most: Duration) {
        let mut asked = self.asked();
        if !*asked {
            let waited = self.condvar.wait_timeout(asked, at_most);
            asked = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *asked = false;
    }
}
