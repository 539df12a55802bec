//! The supervisor: holds what must outlive a crash of the daemon, and starts the daemon again.
//!
//! It makes the memory files, opens /dev/fuse, mounts and binds the sockets; then it starts terraced as a child that shares
//! its table of file descriptors (`clone(CLONE_FILES)`). So no descriptor dies with terraced: neither those above nor the
//! files that terraced opens. The supervisor has one thread, and does little that can fail once terraced runs.
//!
//! ```text
//!   start ──► terraced ──exit 0──► clean up, end          (unmounted, or told to stop)
//!     ▲           │ killed, crashed
//!     └───────────┘ unless it crashed of itself too often; then unmount and say so
//! ```
//!
//! Beside them lives a process that shares no descriptors with them (`aborter.rs`): should both be killed at once, nobody must wait for ever.
//!
//! Rule of the shared table: while terraced recovers it closes every descriptor that it does not know, so between `go` and
//! `ready` the supervisor opens none.

mod aborter;
mod crashes;
mod notify;
mod setup;
mod stuck;
mod watch;

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::process::Pid;
use terrace_lease::guard;

use crate::error::{EXIT_FAILED, Failure, Result, reason};
use crate::handover::Shared;
use crate::handover::channel::{self, Channel};
use crate::instance;
use crate::limits;
use crate::mounts::{self, How, Layer};
use crate::sys::{self, Side};

pub use crashes::{CRASHES_MAX, CRASHES_WITHIN, Crashes, End, Next};
pub use setup::{By, Task};
pub use setup::{bind, start_log};
use watch::{Ended, Watch};

/// A supervisor that was started in the background.
#[derive(Debug)]
pub struct Started {
    /// Its process id.
    pub pid: Pid,
    /// The channel on which it reports.
    pub line: Channel,
}

/// Does the task in a process of its own; returns when the mount is served.
pub fn start(mut task: Task) -> Result<Started> {
    let fail =
        |err: std::io::Error| Failure::new("supervisor", reason(err), "free some memory and try again");
    let (mut line, supervisors) = channel::pair().map_err(fail)?;
    match sys::fork().map_err(fail)? {
        Side::Child => {
            drop(line);
            task.starter = Some(supervisors);
            sys::exit_now(i32::from(keep(task).is_err()) * i32::from(EXIT_FAILED))
        }
        Side::Parent(pid) => {
            drop((supervisors, task));
            line.wait_ready(|warning| terrace_output::error_line!("{warning}"))?;
            Ok(Started { pid, line })
        }
    }
}

/// Does the task; returns when the instance is over. The calling process becomes the supervisor.
pub fn keep(mut task: Task) -> Result<()> {
    limits::raise();
    sys::block(watch::SIGNALS);
    let mut starter = task.starter.take();
    if let Some(starter) = &starter {
        // Our command's inherited descriptors are its caller's: a pipe that somebody reads to its end, for example.
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
        && let Err(err) = guard::keep(shared.memory.leases_for_ever())
    {
        tracing::error!("clients cannot be told of our death, and are not served: {err}");
        guard::end(shared.memory.leases());
    }
    let (mut shared, ended, starter) = Watch::new(shared, ends, starter).run();
    shared.kept.extend(starter.as_ref().map(|(starter, _)| starter.as_fd().as_raw_fd()));
    clean_up(shared, &ended, lock);
    // A client that reads this may look for the mount, or mount again.
    if let Some((mut starter, last_words)) = starter {
        starter.say(&last_words);
    }
    match ended {
        Ended::Done => Ok(()),
        Ended::Refused(failure) | Ended::GaveUp(failure) | Ended::Lost(failure) => Err(failure),
    }
}

/// Takes the mount away if it is still there, then the directory.
///
/// Where something may be lost the directory stays: it tells what, to the command that waits or to the next `terrace mount`.
fn clean_up(shared: Shared, ended: &Ended, lock: instance::Lock) {
    let Shared { place, tier, fuse, mount_dev, kept, instance, .. } = shared;
    let was_mounted = fuse.is_some();
    drop(fuse);
    // Once the instance is gone, another may use its tier.
    drop(tier);
    // terraced's descriptors are still open here; one may be a copy of /dev/fuse, which keeps the connection alive.
    sys::close_all_but(&kept);
    if was_mounted && let Err(err) = unmount_what_is_left(&place.mnt, mount_dev, ended) {
        tracing::error!("{}: cannot unmount: {err}", place.mnt.display());
    }
    // The claim goes before the record: without a record the next command cannot name its holder.
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
        // If it answers it is the mount of another instance, which has come in the meantime and has got the same device.
        _ if mounts::is_disconnected(mnt) => mounts::unmount(mnt, How::Lazy),
        _ => Ok(()),
    }
}
