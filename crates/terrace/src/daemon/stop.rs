//! An orderly stop: everything is written back, then the mount is taken away. The loop of the mount path sees
//! that and ends the rest.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use terrace_api::control::{CommandError, ErrorCode, ReleaseReply, StopReply};
use terrace_engine::Engine;
use terrace_lease::Leases;
use terrace_sync::Mutex;

use super::front::Front;
use super::record;
use crate::claim::Claim;
use crate::data_loss;
use crate::error::reason;
use crate::handover::Shared;
use crate::holders;
use crate::instance::{Instance, Kind};
use crate::mounts::{self, How, Layer};
use crate::sys;

/// Stops this instance.
pub struct Stopper {
    engine: Arc<Engine>,
    /// What ends where there is no mount.
    leases: Option<Arc<Leases>>,
    mnt: PathBuf,
    /// Distinguishes our mount from another at the same path.
    mount_dev: Option<(u32, u32)>,
    root: PathBuf,
    kind: Kind,
    instance: Instance,
    claim: Option<Arc<Claim>>,
    /// Refuses changes from then on, unless a program has a file open for writing.
    give_up_changes: Box<dyn Fn() -> bool + Send + Sync>,
    state: Mutex<State>,
}

/// How far it is. Locked through a stop: one at a time.
#[derive(Debug, Default)]
struct State {
    /// The mount is gone: a later mount at its place is not ours.
    gone: bool,
    /// Unwritable data was given up, and that was reported.
    given_up: bool,
}

/// How often and how long unwritable data is tried again when no command waits for the end.
const TRY_EVERY: Duration = Duration::from_secs(1);
const TRIES: usize = 10;

impl Stopper {
    /// For this instance.
    pub fn new(engine: Arc<Engine>, shared: &Shared, front: &Front) -> Stopper {
        let (leases, give_up_changes) = (front.leases(), front.give_up_changes());
        let (mnt, root) = (shared.place.mnt.clone(), record::root(shared));
        let (mount_dev, kind, instance) = (shared.mount_dev, shared.kind, shared.instance.clone());
        // Of a terraced that died over a stop: whoever asked for it asks again.
        instance.note_stopping(false);
        let claim = shared.place.claim.clone();
        let state = Mutex::default();
        Stopper { engine, leases, mnt, mount_dev, root, kind, instance, claim, give_up_changes, state }
    }

    /// Flushes and unmounts. A mount in use stays, or with `lazy` goes from the tree at once. With something that cannot be
    /// written it stays too, unless `lose`.
    pub fn stop(&self, lazy: bool, lose: bool) -> Result<StopReply, CommandError> {
        let mut state = self.state.lock();
        self.instance.note_stopping(true);
        let stopped = self.flush_and_unmount(&mut state, lazy, lose);
        if stopped.is_err() {
            self.instance.note_stopping(false);
        }
        stopped
    }

    fn flush_and_unmount(
        &self,
        state: &mut State,
        lazy: bool,
        lose: bool,
    ) -> Result<StopReply, CommandError> {
        let mut stopped = StopReply::default();
        if let Err(err) = self.engine.flush_all(true) {
            if !lose {
                return Err(CommandError::failed(format_args!("write back: {}", reason(err))));
            }
            stopped.lost = Some(record::now(&self.engine, &self.root));
            state.given_up = true;
        }
        if !state.gone {
            stopped.in_use = self.unmount(lazy)?;
            state.gone = true;
        }
        Ok(stopped)
    }

    /// Gives the claim on the source up where the mount is gone everywhere, all is written, and no program has a file open for
    /// writing. Programs that read on see changes as of any program beside a mount; their own changes are refused.
    pub fn release(&self) -> Result<ReleaseReply, CommandError> {
        let mounted = self.leases.is_some() || mounts::layer(&self.mnt, self.mount_dev) != Layer::Gone;
        if mounted {
            return Ok(ReleaseReply { mounted });
        }
        let is_seen = || self.mount_dev.is_some_and(|dev| !holders::seeing(dev).is_empty());
        if let Some(claim) = self.claim.as_ref().filter(|_| !is_seen()) {
            let flush = || self.engine.flush_all(true).map_err(|err| CommandError::failed(reason(err)));
            // First, for a flush that fails must not cost the programs their changes.
            flush()?;
            if (self.give_up_changes)() {
                flush()?;
                claim.release();
            }
        }
        Ok(ReleaseReply { mounted })
    }

    /// Unmounts our mount and no other. Returns true if it stays for programs that use it.
    fn unmount(&self, lazy: bool) -> Result<bool, CommandError> {
        if let Some(leases) = &self.leases {
            leases.stop();
            return Ok(false);
        }
        match mounts::layer(&self.mnt, self.mount_dev) {
            Layer::Top => {}
            // It was unmounted by hand.
            Layer::Gone => return Ok(false),
            Layer::Below(fstype) => {
                let why = format_args!("{fstype} is mounted over it");
                return Err(CommandError::new(ErrorCode::Covered, why));
            }
        }
        match mounts::unmount(&self.mnt, How::Unused) {
            Ok(()) => Ok(false),
            Err(err) if err.raw_os_error() == Some(libc::EBUSY) && lazy => {
                mounts::unmount(&self.mnt, How::Lazy).map_err(CommandError::failed)?;
                Ok(true)
            }
            Err(err) if err.raw_os_error() == Some(libc::EBUSY) => {
                Err(CommandError::new(ErrorCode::Busy, "the mount is in use"))
            }
            Err(err) => Err(CommandError::failed(format_args!("unmount: {}", reason(err)))),
        }
    }

    /// Writes the last data of an instance whose mount is gone. A source that refuses them is tried again for
    /// a while, because no command can do that later. Data that is still refused is lost. The server of a source that has died
    /// takes nothing later: the descriptors are those of its mount.
    pub fn write_the_rest(&self) -> io::Result<()> {
        let given_up = {
            let mut state = self.state.lock();
            state.gone = true;
            state.given_up
        };
        let mut written = self.engine.shutdown();
        for _ in 1..if given_up { 1 } else { TRIES } {
            let Err(err) = &written else { break };
            if err.raw_os_error() == Some(libc::ENOTCONN) {
                break;
            }
            tracing::error!("{}: not everything is written back: {err}", self.root.display());
            std::thread::sleep(TRY_EVERY);
            written = self.engine.flush_all(true);
        }
        written
    }

    /// SIGTERM stops lazily: the sender asked for the end, and waits for no answer.
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

    /// Data that cannot be written keeps a mount alive, with the reason in the log: the user can make room
    /// and ask again. The private mount of a command that has ended cannot be reached: after a while it ends,
    /// and its unwritten data is lost.
    fn obey(&self) {
        for tried in 1.. {
            let last = self.kind == Kind::Run && tried == TRIES;
            match self.stop(true, last) {
                Ok(stopped) => {
                    if let Some(lost) = stopped.lost {
                        tracing::error!("{}: lost: {}", self.mnt.display(), data_loss::described(&lost));
                    }
                    return;
                }
                Err(no) => tracing::error!("{}: not stopped: {no}", self.mnt.display()),
            }
            if self.kind == Kind::Mount {
                return;
            }
            std::thread::sleep(TRY_EVERY);
        }
    }
}
