//! An orderly end: everything written back, then the mount taken away. The main door's loop sees that and ends the rest.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use terrace_engine::Engine;

use crate::control::No;
use crate::error::reason;
use crate::mounts::{self, How};
use crate::sys;

/// Stops this instance.
#[derive(Debug)]
pub struct Stopper {
    engine: Arc<Engine>,
    mnt: PathBuf,
    /// One at a time.
    busy: Mutex<()>,
}

/// What an orderly stop left.
#[derive(Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Nothing.
    Unmounted,
    /// Open files of programs, which are served until they are closed.
    InUse,
}

impl Stopper {
    /// For the instance that serves `mnt`.
    pub fn new(engine: Arc<Engine>, mnt: &Path) -> Stopper {
        Stopper { engine, mnt: mnt.to_owned(), busy: Mutex::new(()) }
    }

    /// Flushes and unmounts. A mount in use stays, or with `lazy` goes from the tree at once. Nothing is unmounted
    /// while something could not be written: it would be lost.
    pub fn stop(&self, lazy: bool) -> Result<Stopped, No> {
        let _one = self.busy.lock();
        self.engine.flush_all(true).map_err(|err| No::failed(format_args!("write back: {}", reason(err))))?;
        match mounts::unmount(&self.mnt, How::Unused) {
            Ok(()) => Ok(Stopped::Unmounted),
            // Another got there first.
            Err(err) if err.raw_os_error() == Some(libc::EINVAL) => Ok(Stopped::Unmounted),
            Err(err) if err.raw_os_error() == Some(libc::EBUSY) && lazy => {
                mounts::unmount(&self.mnt, How::Lazy).map_err(No::failed)?;
                Ok(Stopped::InUse)
            }
            Err(err) if err.raw_os_error() == Some(libc::EBUSY) => {
                Err(No { code: "busy", why: "the mount is in use".to_owned() })
            }
            Err(err) => Err(No::failed(format_args!("unmount: {}", reason(err)))),
        }
    }

    /// SIGTERM stops, lazily: an end was asked for, and nobody reads an answer. If something cannot be written the mount stays, with
    /// its data; the reason is in the log.
    pub fn obey_signals(&self) {
        let signals = match sys::signal_fd(&[libc::SIGTERM]) {
            Ok(signals) => signals,
            Err(err) => return tracing::error!("signals: {err}"),
        };
        loop {
            let mut fds = [rustix::event::PollFd::new(&signals, rustix::event::PollFlags::IN)];
            let _ = rustix::event::poll(&mut fds, None);
            while let Some(signal) = sys::next_signal(&signals) {
                debug_assert_eq!(signal, libc::SIGTERM);
                match self.stop(true) {
                    Ok(stopped) => tracing::info!("stopped: {stopped:?}"),
                    Err(no) => tracing::error!("{}: not stopped: {}", self.mnt.display(), no.why),
                }
            }
        }
    }
}
