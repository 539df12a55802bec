//! A wake-up of one thread by others.

use std::time::Duration;
use terrace_sync::{Condvar, Mutex};

/// A condition that one thread sleeps on and others signal.
#[derive(Debug, Default)]
pub struct Wakeup {
    signalled: Mutex<bool>,
    cond: Condvar,
}

impl Wakeup {
    /// Wakes the sleeper; costs a load if it was signalled already.
    pub fn signal(&self) {
        let mut signalled = self.signalled.lock();
        if !*signalled {
            *signalled = true;
            self.cond.notify_one();
        }
    }
    /// Sleeps until signalled or until `timeout` has passed. True if signalled: also by a signal that came before.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut signalled = self.signalled.lock();
        if !*signalled {
            self.cond.wait_for(&mut signalled, timeout);
        }
        std::mem::take(&mut *signalled)
    }
}
