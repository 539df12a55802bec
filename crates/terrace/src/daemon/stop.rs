//! An orderly end: everything written back, then the mount taken away. The main door's loop sees that and ends the rest.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use terrace_engine::Engine;

use super::record;
use crate::control::No;
use crate::error::reason;
use crate::instance::Kind;
use crate::keeper::Shared;
use crate::lost::Dirty;
use crate::mounts::{self, How};
use crate::sys;

/// Stops this instance.
#[derive(Debug)]
pub struct Stopper {
    engine: Arc<Engine>,
    mnt: PathBuf,
    root: PathBuf,
    kind: Kind,
    /// Whether the mount is gone already: what is mounted there later is not ours. One stop at a time.
    gone: Mutex<bool>,
}

/// What an orderly stop left.
#[derive(Debug, Default)]
pub struct Stopped {
    /// Open files of programs, which are served until they are closed.
    pub in_use: bool,
    /// What could not be written.
    pub lost: Option<Dirty>,
}

/// How often and how long an end that nobody waits for tries to write.
const TRY_EVERY: Duration = Duration::from_secs(1);
const TRIES: usize = 30;

impl Stopper {
    /// For this instance.
    pub fn new(engine: Arc<Engine>, shared: &Shared) -> Stopper {
        let (mnt, root) = (shared.place.mnt.clone(), record::root(shared));
        Stopper { engine, mnt, root, kind: shared.kind, gone: Mutex::new(false) }
    }

    /// Flushes and unmounts. A mount in use stays, or with `lazy` goes from the tree at once. With something that cannot be
    /// written it stays too, unless `lose`.
    pub fn stop(&self, lazy: bool, lose: bool) -> Result<Stopped, No> {
        let mut gone = self.gone.lock();
        let mut stopped = Stopped::default();
        if let Err(err) = self.engine.flush_all(true) {
            if !lose {
                return Err(No::failed(format_args!("write back: {}", reason(err))));
            }
            stopped.lost = Some(record::now(&self.engine, &self.root));
        }
        if *gone {
            return Ok(stopped);
        }
        match mounts::unmount(&self.mnt, How::Unused) {
            Ok(()) => {}
            // Somebody has unmounted it by hand.
            Err(err) if err.raw_os_error() == Some(libc::EINVAL) => {}
            Err(err) if err.raw_os_error() == Some(libc::EBUSY) && lazy => {
                mounts::unmount(&self.mnt, How::Lazy).map_err(No::failed)?;
                stopped.in_use = true;
            }
            Err(err) if err.raw_os_error() == Some(libc::EBUSY) => {
                return Err(No { code: "busy", why: "the mount is in use".to_owned() });
            }
            Err(err) => return Err(No::failed(format_args!("unmount: {}", reason(err)))),
        }
        *gone = true;
        Ok(stopped)
    }

    /// SIGTERM stops, lazily: an end was asked for, and nobody reads an answer.
    pub fn obey_signals(&self) {
        let signals = match sys::signal_fd(&[libc::SIGTERM]) {
            Ok(signals) => signals,
            Err(err) => return tracing::error!("signals: {err}"),
        };
        loop {
            let mut fds = [rustix::event::PollFd::new(&signals, rustix::event::PollFlags::IN)];
            let _ = rustix::event::poll(&mut fds, None);
            while sys::next_signal(&signals).is_some() {
                self.obey();
            }
        }
    }

    /// What cannot be written keeps a mount, with its data and the reason in the log: somebody can make room and ask again. The private
    /// mount of a command that is gone can be reached by nobody: after a while it goes, with what it could not write.
    fn obey(&self) {
        for tried in 1.. {
            let last = self.kind == Kind::Run && tried == TRIES;
            match self.stop(true, last) {
                Ok(stopped) => {
                    if let Some(lost) = stopped.lost {
                        tracing::error!("{}: lost: {}", self.mnt.display(), lost.told());
                    }
                    return;
                }
                Err(no) => tracing::error!("{}: not stopped: {}", self.mnt.display(), no.why),
            }
            if self.kind == Kind::Mount {
                return;
            }
            std::thread::sleep(TRY_EVERY);
        }
    }
}
