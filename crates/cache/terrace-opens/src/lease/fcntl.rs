//! Calls for read leases of the kernel: take, give back, wait for breaks (fcntl(2), "Leases"; fs/locks.c).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// fcntl's commands for the signal of a lease and its receiver (Linux: include/uapi/asm-generic/fcntl.h).
const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

#[repr(C)]
struct Owner {
    kind: libc::c_int,
    pid: libc::pid_t,
}

/// The kernel's signal for a lease break; it carries the descriptor's number.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 3
}

fn done(ret: libc::c_int) -> io::Result<()> {
    if ret == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes a read lease. The kernel signals breaks to thread `tid`, which has blocked them ([`block`]).
///
/// # Errors
/// `WouldBlock`: a program has the file open for writing, or mapped writable. `PermissionDenied`: another
/// user owns it.
pub(crate) fn take(fd: BorrowedFd<'_>, tid: i32) -> io::Result<()> {
    tell(fd, tid)?;
    // SAFETY: plain numbers.
    done(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) })
}

/// Sends signals of lease breaks to the thread, until the lease is given back.
pub(crate) fn tell(fd: BorrowedFd<'_>, tid: i32) -> io::Result<()> {
    let owner = Owner { kind: F_OWNER_TID, pid: tid };
    // SAFETY: plain numbers, and a structure that the call reads.
    unsafe {
        done(libc::fcntl(fd.as_raw_fd(), F_SETSIG, signal()))?;
        done(libc::fcntl(fd.as_raw_fd(), F_SETOWN_EX, &raw const owner))
    }
}

/// Gives a lease back, if there is one. Opens that wait for it go on.
pub(crate) fn give_back(fd: BorrowedFd<'_>) {
    // SAFETY: plain numbers.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
}

/// Has a program the file open for writing, or mapped writable? Asks for a lease, which this descriptor must not
/// hold.
pub(crate) fn is_written(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: plain numbers.
    let refused = done(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) });
    give_back(fd);
    refused.is_err_and(|err| err.kind() == io::ErrorKind::WouldBlock)
}

/// Does this descriptor hold a read lease that no open waits to break?
pub(crate) fn is_held(fd: BorrowedFd<'_>) -> bool {
    is_leased(fd.as_raw_fd())
}

/// The same for a number, which need not be an open descriptor.
pub fn is_leased(fd: RawFd) -> bool {
    // SAFETY: plain numbers.
    unsafe { libc::fcntl(fd, libc::F_GETLEASE) == libc::F_RDLCK }
}

fn signals() -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal());
        // The kernel sends SIGIO instead when the signal queue is full.
        libc::sigaddset(set.as_mut_ptr(), libc::SIGIO);
        set.assume_init()
    }
}

/// Blocks the signals in this thread, so that it can [`wait`] for them.
pub(crate) fn block() {
    // SAFETY: a valid set; the mask of this thread alone.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &signals(), std::ptr::null_mut()) };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wakeup {
    /// An open waits for the lease of this descriptor.
    Break(RawFd),
    /// Signals were lost: any lease may be waited for.
    Any,
    /// [`wake`], or the time is over.
    Nothing,
}

/// Waits for a lease break, at most so long.
pub(crate) fn wait(at_most: Duration) -> Wakeup {
    let time = libc::timespec {
        tv_sec: at_most.as_secs() as libc::time_t,
        tv_nsec: at_most.subsec_nanos() as libc::c_long,
    };
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the set and the time are read, the information is written.
    let (got, info) =
        unsafe { (libc::sigtimedwait(&signals(), info.as_mut_ptr(), &time), info.assume_init()) };
    match got {
        libc::SIGIO => Wakeup::Any,
        // Only the kernel's signals have si_code above 0.
        got if got == signal() && info.si_code > 0 => Wakeup::Break(descriptor(&info)),
        _ => Wakeup::Nothing,
    }
}

/// si_fd, which the kernel sets for signals of F_SETSIG (sigaction(2)): after si_band, a long.
fn descriptor(info: &libc::siginfo_t) -> RawFd {
    const SI_FD: usize = 24;
    // SAFETY: inside a siginfo_t, which has 128 bytes, all of them initialised.
    unsafe { (&raw const *info).cast::<u8>().add(SI_FD).cast::<RawFd>().read() }
}

/// Wakes the thread `tid` of this process out of [`wait`].
pub(crate) fn wake(tid: i32) {
    // SAFETY: plain numbers.
    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), tid, signal()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;
    use std::time::Instant;
    use terrace_testkit::wait::wait_until;

    /// Premise of the crate: an open for writing waits for the lease, an open for reading does not.
    #[test]
    fn a_writer_waits_for_the_lease() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "x").unwrap();
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        let file = File::open(&path).unwrap();
        block();
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        assert_eq!(take(file.as_fd(), tid).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(writer);
        for _ in 0..2 {
            // A process that another test forks has the writer for a moment, too.
            wait_until("the lease", || take(file.as_fd(), tid).is_ok());
            assert!(is_held(file.as_fd()));
            File::open(&path).unwrap();
            let opener = {
                let path = path.clone();
                std::thread::spawn(move || {
                    OpenOptions::new().write(true).open(path).unwrap();
                    Instant::now()
                })
            };
            assert_eq!(wait(Duration::from_secs(20)), Wakeup::Break(file.as_raw_fd()));
            assert!(!is_held(file.as_fd()), "a lease that is to be given back counts no longer");
            std::thread::sleep(Duration::from_millis(20));
            let before = Instant::now();
            give_back(file.as_fd());
            assert!(opener.join().unwrap() > before);
        }
        wake(tid);
        assert_eq!(wait(Duration::from_secs(20)), Wakeup::Nothing);
    }
}
