//! The aborter: a process that ends the FUSE connection when supervisor and terraced are dead.
//!
//! Usually the kernel ends the connection when the last descriptor of /dev/fuse is closed. But a thread of a
//! dead terraced may hang in the kernel (`stuck.rs`). It waits for a page or directory lock of a program. A
//! request of that program waits for the dead terraced. The thread keeps the descriptor table alive, and with
//! it the connection. Programs that wait for answers would then wait for ever, and could not be killed.
//!
//! The aborter shares no descriptors and accesses no mount, so it cannot hang with the others. Supervisor and
//! terraced do not depend on it. The aborter is no child of the supervisor: terraced is the only one.
//!
//! ```text
//!   supervisor: "thread PID TID" at each start of terraced ──► the aborter
//!   supervisor dead ──► terraced, if it lives, serves on ──► that thread ends ──► abort
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, WaitOptions};
use terrace_fs::fuse::refuse::Refuser;

use super::stuck::{LOOK_EVERY, Thread};
use crate::handover::channel::{self, Channel, Event, Poll};
use crate::mounts::abort::Abort;
use crate::sys::{self, Side};

/// Another name than `terrace`: a kill of all processes of that name spares it.
const NAME: &std::ffi::CStr = c"fuse-aborter";

/// Method of ending the connection.
#[derive(Debug)]
pub(super) enum Means {
    /// The kernel's abort file.
    Abort(Abort),
    /// Without that file: answers all requests with an error, until no program waits.
    Refuse(Refuser),
}

impl Means {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Means::Abort(abort) => abort.as_fd(),
            Means::Refuse(refuser) => refuser.as_fd(),
        }
    }
}

/// Chooses the method for the mount of device `dev` (if known) with the connection `fuse`.
pub(super) fn means(dev: Option<(u32, u32)>, fuse: BorrowedFd<'_>) -> io::Result<Means> {
    let abort = dev.ok_or(io::ErrorKind::NotFound.into()).and_then(Abort::of);
    match abort {
        Ok(abort) => Ok(Means::Abort(abort)),
        Err(_) => Ok(Means::Refuse(Refuser::new(fuse.try_clone_to_owned()?))),
    }
}

/// Starts the aborter; returns the supervisor's channel to it. `log`: standard error is the instance's log.
pub(super) fn start(means: Means, log: bool) -> io::Result<Channel> {
    let (line, its) = channel::pair()?;
    let supervisor = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    match sys::fork()? {
        // Double fork: the aborter must not be a child of the supervisor.
        Side::Child => match sys::fork() {
            Ok(Side::Child) => {
                drop(line);
                let done = set_apart(&[its.as_fd(), supervisor.as_fd(), means.as_fd()], log);
                sys::exit_now(i32::from(done.and_then(|()| live(its, &supervisor, means)).is_err()))
            }
            made => sys::exit_now(i32::from(made.is_err())),
        },
        Side::Parent(child) => {
            let ended =
                rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(child), WaitOptions::empty()))?;
            match ended.and_then(|(_, status)| status.exit_status()) {
                Some(0) => Ok(line),
                _ => Err(io::Error::other("cannot start its process")),
            }
        }
    }
}

/// Closes all other descriptors of the supervisor, and detaches from its session and directory.
fn set_apart(needed: &[BorrowedFd<'_>], log: bool) -> io::Result<()> {
    let kept: Vec<RawFd> = needed.iter().map(AsRawFd::as_raw_fd).collect();
    sys::close_all_but(&kept);
    rustix::process::setsid()?;
    rustix::thread::set_name(NAME)?;
    std::env::set_current_dir("/")?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    (0..if log { 2 } else { 3 }).try_for_each(|stream| sys::replace_fd(&null, stream))
}

/// The aborter's view of terraced.
struct Known {
    /// Working thread of the latest terraced.
    thread: Thread,
    /// All terraced processes that have not ended.
    processes: Vec<OwnedFd>,
    /// The channel has ended: the supervisor is ending the instance itself, and the aborter must not keep the
    /// connection. Or the supervisor is dead.
    is_let_go: bool,
}

fn live(mut line: Channel, supervisor: &OwnedFd, means: Means) -> io::Result<()> {
    let mut known = Known { thread: Thread::none()?, processes: Vec::new(), is_let_go: false };
    loop {
        // Read the channel first: messages sent before the supervisor's death count.
        let mut fds =
            [line.as_fd(), supervisor.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let _ = rustix::event::poll(&mut fds, None);
        let [said, dead] = fds.map(|fd| !fd.revents().is_empty());
        if said {
            while known.poll(&mut line) && line.has_line() {}
            if known.is_let_go && !ends_soon(supervisor) {
                return Ok(());
            }
        }
        if dead || known.is_let_go {
            break;
        }
    }
    known.await_end();
    match means {
        Means::Abort(abort) => abort.abort()?,
        Means::Refuse(refuser) => refuser.run(|| known.is_over())?,
    }
    Ok(())
}

impl Known {
    /// Reads a message; false if there was none.
    fn poll(&mut self, line: &mut Channel) -> bool {
        match line.poll() {
            Poll::Line(line) => {
                if let Some(Event::ThreadOf(process, thread)) = channel::parse(&line)
                    && let (Some(process), Some(thread)) = (Pid::from_raw(process), Pid::from_raw(thread))
                {
                    self.thread.watch(process, thread);
                    self.processes.retain(|process| !has_ended(process));
                    let opened = rustix::process::pidfd_open(process, PidfdFlags::empty());
                    self.processes.extend(opened);
                }
                true
            }
            Poll::Nothing => false,
            Poll::End => {
                self.is_let_go = true;
                false
            }
        }
    }

    /// Waits for the end of the latest terraced, if there was one.
    fn await_end(&self) {
        let every = Timespec { tv_sec: 0, tv_nsec: LOOK_EVERY.subsec_nanos().into() };
        while !self.processes.is_empty() && !self.thread.is_ending() {
            let mut fds: Vec<_> =
                self.thread.end().iter().map(|end| PollFd::from_borrowed_fd(*end, PollFlags::IN)).collect();
            let _ = rustix::event::poll(&mut fds, Some(&every));
        }
    }

    /// Have all threads of all terraced processes ended?
    fn is_over(&self) -> bool {
        self.processes.iter().all(has_ended)
    }
}

/// Does the supervisor end within 100 ms? Its channel closes slightly before it is dead.
fn ends_soon(supervisor: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(supervisor, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 }))
        .is_ok_and(|ended| ended > 0)
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ended| ended > 0)
}
