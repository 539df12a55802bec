//! An orderly stop of an instance: it writes everything back, then unmounts. The end of the mount ends the
//! service.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use terrace_api::control::{CommandError, ErrorCode, ReleaseReply, StopReply};
use terrace_engine::Engine;
use terrace_sync::Mutex;

use super::front::Front;
use super::leases::Served;
use super::record;
use crate::claim::Claim;
use crate::data_loss;
use crate::error::reason;
use crate::handover::Shared;
use crate::handover::channel::Channel;
use crate::holders;
use crate::instance::{Instance, Kind};
use crate::mounts::{self, How, Layer};
use crate::sys;

pub(super) struct Stopper {
    engine: Arc<Engine>,
    /// The leases to end, where there is no mount.
    leases: Option<Served>,
    mnt: PathBuf,
    /// Distinguishes our mount from another at the same path.
    mount_dev: Option<(u32, u32)>,
    root: PathBuf,
    kind: Kind,
    instance: Instance,
    claim: Option<Arc<Claim>>,
    /// Refuses further changes, unless a program has a file open for writing.
    give_up_changes: Box<dyn Fn() -> bool + Send + Sync>,
    state: Mutex<State>,
}

/// Progress of the stop. Locked during a stop: one at a time.
#[derive(Debug)]
struct State {
    /// Our mount is gone: a later mount at its place is another instance's.
    gone: bool,
    /// Unwritable data were given up, and this was reported.
    given_up: bool,
    to_supervisor: Channel,
}

/// Interval and number of retries for unwritable data, when no command waits for the end.
const TRY_EVERY: Duration = Duration::from_secs(1);
const TRIES: usize = 10;

impl Stopper {
    pub(super) fn new(engine: Arc<Engine>, shared: &Shared, front: &Front) -> io::Result<Stopper> {
        let (leases, give_up_changes) = (front.leases(), front.give_up_changes());
        let (mnt, root) = (shared.place.mnt.clone(), record::root(shared));
        let (mount_dev, kind, instance) = (shared.mount_dev, shared.kind, shared.instance.clone());
        // A predecessor may have died during a stop: its caller repeats the request.
        instance.note_stopping(false);
        let claim = shared.place.claim.clone();
        let to_supervisor = shared.to_supervisor.try_clone()?;
        let state = Mutex::new(State { gone: false, given_up: false, to_supervisor });
        Ok(Stopper { engine, leases, mnt, mount_dev, root, kind, instance, claim, give_up_changes, state })
    }

    /// Flushes and unmounts. A mount in use stays, or with `lazy` is detached at once. A mount with data that
    /// cannot be written stays too, unless `lose`.
    pub(super) fn stop(&self, lazy: bool, lose: bool) -> Result<StopReply, CommandError> {
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
                return Err(CommandError::failed(format_args!(
                    "the source does not take the data: {}",
                    reason(err)
                )));
            }
            stopped.lost = Some(record::now(&self.engine, &self.root));
            state.given_up = true;
        }
        if !state.gone {
            stopped.in_use = self.unmount(lazy)?;
            state.gone = true;
            // Before the answer. A successor of a killed terraced would give leases for ever. With a mount it ends
            // by itself: the connection is gone.
            if self.leases.is_some() {
                state.to_supervisor.say("stopping");
            }
        }
        Ok(stopped)
    }

    /// Releases the claim on the source, if the mount is gone everywhere and all is written. No program may
    /// have a file open for writing. To programs that still read, later changes look like changes made beside
    /// a mount. Their own changes are refused.
    pub(super) fn release(&self) -> Result<ReleaseReply, CommandError> {
        let mounted = self.leases.is_some() || mounts::layer(&self.mnt, self.mount_dev) != Layer::Gone;
        if mounted {
            return Ok(ReleaseReply { mounted });
        }
        let is_seen = || self.mount_dev.is_some_and(|dev| !holders::seeing(dev).is_empty());
        if let Some(claim) = self.claim.as_ref().filter(|_| !is_seen()) {
            let flush = || self.engine.flush_all(true).map_err(|err| CommandError::failed(reason(err)));
            // First, so that a failed flush does not cost programs their right to change files.
            flush()?;
            if (self.give_up_changes)() {
                flush()?;
                claim.release();
            }
        }
        Ok(ReleaseReply { mounted })
    }

    /// Unmounts our mount and no other. True: the mount is in use, and detached lazily.
    fn unmount(&self, lazy: bool) -> Result<bool, CommandError> {
        if let Some(leases) = &self.leases {
            leases.stop();
            return Ok(false);
        }
        match mounts::layer(&self.mnt, self.mount_dev) {
            Layer::Top => {}
            // A user has unmounted it.
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
            Err(err) => {
                Err(CommandError::failed(format_args!("the kernel does not unmount it: {}", reason(err))))
            }
        }
    }

    /// Writes the last data of an instance after its mount is gone. If the source refuses them, retries for a
    /// while, because no command can do that later. Data that are still refused are lost. ENOTCONN ends the
    /// retries: the descriptors belong to a mount of the source with a dead server.
    pub(super) fn write_the_rest(&self) -> io::Result<()> {
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
            tracing::error!(
                "{}: the source does not take all data ({err}); terrace tries again for a while",
                self.root.display()
            );
            std::thread::sleep(TRY_EVERY);
            written = self.engine.flush_all(true);
        }
        written
    }

    /// SIGTERM stops lazily: a signal has no answer that could refuse it, so a mount in use is detached.
    pub(super) fn obey_signals(&self) {
        let signals = match sys::signal_fd(&[libc::SIGTERM]) {
            Ok(signals) => signals,
            Err(err) => {
                return tracing::error!(
                    "signals cannot be received ({err}): SIGTERM does not stop this instance, `terrace umount` does; raise the limit of open files"
                );
            }
        };
        loop {
            let mut fds = [rustix::event::PollFd::new(&signals, rustix::event::PollFlags::IN)];
            let _ = rustix::event::poll(&mut fds, None);
            while sys::next_signal(&signals).is_some() {
                self.obey();
            }
        }
    }

    /// Stops the instance. A stop fails if data cannot be written, or if the mount is covered. Then a mount
    /// stays, the log has the reason, and the user can stop it again. The instance of a finished command is out
    /// of the user's reach. After some tries, it ends without the unwritable data.
    fn obey(&self) {
        for tried in 1.. {
            let last = self.kind == Kind::Run && tried == TRIES;
            match self.stop(true, last) {
                Ok(stopped) => {
                    if let Some(lost) = stopped.lost {
                        tracing::error!(
                            "{}: the source refuses data, which are lost: {}",
                            self.mnt.display(),
                            data_loss::described(&lost)
                        );
                    }
                    return;
                }
                Err(no) => tracing::error!("{}: this mount does not stop: {no}", self.mnt.display()),
            }
            if self.kind == Kind::Mount {
                return;
            }
            std::thread::sleep(TRY_EVERY);
        }
    }
}
