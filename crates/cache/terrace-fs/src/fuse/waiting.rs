//! Queue of requests that may wait for descriptors: separate threads run them.
//!
//! FORGET and RELEASE free descriptors, and the threads that answer the kernel handle them: those threads
//! must not wait. While descriptors are short, all requests that need one go through a queue. The queue has
//! room for all concurrent requests. Requests that began just before the shortage may fail; they are moved
//! here and start again.

use std::collections::VecDeque;
use std::time::Instant;

use terrace_sync::{Condvar, Mutex};

use crate::{Caller, Namespace, Op, PageCache, Result};

/// Threads that wait. All wait for the same event, so a few are enough.
pub(super) const THREADS: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    /// Jobs with the time of the request: jobs that have waited for long fail together, not one after the
    /// other.
    jobs: VecDeque<(Instant, Job)>,
    ended: bool,
}

#[derive(Default)]
pub(super) struct Waiting {
    queue: Mutex<Queue>,
    queue_changed: Condvar,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waiting({})", self.queue.lock().jobs.len())
    }
}

impl Waiting {
    /// Queues `job`; runs it here if the queue's threads have ended.
    pub(super) fn push(&self, job: Job) {
        let mut queue = self.queue.lock();
        if queue.ended {
            drop(queue);
            return job();
        }
        queue.jobs.push_back((Instant::now(), job));
        self.queue_changed.notify_one();
    }

    /// Body of a queue thread: returns after `end`, when no job is left. `begin` gets the time of each job's
    /// request.
    pub(super) fn work(&self, begin: impl Fn(Instant)) {
        while let Some((requested_at, job)) = self.next() {
            begin(requested_at);
            job();
        }
    }

    fn next(&self) -> Option<(Instant, Job)> {
        let mut queue = self.queue.lock();
        loop {
            match queue.jobs.pop_front() {
                Some(job) => return Some(job),
                None if queue.ended => return None,
                None => self.queue_changed.wait(&mut queue),
            }
        }
    }

    /// Ends the threads. Later jobs run on their caller's thread.
    pub(super) fn end(&self) {
        self.queue.lock().ended = true;
        self.queue_changed.notify_all();
    }
}

/// A request that another thread can restart as long as it has changed nothing.
pub(crate) struct Movable<R, A, F> {
    pub(crate) caller: Caller,
    pub(crate) reply: R,
    pub(crate) act: A,
    pub(crate) answer: F,
}

impl<R, A, F> Movable<R, A, F> {
    /// Runs and answers the request. Returned unanswered if a shortage met it before it changed anything,
    /// unless it `stays`.
    pub(crate) fn run<C: PageCache, T>(mut self, namespace: &Namespace<C>, stays: bool) -> Option<Self>
    where
        A: FnMut(&Namespace<C>, &mut Op<'_>, &mut R) -> Result<T>,
        F: FnOnce(&Namespace<C>, R, Result<T>),
    {
        let mut op = namespace.begin(self.caller);
        let done = namespace.without_log(!stays, || (self.act)(namespace, &mut op, &mut self.reply));
        if let Err(error) = &done
            && error.is_shortage()
            && !stays
        {
            if !op.has_begun() {
                return Some(self);
            }
            namespace.log_shortage(error);
        }
        (self.answer)(namespace, self.reply, done);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn waiting_jobs_are_all_done_before_the_end() {
        let (waiting, done) = (Waiting::default(), Arc::new(AtomicUsize::new(0)));
        let job = || {
            let done = done.clone();
            Box::new(move || {
                done.fetch_add(1, Ordering::Relaxed);
            })
        };
        (0..100).for_each(|_| waiting.push(job()));
        assert_eq!(done.load(Ordering::Relaxed), 0, "no thread works yet");
        waiting.end();
        std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(|| waiting.work(|_| ())))));
        waiting.push(job());
        assert_eq!(done.load(Ordering::Relaxed), 101);
    }
}
