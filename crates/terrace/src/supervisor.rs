//! The supervisor: holds the resources that must outlive a crash of the daemon, and restarts the daemon.
//!
//! It creates the memory files, opens /dev/fuse, mounts and binds the sockets. Then it starts terraced as a
//! child that shares its descriptor table (`clone(CLONE_FILES)`). So no descriptor dies with terraced:
//! neither those above, nor the files that terraced opens. The supervisor has one thread, and does little
//! that can fail once terraced runs.
//!
//! ```text
//!   start ──► terraced ──exit 0──► clean up, end          (unmounted or stopped)
//!     ▲           │ killed, crashed
//!     └───────────┘ unless it crashed too often; then unmount and report
//! ```
//!
//! A third process, the aborter (`aborter.rs`), shares no descriptors with them. It ends the FUSE connection
//! if both are killed at once, so that no program waits for ever.
//!
//! Rule of the shared table: during a recovery, terraced closes every descriptor that it does not know. So
//! between `go` and `ready` the supervisor opens none.

mod aborter;
mod crashes;
mod notify;
mod setup;
mod stuck;
mod watch;

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::process::Pid;
use terrace_opens::holder_word;

use crate::error::{EXIT_FAILED, Failure, Result, reason};
use crate::handover::Shared;
use crate::handover::channel::{self, Channel};
use crate::instance;
use crate::limits;
use crate::mounts::{self, How, Layer};
use crate::sys::{self, Side};

pub(crate) use crashes::{CRASHES_MAX, CRASHES_WITHIN, Crashes, End, Next};
pub(crate) use setup::{By, Task};
pub(crate) use setup::{bind, start_log};
use watch::{Ended, Watch};

/// A supervisor running in the background.
#[derive(Debug)]
pub(crate) struct Started {
    pub pid: Pid,
    /// Channel for its reports.
    pub line: Channel,
}

/// Starts a supervisor process for the task; returns once the mount is served.
pub(crate) fn start(mut task: Task) -> Result<Started> {
    let fail = |err: std::io::Error| {
        Failure::new("the supervisor cannot start", reason(err), "free some memory and try again")
    };
    let (mut line, supervisors) = channel::pair().map_err(fail)?;
    match sys::fork().map_err(fail)? {
        Side::Child => {
            drop(line);
            task.starter = Some(supervisors);
            sys::exit_now(i32::from(supervise(task).is_err()) * i32::from(EXIT_FAILED))
        }
        Side::Parent(pid) => {
            drop((supervisors, task));
            line.wait_ready(|warning| terrace_output::error_line!("{warning}"))?;
            Ok(Started { pid, line })
        }
    }
}

/// Becomes the supervisor for the task; returns at the end of the instance.
pub(crate) fn supervise(mut task: Task) -> Result<()> {
    limits::raise();
    sys::block(watch::SIGNALS);
    let mut starter = task.starter.take();
    if let Some(starter) = &starter {
        // Inherited descriptors belong to the command's caller, for example a pipe with a reader that waits
        // for its end.
        let mut kept = vec![starter.as_fd().as_raw_fd(), task.place.src_fd.as_raw_fd()];
        kept.extend(task.place.claim.iter().flat_map(|claim| claim.descriptors()));
        sys::close_all_but(&kept);
    }
    let (shared, lock, ends) = match setup::prepare(task, starter.as_mut()) {
        Ok(made) => made,
        Err(failure) => {
            if let Some(mut starter) = starter {
                starter.say(&format!("failed {failure}"));
            }
            return Err(failure);
        }
    };
    if shared.fuse.is_none()
        && let Err(err) = holder_word::register_holder(shared.memory.leases_for_ever())
    {
        tracing::error!(
            "the kernel has no robust futexes ({err}): programs read the source directly, without the cache"
        );
        holder_word::end(shared.memory.leases());
    }
    let (mut shared, ended, starter) = Watch::new(shared, ends, starter).run();
    shared.kept.extend(starter.as_ref().map(|(starter, _)| starter.as_fd().as_raw_fd()));
    clean_up(shared, &ended, lock);
    // This message comes last: after it, a client may check the mount or mount again.
    if let Some((mut starter, last_words)) = starter {
        starter.say(&last_words);
    }
    match ended {
        Ended::Done => Ok(()),
        Ended::Refused(failure) | Ended::GaveUp(failure) | Ended::Lost(failure) => Err(failure),
    }
}

/// Unmounts if necessary, then removes the directory.
///
/// If data may be lost, the directory stays: the waiting command or next `terrace mount` reports the loss
/// from it.
fn clean_up(shared: Shared, ended: &Ended, lock: instance::Lock) {
    let Shared { place, tier, fuse, mount_dev, kept, instance, .. } = shared;
    let was_mounted = fuse.is_some();
    drop(fuse);
    // Before the directory goes: afterwards another instance may use the tier.
    drop(tier);
    // terraced's descriptors are still open here. One may be a copy of /dev/fuse, which keeps the connection
    // alive.
    sys::close_all_but(&kept);
    if was_mounted && let Err(err) = unmount_what_is_left(&place.mnt, mount_dev, ended) {
        let mnt = place.mnt.display();
        tracing::error!("{mnt}: the dead mount cannot be removed ({err}); clear it with `umount -l {mnt}`");
    }
    // The claim is released before the record goes: without a record the next command cannot name the claim's
    // holder.
    drop(place);
    if matches!(ended, Ended::Done | Ended::Refused(_)) {
        instance.remove();
    }
    drop(lock);
}

fn unmount_what_is_left(mnt: &Path, dev: Option<(u32, u32)>, ended: &Ended) -> std::io::Result<()> {
    if mounts::layer(mnt, dev) != Layer::Top {
        return Ok(());
    }
    match ended {
        Ended::GaveUp(_) => mounts::clear(mnt),
        // A mount that answers belongs to another instance, which has since got the same device number.
        _ if mounts::is_disconnected(mnt) => mounts::unmount(mnt, How::Lazy),
        _ => Ok(()),
    }
}
