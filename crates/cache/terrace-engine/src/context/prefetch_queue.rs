//! Bounded job queue of the prefetch workers. A full queue drops further jobs, so callers of `push` never
//! wait for room.

use crate::file::object::ObjectRef;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_policy::prefetch::Span;
use terrace_sync::{Condvar, Mutex};

/// Capacity of the queue; further jobs are dropped.
const JOBS_MAX: usize = 64;

#[derive(Debug)]
pub(crate) enum Job {
    /// Fetch the absent pages of these spans.
    Fetch(ObjectRef, Vec<Span>),
    /// Fetch pieces of a schedule, and notify its follower.
    Scheduled(ObjectRef, Vec<(u32, Span)>),
    Drop(ObjectRef, Span),
}

#[derive(Debug, Default)]
pub(crate) struct Jobs {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    open: bool,
}

impl Jobs {
    pub(crate) fn open(&self) {
        self.waiting.lock().open = true;
    }

    /// Refuses further jobs, drops the queued ones, and ends the workers.
    pub(crate) fn close(&self) {
        *self.waiting.lock() = Waiting::default();
        self.changed.notify_all();
    }

    /// Queues a job. False: the job is dropped.
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

    #[cfg(test)]
    pub(crate) fn try_take(&self) -> Option<Job> {
        self.waiting.lock().jobs.pop_front()
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}
