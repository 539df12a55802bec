//! The threads behind [`Readers`]: how they park, are called, and are watched.
//!
//! Each request's method holds a [`Turn`] until it has answered and dropped all else. The end of the turn is where a thread parks: it
//! holds nothing there that anybody could wait for.

use std::cell::{Cell, OnceCell};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use terrace_engine::waits::{self, Wait};

use super::readers::{PARK_MAX, Readers};

/// How often the watching thread looks while any thread is parked. It acts at the second look.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How long it sleeps where none is, unless it is rung for.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// A read(2) that took no longer has not slept: a request was there already.
const AT_ONCE: Duration = Duration::from_micros(5);
/// So many such reads in a row, and a second thread is wanted.
const BACKLOG: u32 = 4;
/// So often a reader is called for a brief wait after requests have overlapped. One program that waits for each answer sends nothing
/// meanwhile, and calling would be in vain.
const OVERLAP: u32 = 16;
/// Bytes of content whose copying takes as long as a brief wait.
const MANY: usize = 64 << 10;

/// How long a request may take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Length {
    /// Less than calling another thread costs, unless it waits and says so.
    Short,
    /// As a wait of this kind.
    Waits(Wait),
}

impl Length {
    pub(super) const LONG: Self = Self::Waits(Wait::Long);

    /// Of a request with so many bytes of content.
    pub(super) fn of_bytes(bytes: usize) -> Self {
        if bytes < MANY { Length::Short } else { Length::Waits(Wait::Brief) }
    }
}

#[derive(Debug)]
struct Books {
    readers: Readers,
    /// By number.
    threads: Vec<Thread>,
    /// Requests that are being answered.
    busy: usize,
    /// Brief waits for which a reader will be called yet.
    overlap: u32,
    watcher_sleeps: bool,
}

impl Books {
    /// The parked thread that is to read during this wait; the caller wakes it.
    fn call(&mut self, wait: Wait) -> Option<Thread> {
        if wait == Wait::Brief {
            self.overlap = self.overlap.checked_sub(1)?;
        }
        self.readers.call().map(|number| self.threads[number].clone())
    }
}

/// The turns of the threads of one session.
#[derive(Debug)]
pub(super) struct Turns {
    books: Mutex<Books>,
    /// For the watching thread.
    bell: Condvar,
    /// As it was last said to the books.
    all_read: AtomicBool,
}

/// What a thread knows of itself. When the thread ends, the session does, and nobody parks any more.
struct Seat {
    turns: Arc<Turns>,
    number: usize,
    /// It has a request for whose time it has called no reader yet.
    answers: Cell<bool>,
    /// It has had a request whose end nobody told, and is not counted as a reader.
    is_untold: Cell<bool>,
    /// When it went to read.
    went: Cell<Instant>,
    /// Reads in a row for which a request was there already.
    at_once: Cell<u32>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.turns.end();
    }
}

thread_local! {
    static SEAT: OnceCell<Seat> = const { OnceCell::new() };
}

impl Turns {
    /// For a session with so many threads, all of which begin by reading.
    pub(super) fn new(threads: usize) -> Arc<Self> {
        let readers = Readers::new(threads);
        let books = Books { readers, threads: Vec::new(), busy: 0, overlap: 0, watcher_sleeps: false };
        Arc::new(Self { books: Mutex::new(books), bell: Condvar::new(), all_read: AtomicBool::new(false) })
    }

    /// This thread has got a request.
    pub(super) fn begin(self: &Arc<Self>, length: Length) -> Turn {
        let known = SEAT.try_with(|seat| seat.get_or_init(|| self.sit_down()).begin(length));
        Turn { is_counted: known.is_ok(), _here: PhantomData }
    }

    /// This thread has got a request whose end nobody tells: for the books it reads again when it has got the next one. Until then one
    /// reader too many is called perhaps, and none too few.
    pub(super) fn begin_untold(self: &Arc<Self>) {
        let _ = SEAT.try_with(|seat| seat.get_or_init(|| self.sit_down()).begin_untold());
    }

    fn sit_down(self: &Arc<Self>) -> Seat {
        let mut books = self.books.lock();
        books.threads.push(std::thread::current());
        waits::before_waiting(about_to_wait);
        Seat {
            turns: self.clone(),
            number: books.threads.len() - 1,
            answers: Cell::new(false),
            is_untold: Cell::new(false),
            went: Cell::new(Instant::now()),
            at_once: Cell::new(0),
        }
    }

    /// Calls a reader whenever none has read for a while. Returns after `end`.
    pub(super) fn watch(&self) {
        let mut seen = 0;
        let mut books = self.books.lock();
        while !books.readers.has_ended() {
            if !books.readers.is_any_parked() {
                books.watcher_sleeps = true;
                self.bell.wait_for(&mut books, SLEEP_MAX);
                books.watcher_sleeps = false;
                continue;
            }
            if let Some(called) = books.readers.watch(&mut seen) {
                books.threads[called].unpark();
            }
            self.bell.wait_for(&mut books, LOOK_EVERY);
        }
    }

    /// While descriptors are short, all threads read: requests that give descriptors back must not wait behind those that need one.
    pub(super) fn set_all_read(&self, all_read: bool) {
        if self.all_read.load(Ordering::Relaxed) != all_read {
            let mut books = self.books.lock();
            self.all_read.store(all_read, Ordering::Relaxed);
            for parked in books.readers.set_all_read(all_read) {
                books.threads[parked].unpark();
            }
        }
    }

    /// The session is over, or a thread of it: all that are left read.
    pub(super) fn end(&self) {
        let mut books = self.books.lock();
        for parked in books.readers.end() {
            books.threads[parked].unpark();
        }
        self.bell.notify_all();
    }

    /// Parks the thread of this number until it is called, for [`PARK_MAX`] at the longest.
    fn park(&self, number: usize) {
        let until = Instant::now() + PARK_MAX;
        loop {
            std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
            let mut books = self.books.lock();
            if Instant::now() >= until {
                books.readers.leave(number);
            }
            if !books.readers.is_parked(number) {
                return;
            }
        }
    }
}

impl Seat {
    fn begin(&self, length: Length) {
        let at_once = self.went.get().elapsed() < AT_ONCE;
        self.at_once.set(if at_once { self.at_once.get() + 1 } else { 0 });
        let wait = match length {
            _ if self.at_once.get() >= BACKLOG => Some(Wait::Long),
            Length::Waits(wait) => Some(wait),
            Length::Short => None,
        };
        let mut books = self.turns.books.lock();
        if !self.is_untold.replace(false) {
            books.readers.taken();
        }
        if at_once || books.busy > 0 {
            books.overlap = OVERLAP;
        }
        books.busy += 1;
        let called = wait.and_then(|wait| books.call(wait));
        drop(books);
        self.answers.set(called.is_none());
        called.inspect(Thread::unpark);
    }

    fn begin_untold(&self) {
        if !self.is_untold.replace(true) {
            self.turns.books.lock().readers.taken();
        }
    }

    /// Calls a reader for this wait, once for each request: after that, it is for the one that was called.
    fn wait(&self, wait: Wait) {
        if self.answers.get() {
            let called = self.turns.books.lock().call(wait);
            self.answers.set(called.is_none());
            called.inspect(Thread::unpark);
        }
    }

    fn end(&self) {
        self.answers.set(false);
        let mut books = self.turns.books.lock();
        books.busy -= 1;
        let parks = books.readers.answered(self.number);
        if parks && books.watcher_sleeps {
            self.turns.bell.notify_one();
        }
        drop(books);
        if parks {
            self.turns.park(self.number);
        }
        self.went.set(Instant::now());
    }
}

/// This thread is about to wait: if it answers a request, somebody else is to read meanwhile.
fn about_to_wait(wait: Wait) {
    let _ = SEAT.try_with(|seat| seat.get().map(|seat| seat.wait(wait)));
}

/// A request, from its arrival until it is answered. To be dropped last of all that belongs to it: the thread may park then.
#[derive(Debug)]
#[must_use]
pub(super) struct Turn {
    is_counted: bool,
    /// It ends on the thread on which it began.
    _here: PhantomData<*const ()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // A thread that panics ends, and its seat with it.
        if self.is_counted && !std::thread::panicking() {
            let _ = SEAT.try_with(|seat| seat.get().map(Seat::end));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use terrace_testkit::rng::{self, Rng};

    use super::*;

    /// Nothing here takes so long, unless it hangs.
    const HANG: Duration = Duration::from_secs(20);

    #[derive(Clone, Copy, Debug)]
    enum Kind {
        Quick,
        Long,
        Announced,
        Brief,
        Silent,
    }

    /// A request that waits for `until`, if it has one, and then lets `opens` go.
    struct Request {
        kind: Kind,
        until: Option<Receiver<()>>,
        opens: Option<Sender<()>>,
        answered: Sender<()>,
    }

    /// As /dev/fuse: whoever reads gets the next request, or the end.
    #[derive(Default)]
    struct Device {
        queue: Mutex<(VecDeque<Request>, bool)>,
        bell: Condvar,
    }

    impl Device {
        fn read(&self) -> Option<Request> {
            let mut queue = self.queue.lock();
            loop {
                match queue.0.pop_front() {
                    Some(request) => return Some(request),
                    None if queue.1 => return None,
                    None => self.bell.wait(&mut queue),
                }
            }
        }

        fn ask(&self, kind: Kind, until: Option<Receiver<()>>, opens: Option<Sender<()>>) -> Receiver<()> {
            let (answered, answer) = channel();
            self.queue.lock().0.push_back(Request { kind, until, opens, answered });
            self.bell.notify_one();
            answer
        }

        fn close(&self) {
            self.queue.lock().1 = true;
            // One reader alone is told: the others are parked.
            self.bell.notify_all();
        }
    }

    fn serve(device: &Device, turns: &Arc<Turns>) {
        while let Some(request) = device.read() {
            let length = if matches!(request.kind, Kind::Long) { Length::LONG } else { Length::Short };
            let _turn = turns.begin(length);
            match request.kind {
                Kind::Announced => about_to_wait(Wait::Long),
                Kind::Brief => about_to_wait(Wait::Brief),
                _ => {}
            }
            if let Some(until) = request.until {
                until.recv_timeout(HANG).expect("nobody read what this request waits for");
            }
            request.opens.map(|opens| opens.send(()));
            let _ = request.answered.send(());
        }
    }

    /// Requests by themselves, and others that wait for one that comes after them.
    fn ask(device: &Device, kinds: &[Kind], rounds: u32, mut rng: Rng) {
        for _ in 0..rounds {
            let kind = *rng.pick(kinds);
            let answers = match kind {
                Kind::Quick => vec![device.ask(kind, None, None)],
                _ => {
                    let (opens, until) = channel();
                    let waits = device.ask(kind, Some(until), None);
                    vec![device.ask(Kind::Quick, None, Some(opens)), waits]
                }
            };
            for answer in answers {
                answer.recv_timeout(HANG).expect("a request hangs");
            }
        }
    }

    /// A session with one thread more than can wait at one time.
    fn run(watched: bool, kinds: &[Kind], askers: u64, rounds: u32, seed: u64) {
        eprintln!("seed {seed}");
        let (device, threads) = (Device::default(), askers as usize + 1);
        let turns = Turns::new(threads);
        std::thread::scope(|scope| {
            if watched {
                scope.spawn(|| turns.watch());
            }
            let serving: Vec<_> = (0..threads).map(|_| scope.spawn(|| serve(&device, &turns))).collect();
            let asking: Vec<_> = (0..askers)
                .map(|asker| {
                    let (device, rng) = (&device, Rng::new(seed + asker));
                    scope.spawn(move || ask(device, kinds, rounds, rng))
                })
                .collect();
            asking.into_iter().for_each(|asker| asker.join().unwrap());
            device.close();
            serving.into_iter().for_each(|thread| thread.join().unwrap());
            turns.end();
        });
        let books = turns.books.lock();
        assert!(books.readers.has_ended() && !books.readers.is_any_parked());
    }

    #[test]
    fn requests_that_wait_for_later_ones_are_answered() {
        let kinds = [Kind::Quick, Kind::Quick, Kind::Long, Kind::Announced, Kind::Brief, Kind::Silent];
        run(true, &kinds, 4, 1500, rng::seed("turns"));
    }

    #[test]
    fn a_watcher_finds_waits_that_nobody_announced() {
        run(true, &[Kind::Silent], 3, 200, rng::seed("silent turns"));
    }

    #[test]
    fn without_a_watcher_parked_threads_come_back() {
        run(false, &[Kind::Quick, Kind::Silent], 2, 15, rng::seed("unwatched turns"));
    }

    #[test]
    fn one_thread_never_parks() {
        let (device, turns) = (Device::default(), Turns::new(1));
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&device, &turns));
            ask(&device, &[Kind::Quick], 1000, Rng::new(1));
            device.close();
        });
    }

    #[test]
    fn a_thread_that_panics_leaves_no_other_parked() {
        let (device, turns) = (Device::default(), Turns::new(3));
        std::thread::scope(|scope| {
            let serving: Vec<_> = (0..3).map(|_| scope.spawn(|| serve(&device, &turns))).collect();
            ask(&device, &[Kind::Quick], 100, Rng::new(1));
            let (opens, until) = channel::<()>();
            drop(opens);
            let answer = device.ask(Kind::Silent, Some(until), None);
            assert!(answer.recv_timeout(HANG).is_err(), "its thread panics");
            ask(&device, &[Kind::Quick], 100, Rng::new(2));
            device.close();
            let panicked = serving.into_iter().filter_map(|thread| thread.join().err()).count();
            assert_eq!(panicked, 1);
        });
        assert!(!turns.books.lock().readers.is_any_parked());
    }
}
