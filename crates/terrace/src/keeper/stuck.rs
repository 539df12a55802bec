//! A killed terraced that does not end.
//!
//! Its door thread looks at descriptors that clients show it, which are files of its own mount; closing one, or asking for its
//! attributes, can be a request to itself. The kernel lets a thread wait for the answer to a request that was read, whatever
//! kills it: with the answering threads dead it waits for ever, the process with it, and nobody is told of its end.
//! So it is with a thread that makes the kernel forget pages (`fuse/late.rs`): it writes to /dev/fuse, and waits for reads that others had taken.
//! So the keeper also watches one thread that never asks the mount and dies when it is killed. If the others do not follow
//! within a moment, and all that remain are in calls that write nothing to the source, the next terraced may be started
//! beside them: it has the kernel send the request again, answers it, and they end.

use std::fs;
use std::os::fd::{OwnedFd, RawFd};

use rustix::process::{Pid, PidfdFlags};

use crate::sys;

/// Calls in which a dead terraced may wait for itself. None of them writes to the source.
const HARMLESS: &[i64] = &[
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup3,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_umount2,
];

/// A descriptor that is readable when a thread (not a process's first, for which the kernel waits for the others) is dead;
/// none before Linux 6.9.
pub fn watch(thread: Pid) -> Option<OwnedFd> {
    // PIDFD_THREAD has the value of O_EXCL.
    let of_thread = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);
    rustix::process::pidfd_open(thread, of_thread).ok()
}

/// Whether all that is left of a dying process waits for answers from itself.
pub fn waits_for_itself(pid: Pid) -> bool {
    let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", pid.as_raw_pid())) else { return false };
    let others = tasks.flatten().filter(|task| task.file_name() != pid.as_raw_pid().to_string().as_str());
    let mut count = 0;
    for task in others {
        let call = fs::read_to_string(task.path().join("syscall")).unwrap_or_default();
        if !is_harmless(&call, |fd| sys::is_fuse(&task.path(), fd)) {
            return false;
        }
        count += 1;
    }
    count > 0
}

/// `5 0x1f 0x7ffc... 0x7f...`: the call's number and arguments; `running` or `-1` outside of one. `is_fuse` tells of a descriptor whether it is
/// a connection of FUSE.
fn is_harmless(call: &str, is_fuse: impl Fn(RawFd) -> bool) -> bool {
    let mut words = call.split(' ');
    let number = words.next().and_then(|number| number.parse().ok());
    let first = words.next().and_then(|word| RawFd::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    match number {
        Some(libc::SYS_write | libc::SYS_writev) => first.is_some_and(is_fuse),
        number => number.is_some_and(|number| HARMLESS.contains(&number)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_thread_is_seen() {
        let (say, tid) = std::sync::mpsc::channel();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            say.send(rustix::thread::gettid()).unwrap();
            let _ = wait.recv();
        });
        let Some(fd) = watch(tid.recv().unwrap()) else { return };
        let ended = |timeout| {
            let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 1
        };
        assert!(!ended(rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }));
        drop(go);
        thread.join().unwrap();
        assert!(ended(rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 }));
    }

    #[test]
    fn only_calls_that_write_nothing_are_harmless() {
        let is_fuse = |fd| fd == 31;
        for call in [libc::SYS_close, libc::SYS_writev].map(|number| format!("{number} 0x1f 0x0")) {
            assert!(is_harmless(&call, is_fuse), "{call}");
        }
        let elsewhere = format!("{} 0x1e 0x0", libc::SYS_writev);
        for call in ["", "running", "-1 0x7ffd 0x7f", &elsewhere, &format!("{} 0x3", libc::SYS_pwrite64)] {
            assert!(!is_harmless(call, is_fuse), "{call}");
        }
    }

    #[test]
    fn a_process_in_another_call_is_not_stuck() {
        let child = std::process::Command::new("sleep").arg("5").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(!waits_for_itself(pid), "it has no other thread");
        sys::send(pid, libc::SIGKILL);
        let mut child = child;
        child.wait().unwrap();
    }
}
