//! The client processes that are registered with the preload server.

use super::writers::Writers;
use crate::preload_server::credentials::Credentials;
use crate::rings::Rings;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use terrace_shm::ring::Ring;
use terrace_shm::writes::Writes;
use terrace_sync::RwLock;
use terrace_system::proc;

#[derive(Debug)]
pub(crate) struct Clients {
    pub(crate) clients_max: usize,
    pub(crate) ring_slots: usize,
    list: RwLock<Vec<Arc<Client>>>,
    rings: Arc<Rings>,
    /// The thread that serves the socket: its closes are no closes by programs.
    pub(crate) server_tid: AtomicU32,
    pub(crate) warned: AtomicBool,
    /// The processes that announce writes, in an instance without leases.
    pub(crate) writers: Option<Writers>,
}

#[derive(Debug)]
pub(super) struct Client {
    pub(crate) pid: u32,
    pub(crate) process: OwnedFd,
    pub(crate) credentials: Credentials,
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) ring: Arc<Ring>,
}

impl Client {
    /// False once its connection is closed, by its end or an exec: another process may have its ID. Each open
    /// checks it, because the server may notice the end after that process's first open.
    fn is_there(&self) -> bool {
        let mut fds =
            [PollFd::new(&*self.socket, PollFlags::RDHUP), PollFd::new(&self.process, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&now)), Ok(0))
    }
}

impl Clients {
    pub(crate) fn new(
        clients_max: usize,
        ring_slots: usize,
        rings: Arc<Rings>,
        writes: Option<Arc<Writes>>,
    ) -> Clients {
        Clients {
            clients_max,
            ring_slots,
            list: RwLock::default(),
            rings,
            server_tid: AtomicU32::new(0),
            warned: AtomicBool::new(false),
            writers: writes.map(Writers::new),
        }
    }
    pub(super) fn count(&self) -> usize {
        self.list.read().len()
    }
    pub(super) fn all(&self) -> Vec<Arc<Client>> {
        self.list.read().clone()
    }
    pub(super) fn join(&self, client: Arc<Client>) -> Result<(), Errno> {
        let mut list = self.list.write();
        if list.len() >= self.clients_max {
            return Err(Errno::USERS);
        }
        self.rings.add(client.ring.clone());
        list.push(client);
        Ok(())
    }
    pub(super) fn leave(&self, client: &Arc<Client>) {
        let mut list = self.list.write();
        list.retain(|c| !Arc::ptr_eq(c, client));
        self.rings.remove(&client.ring);
    }
    /// Memory of all rings, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.count() * Ring::bytes(self.ring_slots)) as u64
    }

    /// Whether the thread belongs to a registered client: its opens bypass the kernel's page cache.
    pub(crate) fn is_client(&self, tid: u32) -> bool {
        let list = self.list.read();
        if list.is_empty() {
            return false;
        }
        let known = |pid| list.iter().any(|c| c.pid == pid && c.is_there());
        if is_leader(tid) { known(tid) } else { proc::process_of(tid).is_some_and(known) }
    }
    /// See [`crate::Engine::is_server_thread`].
    pub(crate) fn is_server_thread(&self, tid: u32) -> bool {
        self.server_tid.load(Ordering::Relaxed) == tid
    }
}

/// Whether the ID is that of a main thread, with which most programs open files. Signal 0 is not delivered;
/// EPERM is an answer, too. A look into /proc costs forty times as much.
fn is_leader(tid: u32) -> bool {
    // SAFETY: touches no memory.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, tid, tid, 0) };
    sent == 0 || Errno::from_io_error(&io::Error::last_os_error()) != Some(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_distinguished_from_processes() {
        let own = || rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let process = std::process::id();
        assert!(is_leader(process) && is_leader(1));
        assert_eq!(proc::process_of(process), Some(process));
        std::thread::spawn(move || {
            let thread = own();
            assert_ne!(thread, process);
            assert!(!is_leader(thread));
            assert_eq!(proc::process_of(thread), Some(process));
        })
        .join()
        .unwrap();
    }
}
