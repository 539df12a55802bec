//! Network side of the server: connections of clients, served by threads with epoll ([`worker`]).
//!
//! - [`busy_poll`]: polling before a thread sleeps
//! - [`inbox`]: assignment of clients to threads
//! - [`affinity`]: assignment of threads and clients to processors
//! - [`connection`]: one client
//! - [`pipeline`]: requests parsed ahead
//! - [`stream`]: TCP and Unix sockets

mod affinity;
mod busy_poll;
mod connection;
mod inbox;
mod pipeline;
mod stream;
mod worker;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::server::Server;
use inbox::Threads;
use stream::Acceptor;
pub use stream::Listener;
use worker::Worker;

/// Interval of active expiry.
const EXPIRE_EVERY: Duration = Duration::from_millis(100);

/// A running server.
#[derive(Debug)]
pub struct Running {
    server: Arc<Server>,
    threads: Threads,
    handles: Vec<JoinHandle<()>>,
}

/// Starts the threads: `kv-N` serve clients, `expire` removes expired keys and stuck clients.
///
/// # Errors
/// No descriptors or threads; a memcached listener together with a password or a cluster map.
pub fn start(server: Arc<Server>, listeners: Vec<Listener>) -> io::Result<Running> {
    let is_open = server.config.password.is_none() && server.config.cluster.is_none();
    if !is_open && listeners.iter().any(|listener| matches!(listener, Listener::Memcached(_))) {
        let why = "memcached clients support neither a password nor a cluster map";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let made = (0..server.config.all_threads()).map(|_| Worker::new(server.clone()));
    let (mut workers, inboxes): (Vec<_>, Vec<_>) = made.collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
    let acceptors = listeners.into_iter().map(Acceptor::new).collect::<io::Result<Vec<_>>>()?;
    workers[0].accept_by(acceptors)?;
    let threads = Threads::new(inboxes, &server.config);
    let mut running = Running { server: server.clone(), threads: threads.clone(), handles: Vec::new() };
    for (at, mut worker) in workers.into_iter().enumerate() {
        worker.join(at, threads.clone());
        running.spawn(format!("kv-{at}"), move || worker.run())?;
    }
    running.spawn("expire".to_owned(), move || {
        while !server.is_stopping.load(Ordering::Relaxed) {
            server.keyspace.expire();
            let closed = server.clients.end_stuck(server.config.stuck_max);
            server.counters.closed.fetch_add(closed, Ordering::Relaxed);
            std::thread::sleep(EXPIRE_EVERY);
        }
    })?;
    Ok(running)
}

impl Running {
    fn spawn(&mut self, name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.handles.push(std::thread::Builder::new().name(name).spawn(body)?);
        Ok(())
    }

    /// The server.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Closes all clients and ends the threads. Acknowledged writes are in the store; its owner syncs it.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.server.is_stopping.store(true, Ordering::Relaxed);
        self.threads.wake();
        for handle in self.handles.drain(..) {
            let _ = handle.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
