//! Start of a FUSE session, on a fresh connection or on that of a dead daemon.
//!
//! A connection is initialised once: the kernel sends INIT first, and the answer settles the flags. `fuser`
//! starts no session without INIT. For a dead daemon's connection, `resume` starts the session on a socket
//! with a made-up INIT and drops the answer. Then /dev/fuse replaces the socket under the same descriptor
//! number.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use fuser::{Config, Filesystem, Session, SessionACL};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

const FUSE_INIT: u32 = 26;
const FUSE_NOTIFY_RESEND: u32 = 7;
/// `_IOR(229, 0, uint32_t)`
const FUSE_DEV_IOC_CLONE: libc::Ioctl = 0x8004_e500u32 as libc::Ioctl;
/// For tests: the daemon assumes a kernel without resend.
const NO_RESEND: &str = "TERRACE_TEST_NO_RESEND";
const IN_HEADER_BYTES: usize = 40;
const INIT_BYTES: usize = IN_HEADER_BYTES + 64;

fn config(n_threads: usize) -> Config {
    let mut config = Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(n_threads);
    config
}

/// A session on a fresh connection.
pub(super) fn start<FS: Filesystem>(
    filesystem: FS,
    fuse: OwnedFd,
    n_threads: usize,
) -> io::Result<Session<FS>> {
    Session::from_fd(filesystem, fuse, SessionACL::All, config(n_threads))
}

/// A session on a connection that an earlier daemon initialised.
pub(super) fn resume<FS: Filesystem>(
    filesystem: FS,
    fuse: OwnedFd,
    n_threads: usize,
) -> io::Result<Session<FS>> {
    let (ours, theirs) = UnixDatagram::pair()?;
    ours.send(&made_up_init())?;
    let session = Session::from_fd(filesystem, theirs.into(), SessionACL::All, config(n_threads))?;
    let mut answer = [0; 1024];
    let len = ours.recv(&mut answer)?;
    // Offset 4 of the answer's header: the error.
    if len < 16 || answer[4..8] != [0; 4] {
        return Err(io::Error::other("the FUSE session refused its start"));
    }
    // SAFETY: the session owns the descriptor and keeps it open; it is only replaced here, never closed.
    let mut slot = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(session.as_fd().as_raw_fd()) });
    rustix::io::dup3(&fuse, &mut slot, rustix::io::DupFlags::CLOEXEC)?;
    Ok(session)
}

/// An INIT as the kernel sends it, offering everything.
fn made_up_init() -> [u8; INIT_BYTES] {
    let mut bytes = [0; INIT_BYTES];
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(0, INIT_BYTES as u32);
    put(4, FUSE_INIT);
    put(8, 1); // unique
    put(IN_HEADER_BYTES, 7); // major
    put(IN_HEADER_BYTES + 4, 31); // minor
    put(IN_HEADER_BYTES + 8, 128 * 1024); // max_readahead
    put(IN_HEADER_BYTES + 12, u32::MAX); // flags
    put(IN_HEADER_BYTES + 16, u32::MAX); // flags2
    bytes
}

/// Clones the connection behind `fuse` (FUSE_DEV_IOC_CLONE). If /dev/fuse cannot be opened, duplicates the
/// descriptor.
pub(super) fn own_connection(fuse: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let opened = rustix::fs::open("/dev/fuse", flags, Mode::empty()).map_err(io::Error::from);
    let cloned = opened.and_then(|own| {
        let number = fuse.as_raw_fd();
        // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, the descriptor's number, and changes nothing here.
        match unsafe { libc::ioctl(own.as_raw_fd(), FUSE_DEV_IOC_CLONE, &raw const number) } {
            0 => Ok(own),
            _ => Err(io::Error::last_os_error()),
        }
    });
    cloned.or_else(|err| {
        tracing::debug!("cannot clone the descriptor of /dev/fuse, so it is shared: {err}");
        fuse.try_clone_to_owned()
    })
}

/// Makes the kernel resend all unanswered requests. Returns false if it cannot (before Linux 6.9).
pub(super) fn request_resend(device: BorrowedFd<'_>) -> io::Result<bool> {
    let mut message = [0u8; 16];
    message[0..4].copy_from_slice(&16u32.to_ne_bytes());
    message[4..8].copy_from_slice(&FUSE_NOTIFY_RESEND.to_ne_bytes());
    if std::env::var_os(NO_RESEND).is_some() {
        return Ok(false);
    }
    match rustix::io::write(device, &message) {
        // Unmounted meanwhile: the session ends at once.
        Ok(_) | Err(Errno::NODEV) => Ok(true),
        Err(Errno::INVAL) => Ok(false),
        Err(err) => Err(io::Error::other(format!(
            "the kernel refuses to resend requests (FUSE_NOTIFY_RESEND): {err}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    struct Nothing;
    impl Filesystem for Nothing {}

    #[test]
    fn a_session_resumes_on_any_descriptor() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let session = resume(Nothing, write, 2).unwrap();
        // The pipe has replaced the session's socket, so a notification arrives there.
        assert!(request_resend(session.as_fd()).unwrap());
        let mut got = [0; 16];
        File::from(read).read_exact(&mut got).unwrap();
        assert_eq!(got[..8], [16, 0, 0, 0, 7, 0, 0, 0]);
    }

    #[test]
    fn a_kernel_that_cannot_resend_is_no_error() {
        // A timerfd refuses every write with EINVAL, as an old kernel refuses this notification.
        let refuses = rustix::time::timerfd_create(
            rustix::time::TimerfdClockId::Monotonic,
            rustix::time::TimerfdFlags::CLOEXEC,
        );
        assert!(!request_resend(refuses.unwrap().as_fd()).unwrap());
    }
}
