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
pub mod channel;
mod crashes;
mod setup;
mod shortage;
mod stuck;
mod watch;

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::mount::MountFlags;
use rustix::process::Pid;
use terrace_engine::device::target::Target;

use self::channel::Channel;
use crate::config::Config;
use crate::daemon::Memory;
use crate::error::{EXIT_FAILED, Failure, Result, reason};
use crate::instance::{self, Instance, Kind};
use crate::mountpoint::Place;
use crate::mounts::{self, How, Layer};
use crate::sys::{self, Side};

pub use shortage::{Kills, Shortage};
use watch::{Ended, Watch};

/// What a supervisor is to do.
#[derive(Debug)]
pub struct Task {
    /// Source and mount point.
    pub place: Place,
    /// All settings.
    pub config: Config,
    /// For everybody or for one command.
    pub kind: Kind,
    /// Read-only, noatime, ...
    pub flags: MountFlags,
    /// To the command that started it; none in the foreground.
    pub starter: Option<Channel>,
}

/// What terraced inherits from its supervisor, at its first start and at every other.
#[derive(Debug)]
pub struct Shared {
    /// Source and mount point.
    pub place: Place,
    /// All settings.
    pub config: Config,
    /// For everybody or for one command.
    pub kind: Kind,
    /// The memory files.
    pub memory: Memory,
    /// The tier on a device, locked.
    pub tier: Option<Target>,
    /// /dev/fuse.
    pub fuse: OwnedFd,
    /// The mount's device, major and minor, if the kernel's table had it.
    pub mount_dev: Option<(u32, u32)>,
    /// Where commands come in.
    pub control: UnixListener,
    /// Where clients of the preload path come in.
    pub preload: OwnedFd,
    /// To the supervisor: `ready`, or `failed LINE`.
    pub news: Channel,
    /// From the supervisor: a byte when terraced may begin to open and close descriptors.
    pub go: OwnedFd,
    /// Its directory.
    pub instance: Instance,
    /// Descriptors of the supervisor, which terraced leaves open.
    pub kept: Vec<RawFd>,
    /// The supervisor.
    pub supervisor: Pid,
    /// As the command was started with, which terraced keeps; see [`setup`].
    pub oom_score_adj: Option<i32>,
    /// Deaths for want of memory.
    pub shortage: Shortage,
}

/// Exit status of a terraced that cannot start, after it said why.
pub const EXIT_REFUSED: i32 = 3;
/// Exit status of a terraced that ended in order, but with a source that did not take everything, after it said so.
pub const EXIT_LOST: i32 = 4;

/// A supervisor that was started in the background.
#[derive(Debug)]
pub struct Started {
    /// Its process id.
    pub pid: Pid,
    /// What it says.
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
            line.wait_ready()?;
            Ok(Started { pid, line })
        }
    }
}

/// Does the task; returns when the instance is over. The calling process becomes the supervisor.
pub fn keep(mut task: Task) -> Result<()> {
    sys::block(watch::SIGNALS);
    let starter = task.starter.take();
    if let Some(starter) = &starter {
        // What our command inherited is its caller's: a pipe that somebody reads to its end, for example.
        setup::close_all_but(&[starter.as_fd().as_raw_fd(), task.place.src_fd.as_raw_fd()]);
    }
    let (shared, lock, heard) = match setup::prepare(task, starter.is_some()) {
        Ok(made) => made,
        Err(failure) => {
            if let Some(mut starter) = starter {
                starter.say(&format!("failed {failure}"));
            }
            return Err(failure);
        }
    };
    let (mut shared, ended, starter) = Watch::new(shared, heard, starter).run();
    shared.kept.extend(starter.as_ref().map(|(starter, _)| starter.as_fd().as_raw_fd()));
    clean_up(shared, &ended, lock);
    // Who hears this may look for the mount, or mount again.
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
    drop(fuse);
    // Whoever sees that the instance is gone may use its tier.
    drop(tier);
    // What terraced had open is still open here; among it may be a copy of /dev/fuse, which keeps the connection alive.
    setup::close_all_but(&kept);
    if let Err(err) = unmount_what_is_left(&place.mnt, mount_dev, ended) {
        tracing::error!("{}: cannot unmount: {err}", place.mnt.display());
    }
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
