//! Requests of clients: registration, source descriptors, files without a mount, targets, announcements of
//! mappings.

use crate::context::Context;
use crate::preload_server::clients::{Client, Clients};
use crate::preload_server::connection::{Connection, receive, send};
use crate::preload_server::credentials::{Credentials, shown, shown_inode};
use crate::preload_server::hints;
use crate::preload_server::workers::Workers;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::UCred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use terrace_shm::layout::{FLAG_MAPPED, LAYOUT_VERSION};
use terrace_shm::map::memfd;
use terrace_shm::proto::{self, Reply, Request};
use terrace_shm::ring::Ring;
use terrace_shm::{Header, PAGE_SIZE};

/// Answers one message. False: the connection ends.
pub(super) fn answer(cx: &Arc<Context>, clients: &Clients, workers: &Workers, c: &mut Connection) -> bool {
    let Some(message) = receive(&c.socket, workers.has_room()) else { return false };
    c.last_word = Instant::now();
    if let Some(hint) = message.hint {
        workers.close(cx, message.fds);
        return hints::take(cx, c, &hint);
    }
    let stays_connected = message.request.is_some_and(|request| {
        match (request.op, request.version) {
            // A worker thread answers. A second request before the answer is an error of the client.
            (proto::FLUSH, LAYOUT_VERSION) => return workers.flush(c).is_ok(),
            (proto::RING, LAYOUT_VERSION) if c.client.is_some() => {
                let _ = rustix::io::write(&*workers.wakeup, &1_u64.to_ne_bytes());
                return true;
            }
            _ => {}
        }
        reply_to(cx, clients, c, request, message.cred, message.fds.first()).is_ok()
    });
    workers.close(cx, message.fds);
    stays_connected
}

fn reply_to(
    cx: &Context,
    clients: &Clients,
    c: &mut Connection,
    request: Request,
    cred: Option<UCred>,
    fd: Option<&OwnedFd>,
) -> io::Result<()> {
    let (reply, fds) = handle(cx, clients, c, request, cred, fd).unwrap_or_else(|e| {
        if request.op == proto::HELLO && !clients.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the preload path refuses a program ({e}); it uses the slower mount path. Further refusals are not logged"
            );
        }
        (Reply { errno: e.raw_os_error() as u32, ..Reply::default() }, Vec::new())
    });
    let handles = &cx.handles;
    let mut out: Vec<BorrowedFd<'_>> = Vec::new();
    if request.op == proto::HELLO && reply.errno == 0 {
        out.extend([handles.segment_ro.as_fd(), handles.touch_fd.as_fd()]);
    }
    out.extend(fds.iter().map(|f| f.as_fd()));
    if request.op == proto::HELLO && reply.errno == 0 {
        out.extend(handles.writes.iter().flat_map(|writes| writes.for_clients()));
    }
    send(&c.socket, &reply, &out)
}

type Answer = Result<(Reply, Vec<OwnedFd>), Errno>;

fn handle(
    cx: &Context,
    clients: &Clients,
    c: &mut Connection,
    r: Request,
    cred: Option<UCred>,
    fd: Option<&OwnedFd>,
) -> Answer {
    if r.version != LAYOUT_VERSION {
        return Err(Errno::PROTO);
    }
    // A connection older than this server sends no credentials: its creator's apply.
    let cred = cred.map_or_else(|| rustix::net::sockopt::socket_peercred(&c.socket), Ok)?;
    match (r.op, fd) {
        (proto::HELLO, _) => hello(cx, clients, c, &cred),
        (proto::SOURCE, Some(fd)) => source(cx, c, &cred, fd),
        (proto::SERVE, Some(fd)) => serve(cx, c, &cred, fd),
        (proto::WATCH, Some(fd)) => {
            client(c, &cred)?;
            let server = cx.server.get().ok_or(Errno::NODEV)?;
            shown_inode(cx, fd)?;
            server.watch(fd.as_fd())?;
            Ok((Reply::default(), Vec::new()))
        }
        (proto::GIVE_UP, Some(fd)) => {
            let server = cx.server.get().ok_or(Errno::NODEV)?;
            shown_inode(cx, fd)?;
            server.give_up(fd.as_fd())?;
            Ok((Reply::default(), Vec::new()))
        }
        (op, _) if c.client.is_some() && proto::target_of(op).is_some() => device(cx, op),
        (proto::MAPPED, Some(fd)) => {
            shown(cx, fd)?.set_flag(FLAG_MAPPED, true);
            Ok((Reply::default(), Vec::new()))
        }
        _ => Err(Errno::INVAL),
    }
}

fn hello(cx: &Context, clients: &Clients, c: &mut Connection, cred: &UCred) -> Answer {
    if c.client.is_some() {
        return Err(Errno::ALREADY);
    }
    if !admits_ring(cx, clients) {
        return Err(Errno::USERS);
    }
    let slots = clients.ring_slots;
    let fd = memfd("terrace-ring", Ring::file_bytes(slots)).map_err(|_| Errno::NOMEM)?;
    let ring = Ring::attach(&fd, slots).map_err(|_| Errno::NOMEM)?;
    let process = pidfd_open(cred.pid, PidfdFlags::empty())?;
    let client = Arc::new(Client {
        pid: raw(cred.pid),
        process,
        credentials: Credentials::of(cred.pid).map_err(|_| Errno::SRCH)?,
        socket: c.socket.clone(),
        ring: Arc::new(ring),
    });
    clients.join(client.clone())?;
    // The page stays with the process, also if this connection ends.
    let page = clients.writers.as_ref().and_then(|writers| writers.admit(client.pid, &client.process));
    c.client = Some(client);
    let header: &Header = cx.handles.segment.header();
    let reply = Reply {
        ring_slots: slots as u32,
        mount_dev: header.mount_dev.load(Ordering::Acquire),
        object: page.map_or(0, |page| page as u64 + 1),
        ..Reply::default()
    };
    Ok((reply, vec![fd]))
}

/// Whether one more client may have a ring: all rings take at most an eighth of the limit.
/// A client without a ring uses the mount path.
pub(crate) fn admits_ring(cx: &Context, clients: &Clients) -> bool {
    let rings = clients.bytes() + Ring::bytes(clients.ring_slots) as u64;
    cx.reclaim_wakeup.signal();
    rings <= cx.budget() / 8
}

fn raw(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get() as u32
}

/// Descriptors of a target and its table. Clients that see all frames may read all slots.
fn device(cx: &Context, op: u32) -> Answer {
    let number = proto::target_of(op).unwrap_or_default() as usize;
    let device = cx.devices.get(number).ok_or(Errno::NODEV)?;
    // A hanging target stays with the daemon, which reads it with a time limit.
    let file = device.medium().file().filter(|(_, limit)| !limit.is_passed());
    let path = format!("/proc/self/fd/{}", file.ok_or(Errno::OPNOTSUPP)?.0);
    let target = open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?;
    Ok((Reply::default(), vec![rustix::io::dup(device.table_files().read_only())?, target]))
}

/// The connection's client, if it sends the request itself: another process's descriptor proves no rights.
fn client<'a>(c: &'a Connection, cred: &UCred) -> Result<&'a Client, Errno> {
    c.client.as_deref().filter(|client| client.pid == raw(cred.pid)).ok_or(Errno::ACCESS)
}

/// Access mode of a descriptor that permits reads.
fn access_of(fd: &OwnedFd) -> Result<OFlags, Errno> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    let access = flags & OFlags::RWMODE;
    if access == OFlags::WRONLY || flags.contains(OFlags::PATH) {
        return Err(Errno::ACCESS);
    }
    Ok(access)
}

fn serve(cx: &Context, c: &Connection, cred: &UCred, fd: &OwnedFd) -> Answer {
    let client = client(c, cred)?;
    let server = cx.server.get().ok_or(Errno::NODEV)?;
    shown_inode(cx, fd)?;
    access_of(fd)?;
    let o = server.serve(fd.as_fd())?;
    let may_write = client.credentials.grant(&o, false)?;
    Ok((Reply { object: o.id(), may_write: u32::from(may_write), ..Reply::default() }, Vec::new()))
}

fn source(cx: &Context, c: &Connection, cred: &UCred, fd: &OwnedFd) -> Answer {
    let client = client(c, cred)?;
    let o = shown(cx, fd)?;
    let access = access_of(fd)?;
    let may_write = client.credentials.grant(&o, access == OFlags::RDWR)?;
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
