//! Who reads /dev/fuse: one thread at a time, while one is enough.
//!
//! The kernel wakes threads that wait in read(2) in the order in which they came, so that eight of them take requests in turn, each woken
//! on another processor: half the price of a small request. So a thread that has answered reads only if nobody else does. Otherwise it
//! parks, and the one reader takes request after request with warm caches. What a thread does that may take long it announces, and
//! a parked thread is called to read meanwhile.
//!
//! ```text
//!   reading ──a request──► busy ──answered, nobody reads──► reading
//!                           │ └──answered, somebody reads──► parked ──called / PARK_MAX──► reading
//!                           └──about to wait, nobody reads: one parked thread is called
//! ```
//!
//! A request never waits for good because all threads are busy or parked. Three things see to that, and none needs the others:
//! - `call`: whoever is about to wait calls a reader, and whoever ends with nobody reading reads.
//! - `watch`: a thread of its own calls one if nobody has read since its last look. A forgotten call costs milliseconds.
//! - `leave`: no thread parks for longer than [`PARK_MAX`], whatever these books say. An idle mount has all its threads in read(2).
//!
//! Only decisions are here; [`super::turn`] parks and wakes.

use std::time::Duration;

/// No thread is parked for longer.
pub(super) const PARK_MAX: Duration = Duration::from_millis(100);

/// The books: which threads read, and which are parked. Threads have numbers.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct Readers {
    /// Threads in read(2), or on their way there.
    reading: usize,
    /// The one parked last is called first: its caches are warm.
    parked: Vec<usize>,
    /// How often nobody was left to read.
    vacancies: u64,
    /// No thread parks.
    all_read: bool,
    ended: bool,
}

impl Readers {
    /// So many threads, all of which begin by reading.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            reading: threads,
            parked: Vec::with_capacity(threads),
            vacancies: 0,
            all_read: false,
            ended: false,
        }
    }

    /// A reader has got a request.
    pub(super) fn taken(&mut self) {
        debug_assert!(self.reading > 0, "who takes a request has read");
        self.reading = self.reading.saturating_sub(1);
        self.vacancies += u64::from(self.reading == 0);
    }

    /// The parked thread that is to read from now on, if nobody does: the caller wakes it.
    pub(super) fn call(&mut self) -> Option<usize> {
        if self.reading > 0 {
            return None;
        }
        let called = self.parked.pop()?;
        self.reading += 1;
        Some(called)
    }

    /// A thread has answered: is it to park? Else it reads.
    pub(super) fn answered(&mut self, thread: usize) -> bool {
        let parks = self.reading > 0 && !self.all_read && !self.ended;
        match parks {
            true => self.parked.push(thread),
            false => self.reading += 1,
        }
        parks
    }

    /// Is the thread parked? If not, it was called.
    pub(super) fn is_parked(&self, thread: usize) -> bool {
        self.parked.contains(&thread)
    }

    /// Is any thread parked?
    pub(super) fn is_any_parked(&self) -> bool {
        !self.parked.is_empty()
    }

    /// A thread that has been parked for long enough reads.
    pub(super) fn leave(&mut self, thread: usize) {
        if let Some(at) = self.parked.iter().position(|&parked| parked == thread) {
            self.parked.remove(at);
            self.reading += 1;
        }
    }

    /// As `call`, if there was no reader at any time since the last look, which left its mark in `seen`.
    pub(super) fn watch(&mut self, seen: &mut u64) -> Option<usize> {
        match std::mem::replace(seen, self.vacancies) == self.vacancies {
            true => self.call(),
            false => None,
        }
    }

    /// Whether all threads read from now on. Those that were parked and are not to be, for the caller to wake.
    pub(super) fn set_all_read(&mut self, all_read: bool) -> Vec<usize> {
        self.all_read = all_read;
        match all_read {
            true => self.release(),
            false => Vec::new(),
        }
    }

    /// From now on all threads read, to the end. Those that were parked, for the caller to wake.
    pub(super) fn end(&mut self) -> Vec<usize> {
        self.ended = true;
        self.release()
    }

    fn release(&mut self) -> Vec<usize> {
        self.reading += self.parked.len();
        std::mem::take(&mut self.parked)
    }

    /// Have they been told to end?
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }
}

/// Every order of events of three threads and up to two requests that wait, with requests that announce their waiting for another, that do
/// not, and whose end nobody tells.
#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const THREADS: usize = 3;
    const PENDING_MAX: usize = 2;

    #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
    enum Request {
        /// Done at once; ends the waiting of all others.
        Quick,
        /// Waits until a quick one was served, and says so before.
        Announced,
        /// The same, but does not say so.
        Silent,
        /// Nobody tells when it is done.
        Untold,
    }

    #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
    enum Thread {
        Reading,
        /// It reads or is busy, and the books do not count it as a reader.
        Untold,
        Busy(Request),
        Waiting(Request),
        Released,
        /// In the books or called: it finds out when it wakes.
        Parked,
    }

    #[derive(Clone, Debug, Eq, Hash, PartialEq)]
    struct World {
        readers: Readers,
        threads: [Thread; THREADS],
        pending: Vec<Request>,
        seen: u64,
    }

    impl World {
        fn new() -> Self {
            Self {
                readers: Readers::new(THREADS),
                threads: [Thread::Reading; THREADS],
                pending: vec![],
                seen: 0,
            }
        }

        /// Numbers count for nothing but equality: so the states are finite.
        fn settled(mut self) -> Self {
            self.seen = u64::from(self.seen == self.readers.vacancies);
            self.readers.vacancies = 1;
            self
        }

        fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
            let mut world = self.clone();
            change(&mut world);
            world.settled()
        }

        fn take(&mut self, at: usize) {
            if self.threads[at] == Thread::Reading {
                self.readers.taken();
            }
            self.threads[at] = match self.pending.remove(0) {
                Request::Untold => Thread::Untold,
                request => Thread::Busy(request),
            };
        }

        fn finish(&mut self, at: usize) {
            let parks = self.readers.answered(at);
            self.threads[at] = if parks { Thread::Parked } else { Thread::Reading };
        }

        /// All that may happen next, but for the two nets.
        fn steps(&self) -> Vec<World> {
            let mut next = Vec::new();
            if self.pending.len() < PENDING_MAX {
                for request in [Request::Quick, Request::Announced, Request::Silent, Request::Untold] {
                    next.push(self.with(|world| world.pending.push(request)));
                }
            }
            for at in 0..THREADS {
                next.extend(self.step_of(at));
            }
            next
        }

        fn step_of(&self, at: usize) -> Option<World> {
            match self.threads[at] {
                Thread::Reading | Thread::Untold if self.pending.is_empty() => None,
                Thread::Reading | Thread::Untold => Some(self.with(|world| world.take(at))),
                Thread::Busy(Request::Quick) => Some(self.with(|world| {
                    for thread in &mut world.threads {
                        if matches!(thread, Thread::Waiting(_)) {
                            *thread = Thread::Released;
                        }
                    }
                    world.finish(at);
                })),
                Thread::Busy(request) => Some(self.with(|world| {
                    if request == Request::Announced {
                        world.readers.call();
                    }
                    world.threads[at] = Thread::Waiting(request);
                })),
                Thread::Released => Some(self.with(|world| world.finish(at))),
                Thread::Parked if !self.readers.is_parked(at) => Some(self.with(|world| world.wake(at))),
                Thread::Parked | Thread::Waiting(_) => None,
            }
        }

        fn wake(&mut self, at: usize) {
            self.readers.leave(at);
            self.threads[at] = Thread::Reading;
        }

        fn timeouts(&self) -> Vec<World> {
            let parked = (0..THREADS).filter(|&at| self.readers.is_parked(at));
            parked.map(|at| self.with(|world| world.wake(at))).collect()
        }

        fn watched(&self) -> World {
            self.with(|world| {
                let mut seen = world.seen;
                world.readers.watch(&mut seen);
                world.seen = seen;
            })
        }

        /// Threads that read or are about to, without any event but their own waking.
        fn on_their_way(&self) -> usize {
            let reads = |&at: &usize| {
                self.threads[at] == Thread::Reading
                    || self.threads[at] == Thread::Parked && !self.readers.is_parked(at)
            };
            (0..THREADS).filter(reads).count()
        }
    }

    /// Everything that can be reached.
    fn worlds() -> HashSet<World> {
        let mut known = HashSet::from([World::new().settled()]);
        let mut fresh: Vec<World> = known.iter().cloned().collect();
        while let Some(world) = fresh.pop() {
            let next = world.steps().into_iter().chain(world.timeouts()).chain([world.watched()]);
            for world in next {
                if known.insert(world.clone()) {
                    fresh.push(world);
                }
            }
        }
        known
    }

    #[test]
    fn books_agree_with_the_threads_in_every_state() {
        let worlds = worlds();
        assert!(worlds.len() > 1000, "{}", worlds.len());
        for world in worlds {
            assert_eq!(world.readers.reading, world.on_their_way(), "{world:?}");
            assert!(
                (0..THREADS).all(|at| !world.readers.is_parked(at) || world.threads[at] == Thread::Parked)
            );
        }
    }

    #[test]
    fn nobody_reads_only_while_somebody_is_busy_or_silent() {
        for world in worlds() {
            let excused = |thread: &Thread| {
                matches!(
                    thread,
                    Thread::Untold | Thread::Busy(_) | Thread::Released | Thread::Waiting(Request::Silent)
                )
            };
            let fine = world.on_their_way() > 0
                || !world.readers.is_any_parked()
                || world.threads.iter().any(excused);
            assert!(fine, "{world:?}");
        }
    }

    #[test]
    fn two_looks_bring_a_reader_if_any_thread_is_parked() {
        for world in worlds().into_iter().filter(|world| world.readers.is_any_parked()) {
            // Nobody else moves meanwhile, as if all others hung.
            assert!(world.watched().watched().on_their_way() > 0, "{world:?}");
        }
    }

    #[test]
    fn a_parked_thread_reads_by_itself_in_the_end() {
        for world in worlds().into_iter().filter(|world| world.readers.is_any_parked()) {
            assert!(world.timeouts().iter().all(|world| world.on_their_way() > 0), "{world:?}");
        }
    }

    #[test]
    fn after_the_end_nobody_parks() {
        for mut world in worlds() {
            world.readers.end();
            assert!(!world.readers.is_any_parked() && !world.readers.answered(0));
            assert_eq!(world.readers.call(), None);
        }
    }

    #[test]
    fn all_threads_read_while_that_is_asked_for() {
        let mut readers = Readers::new(3);
        (0..3).for_each(|_| readers.taken());
        assert!(!readers.answered(0) && readers.answered(1), "one reads");
        assert_eq!(readers.set_all_read(true), [1]);
        assert!(!readers.answered(2), "none parks");
        readers.taken();
        assert!(readers.set_all_read(false).is_empty());
        assert!(readers.answered(2), "two read");
    }

    #[test]
    fn the_last_to_park_is_called_first() {
        let mut readers = Readers::new(3);
        (0..2).for_each(|_| readers.taken());
        assert!(readers.answered(0) && readers.answered(1), "the third reads");
        assert_eq!(readers.call(), None);
        readers.taken();
        assert_eq!((readers.call(), readers.call()), (Some(1), None));
    }
}
