//! A wake-up of one thread by others.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A condition that one thread sleeps on and others signal.
///
/// Of the standard library: a thread that sleeps in parking_lot stands in a table of the process, which a forked child inherits. There its memory is the next
/// thread's, which cuts the table's lists, and wake-ups are lost.
#[derive(Debug, Default)]
pub struct Wakeup {
    signalled: Mutex<bool>,
    cond: Condvar,
}

impl Wakeup {
    fn signalled(&self) -> MutexGuard<'_, bool> {
        self.signalled.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Wakes the sleeper; costs a load if it was signalled already.
    pub fn signal(&self) {
        let mut signalled = self.signalled();
        if !*signalled {
            *signalled = true;
            self.cond.notify_one();
        }
    }
    /// Sleeps until signalled or until `timeout` has passed. True if signalled: also by a signal that came before.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut signalled = self.signalled();
        if !*signalled {
            let waited = self.cond.wait_timeout(signalled, timeout);
            signalled = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::take(&mut *signalled)
    }
}
