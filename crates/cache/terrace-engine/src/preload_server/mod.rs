//! Server of the preload path: registers client processes, passes source descriptors to them, takes page
//! fills.
//!
//! Clients' claims are untrusted. The kernel gives credentials, the client's descriptor names the file. Only
//! a process that may write the file gives content (checked at each fill). The server reads each field of a
//! ring once. Separate threads do syncs, prefetches and closes on foreign file systems, all bounded: no
//! client delays others.

mod clients;
mod connection;
mod credentials;
mod fills;
mod hints;
pub(crate) mod requests;
mod workers;
mod writers;

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

/// Largest number of connections beside those of registered clients, for requests without registration.
const UNREGISTERED_MAX: usize = 256;
/// Pause of accepts after a shortage of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// See [`crate::Engine::serve_preload`]. Starts the drainer.
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
    // Accepted sockets inherit the option. *Tried:* on each accepted socket, too late for a fast client's
    // first message.
    rustix::net::sockopt::set_socket_passcred(listener, true)?;
    let mut connections: Vec<Connection> = Vec::new();
    let mut accept_at = Instant::now();
    while !cx.is_stopping() {
        connections.retain(|c| !c.is_idle_unregistered());
        let full = connections.len() >= clients.clients_max + UNREGISTERED_MAX;
        let accepting = !full && Instant::now() >= accept_at;
        for i in ready(listener, accepting, &connections)?.into_iter().rev() {
            if i > 0 && !requests::answer(cx, clients, &workers, &mut connections[i - 1]) {
                if let Some(client) = connections.swap_remove(i - 1).client {
                    clients.leave(&client);
                }
            } else if i == 0 {
                match rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC) {
                    Ok(socket) => connections.push(Connection::new(socket)),
                    // Serve the accepted clients: a listener that stays ready must not keep this loop busy.
                    Err(_) => accept_at = Instant::now() + ACCEPT_PAUSE,
                }
            }
        }
    }
    let _ = drainer.join();
    Ok(())
}

/// Waits for events: 0 is the listener, others are 1 + the connection's index.
fn ready(listener: &OwnedFd, accepting: bool, connections: &[Connection]) -> io::Result<Vec<usize>> {
    let wanted = if accepting { PollFlags::IN } else { PollFlags::empty() };
    let mut fds = vec![PollFd::new(listener, wanted)];
    fds.extend(connections.iter().map(|c| PollFd::new(&*c.socket, PollFlags::IN)));
    let timeout = Timespec { tv_sec: 0, tv_nsec: ACCEPT_PAUSE.subsec_nanos().into() };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    Ok((0..fds.len()).filter(|&i| !fds[i].revents().is_empty()).collect())
}
