//! Sessions on fresh and on orphaned connections.
//!
//! A connection is initialised once in its life: the kernel sends INIT first, and the answer settles the flags. `fuser` will
//! not start a session without it. For a connection whose daemon died, `resume` therefore lets the session speak to a
//! socket first, on which a made-up INIT waits, throws the answer away, and puts /dev/fuse in the
//! socket's place (same descriptor number).

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use fuser::{Config, Filesystem, Session, SessionACL};
use rustix::io::Errno;

const FUSE_INIT: u32 = 26;
const FUSE_NOTIFY_RESEND: u32 = 7;
const IN_HEADER_BYTES: usize = 40;
const INIT_BYTES: usize = IN_HEADER_BYTES + 64;

fn config(n_threads: usize) -> Config {
    let mut config = Config::default();
    config.acl = SessionACL::All;
    config.n_threads = Some(n_threads);
    config
}

/// A session on a connection that nobody has answered yet.
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

/// Asks the kernel to send all unanswered requests again. Kernels before 6.9 cannot: programs whose requests were under
/// way at the crash then wait until the mount is cleared, and the caller says so.
pub(super) fn ask_to_resend(device: BorrowedFd<'_>) -> io::Result<()> {
    let mut message = [0u8; 16];
    message[0..4].copy_from_slice(&16u32.to_ne_bytes());
    message[4..8].copy_from_slice(&FUSE_NOTIFY_RESEND.to_ne_bytes());
    match rustix::io::write(device, &message) {
        // Unmounted meanwhile: the session will notice at once.
        Ok(_) | Err(Errno::NODEV) => Ok(()),
        Err(err) => Err(io::Error::other(format!("FUSE_NOTIFY_RESEND: {err} (needs Linux 6.9)"))),
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
        // The session's descriptor is the pipe now, and what it notifies arrives there.
        ask_to_resend(session.as_fd()).unwrap();
        let mut got = [0; 16];
        File::from(read).read_exact(&mut got).unwrap();
        assert_eq!(got[..8], [16, 0, 0, 0, 7, 0, 0, 0]);
    }
}
