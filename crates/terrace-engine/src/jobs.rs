//! What the prefetch workers are asked for: a bounded queue, from which nobody waits for anything.

use crate::file::object::ObjectRef;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_policy::prefetch::Span;
use terrace_sync::{Condvar, Mutex};

/// Jobs that wait at the most; what comes then is dropped.
const JOBS_MAX: usize = 64;

/// What a worker is asked for.
#[derive(Debug)]
pub(crate) enum Job {
    /// Bring the absent pages of these spans into memory.
    Fetch(ObjectRef, Vec<Span>),
    /// Likewise of pieces of a schedule, whose follower is told.
    Scheduled(ObjectRef, Vec<(u32, Span)>),
    /// Give up the frames of clean pages.
    Drop(ObjectRef, Span),
}

/// The jobs that wait.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// There are workers.
    open: bool,
}

impl Jobs {
    /// Takes jobs from now on.
    pub(crate) fn open(&self) {
        self.waiting.lock().open = true;
    }

    /// Takes no more jobs, forgets those that wait, and ends the workers.
    pub(crate) fn close(&self) {
        *self.waiting.lock() = Waiting::default();
        self.changed.notify_all();
    }

    /// Queues a job, or drops it: then the answer is false.
    pub(crate) fn push(&self, job: Job) -> bool {
        let mut waiting = self.waiting.lock();
        if !waiting.open || waiting.jobs.len() >= JOBS_MAX {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        waiting.jobs.push_back(job);
        drop(waiting);
        self.changed.notify_one();
        true
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.lock().jobs.len()
    }

    /// Waits for a job. None: the queue is closed.
    pub(crate) fn take(&self) -> Option<Job> {
        let mut waiting = self.waiting.lock();
        loop {
            match waiting.jobs.pop_front() {
                Some(job) => return Some(job),
                None if !waiting.open => return None,
                None => self.changed.wait(&mut waiting),
            }
        }
    }

    /// The next job, if there is one.
    #[cfg(test)]
    pub(crate) fn try_take(&self) -> Option<Job> {
        self.waiting.lock().jobs.pop_front()
    }

    /// Jobs that were dropped.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}
