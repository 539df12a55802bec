//! The fast door, from the daemon's side: registers client processes, hands out source descriptors, drains donations.
//!
//! Nothing that a client says is believed: credentials come from the kernel, a file from the descriptor that the client
//! holds, content only from a process that may write the file, and each field of a ring is read once.

use crate::core::Before;
use crate::engine::Engine;
use crate::object::{ObjectId, ObjectRef};
use parking_lot::{Mutex, RwLock};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, UCred, recvmsg, sendmsg,
};
use std::collections::{HashMap, HashSet};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use terrace_policy::Why;
use terrace_shm::layout::{FLAG_MAPPED, LAYOUT_VERSION};
use terrace_shm::map::memfd;
use terrace_shm::proto::{self, Reply, Request};
use terrace_shm::protocol::slot;
use terrace_shm::ring::Ring;
use terrace_shm::{Header, PAGE_SIZE};

const PAGE: u64 = PAGE_SIZE as u64;

/// Registered client processes.
#[derive(Debug)]
pub struct Clients {
    clients_max: usize,
    ring_slots: usize,
    rings: RwLock<Vec<Arc<Client>>>,
    /// Counters of clients that are gone, in the order of [`Clients::totals`].
    gone: Mutex<[u64; 8]>,
    /// The thread that serves the socket, to be told from programs.
    server_tid: std::sync::atomic::AtomicU32,
}

/// One client process.
#[derive(Debug)]
struct Client {
    pid: u32,
    ring: Ring,
    /// Objects whose content is taken from it.
    may_write: RwLock<HashSet<ObjectId>>,
}

impl Client {
    fn totals(&self) -> [u64; 8] {
        let r = &self.ring;
        [
            r.sum(|c| &c.hits),
            r.sum(|c| &c.hit_bytes),
            r.sum(|c| &c.misses),
            r.sum(|c| &c.miss_bytes),
            r.sum(|c| &c.fallbacks),
            r.sum(|c| &c.donations),
            r.sum(|c| &c.donations_dropped),
            r.sum(|c| &c.retries),
        ]
    }
}

fn add(a: [u64; 8], b: [u64; 8]) -> [u64; 8] {
    std::array::from_fn(|i| a[i].wrapping_add(b[i]))
}

impl Clients {
    pub(crate) fn new(clients_max: usize, ring_slots: usize) -> Clients {
        Clients {
            clients_max,
            ring_slots,
            rings: RwLock::new(Vec::new()),
            gone: Mutex::new([0; 8]),
            server_tid: std::sync::atomic::AtomicU32::new(0),
        }
    }
    pub(crate) fn count(&self) -> usize {
        self.rings.read().len()
    }
    /// hits, hit bytes, misses, miss bytes, fallbacks, donations, donations dropped, retries.
    pub(crate) fn totals(&self) -> [u64; 8] {
        self.rings.read().iter().map(|c| c.totals()).fold(*self.gone.lock(), add)
    }
    fn join(&self, client: Arc<Client>) -> Result<(), Errno> {
        let mut rings = self.rings.write();
        if rings.len() >= self.clients_max {
            return Err(Errno::USERS);
        }
        rings.push(client);
        Ok(())
    }
    fn leave(&self, client: &Arc<Client>) {
        let mut rings = self.rings.write();
        rings.retain(|c| !Arc::ptr_eq(c, client));
        let mut gone = self.gone.lock();
        *gone = add(*gone, client.totals());
    }
}

impl Engine {
    /// True if the thread belongs to a registered client: its opens bypass the kernel's page cache.
    pub fn is_client(&self, tid: u32) -> bool {
        let rings = self.clients.rings.read();
        if rings.is_empty() {
            return false;
        }
        rings.iter().any(|c| c.pid == tid)
            || thread_group(tid).is_some_and(|p| rings.iter().any(|c| c.pid == p))
    }
    /// True for the daemon's own thread that serves the door: when it closes a descriptor that a client showed it, that is
    /// no close by a program.
    pub fn is_door_thread(&self, tid: u32) -> bool {
        self.clients.server_tid.load(Ordering::Relaxed) == tid
    }
}

/// The process that a thread belongs to.
fn thread_group(tid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|l| l.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// A connection, registered once HELLO was said.
struct Connection {
    socket: OwnedFd,
    client: Option<Arc<Client>>,
}

/// Serves the door on a listening SOCK_SEQPACKET socket until the engine stops. Starts the drainer.
///
/// # Errors
/// No eventfd, no thread, a listener that fails.
pub fn serve(engine: &Arc<Engine>, listener: &OwnedFd) -> io::Result<()> {
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let drainer = {
        let (engine, bell) = (engine.clone(), bell.clone());
        std::thread::Builder::new().name("drain".into()).spawn(move || drain_loop(&engine, &bell))?
    };
    engine
        .clients
        .server_tid
        .store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
    // On the listener: sockets inherit it as they are accepted. Set on each afterwards, it came too late for the message of a
    // client that was quick, and that client stayed without its door.
    rustix::net::sockopt::set_socket_passcred(listener, true)?;
    let mut connections: Vec<Connection> = Vec::new();
    while !engine.stopping.load(Ordering::Acquire) {
        let ready: Vec<usize> = {
            let mut fds = vec![PollFd::new(listener, PollFlags::IN)];
            fds.extend(connections.iter().map(|c| PollFd::new(&c.socket, PollFlags::IN)));
            let timeout = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
            (0..fds.len()).filter(|&i| !fds[i].revents().is_empty()).collect()
        };
        for i in ready.into_iter().rev() {
            if i > 0 && !answer(engine, &bell, &mut connections[i - 1]) {
                if let Some(client) = connections.swap_remove(i - 1).client {
                    engine.clients.leave(&client);
                }
            } else if i == 0
                && let Ok(socket) = rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC)
            {
                connections.push(Connection { socket, client: None });
            }
        }
    }
    let _ = drainer.join();
    Ok(())
}

/// Answers one message; false if the connection is over.
fn answer(engine: &Arc<Engine>, bell: &OwnedFd, c: &mut Connection) -> bool {
    let Some((request, cred, fd)) = receive(&c.socket) else { return false };
    if (request.op, request.version) == (proto::FLUSH, LAYOUT_VERSION) {
        return flush_apart(engine, &c.socket).is_ok();
    }
    let (reply, fds) = match handle(engine, c, request, cred, fd) {
        Ok(answer) => answer,
        Err(e) => (Reply { errno: e.raw_os_error() as u32, ..Reply::default() }, Vec::new()),
    };
    let handles = engine.handles();
    let mut out: Vec<BorrowedFd<'_>> = Vec::new();
    if request.op == proto::HELLO && reply.errno == 0 {
        out.extend([handles.segment_ro.as_fd(), handles.touch_fd.as_fd()]);
        out.extend(fds.iter().map(|f| f.as_fd()));
        out.push(bell.as_fd());
    } else {
        out.extend(fds.iter().map(|f| f.as_fd()));
    }
    send(&c.socket, &reply, &out).is_ok()
}

/// syncfs takes as long as the device needs: other clients do not wait for it.
fn flush_apart(engine: &Arc<Engine>, socket: &OwnedFd) -> io::Result<()> {
    let (engine, socket) = (engine.clone(), socket.try_clone()?);
    std::thread::Builder::new().name("syncfs".into()).spawn(move || {
        let errno = engine.flush_all(true).map_or_else(|e| e.raw_os_error().unwrap_or(libc::EIO), |()| 0);
        let _ = send(&socket, &Reply { errno: errno as u32, ..Reply::default() }, &[]);
    })?;
    Ok(())
}

fn receive(socket: &OwnedFd) -> Option<(Request, Option<UCred>, Option<OwnedFd>)> {
    let mut bytes = [0u8; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4), ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let n = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags).ok()?.bytes;
    let (mut cred, mut fd) = (None, None);
    for m in ancillary.drain() {
        match m {
            RecvAncillaryMessage::ScmRights(mut fds) => fd = fds.next(),
            RecvAncillaryMessage::ScmCredentials(c) => cred = Some(c),
            _ => {}
        }
    }
    Some((Request::from_bytes(&bytes[..n])?, cred, fd))
}

fn send(socket: &OwnedFd, reply: &Reply, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(socket, &[IoSlice::new(reply.as_bytes())], &mut ancillary, flags)?;
    Ok(())
}

type Answer = Result<(Reply, Vec<OwnedFd>), Errno>;

fn handle(
    engine: &Arc<Engine>,
    c: &mut Connection,
    r: Request,
    cred: Option<UCred>,
    fd: Option<OwnedFd>,
) -> Answer {
    if r.version != LAYOUT_VERSION {
        return Err(Errno::PROTO);
    }
    let cred = cred.ok_or(Errno::ACCESS)?;
    match (r.op, fd) {
        (proto::HELLO, _) => hello(engine, c, &cred),
        (proto::SOURCE, Some(fd)) => source(engine, c, &cred, &fd),
        (proto::MAPPED, Some(fd)) => {
            shown(engine, &fd)?.set_flag(FLAG_MAPPED, true);
            Ok((Reply::default(), Vec::new()))
        }
        _ => Err(Errno::INVAL),
    }
}

fn hello(engine: &Engine, c: &mut Connection, cred: &UCred) -> Answer {
    if c.client.is_some() {
        return Err(Errno::ALREADY);
    }
    let slots = engine.clients.ring_slots;
    let fd = memfd("terrace-ring", Ring::bytes(slots)).map_err(|_| Errno::NOMEM)?;
    let ring = Ring::attach(&fd, slots).map_err(|_| Errno::NOMEM)?;
    let pid = cred.pid.as_raw_nonzero().get() as u32;
    let client = Arc::new(Client { pid, ring, may_write: RwLock::new(HashSet::new()) });
    engine.clients.join(client.clone())?;
    c.client = Some(client);
    let header: &Header = engine.handles().segment.header();
    let reply = Reply {
        ring_slots: slots as u32,
        mount_dev: header.mount_dev.load(Ordering::Acquire),
        ..Reply::default()
    };
    Ok((reply, vec![fd]))
}

/// The object behind a descriptor that a client shows.
fn shown(engine: &Engine, fd: &OwnedFd) -> Result<ObjectRef, Errno> {
    let st = rustix::fs::fstat(fd)?;
    if st.st_dev != engine.handles().segment.header().mount_dev.load(Ordering::Acquire) {
        return Err(Errno::XDEV);
    }
    engine.lookup_object(st.st_ino).ok_or(Errno::NOENT)
}

fn source(engine: &Engine, c: &Connection, cred: &UCred, fd: &OwnedFd) -> Answer {
    let client = c.client.as_ref().ok_or(Errno::ACCESS)?;
    let access = rustix::fs::fcntl_getfl(fd)? & rustix::fs::OFlags::RWMODE;
    if access == rustix::fs::OFlags::WRONLY || rustix::fs::fcntl_getfl(fd)?.contains(rustix::fs::OFlags::PATH)
    {
        return Err(Errno::ACCESS);
    }
    let o = shown(engine, fd)?;
    let may_write = access == rustix::fs::OFlags::RDWR || may_write(&o, cred)?;
    if may_write {
        client.may_write.write().insert(o.id());
    }
    let (file, direct) =
        o.source().reader_for_client().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    let reply = Reply {
        object: o.id(),
        may_write: u32::from(may_write),
        direct_align: if direct { PAGE_SIZE as u32 } else { 0 },
        ..Reply::default()
    };
    Ok((reply, vec![file]))
}

/// True if the mode bits let this process write the file. With an ACL the bits say less than the truth, never more:
/// the group bits are then its mask, so a group member counts as a stranger.
fn may_write(o: &ObjectRef, cred: &UCred) -> Result<bool, Errno> {
    let st = o.source().stat().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    let uid = cred.uid.as_raw();
    Ok(uid == 0 || (uid == st.st_uid && st.st_mode & 0o200 != 0))
}

// ---- the drainer -------------------------------------------------------------------------------------------------------

/// How long the drainer stays at one look a millisecond after the last donation.
const EAGER: Duration = Duration::from_millis(20);

fn drain_loop(engine: &Engine, bell: &OwnedFd) {
    let header = engine.handles().segment.header();
    let mut last = Instant::now();
    while !engine.stopping.load(Ordering::Acquire) {
        let clients: Vec<Arc<Client>> = engine.clients.rings.read().clone();
        let found: usize = clients.iter().map(|c| drain(engine, c)).sum();
        if found > 0 {
            last = Instant::now();
        }
        let idle = last.elapsed();
        let nap_ms = if idle < EAGER {
            1
        } else if idle < Duration::from_secs(1) {
            10
        } else {
            100
        };
        header.drainer_sleeps.store(1, Ordering::SeqCst);
        let timeout = Timespec { tv_sec: 0, tv_nsec: nap_ms * 1_000_000 };
        let _ = poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&timeout));
        header.drainer_sleeps.store(0, Ordering::SeqCst);
        let _ = rustix::io::read(bell, &mut [0u8; 8]);
    }
}

/// A donation that passed the first checks.
struct Donated {
    slot: usize,
    object: ObjectRef,
    page: u64,
    before: Before,
    frame: u32,
    /// Bytes of content; None: the daemon reads the page itself.
    len: Option<usize>,
}

/// Takes what one client has donated; the number of slots emptied.
fn drain(engine: &Engine, client: &Client) -> usize {
    let ring = &client.ring;
    let ready: Vec<usize> = (0..ring.slots()).filter(|&i| slot::is_ready(&ring.donation(i).state)).collect();
    if ready.is_empty() {
        return 0;
    }
    let accepted = accept(engine, client, &ready);
    let filled: Vec<bool> = accepted.iter().map(|d| fill(engine, client, d)).collect();
    let mut core = engine.core.lock();
    for (d, filled) in accepted.iter().zip(&filled) {
        let valid = *filled && core.untouched_since(&d.object, d.page, d.before);
        let place = if valid { core.index.ensure(d.object.slot_index(), d.page) } else { None };
        match place {
            Some(place) => {
                core.insert(place, d.frame, Why::Read);
                let count = if d.len.is_some() {
                    &engine.counts.donations_taken
                } else {
                    &engine.counts.donations_read
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
            None => {
                core.unclaim(d.frame);
                engine.counts.donations_refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    drop(core);
    for &i in &ready {
        slot::free(&ring.donation(i).state);
    }
    ready.len()
}

/// Checks the keys and claims frames.
fn accept(engine: &Engine, client: &Client, ready: &[usize]) -> Vec<Donated> {
    let mut accepted: Vec<Donated> = Vec::with_capacity(ready.len());
    let mut named: HashMap<(ObjectId, u64), ()> = HashMap::new();
    let mut core = engine.core.lock();
    for &i in ready {
        let d = client.ring.donation(i);
        let (id, page) = (d.object.load(Ordering::Relaxed), d.page.load(Ordering::Relaxed));
        let len = d.len.load(Ordering::Relaxed);
        let theirs =
            Before { identity: d.seen.load(Ordering::Relaxed), clock: d.clock.load(Ordering::Relaxed) };
        let Some(object) = core.objects.get(&id).cloned() else { continue };
        if page >= object.size().div_ceil(PAGE) || named.insert((id, page), ()).is_some() {
            continue;
        }
        let Some((ours, _)) = core.observe(&object, page) else { continue };
        let content = len > 0
            && len <= PAGE
            && client.may_write.read().contains(&id)
            && core.untouched_since(&object, page, theirs);
        let Some(frame) = core.claim() else { break };
        let (before, len) = if content { (theirs, Some(len as usize)) } else { (ours, None) };
        accepted.push(Donated { slot: i, object, page, before, frame, len });
    }
    drop(core);
    accepted
}

/// Brings the content into the claimed frame: from the ring, or from the source.
fn fill(engine: &Engine, client: &Client, d: &Donated) -> bool {
    let Some(len) = d.len else {
        return engine.read_frames(&d.object, d.page, &[d.frame]).is_ok();
    };
    // SAFETY: the frame is claimed; the ring page is mapped. The client may scribble meanwhile: it may write the file,
    // so whatever arrives is content that it could have written.
    unsafe {
        let frame = engine.handles().segment.frame(d.frame);
        std::ptr::copy_nonoverlapping(client.ring.content(d.slot), frame, len);
        frame.add(len).write_bytes(0, PAGE_SIZE - len);
    }
    true
}
