//! The fast door, from the daemon's side: registers client processes, hands out source descriptors, drains donations.
//!
//! Nothing that a client says is believed: credentials come from the kernel, a file from the descriptor that the client
//! holds, content only from a process that may write the file (asked anew whenever content is taken), and each field of a
//! ring is read once. Nor can a client keep others waiting: all that may take its time (syncs, the close of a descriptor
//! of a strange file system) is done by threads beside, and all of it is bounded.

mod clients;
mod connection;
mod credentials;
mod fills;
pub(crate) mod requests;
mod workers;

use crate::context::Context;
pub(crate) use clients::Clients;
use connection::Connection;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use workers::Workers;

/// Connections beside those of registered clients: questions that take no registration.
const STRANGERS_MAX: usize = 256;
/// How long nothing is accepted after the descriptors have run out.
const ACCEPT_REST: Duration = Duration::from_millis(200);

/// Serves the door on a listening SOCK_SEQPACKET socket until the engine stops. Starts the drainer.
///
/// # Errors
/// No eventfd, no thread, a listener that fails.
pub(crate) fn serve(cx: &Arc<Context>, clients: &Arc<Clients>, listener: &OwnedFd) -> io::Result<()> {
    let wakeup = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let drainer = {
        let (cx, clients, wakeup) = (cx.clone(), clients.clone(), wakeup.clone());
        std::thread::Builder::new()
            .name("drain".into())
            .spawn(move || fills::drain_loop(&cx, &clients, &wakeup))?
    };
    let workers = Workers::start(cx, wakeup)?;
    clients.server_tid.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::Relaxed);
    // On the listener: sockets inherit it as they are accepted. Set on each afterwards, it came too late for the message of a
    // client that was quick, and that client stayed without its door.
    rustix::net::sockopt::set_socket_passcred(listener, true)?;
    let mut connections: Vec<Connection> = Vec::new();
    let mut rest_until = Instant::now();
    while !cx.is_stopping() {
        connections.retain(|c| !c.is_idle_stranger());
        let full = connections.len() >= clients.clients_max + STRANGERS_MAX;
        let accepting = !full && Instant::now() >= rest_until;
        for i in ready(listener, accepting, &connections)?.into_iter().rev() {
            if i > 0 && !requests::answer(cx, clients, &workers, &mut connections[i - 1]) {
                if let Some(client) = connections.swap_remove(i - 1).client {
                    clients.leave(&client);
                }
            } else if i == 0 {
                match rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC) {
                    Ok(socket) => connections.push(Connection::new(socket)),
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
