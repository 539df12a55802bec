//! Lock of a tier for one instance: a write lock on the open file (F_OFD_SETLK).
//!
//! The lock belongs to the open file, and ends with its last descriptor. It survives a crash of terraced,
//! because the supervisor has the same descriptor. Operations of io_uring can hold the open file for a moment
//! after all processes have ended.

use super::error::Fault;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};
use terrace_system::{field, proc};

/// Longest wait for the lock of an ending process.
const END_MAX: Duration = if cfg!(test) { Duration::from_secs(2) } else { Duration::from_secs(5) };
const PAUSE: Duration = Duration::from_millis(20);

/// Takes the lock. Waits while its holder is not visible or has been killed.
///
/// # Errors
/// Another instance has the lock; the file system has no locks.
pub(super) fn take_or_wait(file: impl AsFd) -> Result<(), Fault> {
    try_or_wait(file.as_fd(), |file| take(file))
}

/// Waits as [`take_or_wait`] until the lock is free, without taking it.
///
/// # Errors
/// As [`take_or_wait`].
pub(super) fn wait_until_free(file: impl AsFd) -> Result<(), Fault> {
    try_or_wait(file.as_fd(), |file| Ok(!is_taken(file)?))
}

/// The same for a block device: the kernel drops a process's claim (O_EXCL) a moment after its lock.
///
/// # Errors
/// As [`take_or_wait`].
pub(super) fn wait_until_device_is_free(device: impl AsFd) -> Result<(), Fault> {
    wait_until_free(device)?;
    std::thread::sleep(PAUSE);
    Ok(())
}

fn try_or_wait(
    file: BorrowedFd<'_>,
    attempt: impl Fn(BorrowedFd<'_>) -> io::Result<bool>,
) -> Result<(), Fault> {
    let until = Instant::now() + END_MAX;
    let mut before = None;
    loop {
        if attempt(file).map_err(Fault::Io)? {
            return Ok(());
        }
        let holder = holder(file);
        // A process between fork and exec has all descriptors of its parent for a moment.
        let is_alive = holder.is_some_and(|pid| !is_ending(pid)) && holder == before;
        if is_alive || Instant::now() >= until {
            return Err(Fault::InUse(holder));
        }
        before = holder;
        std::thread::sleep(PAUSE);
    }
}

/// Takes the lock. False: another instance has it.
///
/// # Errors
/// The file system has no locks.
pub(super) fn take(file: impl AsFd) -> io::Result<bool> {
    let lock = whole(libc::F_WRLCK);
    // SAFETY: an open descriptor and an initialised lock, which the kernel reads.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } {
        0 => Ok(true),
        _ => match io::Error::last_os_error() {
            err if [Some(libc::EAGAIN), Some(libc::EACCES)].contains(&err.raw_os_error()) => Ok(false),
            err => Err(err),
        },
    }
}

/// Whether another instance has the lock.
///
/// # Errors
/// The file system has no locks.
pub(super) fn is_taken(file: impl AsFd) -> io::Result<bool> {
    let mut lock = whole(libc::F_WRLCK);
    // SAFETY: an open descriptor and an initialised lock, which the kernel reads and writes.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok(i32::from(lock.l_type) != libc::F_UNLCK),
        _ => Err(io::Error::last_os_error()),
    }
}

fn whole(kind: libc::c_int) -> libc::flock {
    // SAFETY: plain numbers, for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short);
    lock
}

/// The process that holds the lock, if visible to this user. The kernel names no holder, so this searches the
/// descriptors of processes. If a supervisor and its terraced both hold the lock, the result is the
/// supervisor.
pub(super) fn holder(file: impl AsFd) -> Option<i32> {
    let stat = rustix::fs::fstat(file.as_fd()).ok()?;
    let is_it = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|meta| (meta.dev(), meta.ino()) == (stat.st_dev, stat.st_ino))
    };
    let own = std::process::id() as i32;
    let holders: Vec<i32> = proc::pids().filter(|pid| *pid != own && has_locked(*pid, is_it)).collect();
    let is_child = |pid: &i32| proc::stat(pid).is_some_and(|stat| holders.contains(&stat.parent));
    holders.iter().find(|pid| !is_child(pid)).or(holders.first()).copied()
}

/// Whether the process ends: it keeps its descriptors until the kernel has freed its memory.
fn is_ending(pid: i32) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let (Ok(stat), Ok(status)) = (proc::text(pid, "stat"), proc::text(pid, "status")) else { return true };
    let pending = |name| u64::from_str_radix(field(&status, name)?, 16).ok();
    let is_killed = |name| pending(name).is_some_and(|signals| signals & KILL != 0);
    proc::is_ending(&stat) || is_killed("SigPnd") || is_killed("ShdPnd")
}

/// Whether a descriptor of the process refers to the file and holds a lock.
fn has_locked(pid: i32, is_it: impl Fn(&Path) -> bool) -> bool {
    let Ok(fds) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let locked = |fd: &str| {
        let info = proc::text(pid, &format!("fdinfo/{fd}")).unwrap_or_default();
        info.lines().any(|line| line.starts_with("lock:") && line.contains("OFDLCK"))
    };
    fds.flatten().any(|fd| is_it(&fd.path()) && fd.file_name().to_str().is_some_and(locked))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn killed_process_is_ending_and_a_running_one_is_not() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        assert!(!is_ending(pid) && !is_ending(std::process::id() as i32));
        child.kill().unwrap();
        assert!(is_ending(pid), "killed, or a zombie");
        child.wait().unwrap();
        assert!(is_ending(pid), "gone");
    }
}
