//! The keeper: holds what must outlive a crash of the daemon, and starts the daemon again.
//!
//! It makes the memory files, opens /dev/fuse, mounts and binds the sockets; then it starts terraced as a child that shares
//! its table of file descriptors (`clone(CLONE_FILES)`). So no descriptor dies with terraced: neither those above nor the
//! files that terraced opens. The keeper has one thread, and does little that can fail once terraced runs.
//!
//! ```text
//!   start ──► terraced ──exit 0──► clean up, end          (unmounted, or told to stop)
//!     ▲           │ killed, crashed
//!     └───────────┘ unless it crashed of itself too often; then unmount and say so
//! ```
//!
//! Rule of the shared table: while terraced recovers it closes every descriptor that it does not know, so between `go` and
//! `ready` the keeper opens none.

mod crashes;
mod setup;
mod stuck;
mod watch;

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::mount::MountFlags;
use rustix::process::Pid;

use crate::config::Config;
use crate::daemon::Memory;
use crate::error::Result;
use crate::instance::{self, Instance, Kind};
use crate::mounts::{self, How};
use crate::place::Place;
use crate::report::Line;
use crate::sys;

use watch::{Ended, Watch};

/// What a keeper is to do.
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
    pub starter: Option<Line>,
}

/// What terraced inherits from its keeper, at its first start and at every other.
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
    /// /dev/fuse.
    pub fuse: OwnedFd,
    /// Where commands come in.
    pub control: UnixListener,
    /// Where clients of the fast door come in.
    pub door: OwnedFd,
    /// To the keeper: `ready`, or `failed LINE`.
    pub news: Line,
    /// From the keeper: a byte when terraced may begin to open and close descriptors.
    pub go: OwnedFd,
    /// Its directory.
    pub instance: Instance,
    /// Descriptors of the keeper, which terraced leaves open.
    pub kept: Vec<RawFd>,
    /// The keeper.
    pub keeper: Pid,
}

/// Exit status of a terraced that cannot start, after it said why.
pub const EXIT_REFUSED: i32 = 3;

/// Does the task; returns when the instance is over. The calling process becomes the keeper.
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
    let (shared, ended) = Watch::new(shared, heard, starter).run();
    clean_up(shared, &ended, lock);
    match ended {
        Ended::Done => Ok(()),
        Ended::Refused(failure) | Ended::GaveUp(failure) => Err(failure),
    }
}

/// Takes the mount away if it is still there, then the directory.
///
/// After too many crashes the directory of a mount stays: it tells the next `terrace mount` what was lost.
fn clean_up(shared: Shared, ended: &Ended, lock: instance::Lock) {
    let Shared { place, fuse, kept, instance, kind, .. } = shared;
    drop(fuse);
    // What terraced had open is still open here; among it may be a copy of /dev/fuse, which keeps the connection alive.
    setup::close_all_but(&kept);
    if let Err(err) = unmount_what_is_left(&place.mnt, ended) {
        tracing::error!("{}: cannot unmount: {err}", place.mnt.display());
    }
    if !matches!(ended, Ended::GaveUp(_)) || kind == Kind::Run {
        instance.remove();
    }
    drop(lock);
}

fn unmount_what_is_left(mnt: &Path, ended: &Ended) -> std::io::Result<()> {
    if mounts::at(mnt).is_none_or(|entry| entry.fstype != mounts::FSTYPE) {
        return Ok(());
    }
    match ended {
        Ended::GaveUp(_) => mounts::clear(mnt),
        // If it answers it is the mount of another instance, which has come in the meantime.
        _ if mounts::is_disconnected(mnt) => mounts::unmount(mnt, How::Lazy),
        _ => Ok(()),
    }
}
