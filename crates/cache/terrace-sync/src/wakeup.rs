//! Wake-up of one thread by other threads.

use crate::{Condvar, Mutex};
use std::time::Duration;

/// A flag on which one thread sleeps, and which others set.
#[derive(Debug, Default)]
pub struct Wakeup {
    signalled: Mutex<bool>,
    cond: Condvar,
}

impl Wakeup {
    /// Wakes the sleeper; costs one load if already signalled.
    pub fn signal(&self) {
        let mut signalled = self.signalled.lock();
        if !*signalled {
            *signalled = true;
            self.cond.notify_one();
        }
    }
    /// Sleeps until a signal or the timeout. Returns whether there was a signal, now or since the last wait.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut signalled = self.signalled.lock();
        if !*signalled {
            self.cond.wait_for(&mut signalled, timeout);
        }
        std::mem::take(&mut *signalled)
    }
}
