//! The fast door, from the daemon's side: registers client processes, hands out source descriptors, drains donations.
//!
//! Nothing that a client says is believed: credentials come from the kernel, a file from the descriptor that the client
//! holds, content only from a process that may write the file (asked anew whenever content is taken), and each field of a
//! ring is read once. Nor can a client keep others waiting: all that may take its time (syncs, the close of a descriptor
//! of a strange file system) is done by threads beside, and all of it is bounded.

use crate::engine::Engine;
use crate::file::object::{Object, ObjectId, ObjectRef};
use crate::observe::trace::Cursors;
use crate::state::Before;
use parking_lot::{Mutex, RwLock};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, UCred, recvmsg, sendmsg,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use terrace_policy::Why;
use terrace_shm::layout::{FLAG_MAPPED, LAYOUT_VERSION};
use terrace_shm::map::memfd;
use terrace_shm::proto::{self, Reply, Request};
use terrace_shm::protocol::slot;
use terrace_shm::ring::Ring;
use terrace_shm::{Header, PAGE_SIZE};

const PAGE: u64 = PAGE_SIZE as u64;
/// Connections beside those of registered clients: questions that take no registration.
const STRANGERS_MAX: usize = 256;
/// How long a connection may stay without a word if it is no client's.
const STRANGER_IDLE: Duration = Duration::from_secs(10);
/// How long nothing is accepted after the descriptors have run out.
const ACCEPT_REST: Duration = Duration::from_millis(200);
/// Descriptors that come with one message at the most, and descriptors of strange file systems that wait to be closed.
const SHOWN_MAX: usize = 4;
const FOREIGN_MAX: usize = 64;

/// Registered client processes.
#[derive(Debug)]
pub struct Clients {
    clients_max: usize,
    ring_slots: usize,
    rings: RwLock<Vec<Arc<Client>>>,
    /// Counters of clients that are gone, in the order of [`Clients::totals`].
    gone: Mutex<Totals>,
    /// The thread that serves the socket, to be told from programs.
    server_tid: std::sync::atomic::AtomicU32,
    warned: AtomicBool,
}

/// One client process.
#[derive(Debug)]
pub(crate) struct Client {
    pid: u32,
    process: OwnedFd,
    /// Its /proc/PID/status.
    status: File,
    socket: Arc<OwnedFd>,
    pub(crate) ring: Ring,
    /// How far a recorder has read its lanes.
    pub(crate) cursors: Mutex<Cursors>,
    /// Objects whose content is taken from it.
    grants: Mutex<HashMap<ObjectId, Grant>>,
}

/// Why content of an object is taken from a process: it might write the file when it showed a descriptor of it. Good as
/// long as neither the process nor the file has changed in what decides that.
#[derive(Debug)]
struct Grant {
    /// This very object: its number may be another file's one day.
    object: Weak<Object>,
    rights: Rights,
    file: FileRights,
}

/// What a process may do, in the words of /proc: user and group ids, groups, capabilities.
#[derive(Debug, PartialEq, Eq)]
struct Rights(String);

impl Rights {
    /// Opened once and read again and again: /proc says what is true at the read, and nothing of the next process with that number.
    fn source(pid: Pid) -> io::Result<File> {
        File::open(format!("/proc/{}/status", pid.as_raw_nonzero()))
    }
    fn read(status: &File) -> Option<Rights> {
        let mut text = vec![0; 4096];
        let mut len = 0;
        loop {
            // All of it is one record to the kernel: only its end makes a read short.
            len += status.read_at(&mut text[len..], len as u64).ok()?;
            if len < text.len() {
                break;
            }
            text.resize(2 * len, 0);
        }
        let telling = |l: &&str| ["Uid:", "Gid:", "Groups:", "CapEff:"].iter().any(|k| l.starts_with(k));
        let text = String::from_utf8_lossy(&text[..len]);
        Some(Rights(text.lines().filter(telling).collect::<Vec<_>>().join("\n")))
    }
    /// The user id that file permissions are checked with: the fourth one.
    fn uid(&self) -> Option<u32> {
        self.0.strip_prefix("Uid:")?.split_whitespace().nth(3)?.parse().ok()
    }
}

/// What decides who may write a file: mode, owner, group.
type FileRights = (u32, u32, u32);

fn file_rights(o: &Object) -> Result<FileRights, Errno> {
    let st = o.source().stat().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
    Ok((st.st_mode, st.st_uid, st.st_gid))
}

impl Client {
    /// False once its connection was closed, by its end or by an exec: what runs under its number now is no client. Asked at
    /// each open, for the server hears of it later than the next program opens its first file.
    fn is_there(&self) -> bool {
        let mut fds =
            [PollFd::new(&*self.socket, PollFlags::RDHUP), PollFd::new(&self.process, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&now)), Ok(0))
    }
    fn totals(&self) -> Totals {
        let r = &self.ring;
        Totals {
            hits: r.sum(|c| &c.hits),
            hit_bytes: r.sum(|c| &c.hit_bytes),
            misses: r.sum(|c| &c.misses),
            miss_bytes: r.sum(|c| &c.miss_bytes),
            fallbacks: r.sum(|c| &c.fallbacks),
            donations: r.sum(|c| &c.donations),
            donations_dropped: r.sum(|c| &c.donations_dropped),
            retries: r.sum(|c| &c.retries),
            tier_hits: r.sum(|c| &c.tier_hits),
            reads: r.sum(|c| &c.reads),
            read_ns: r.sum(|c| &c.read_ns),
        }
    }
}

/// What clients have counted in all: see [`terrace_shm::ring::Counters`].
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Totals {
    pub hits: u64,
    pub hit_bytes: u64,
    pub misses: u64,
    pub miss_bytes: u64,
    pub fallbacks: u64,
    pub donations: u64,
    pub donations_dropped: u64,
    pub retries: u64,
    pub tier_hits: u64,
    pub reads: u64,
    pub read_ns: u64,
}

impl Totals {
    /// Clients count, and may count nonsense: sums wrap.
    fn plus(self, more: Totals) -> Totals {
        Totals {
            hits: self.hits.wrapping_add(more.hits),
            hit_bytes: self.hit_bytes.wrapping_add(more.hit_bytes),
            misses: self.misses.wrapping_add(more.misses),
            miss_bytes: self.miss_bytes.wrapping_add(more.miss_bytes),
            fallbacks: self.fallbacks.wrapping_add(more.fallbacks),
            donations: self.donations.wrapping_add(more.donations),
            donations_dropped: self.donations_dropped.wrapping_add(more.donations_dropped),
            retries: self.retries.wrapping_add(more.retries),
            tier_hits: self.tier_hits.wrapping_add(more.tier_hits),
            reads: self.reads.wrapping_add(more.reads),
            read_ns: self.read_ns.wrapping_add(more.read_ns),
        }
    }
}

impl Clients {
    pub(crate) fn new(clients_max: usize, ring_slots: usize) -> Clients {
        Clients {
            clients_max,
            ring_slots,
            rings: RwLock::new(Vec::new()),
            gone: Mutex::default(),
            server_tid: std::sync::atomic::AtomicU32::new(0),
            warned: AtomicBool::new(false),
        }
    }
    pub(crate) fn count(&self) -> usize {
        self.rings.read().len()
    }
    pub(crate) fn all(&self) -> Vec<Arc<Client>> {
        self.rings.read().clone()
    }
    /// What all clients have counted, those that are gone among them.
    pub(crate) fn totals(&self) -> Totals {
        self.rings.read().iter().map(|c| c.totals()).fold(*self.gone.lock(), Totals::plus)
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
        *gone = gone.plus(client.totals());
    }
}

impl Engine {
    /// True if the thread belongs to a registered client: its opens bypass the kernel's page cache.
    pub fn is_client(&self, tid: u32) -> bool {
        let rings = self.clients.rings.read();
        if rings.is_empty() {
            return false;
        }
        let known = |pid| rings.iter().any(|c| c.pid == pid && c.is_there());
        known(tid) || thread_group(tid).is_some_and(|pid| pid != tid && known(pid))
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
    socket: Arc<OwnedFd>,
    client: Option<Arc<Client>>,
    last_word: Instant,
    /// A FLUSH is not answered yet.
    flushing: Arc<AtomicBool>,
}

impl Connection {
    fn is_idle_stranger(&self) -> bool {
        self.client.is_none()
            && !self.flushing.load(Ordering::Acquire)
            && self.last_word.elapsed() > STRANGER_IDLE
    }
}

/// What the server leaves to others.
struct Beside {
    /// Wakes the drainer.
    bell: Arc<OwnedFd>,
    /// FLUSHes, each with its connection's mark.
    syncs: Sender<(Arc<OwnedFd>, Arc<AtomicBool>)>,
    syncs_waiting: Arc<AtomicUsize>,
    /// Descriptors whose close may hang.
    foreign: SyncSender<OwnedFd>,
    foreign_waiting: Arc<AtomicUsize>,
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
    let beside = Beside::start(engine, bell)?;
    engine
        .clients
        .server_tid
        .store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
    // On the listener: sockets inherit it as they are accepted. Set on each afterwards, it came too late for the message of a
    // client that was quick, and that client stayed without its door.
    rustix::net::sockopt::set_socket_passcred(listener, true)?;
    let mut connections: Vec<Connection> = Vec::new();
    let mut rest_until = Instant::now();
    while !engine.stopping.load(Ordering::Acquire) {
        connections.retain(|c| !c.is_idle_stranger());
        let full = connections.len() >= engine.clients.clients_max + STRANGERS_MAX;
        let accepting = !full && Instant::now() >= rest_until;
        for i in ready(listener, accepting, &connections)?.into_iter().rev() {
            if i > 0 && !answer(engine, &beside, &mut connections[i - 1]) {
                if let Some(client) = connections.swap_remove(i - 1).client {
                    engine.keep_for_recorder(&client);
                    engine.clients.leave(&client);
                }
            } else if i == 0 {
                match rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC) {
                    Ok(socket) => connections.push(Connection {
                        socket: Arc::new(socket),
                        client: None,
                        last_word: Instant::now(),
                        flushing: Arc::new(AtomicBool::new(false)),
                    }),
                    // Who was let in already is served; a listener that stays ready must not keep us busy.
                    Err(_) => rest_until = Instant::now() + ACCEPT_REST,
                }
            }
        }
    }
    let _ = drainer.join();
    Ok(())
}

/// Waits for something to do: 0 for the listener, else 1 + the connection.
fn ready(listener: &OwnedFd, accepting: bool, connections: &[Connection]) -> io::Result<Vec<usize>> {
    let wanted = if accepting { PollFlags::IN } else { PollFlags::empty() };
    let mut fds = vec![PollFd::new(listener, wanted)];
    fds.extend(connections.iter().map(|c| PollFd::new(&*c.socket, PollFlags::IN)));
    let timeout = Timespec { tv_sec: 0, tv_nsec: ACCEPT_REST.subsec_nanos().into() };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    Ok((0..fds.len()).filter(|&i| !fds[i].revents().is_empty()).collect())
}

impl Beside {
    fn start(engine: &Arc<Engine>, bell: Arc<OwnedFd>) -> io::Result<Beside> {
        let (syncs, sync_queue) = channel();
        let (foreign, foreign_queue) = sync_channel::<OwnedFd>(FOREIGN_MAX);
        let (syncs_waiting, foreign_waiting) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        // Both end with their queue, whenever a device or a close lets them: nobody waits for that.
        let (e, waiting) = (engine.clone(), syncs_waiting.clone());
        std::thread::Builder::new()
            .name("syncfs".into())
            .spawn(move || sync_loop(&e, &sync_queue, &waiting))?;
        let waiting = foreign_waiting.clone();
        std::thread::Builder::new().name("close".into()).spawn(move || {
            for fd in foreign_queue {
                drop(fd);
                waiting.fetch_sub(1, Ordering::AcqRel);
            }
        })?;
        Ok(Beside { bell, syncs, syncs_waiting, foreign, foreign_waiting })
    }

    /// Closes what a client showed. Closing a file of a strange file system may wait for that, for ever if it is the client's
    /// own.
    fn close(&self, engine: &Engine, fds: Vec<OwnedFd>) {
        for fd in fds {
            if shown_inode(engine, &fd).is_ok() {
                drop(fd);
            } else {
                self.foreign_waiting.fetch_add(1, Ordering::AcqRel);
                // There is room: no message is received with its descriptors unless there is.
                let _ = self.foreign.try_send(fd);
            }
        }
    }

    fn flush(&self, c: &Connection) -> Result<(), Errno> {
        if c.flushing.swap(true, Ordering::AcqRel) {
            return Err(Errno::ALREADY);
        }
        if self.syncs_waiting.load(Ordering::Acquire) >= STRANGERS_MAX {
            return Err(Errno::AGAIN);
        }
        self.syncs_waiting.fetch_add(1, Ordering::AcqRel);
        self.syncs.send((c.socket.clone(), c.flushing.clone())).map_err(|_| Errno::PIPE)
    }
}

/// syncfs takes as long as the device needs. Whoever asked before it began gets the answer.
fn sync_loop(engine: &Engine, queue: &Receiver<(Arc<OwnedFd>, Arc<AtomicBool>)>, waiting: &AtomicUsize) {
    while let Ok(first) = queue.recv() {
        let all: Vec<_> = std::iter::once(first).chain(queue.try_iter()).collect();
        if engine.stopping.load(Ordering::Acquire) {
            return;
        }
        let errno = engine.flush_all(true).map_or_else(|e| e.raw_os_error().unwrap_or(libc::EIO), |()| 0);
        for (socket, flushing) in all {
            flushing.store(false, Ordering::Release);
            waiting.fetch_sub(1, Ordering::AcqRel);
            let _ = send(&socket, &Reply { errno: errno as u32, ..Reply::default() }, &[]);
        }
    }
}

/// Answers one message; false if the connection is over.
fn answer(engine: &Arc<Engine>, beside: &Beside, c: &mut Connection) -> bool {
    let room = beside.foreign_waiting.load(Ordering::Acquire) + SHOWN_MAX <= FOREIGN_MAX;
    let Some(message) = receive(&c.socket, room) else { return false };
    c.last_word = Instant::now();
    let goes_on = message.request.is_some_and(|request| {
        match (request.op, request.version) {
            // Without an answer of this thread's. A client that asks twice at a time has lost count.
            (proto::FLUSH, LAYOUT_VERSION) => return beside.flush(c).is_ok(),
            (proto::RING, LAYOUT_VERSION) if c.client.is_some() => {
                let _ = rustix::io::write(&*beside.bell, &1_u64.to_ne_bytes());
                return true;
            }
            _ => {}
        }
        reply_to(engine, c, request, message.cred, message.fds.first()).is_ok()
    });
    beside.close(engine, message.fds);
    goes_on
}

fn reply_to(
    engine: &Arc<Engine>,
    c: &mut Connection,
    request: Request,
    cred: Option<UCred>,
    fd: Option<&OwnedFd>,
) -> io::Result<()> {
    let (reply, fds) = handle(engine, c, request, cred, fd).unwrap_or_else(|e| {
        if request.op == proto::HELLO && !engine.clients.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!("fast door: a process goes by the mount instead: {e} (said once)");
        }
        (Reply { errno: e.raw_os_error() as u32, ..Reply::default() }, Vec::new())
    });
    let handles = engine.handles();
    let mut out: Vec<BorrowedFd<'_>> = Vec::new();
    if request.op == proto::HELLO && reply.errno == 0 {
        out.extend([handles.segment_ro.as_fd(), handles.touch_fd.as_fd()]);
    }
    out.extend(fds.iter().map(|f| f.as_fd()));
    send(&c.socket, &reply, &out)
}

struct Message {
    /// None: not one of ours.
    request: Option<Request>,
    cred: Option<UCred>,
    fds: Vec<OwnedFd>,
}

/// Takes one message, without its descriptors if there is no `room` for them.
fn receive(socket: &OwnedFd, room: bool) -> Option<Message> {
    let mut bytes = [0u8; 64];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SHOWN_MAX), ScmCredentials(1))];
    let len = if room { space.len() } else { rustix::cmsg_space!(ScmCredentials(1)) };
    let mut ancillary = RecvAncillaryBuffer::new(&mut space[..len]);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let n = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags).ok()?.bytes;
    let mut m = Message { request: Request::from_bytes(&bytes[..n]), cred: None, fds: Vec::new() };
    for part in ancillary.drain() {
        match part {
            RecvAncillaryMessage::ScmRights(fds) => m.fds.extend(fds),
            RecvAncillaryMessage::ScmCredentials(c) => m.cred = Some(c),
            _ => {}
        }
    }
    Some(m)
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
    fd: Option<&OwnedFd>,
) -> Answer {
    if r.version != LAYOUT_VERSION {
        return Err(Errno::PROTO);
    }
    // A connection made before this server was there passes none: then those of whoever made it.
    let cred = cred.map_or_else(|| rustix::net::sockopt::socket_peercred(&c.socket), Ok)?;
    match (r.op, fd) {
        (proto::HELLO, _) => hello(engine, c, &cred),
        (proto::SOURCE, Some(fd)) => source(engine, c, &cred, fd),
        (proto::MAPPED, Some(fd)) => {
            shown(engine, fd)?.set_flag(FLAG_MAPPED, true);
            Ok((Reply::default(), Vec::new()))
        }
        _ => Err(Errno::INVAL),
    }
}

fn hello(engine: &Engine, c: &mut Connection, cred: &UCred) -> Answer {
    if c.client.is_some() {
        return Err(Errno::ALREADY);
    }
    if !engine.admits_client_ring() {
        return Err(Errno::USERS);
    }
    let slots = engine.clients.ring_slots;
    let fd = memfd("terrace-ring", Ring::file_bytes(slots)).map_err(|_| Errno::NOMEM)?;
    let ring = Ring::attach(&fd, slots).map_err(|_| Errno::NOMEM)?;
    let client = Arc::new(Client {
        pid: raw(cred.pid),
        process: pidfd_open(cred.pid, PidfdFlags::empty())?,
        status: Rights::source(cred.pid).map_err(|_| Errno::SRCH)?,
        socket: c.socket.clone(),
        ring,
        cursors: Mutex::default(),
        grants: Mutex::new(HashMap::new()),
    });
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

fn raw(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get() as u32
}

/// The inode of a descriptor that is a file of the mount's. From the kernel's memory: the file system that it belongs to
/// may be one that never answers.
fn shown_inode(engine: &Engine, fd: &OwnedFd) -> Result<u64, Errno> {
    use rustix::fs::{AtFlags, StatxFlags, makedev, statx};
    let st = statx(fd, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::INO)?;
    let dev = makedev(st.stx_dev_major, st.stx_dev_minor);
    if dev != engine.handles().segment.header().mount_dev.load(Ordering::Acquire) {
        return Err(Errno::XDEV);
    }
    Ok(st.stx_ino)
}

/// The object behind a descriptor that a client shows.
fn shown(engine: &Engine, fd: &OwnedFd) -> Result<ObjectRef, Errno> {
    engine.lookup_object(shown_inode(engine, fd)?).ok_or(Errno::NOENT)
}

fn source(engine: &Engine, c: &Connection, cred: &UCred, fd: &OwnedFd) -> Answer {
    // The ring is that of the process which said HELLO: nobody else's descriptor proves anything for it.
    let client = c.client.as_ref().filter(|client| client.pid == raw(cred.pid)).ok_or(Errno::ACCESS)?;
    let o = shown(engine, fd)?;
    let flags = rustix::fs::fcntl_getfl(fd)?;
    let access = flags & rustix::fs::OFlags::RWMODE;
    if access == rustix::fs::OFlags::WRONLY || flags.contains(rustix::fs::OFlags::PATH) {
        return Err(Errno::ACCESS);
    }
    let may_write = client.grant(&o, access == rustix::fs::OFlags::RDWR)?;
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

impl Client {
    /// Notes whether the process may write the file: because a descriptor shows it, or by the mode bits. (With an ACL the
    /// bits say less than the truth, never more: the group bits are then its mask, so a group member counts as a stranger.)
    fn grant(&self, o: &ObjectRef, writable: bool) -> Result<bool, Errno> {
        let rights = Rights::read(&self.status).ok_or(Errno::SRCH)?;
        let file = file_rights(o)?;
        let (mode, owner, _) = file;
        let by_mode = rights.uid().is_some_and(|uid| uid == 0 || uid == owner && mode & 0o200 != 0);
        if writable || by_mode {
            self.grants.lock().insert(o.id(), Grant { object: Arc::downgrade(o), rights, file });
        }
        Ok(writable || by_mode)
    }

    /// The objects of these offers whose content is taken: a right that was given up or taken away since the grant ends it.
    fn trusted(&self, offers: &[Offer], find: impl Fn(ObjectId) -> Option<ObjectRef>) -> Trusted {
        let mut trusted = Trusted::new();
        if offers.iter().all(|offer| offer.len == 0) {
            return trusted;
        }
        let now = Rights::read(&self.status);
        let mut grants = self.grants.lock();
        for id in offers.iter().filter(|offer| offer.len > 0).map(|offer| offer.id) {
            if trusted.contains_key(&id) {
                continue;
            }
            let (Some(grant), Some(o)) = (grants.get(&id), find(id)) else { continue };
            if std::ptr::eq(grant.object.as_ptr(), Arc::as_ptr(&o))
                && now.as_ref() == Some(&grant.rights)
                && file_rights(&o) == Ok(grant.file)
            {
                trusted.insert(id, o);
            } else {
                grants.remove(&id);
            }
        }
        trusted
    }
}

/// Objects whose content a client may donate now.
type Trusted = HashMap<ObjectId, ObjectRef>;

// ---- the drainer -------------------------------------------------------------------------------------------------------

/// How long the drainer stays at one look in two milliseconds after the last donation.
const EAGER: Duration = Duration::from_millis(20);

fn drain_loop(engine: &Engine, bell: &OwnedFd) {
    let header = engine.handles().segment.header();
    let mut last = Instant::now();
    while !engine.stopping.load(Ordering::Acquire) {
        let clients = engine.clients.all();
        let found: usize = clients.iter().map(|c| drain(engine, c)).sum();
        if found > 0 {
            last = Instant::now();
        }
        let idle = last.elapsed();
        let nap_ms = if idle < EAGER {
            2
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

/// What a slot says, read once.
struct Offer {
    slot: usize,
    id: ObjectId,
    page: u64,
    before: Before,
    /// 0: the key alone.
    len: u64,
}

impl Offer {
    fn read(ring: &Ring, slot: usize) -> Offer {
        let d = ring.donation(slot);
        Offer {
            slot,
            id: d.object.load(Ordering::Relaxed),
            page: d.page.load(Ordering::Relaxed),
            before: Before {
                identity: d.seen.load(Ordering::Relaxed),
                clock: d.clock.load(Ordering::Relaxed),
            },
            len: d.len.load(Ordering::Relaxed),
        }
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
    let offers: Vec<Offer> = ready.iter().map(|&i| Offer::read(ring, i)).collect();
    // Asks the source and /proc: before the lock.
    let trusted = client.trusted(&offers, |id| engine.lookup_object(id));
    let accepted = accept(engine, &offers, &trusted);
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
fn accept(engine: &Engine, offers: &[Offer], trusted: &Trusted) -> Vec<Donated> {
    let mut accepted: Vec<Donated> = Vec::with_capacity(offers.len());
    let mut named: HashMap<(ObjectId, u64), ()> = HashMap::new();
    let mut asked_back: Vec<(ObjectRef, u64)> = Vec::new();
    let mut core = engine.core.lock();
    for offer in offers {
        let (id, page) = (offer.id, offer.page);
        let Some(object) = core.objects.get(&id).cloned() else { continue };
        if page >= object.size().div_ceil(PAGE) || named.insert((id, page), ()).is_some() {
            continue;
        }
        let Some((ours, _)) = core.observe(&object, page) else {
            // The key of a page that the client has read in the compressed tier says: more than once.
            asked_back.push((object, page));
            continue;
        };
        let content = offer.len > 0
            && offer.len <= PAGE
            && trusted.get(&id).is_some_and(|o| Arc::ptr_eq(o, &object))
            && core.untouched_since(&object, page, offer.before);
        let Some(frame) = core.claim() else { break };
        let (before, len) = if content { (offer.before, Some(offer.len as usize)) } else { (ours, None) };
        accepted.push(Donated { slot: offer.slot, object, page, before, frame, len });
    }
    if core.frames.free_count() < engine.free_low() {
        engine.reclaim_bell.ring();
    }
    drop(core);
    engine.promote_pages(asked_back.iter().map(|(o, page)| (&**o, *page)));
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
