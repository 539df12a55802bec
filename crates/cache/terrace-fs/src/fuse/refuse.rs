//! Answers every request with an error, on a connection that no terraced will serve again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::adapter::IO_BYTES_MAX;
use super::handshake::request_resend;

const IN_HEADER_BYTES: usize = 40;
/// Requests that have no answer.
const FORGET: u32 = 2;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// Time between two checks of `over`.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Answers all requests with ECONNABORTED.
#[derive(Debug)]
pub struct Refuser {
    fuse: OwnedFd,
}

impl Refuser {
    /// Takes this descriptor of the connection.
    pub fn new(fuse: OwnedFd) -> Refuser {
        Refuser { fuse }
    }

    /// Refuses unanswered and new requests, until `over` returns true or the connection ends. Then the
    /// descriptor is closed.
    pub fn run(self, over: impl Fn() -> bool) -> io::Result<()> {
        // A kernel without resend (before Linux 6.9) keeps the requests that the dead daemon had read.
        request_resend(self.fuse.as_fd())?;
        let mut request = vec![0; IO_BYTES_MAX as usize + 64 * 1024];
        while !over() {
            let mut fds = [PollFd::new(&self.fuse, PollFlags::IN)];
            // No other thread reads here, so requests stay in the queue.
            if matches!(rustix::event::poll(&mut fds, Some(&WAIT)), Ok(0) | Err(Errno::INTR)) {
                continue;
            }
            match rustix::io::read(&self.fuse, &mut request) {
                Ok(len) => self.refuse(&request[..len]),
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
                // Unmounted or aborted.
                Err(_) => break,
            }
        }
        Ok(())
    }

    fn refuse(&self, request: &[u8]) {
        if let Some(answer) = refusal(request) {
            // An interrupted request, for example, has no caller left.
            let _ = rustix::io::write(&self.fuse, &answer);
        }
    }
}

impl AsFd for Refuser {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fuse.as_fd()
    }
}

/// The answer: length, error, number of the request.
fn refusal(request: &[u8]) -> Option<[u8; 16]> {
    let header = request.get(..IN_HEADER_BYTES)?;
    let opcode = u32::from_ne_bytes(header[4..8].try_into().ok()?);
    if matches!(opcode, FORGET | INTERRUPT | BATCH_FORGET) {
        return None;
    }
    let mut answer = [0; 16];
    answer[..4].copy_from_slice(&16u32.to_ne_bytes());
    answer[4..8].copy_from_slice(&(-libc::ECONNABORTED).to_ne_bytes());
    answer[8..].copy_from_slice(&header[8..16]);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_get_an_error_and_notes_get_nothing() {
        let request = |opcode: u32| {
            let mut header = [0; IN_HEADER_BYTES];
            header[4..8].copy_from_slice(&opcode.to_ne_bytes());
            header[8..16].copy_from_slice(&77u64.to_ne_bytes());
            header
        };
        let answer = refusal(&request(15)).unwrap();
        assert_eq!(answer[..4], 16u32.to_ne_bytes());
        assert_eq!(answer[4..8], (-libc::ECONNABORTED).to_ne_bytes());
        assert_eq!(answer[8..], 77u64.to_ne_bytes());
        assert!([FORGET, INTERRUPT, BATCH_FORGET].iter().all(|note| refusal(&request(*note)).is_none()));
        assert_eq!(refusal(&[0; 16]), None);
    }
}
