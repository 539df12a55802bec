//! One file with announced writes, and its attributes at the last look.
//!
//! ```text
//!            a change without an announcement              no further change until then
//!   Served ───────────────────────────────────► Left(until) ───────────────────────────► Served, without pages
//! ```

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use terrace_engine::source::times_of;
use terrace_engine::{Engine, ObjectRef};
use terrace_sync::Mutex;

/// First pause after a change without an announcement. Each further change doubles it.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

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
}

impl AnnouncedFile {
    pub(super) fn new(fd: Arc<OwnedFd>, object: ObjectRef) -> io::Result<AnnouncedFile> {
        let look = Look {
            clock: object.write_clock(),
            attributes: Attributes::of(&object)?,
            state: State::Served,
            pause: PAUSE_MIN,
            identified: None,
        };
        Ok(AnnouncedFile { fd, object, requested: AtomicU64::new(0), look: Mutex::new(look) })
    }

    pub(super) fn is_served(&self) -> bool {
        matches!(self.look.lock().state, State::Served)
    }

    /// Compares the file with the last look.
    ///
    /// The attributes come first. So a change that they show belongs to a write that is in flight, or that
    /// moves the object's clock of writes, or that was not announced.
    pub(super) fn look(&self, engine: &Engine) -> Found {
        let mut look = self.look.lock();
        if matches!(look.state, State::GivenUp) {
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
