//! One file with announced writes, and its attributes at the last look.
//!
//! ```text
//!            a change without an announcement              no further change until then
//!   Served ───────────────────────────────────► Left(until) ───────────────────────────► Served, without pages
//! ```
//!
//! Beside that state a guarded file may be under suspicion: a program that announces nothing may have it open
//! for writing. The kernel serves the file until a look at all processes has refuted the suspicion.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use terrace_engine::source::times_of;
use terrace_engine::{Engine, ObjectRef};
use terrace_sync::Mutex;

use crate::guard::Writers;

/// First pause after a change without an announcement. Each further change doubles it.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Time between an open and the look for its descriptor. Each look that finds a writer doubles it.
const SETTLE_MIN: Duration = Duration::from_millis(20);
const SETTLE_MAX: Duration = Duration::from_secs(2);
/// A writer without a close after this time is one that the look cannot miss, or an open that failed.
const CLOSE_WITHIN: Duration = Duration::from_secs(60);

/// Attributes that show a change of the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Attributes {
    size: i64,
    /// ns since 1970.
    mtime: i64,
}

impl Attributes {
    fn of(object: &ObjectRef) -> io::Result<Attributes> {
        let stat = object.source().stat()?;
        Ok(Attributes { size: stat.st_size, mtime: times_of(&stat).0 })
    }
}

#[derive(Debug)]
enum State {
    Served,
    /// The kernel serves the file until then.
    Left(Instant),
    /// The kernel serves the file for the rest of the run.
    GivenUp,
}

#[derive(Debug)]
struct Look {
    attributes: Attributes,
    /// The object's clock of writes at that time.
    clock: u64,
    state: State,
    pause: Duration,
    /// The object's clock of writes when the file got its identity.
    identified: Option<u64>,
    suspicion: Suspicion,
}

/// The looks for writers of a guarded file.
#[derive(Debug)]
struct Suspicion {
    /// Value of [`AnnouncedFile::suspected`].
    number: u64,
    since: Instant,
    /// Time of the next look.
    due: Instant,
    pause: Duration,
}

impl Suspicion {
    fn new(number: u64) -> Suspicion {
        let now = Instant::now();
        Suspicion { number, since: now, due: now + SETTLE_MIN, pause: SETTLE_MIN }
    }
}

/// Result of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// The file has changed without an announcement, for the first time since it was served.
    Unannounced,
}

/// One served file.
#[derive(Debug)]
pub(super) struct AnnouncedFile {
    pub(super) fd: Arc<OwnedFd>,
    pub(super) object: ObjectRef,
    /// Tick of the last request for the file, on the clock of [`super::AnnouncedFiles`].
    pub(super) requested: AtomicU64,
    look: Mutex<Look>,
    /// Number of the last suspicion. Set without a lock: an open waits meanwhile.
    suspected: AtomicU64,
    /// Number of the last refuted suspicion.
    refuted: AtomicU64,
    /// A suspected open has not been followed by a close.
    awaits_close: AtomicBool,
    /// A description was closed since the last look for writers.
    closed: AtomicBool,
    /// No process had the file open for writing when its watch began, and all opens since then were seen.
    sees_all: AtomicBool,
    /// Processes of the suspected opens.
    strangers: Mutex<Vec<i32>>,
    /// Opens reported since the last [`AnnouncedFile::take_opens`].
    opens: AtomicU64,
}

impl AnnouncedFile {
    pub(super) fn new(fd: Arc<OwnedFd>, object: ObjectRef) -> io::Result<AnnouncedFile> {
        let look = Look {
            clock: object.write_clock(),
            attributes: Attributes::of(&object)?,
            state: State::Served,
            pause: PAUSE_MIN,
            identified: None,
            suspicion: Suspicion::new(0),
        };
        Ok(AnnouncedFile {
            fd,
            object,
            requested: AtomicU64::new(0),
            look: Mutex::new(look),
            suspected: AtomicU64::new(0),
            refuted: AtomicU64::new(0),
            awaits_close: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            sees_all: AtomicBool::new(false),
            strangers: Mutex::default(),
            opens: AtomicU64::new(0),
        })
    }

    pub(super) fn is_served(&self) -> bool {
        !self.is_suspect() && matches!(self.look.lock().state, State::Served)
    }

    fn is_suspect(&self) -> bool {
        self.suspected.load(Ordering::SeqCst) != self.refuted.load(Ordering::SeqCst)
    }

    /// Processes that announce no writes may have the file open: opens were not seen.
    pub(super) fn suspect_all(&self) {
        self.sees_all.store(false, Ordering::SeqCst);
        self.suspect();
    }

    /// A process that announces no writes opens the file for writing now. The open waits meanwhile, so this waits
    /// for no look.
    pub(super) fn suspect_one(&self, pid: Option<i32>) {
        match pid {
            Some(pid) => self.strangers.lock().push(pid),
            None => self.sees_all.store(false, Ordering::SeqCst),
        }
        self.awaits_close.store(true, Ordering::SeqCst);
        self.suspect();
    }

    fn suspect(&self) {
        self.suspected.fetch_add(1, Ordering::SeqCst);
        self.object.set_slow(true);
    }

    /// Whether these processes refute the suspicion. A process hidden by the kernel is a writer only if its open
    /// may be unseen.
    pub(super) fn is_refuted_by(&self, writers: &Writers) -> bool {
        let strangers = self.strangers.lock();
        let is_known = self.sees_all.load(Ordering::SeqCst);
        let may_write = |pid: &i32| !is_known || strangers.contains(pid);
        writers.found.is_empty() && !writers.unknown.iter().any(may_write)
    }

    /// Serves a new file: no process has it open for writing, and opens are seen. `keeps_pages`: so it has been
    /// since its pages were read.
    pub(super) fn begin(&self, engine: &Engine, keeps_pages: bool) {
        self.sees_all.store(true, Ordering::SeqCst);
        self.serve_again(engine, self.suspected.load(Ordering::SeqCst), keeps_pages);
    }

    pub(super) fn note_open(&self) {
        self.opens.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn take_opens(&self) -> u64 {
        self.opens.swap(0, Ordering::Relaxed)
    }

    /// A description of the file was closed; `is_stranger`: perhaps that of a suspected open.
    pub(super) fn note_close(&self, is_stranger: bool) {
        self.closed.store(true, Ordering::SeqCst);
        if is_stranger {
            self.awaits_close.store(false, Ordering::SeqCst);
        }
    }

    /// Number of the suspicion, if it is time for a look at the processes.
    pub(super) fn due(&self) -> Option<u64> {
        if !self.is_suspect() {
            return None;
        }
        let number = self.suspected.load(Ordering::SeqCst);
        let mut look = self.look.lock();
        if matches!(look.state, State::GivenUp) {
            return None;
        }
        if look.suspicion.number != number {
            look.suspicion = Suspicion::new(number);
            return None;
        }
        let is_due = self.closed.swap(false, Ordering::SeqCst) || Instant::now() >= look.suspicion.due;
        is_due.then_some(number)
    }

    /// A look has found a writer.
    pub(super) fn postpone(&self) {
        let suspicion = &mut self.look.lock().suspicion;
        suspicion.pause = (suspicion.pause * 2).min(SETTLE_MAX);
        suspicion.due = Instant::now() + suspicion.pause;
    }

    /// A look has found no writer. Serves the file without its old pages, unless there is a later suspicion.
    pub(super) fn refute(&self, engine: &Engine, number: u64) {
        let is_open = self.awaits_close.load(Ordering::SeqCst);
        if is_open && self.look.lock().suspicion.since.elapsed() < CLOSE_WITHIN {
            return self.postpone();
        }
        self.awaits_close.store(false, Ordering::SeqCst);
        self.strangers.lock().clear();
        self.serve_again(engine, number, false);
    }

    fn serve_again(&self, engine: &Engine, number: u64, keeps_pages: bool) {
        let mut look = self.look.lock();
        if matches!(look.state, State::GivenUp) || !keeps_pages && engine.reload(&self.object).is_err() {
            drop(look);
            return self.postpone();
        }
        look.clock = self.object.write_clock();
        if let Ok(now) = Attributes::of(&self.object) {
            look.attributes = now;
        }
        look.state = State::Served;
        self.refuted.store(number, Ordering::SeqCst);
        self.object.set_slow(false);
        // An open may wait meanwhile that has come before the store.
        if self.is_suspect() {
            self.object.set_slow(true);
        }
    }

    /// Compares the file with the last look.
    ///
    /// The attributes come first. So a change that they show belongs to a write that is in flight, or that
    /// moves the object's clock of writes, or that was not announced.
    pub(super) fn look(&self, engine: &Engine) -> Found {
        let mut look = self.look.lock();
        if matches!(look.state, State::GivenUp) || self.is_suspect() {
            return Found::Nothing;
        }
        let now = Attributes::of(&self.object);
        let is_same = now.as_ref().is_ok_and(|now| *now == look.attributes);
        if !is_same && engine.is_written(&self.object) {
            return Found::Nothing;
        }
        let clock = self.object.write_clock();
        let is_announced = is_same || clock != look.clock;
        if let Ok(now) = now {
            (look.attributes, look.clock) = (now, clock);
        }
        match look.state {
            State::Served if !is_announced => {
                self.object.set_slow(true);
                look.state = State::Left(Instant::now() + look.pause);
                look.pause = (look.pause * 2).min(PAUSE_MAX);
                Found::Unannounced
            }
            State::Left(_) if !is_announced => {
                look.state = State::Left(Instant::now() + look.pause);
                Found::Nothing
            }
            // The writer may have the file open still.
            State::Left(until) if Instant::now() >= until && self.suspected.load(Ordering::SeqCst) > 0 => {
                look.state = State::Served;
                self.suspect_all();
                Found::Nothing
            }
            State::Left(until) if Instant::now() >= until && engine.reload(&self.object).is_ok() => {
                // The reload has moved the clock.
                look.clock = self.object.write_clock();
                look.state = State::Served;
                self.object.set_slow(false);
                Found::Nothing
            }
            State::Served if is_same && look.identified != Some(clock) => {
                let is_coherent = || Attributes::of(&self.object).is_ok_and(|again| again == look.attributes);
                if engine.renew_identity(&self.object, is_coherent) {
                    look.identified = Some(clock);
                }
                Found::Nothing
            }
            _ => Found::Nothing,
        }
    }

    /// Whether the file has an identity for its present content.
    pub(super) fn is_identified(&self) -> bool {
        self.look.lock().identified == Some(self.object.write_clock())
    }

    /// Leaves the file to the kernel for the rest of the run.
    pub(super) fn give_up(&self) {
        let mut look = self.look.lock();
        self.object.set_slow(true);
        look.state = State::GivenUp;
    }

    pub(super) fn note_request(&self, tick: u64) {
        self.requested.store(tick, Ordering::Relaxed);
    }
}
