//! List of readahead marks: the first use of a marked page shows that a sequential reader goes on.

use crate::file::object::ObjectRef;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use terrace_policy::prefetch::Span;
use terrace_sync::{Condvar, Mutex};

/// Largest number of marks: the oldest is dropped.
const MARKS_MAX: usize = 64;

#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) object: ObjectRef,
    pub(crate) page: u64,
    /// Page of the reader's next expected miss.
    pub(crate) next: u64,
    /// Pages that the reader should have read before; empty after a miss.
    pub(crate) before: Span,
    pub(crate) since_ns: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Marks {
    pub(crate) waiting: Mutex<Vec<Mark>>,
    changed: Condvar,
    closed: AtomicBool,
}

impl Marks {
    /// Adds a mark. It replaces the reader's previous mark.
    pub(crate) fn put(&self, mark: Mark) {
        let mut waiting = self.waiting.lock();
        waiting.retain(|old| old.object.id() != mark.object.id() || old.next != mark.page);
        if waiting.len() >= MARKS_MAX {
            waiting.remove(0);
        }
        waiting.push(mark);
        self.changed.notify_one();
    }

    /// Waits for a mark for at most `at_most`. False: none.
    pub(crate) fn wait(&self, at_most: Duration) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() && !self.closed.load(Ordering::Relaxed) {
            self.changed.wait_for(&mut waiting, at_most);
        }
        !waiting.is_empty()
    }

    pub(crate) fn close(&self) {
        let _waiting = self.waiting.lock();
        self.closed.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }
}
