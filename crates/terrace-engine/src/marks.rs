//! Pages whose first use tells that a sequential reader goes on.

use crate::file::object::ObjectRef;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terrace_policy::prefetch::Span;
use terrace_sync::{Condvar, Mutex};

/// Marks at the most: the oldest goes.
const MARKS_MAX: usize = 64;

/// A page that tells how far a reader is.
#[derive(Debug)]
pub(crate) struct Mark {
    pub object: ObjectRef,
    pub page: u64,
    /// Where the reader's next miss is expected.
    pub next: u64,
    /// What it should have read before; empty after a miss, which it has waited for.
    pub before: Span,
    pub since_ns: u64,
}

/// The marks that wait.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub waiting: Mutex<Vec<Mark>>,
    changed: Condvar,
    closed: AtomicBool,
}

impl Marks {
    /// Marks a page, in the place of the mark by which the reader came there.
    pub(crate) fn put(&self, mark: Mark) {
        let mut waiting = self.waiting.lock();
        waiting.retain(|old| old.object.id() != mark.object.id() || old.next != mark.page);
        if waiting.len() >= MARKS_MAX {
            waiting.remove(0);
        }
        waiting.push(mark);
        self.changed.notify_one();
    }

    /// Waits for a mark, so long at the most. False: there is none.
    pub(crate) fn wait(&self, at_most: Duration) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() && !self.closed.load(Ordering::Relaxed) {
            self.changed.wait_for(&mut waiting, at_most);
        }
        !waiting.is_empty()
    }

    /// Nobody waits from now on.
    pub(crate) fn close(&self) {
        let _waiting = self.waiting.lock();
        self.closed.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }
}
