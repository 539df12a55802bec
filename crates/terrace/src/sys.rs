//! System calls that no safe crate offers: fork and clone, signals, descriptors, the oom score, trials in
//! child processes.
//!
//! fork and clone need a single-threaded process: a command at its start, or the supervisor.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::process::Pid;
use rustix::thread::CapabilitySet;

/// Signals as libc numbers them.
pub(crate) type SignalNumber = i32;

/// Which side of a fork this is.
#[derive(Debug)]
pub(crate) enum Side {
    Child,
    /// The parent, with the id of the child.
    Parent(Pid),
}

/// Has this thread an effective capability?
pub(crate) fn has_capability(which: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(which))
}

/// fork(2) of a single-threaded process.
pub(crate) fn fork() -> io::Result<Side> {
    assert_single_threaded();
    // SAFETY: the process has one thread (asserted above), so the child inherits no lock that is held.
    side(unsafe { libc::fork() }.into())
}

/// Creates a child that shares the descriptor table, and nothing else.
///
/// The raw system call, since glibc's wrapper needs a stack and a function. Only glibc's fork() renews the
/// cached id of the main thread, so the child works on a fresh thread.
pub(crate) fn clone_sharing_files() -> io::Result<Side> {
    assert_single_threaded();
    let flags = libc::CLONE_FILES | libc::SIGCHLD;
    // SAFETY: no CLONE_VM: the child runs on its own copy of this stack. One thread, as in `fork`.
    side(unsafe { libc::syscall(libc::SYS_clone, flags as libc::c_long, 0, 0, 0, 0) })
}

fn side(returned: libc::c_long) -> io::Result<Side> {
    match returned {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        pid => Ok(Side::Parent(Pid::from_raw(pid as i32).expect("a process id is positive"))),
    }
}

fn assert_single_threaded() {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    assert_eq!(threads, 1, "fork with {threads} threads");
}

/// Exits without destructors or exit handlers, which belong to the parent process.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(code) }
}

fn set_of(signals: &[SignalNumber]) -> libc::sigset_t {
    // SAFETY: a sigset_t is plain memory; sigemptyset gives it its first value, the numbers are valid signals.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        set
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

/// Blocks `signals` in this thread and the threads it starts; returns the old mask.
pub(crate) fn block(signals: &[SignalNumber]) -> Mask {
    let (set, mut before) = (set_of(signals), set_of(&[]));
    // SAFETY: both sets are initialised.
    let failed = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, &mut before) };
    assert_eq!(failed, 0, "pthread_sigmask");
    Mask(before)
}

/// Sets the mask of this thread. Safe between fork and exec.
pub(crate) fn restore_mask(mask: &Mask) -> io::Result<()> {
    // SAFETY: the set is initialised.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &mask.0, std::ptr::null_mut()) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// A descriptor that is readable while one of `signals` (which must be blocked) is pending.
pub(crate) fn signal_fd(signals: &[SignalNumber]) -> io::Result<OwnedFd> {
    let set = set_of(signals);
    // SAFETY: `set` is initialised; -1 requests a new descriptor, which has no other owner.
    unsafe {
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signal {
    pub number: SignalNumber,
    /// Sent by the kernel for the terminal: its signals go to all of its foreground processes.
    pub from_kernel: bool,
}

/// The next pending signal, if any.
pub(crate) fn next_signal(fd: impl AsFd) -> Option<Signal> {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    match rustix::io::read(fd.as_fd(), &mut info) {
        Ok(length) if length == info.len() => {
            let word = |at: usize| i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
            let code = word(std::mem::offset_of!(libc::signalfd_siginfo, ssi_code));
            Some(Signal { number: word(0), from_kernel: code == libc::SI_KERNEL })
        }
        _ => None,
    }
}

/// Ends this process by the signal that ended the wrapped command; returns if that does not kill it.
pub(crate) fn die_by(signal: SignalNumber) {
    // No core file: the command has written its own, and one of terrace would only hide it.
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    let set = set_of(&[signal]);
    // SAFETY: default action and mask of a valid signal number; raise has no preconditions.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::raise(signal);
    }
}

/// Makes each system call that the preload library adds to its program, with arguments that change nothing.
pub(crate) fn try_library_calls() {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    let calls = [
        libc::SYS_statx,
        libc::SYS_lseek,
        libc::SYS_madvise,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mprotect,
        libc::SYS_munlock,
        libc::SYS_mremap,
        libc::SYS_socket,
        libc::SYS_connect,
        libc::SYS_sendmsg,
        libc::SYS_sendto,
        libc::SYS_recvmsg,
        libc::SYS_recvfrom,
        libc::SYS_ppoll,
        libc::SYS_openat,
        libc::SYS_getdents64,
        libc::SYS_readlinkat,
        libc::SYS_faccessat,
        libc::SYS_fstat,
        libc::SYS_fcntl,
        libc::SYS_pread64,
        libc::SYS_preadv,
        libc::SYS_preadv2,
        libc::SYS_fadvise64,
        libc::SYS_prlimit64,
        libc::SYS_nanosleep,
        libc::SYS_gettid,
        libc::SYS_uname,
    ];
    for call in calls {
        // SAFETY: the descriptor, addresses and numbers are all invalid, so the kernel refuses each call that
        // a filter lets pass.
        unsafe { libc::syscall(call, -1, 0, 0, -1, -1, -1) };
    }
}

/// Ignores a signal in this process and its children.
pub(crate) fn ignore(signal: SignalNumber) {
    // SAFETY: ignoring a signal has no preconditions.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Sends a signal; ignores that the process is gone.
pub(crate) fn send(pid: Pid, signal: SignalNumber) {
    // SAFETY: kill has no memory preconditions.
    unsafe { libc::kill(pid.as_raw_pid(), signal) };
}

/// This process's oom_score_adj (thousandths of all memory).
pub(crate) fn oom_score_adj() -> Option<i32> {
    std::fs::read_to_string("/proc/self/oom_score_adj").ok()?.trim().parse().ok()
}

/// Sets oom_score_adj where permitted: upward, or as root.
pub(crate) fn set_oom_score_adj(adjustment: Option<i32>) {
    if let Some(adjustment) = adjustment {
        let _ = std::fs::write("/proc/self/oom_score_adj", adjustment.to_string());
    }
}

/// Makes `target` a duplicate of `source` (dup2).
pub(crate) fn replace_fd(source: impl AsFd, target: i32) -> io::Result<()> {
    // SAFETY: dup2 on a standard stream, which is never owned by an OwnedFd here.
    if unsafe { libc::dup2(source.as_fd().as_raw_fd(), target) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Is a descriptor of this process or thread (a directory of /proc) a FUSE connection?
pub(crate) fn is_fuse(task: &Path, fd: RawFd) -> bool {
    std::fs::read_link(task.join(format!("fd/{fd}"))).is_ok_and(|path| path == Path::new("/dev/fuse"))
}

/// Open descriptors of this process.
///
/// # Errors
/// Those of the listing, which itself needs a free descriptor.
pub(crate) fn open_descriptors() -> io::Result<Vec<RawFd>> {
    let names: io::Result<Vec<_>> =
        std::fs::read_dir("/proc/self/fd")?.map(|entry| Ok(entry?.file_name())).collect();
    let all = names?.into_iter().filter_map(|name| name.to_str()?.parse().ok());
    // The listing included its own descriptor, which is closed by now.
    Ok(all.filter(|fd| is_open(*fd)).collect())
}

/// Closes inherited descriptors (at the end, those of a dead terraced). /dev/fuse comes first: closing a file
/// of the mount waits for an answer unless the connection is gone.
pub(crate) fn close_all_but(kept: &[RawFd]) {
    let is_fuse = |fd: &RawFd| is_fuse(Path::new("/proc/self"), *fd);
    let open = open_descriptors().unwrap_or_else(|err| {
        tracing::error!("cannot list open descriptors: {err}; inherited descriptors stay open");
        Vec::new()
    });
    let left: Vec<RawFd> = open.into_iter().filter(|fd| *fd > 2 && !kept.contains(fd)).collect();
    let (connections, others): (Vec<RawFd>, Vec<RawFd>) = left.into_iter().partition(is_fuse);
    for fd in connections.into_iter().chain(others) {
        // SAFETY: the owner is another process or a dead one; all descriptors owned by this process are in
        // `kept`.
        unsafe { rustix::io::close(fd) };
    }
}

fn is_open(fd: RawFd) -> bool {
    // SAFETY: used for one fcntl, which returns EBADF for a number that is not open.
    rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).is_ok()
}

/// May an ordinary user create a user namespace with mounts? Tried in a child process.
pub(crate) fn can_have_user_namespace() -> bool {
    let Ok(side) = fork() else { return false };
    match side {
        Side::Child => {
            // SAFETY: a single call between fork and exit.
            let made = unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) };
            exit_now(i32::from(made != 0))
        }
        Side::Parent(pid) => {
            let ended = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
            matches!(ended, Ok(Some((_, status))) if status.exit_status() == Some(0))
        }
    }
}

/// Puts some shared memory into one huge page, as the engine does with frames, and frees it.
///
/// # Errors
/// The kernel's refusal.
pub(crate) fn try_huge_page() -> io::Result<()> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
    const HUGE: usize = 2 << 20;
    const PAGE: usize = 4096;
    let file = rustix::fs::memfd_create("terrace-doctor", rustix::fs::MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, HUGE as u64)?;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let room =
        unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * HUGE, ProtFlags::empty(), MapFlags::PRIVATE)? };
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: HUGE bytes from an aligned address lie in the reserved range of twice the length, which is
    // unused.
    let advised = unsafe {
        let place = room.add(room.align_offset(HUGE));
        mmap(place, HUGE, protection, MapFlags::SHARED | MapFlags::FIXED, &file, 0)
            .map_err(io::Error::from)
            .and_then(|_| {
                let advise = |bytes, advice| match libc::madvise(place, bytes, advice) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                };
                advise(PAGE, libc::MADV_POPULATE_WRITE).and_then(|()| advise(HUGE, libc::MADV_COLLAPSE))
            })
    };
    // SAFETY: unmaps the mapping made above, which has no other user.
    unsafe { munmap(room, 2 * HUGE)? };
    advised
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_is_read_from_its_descriptor() {
        // A separate thread: the mask must not leak into other tests, and pthread_kill directs the signal to
        // this thread.
        std::thread::spawn(|| {
            block(&[libc::SIGUSR1]);
            let fd = signal_fd(&[libc::SIGUSR1]).unwrap();
            assert_eq!(next_signal(&fd), None);
            // SAFETY: SIGUSR1 is blocked in this thread.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR1) };
            let sent = Signal { number: libc::SIGUSR1, from_kernel: false };
            assert_eq!(next_signal(&fd), Some(sent));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn open_descriptors_are_listed_without_the_listing() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let open = open_descriptors().unwrap();
        assert!(open.contains(&file.as_raw_fd()));
        assert!(open.iter().all(|fd| is_open(*fd) || *fd != file.as_raw_fd()));
    }
}
