//! Wakes a thread that has something to do now and then.

use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// A wish that is not lost while its receiver is busy.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    asked: Mutex<bool>,
    condvar: Condvar,
}

impl Wake {
    pub(crate) fn signal(&self) {
        let mut asked = self.asked.lock();
        if !*asked {
            *asked = true;
            self.condvar.notify_one();
        }
    }

    /// Waits for a wish, at most so long.
    pub(crate) fn wait(&self, at_most: Duration) {
        let mut asked = self.asked.lock();
        if !*asked {
            self.condvar.wait_for(&mut asked, at_most);
        }
        *asked = false;
    }
}
