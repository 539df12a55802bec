//! One file served by a lease, and the states of that lease.
//!
//! ```text
//!          broken                      no writer is left
//!   Held ─────────► Broken(before) ──────────────────────────────► Held, cached pages kept if the file is as before
//! ```

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::Stat;
use terrace_engine::source::{differs_from_now_on, times_of};
use terrace_engine::{Engine, ObjectRef};
use terrace_sync::Mutex;

use super::fcntl;

/// First pause before a broken lease is taken again. Each early break doubles it.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A lease held for longer than this resets the pause.
const PAUSE_RESET_AFTER: Duration = Duration::from_secs(60);
/// Between two attempts while a program has the file open for writing.
const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// File attributes that show a change of the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileState {
    size: i64,
    /// mtime and ctime, ns since 1970.
    times: (i64, i64),
}

impl FileState {
    fn of(stat: &Stat) -> FileState {
        FileState { size: stat.st_size, times: times_of(stat) }
    }
    fn at(file: &ObjectRef) -> io::Result<FileState> {
        Ok(FileState::of(&file.source().stat()?))
    }
    /// Compares size and mtime: the ctime also moves on a chmod, which leaves the content.
    fn has_content_of(&self, other: &FileState) -> bool {
        (self.size, self.times.0) == (other.size, other.times.0)
    }
}

#[derive(Debug)]
enum State {
    Held {
        since: Instant,
        /// Attributes when the lease was taken. Only O_TRUNC of an open for reading changes content under it.
        look: Option<FileState>,
    },
    Broken {
        /// Attributes at the break; None: the cached pages are dropped without a comparison.
        before: Option<FileState>,
        /// Earliest time of the next attempt.
        retry_at: Instant,
        retry: Duration,
    },
    Ended,
}

/// One served file. Its descriptor holds the lease.
#[derive(Debug)]
pub(crate) struct LeasedFile {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) object: ObjectRef,
    /// Tick of the last request for the file, on the clock of [`super::Leases`].
    pub(crate) asked: AtomicU64,
    state: Mutex<State>,
    /// Pause after the next break.
    pause: Mutex<Duration>,
}

impl LeasedFile {
    pub(crate) fn new(fd: Arc<OwnedFd>, object: ObjectRef) -> LeasedFile {
        let look = FileState::at(&object).ok();
        LeasedFile::with(fd, object, State::Held { since: Instant::now(), look })
    }

    /// A file that a program has open for writing: its object is slow.
    pub(crate) fn written(fd: Arc<OwnedFd>, object: ObjectRef) -> LeasedFile {
        let retry_at = Instant::now() + RETRY_MIN;
        LeasedFile::with(fd, object, State::Broken { before: None, retry_at, retry: RETRY_MIN })
    }

    fn with(fd: Arc<OwnedFd>, object: ObjectRef, state: State) -> LeasedFile {
        let (state, pause) = (Mutex::new(state), Mutex::new(PAUSE_MIN));
        LeasedFile { fd, object, asked: AtomicU64::new(0), state, pause }
    }

    pub(crate) fn is_held(&self) -> bool {
        matches!(*self.state.lock(), State::Held { .. })
    }

    /// Time of the next attempt to take the lease; None: the lease is held, or the file is given up. Does not
    /// wait for an attempt under way.
    pub(crate) fn due(&self) -> Option<Instant> {
        let Some(state) = self.state.try_lock() else { return Some(Instant::now() + RETRY_MIN) };
        match *state {
            State::Broken { retry_at, .. } => Some(retry_at),
            State::Held { .. } | State::Ended => None,
        }
    }

    /// Breaks the lease: a program waits to open the file for writing. Sends clients to the source, then lets
    /// the opener go on.
    ///
    /// A client that has checked the slot finishes its read. The read began before the open returned, so old
    /// content is right.
    pub(crate) fn break_lease(&self) -> bool {
        let mut state = self.state.lock();
        let State::Held { since, look } = *state else { return false };
        self.object.set_slow(true);
        let stat = self.object.source().stat().ok().filter(differs_from_now_on);
        let before = stat
            .map(|stat| FileState::of(&stat))
            .filter(|now| look.is_some_and(|look| look.has_content_of(now)));
        fcntl::give_back(self.fd.as_fd());
        let pause = {
            let mut pause = self.pause.lock();
            *pause =
                if since.elapsed() > PAUSE_RESET_AFTER { PAUSE_MIN } else { (*pause * 2).min(PAUSE_MAX) };
            *pause
        };
        *state = State::Broken { before, retry_at: Instant::now() + pause, retry: RETRY_MIN };
        true
    }

    /// Takes the lease again if it is time. True: clients are served.
    pub(crate) fn try_again(&self, engine: &Engine, tid: i32) -> bool {
        let mut state = self.state.lock();
        let State::Broken { before, retry_at, retry } = &mut *state else {
            return matches!(*state, State::Held { .. });
        };
        if Instant::now() < *retry_at {
            return false;
        }
        if fcntl::take(self.fd.as_fd(), tid).is_err() {
            *retry_at = Instant::now() + *retry;
            *retry = (*retry * 2).min(RETRY_MAX);
            return false;
        }
        let now = FileState::at(&self.object).ok();
        let unchanged = before.is_some() && now == *before;
        if !unchanged && let Err(err) = engine.reload(&self.object) {
            tracing::debug!("object {}: cached content not dropped: {err}", self.object.id());
            fcntl::give_back(self.fd.as_fd());
            *retry_at = Instant::now() + RETRY_MAX;
            return false;
        }
        self.object.set_slow(false);
        *state = State::Held { since: Instant::now(), look: now };
        true
    }

    /// Ends the service by a lease, if the lease is broken and a program has the file open for writing.
    pub(crate) fn end_if_written(&self) -> bool {
        let mut state = self.state.lock();
        let is_written = matches!(*state, State::Broken { .. }) && fcntl::is_written(self.fd.as_fd());
        if is_written {
            *state = State::Ended;
        }
        is_written
    }

    /// Whether the content has changed under the lease: by O_TRUNC of an open for reading.
    pub(crate) fn is_changed(&self) -> bool {
        let State::Held { look, .. } = *self.state.lock() else { return false };
        let Ok(now) = FileState::at(&self.object) else { return true };
        !look.is_some_and(|look| look.has_content_of(&now))
    }

    /// Ends the service for good: clients read the source.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        self.object.set_slow(true);
        fcntl::give_back(self.fd.as_fd());
        *state = State::Ended;
    }

    pub(crate) fn note_asked(&self, tick: u64) {
        self.asked.store(tick, Ordering::Relaxed);
    }
}
