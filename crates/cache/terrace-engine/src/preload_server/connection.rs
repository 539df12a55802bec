//! One connection of a client: its messages, and the descriptors and credentials that come with them.

use crate::preload_server::clients::Client;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, UCred, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use terrace_shm::proto::{Hint, Reply, Request};

/// Longest silence of a connection without a registered client.
const UNREGISTERED_IDLE_MAX: Duration = Duration::from_secs(10);
/// Descriptors with the answer to HELLO. No other answer has more.
const HELLO_FDS: usize = 5;
/// Maximum number of descriptors in one message.
pub(super) const SHOWN_MAX: usize = 4;

/// A connection; registered after HELLO.
pub(super) struct Connection {
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) client: Option<Arc<Client>>,
    pub(crate) last_word: Instant,
    /// A FLUSH is not answered yet.
    pub(crate) flushing: Arc<AtomicBool>,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd) -> Connection {
        Connection {
            socket: Arc::new(socket),
            client: None,
            last_word: Instant::now(),
            flushing: Arc::new(AtomicBool::new(false)),
        }
    }
    pub(super) fn is_idle_unregistered(&self) -> bool {
        self.client.is_none()
            && !self.flushing.load(Ordering::Acquire)
            && self.last_word.elapsed() > UNREGISTERED_IDLE_MAX
    }
}

pub(super) struct Message {
    /// None: not a request of this protocol.
    pub(crate) request: Option<Request>,
    pub(crate) hint: Option<Hint>,
    pub(crate) cred: Option<UCred>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// Receives one message, without its descriptors if there is no `room` for them.
pub(super) fn receive(socket: &OwnedFd, room: bool) -> Option<Message> {
    let mut bytes = [0u8; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SHOWN_MAX), ScmCredentials(1))];
    let len = if room { space.len() } else { rustix::cmsg_space!(ScmCredentials(1)) };
    let mut ancillary = RecvAncillaryBuffer::new(&mut space[..len]);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let n = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags).ok()?.bytes;
    let (request, hint) = (Request::from_bytes(&bytes[..n]), Hint::from_bytes(&bytes[..n]));
    let mut m = Message { request, hint, cred: None, fds: Vec::new() };
    for part in ancillary.drain() {
        match part {
            RecvAncillaryMessage::ScmRights(fds) => m.fds.extend(fds),
            RecvAncillaryMessage::ScmCredentials(c) => m.cred = Some(c),
            _ => {}
        }
    }
    Some(m)
}

pub(super) fn send(socket: &OwnedFd, reply: &Reply, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(HELLO_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(reply.as_bytes())], &mut ancillary, flags)?;
    Ok(())
}
