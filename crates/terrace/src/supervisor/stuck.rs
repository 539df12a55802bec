//! Detects a killed terraced that does not end.
//!
//! terraced's preload thread inspects descriptors that clients send, which are files of its own mount.
//! Closing one, or reading its attributes, can be a request to terraced itself. The kernel waits for the
//! answer to a request that was read, even in a killed thread. With the answering threads dead, the wait
//! never ends; the process stays, and its parent is not notified.
//!
//! The same holds for the thread that makes the kernel drop pages (`fuse/late.rs`). It writes to /dev/fuse,
//! and waits for reads that dead threads had taken.
//!
//! So the supervisor also watches one thread that never accesses the mount, and dies when killed. If the
//! other threads do not follow soon, the supervisor inspects them. If all are in calls that write nothing to
//! the source, the next terraced starts beside them. The next terraced makes the kernel resend the requests
//! and answers them, and the old threads end.
//!
//! A signal that dumps core (SIGABRT of a panic, SIGSEGV, ...) stops the dying threads. The first one waits
//! for all others to arrive, even if core dumps are off. So no thread dies while one hangs. Only the flags in
//! `stat` show this state, and no descriptor does, so the supervisor polls them.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::{DupFlags, Errno};
use rustix::process::{Pid, PidfdFlags};
use terrace_system::proc;

use crate::sys::{self, SignalNumber};

/// System calls in which a dead terraced may wait for itself. None of them writes to the source.
const HARMLESS: &[i64] = &[
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup3,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_umount2,
];

/// Calls of [`HARMLESS`] that write back the kernel's page cache of a file on FUSE.
const CLOSING: &[i64] = &[libc::SYS_close, libc::SYS_close_range, libc::SYS_dup3];

/// FUSE in statfs(2).
const FUSE_MAGIC: rustix::fs::FsWord = 0x6573_5546;

/// Kernel function in which a thread waits for the answer to a FUSE request (fs/fuse/dev.c).
const FUSE_WAIT: &str = "request_wait_answer";

/// Interval for polling [`Thread::is_ending`].
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The watched thread: its end shows that of its process. Its descriptors keep their numbers, so that
/// terraced leaves them open.
#[derive(Debug)]
pub(super) struct Thread {
    /// Its `stat` file, read repeatedly without another open.
    stat: OwnedFd,
    /// A pidfd that is readable once the thread is dead (Linux 6.9).
    end: OwnedFd,
    has_end: bool,
    /// The thread was already dead when the watch began.
    gone: bool,
}

impl Thread {
    /// No thread is watched yet.
    pub(super) fn none() -> io::Result<Thread> {
        let null = || File::open("/dev/null").map(OwnedFd::from);
        Ok(Thread { stat: null()?, end: null()?, has_end: false, gone: false })
    }

    /// Watches the given thread from now on.
    pub(super) fn watch(&mut self, process: Pid, thread: Pid) {
        let (process, id) = (process.as_raw_pid(), thread.as_raw_pid());
        let stat = File::open(format!("/proc/{process}/task/{id}/stat")).map(OwnedFd::from);
        let replaced = |new: &OwnedFd, slot| rustix::io::dup3(new, slot, DupFlags::CLOEXEC).is_ok();
        self.has_end = end_of(thread).is_some_and(|end| replaced(&end, &mut self.end));
        let gone = |err: &io::Error| matches!(err.raw_os_error(), Some(libc::ENOENT | libc::ESRCH));
        self.gone = stat.as_ref().is_err_and(gone);
        if stat.is_ok_and(|stat| replaced(&stat, &mut self.stat)) || self.gone {
            return;
        }
        tracing::warn!("no descriptor is free to watch terraced: after a kill the next one may start late");
    }

    pub(super) fn forget(&mut self) {
        (self.has_end, self.gone) = (false, false);
        if let Ok(null) = File::open("/dev/null") {
            let _ = rustix::io::dup3(&null, &mut self.stat, DupFlags::CLOEXEC);
        }
    }

    /// Descriptor that is readable once the thread is dead, if the kernel has it.
    pub(super) fn end(&self) -> Option<BorrowedFd<'_>> {
        self.has_end.then(|| self.end.as_fd())
    }

    /// Is the thread exiting, so that it makes no more system calls? False if none is watched.
    pub(super) fn is_ending(&self) -> bool {
        let mut stat = [0; 1024];
        match rustix::io::pread(&self.stat, &mut stat, 0) {
            _ if self.gone => true,
            Ok(len) => proc::is_ending(&String::from_utf8_lossy(&stat[..len])),
            Err(err) => err == Errno::SRCH,
        }
    }
}

/// A pidfd of a thread, readable at its death; none before Linux 6.9. Not for a process's first thread, which
/// the kernel reports only after all others.
fn end_of(thread: Pid) -> Option<OwnedFd> {
    // PIDFD_THREAD has the value of O_EXCL.
    let of_thread = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);
    rustix::process::pidfd_open(thread, of_thread).ok()
}

/// The state of a dying process that does not end.
#[derive(Debug)]
pub(super) enum Rest {
    /// All remaining threads wait for answers from their own process, or dump core.
    WaitsForItself,
    /// No thread is left, or one does work that must be completed.
    Ends,
    /// The state cannot be read, for this reason.
    Unknown(io::Error),
}

/// State of the remaining threads of a dying process that serves `source`.
pub(super) fn rest_of(pid: Pid, source: BorrowedFd<'_>) -> Rest {
    // If unknown, assume FUSE: then fewer calls count as harmless.
    let on_fuse = rustix::fs::fstatfs(source).map_or(true, |fs| fs.f_type == FUSE_MAGIC);
    rest_in(format!("/proc/{}/task", pid.as_raw_pid()).as_ref(), on_fuse)
}

/// [`rest_of`], for a directory of threads. If the source is FUSE as well, a wait for FUSE may be a write to
/// the source.
///
/// All processes may read `stat`. `syscall` needs the right to trace, which some containers and Yama's
/// `ptrace_scope` 2 (except for root) or 3 refuse. `wchan` and `fd` need fewer rights. Where `syscall` cannot
/// be read, `wchan` still shows a wait for a FUSE answer.
fn rest_in(tasks: &Path, source_on_fuse: bool) -> Rest {
    let Ok(tasks) = fs::read_dir(tasks) else { return Rest::Ends };
    let (mut waits, mut unknown) = (false, None);
    for task in tasks.flatten().map(|task| task.path()) {
        // A thread that has just ended cannot be read.
        let Ok(stat) = fs::read_to_string(task.join("stat")) else { continue };
        if proc::is_ending(&stat) {
            waits |= proc::is_dumping(&stat);
            continue;
        }
        match fs::read_to_string(task.join("syscall")) {
            Ok(call) if is_harmless(&call, source_on_fuse, |fd| sys::is_fuse(&task, fd)) => waits = true,
            Ok(_) => return Rest::Ends,
            Err(_) if !source_on_fuse && waits_for_fuse(&task) => waits = true,
            Err(err) => unknown = Some(err),
        }
    }
    match unknown {
        Some(err) => Rest::Unknown(err),
        None if waits => Rest::WaitsForItself,
        None => Rest::Ends,
    }
}

/// Does a thread wait for the answer to a FUSE request, by its kernel function?
fn waits_for_fuse(task: &Path) -> bool {
    fs::read_to_string(task.join("wchan")).is_ok_and(|function| function.trim() == FUSE_WAIT)
}

/// The signal that killed a dying process; none if the kernel does not show it.
pub(super) fn killed_by(pid: Pid) -> Option<SignalNumber> {
    // `exit_code`, field 52 of proc_pid_stat(5).
    let stat = proc::text(pid.as_raw_pid(), "stat").ok()?;
    let status: i32 = proc::stat_fields(&stat).nth(49)?.parse().ok()?;
    Some(status & 0x7f).filter(|signal| *signal != 0)
}

/// Parses `5 0x1f 0x7ffc... 0x7f...`, a call's number and arguments (`running` or `-1` outside a call).
/// `is_fuse`: is a descriptor a FUSE connection?
fn is_harmless(call: &str, source_on_fuse: bool, is_fuse: impl Fn(RawFd) -> bool) -> bool {
    let mut words = call.split(' ');
    let number = words.next().and_then(|number| number.parse().ok());
    let first = words.next().and_then(|word| RawFd::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    match number {
        Some(libc::SYS_write | libc::SYS_writev) => first.is_some_and(is_fuse),
        Some(number) if source_on_fuse && CLOSING.contains(&number) => false,
        number => number.is_some_and(|number| HARMLESS.contains(&number)),
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec};

    use super::*;

    #[test]
    fn the_end_of_a_thread_is_seen() {
        let (say, tid) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            say.send(rustix::thread::gettid()).unwrap();
            let _ = wait.recv();
        });
        let mut watched = Thread::none().unwrap();
        assert!(!watched.is_ending(), "there is none");
        watched.watch(rustix::process::getpid(), tid.recv().unwrap());
        let dead = |timeout| {
            let mut fds = watched.end().map(|end| [PollFd::from_borrowed_fd(end, PollFlags::IN)])?;
            Some(rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 1)
        };
        assert!(!watched.is_ending() && dead(Timespec { tv_sec: 0, tv_nsec: 0 }) != Some(true));
        drop(go);
        thread.join().unwrap();
        assert_ne!(dead(Timespec { tv_sec: 60, tv_nsec: 0 }), Some(false));
        while !watched.is_ending() {
            std::thread::yield_now();
        }
        watched.forget();
        assert!(!watched.is_ending(), "none again");
    }

    #[test]
    fn only_calls_that_write_nothing_are_harmless() {
        let is_fuse = |fd| fd == 31;
        for call in [libc::SYS_close, libc::SYS_writev].map(|number| format!("{number} 0x1f 0x0")) {
            assert!(is_harmless(&call, false, is_fuse), "{call}");
        }
        let elsewhere = format!("{} 0x1e 0x0", libc::SYS_writev);
        for call in ["", "running", "-1 0x7ffd 0x7f", &elsewhere, &format!("{} 0x3", libc::SYS_pwrite64)] {
            assert!(!is_harmless(call, false, is_fuse), "{call}");
        }
    }

    #[test]
    fn a_wait_for_fuse_is_seen_where_calls_cannot_be_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let thread = |id: &str, state: &str, wchan: &str| {
            let task = dir.path().join(id);
            // A directory stands for a file that cannot be read.
            fs::create_dir_all(task.join("syscall")).unwrap();
            fs::write(task.join("stat"), format!("{id} (terraced) {state} 1 7 7 0 -1 4194304 28 0")).unwrap();
            fs::write(task.join("wchan"), wchan).unwrap();
        };
        thread("1", "Z", "0");
        assert!(matches!(rest_in(dir.path(), false), Rest::Ends), "it is dead");
        thread("2", "D", "request_wait_answer");
        assert!(matches!(rest_in(dir.path(), false), Rest::WaitsForItself));
        assert!(
            matches!(rest_in(dir.path(), true), Rest::Unknown(_)),
            "the source is FUSE, too: it may write there"
        );
        thread("3", "D", "rwsem_down_write_slowpath");
        assert!(matches!(rest_in(dir.path(), false), Rest::Unknown(_)), "it may write to the source");
        fs::remove_dir(dir.path().join("3/syscall")).unwrap();
        fs::write(dir.path().join("3/syscall"), format!("{} 0x3", libc::SYS_pwrite64)).unwrap();
        assert!(matches!(rest_in(dir.path(), false), Rest::Ends), "it does");
    }

    #[test]
    fn a_process_in_another_call_is_not_stuck() {
        let child = std::process::Command::new("sleep").arg("5").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let source = File::open("/proc/self/exe").unwrap();
        assert!(matches!(rest_of(pid, source.as_fd()), Rest::Ends), "it has no other thread");
        sys::send(pid, libc::SIGKILL);
        let mut child = child;
        child.wait().unwrap();
    }
}
