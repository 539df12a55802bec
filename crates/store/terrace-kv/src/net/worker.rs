//! A thread that serves clients: epoll, turns, end of the batch, replies.
//!
//! ```text
//! events ──► a turn for each ready connection: read, run ──► end of the batch ──► replies ──► events
//! ```
//! So all writing clients of a round share one end of the batch, which may be a sync.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use hashbrown::HashMap;
use mio::{Events, Poll, Token, Waker};
use rustix::thread::sched_getcpu;

use super::affinity::{self, SampleInterval};
use super::busy_poll::BusyPoll;
use super::connection::Connection;
use super::inbox::{Arrival, Inbox, ThreadShedding, Threads};
use super::pipeline::ParsedRequest;
use super::stream::{Acceptor, Stream};
use crate::blobs::BlobError;
use crate::commands::{self, Session};
use crate::config::Durability;
use crate::server::Server;
use crate::wire::Protocol;

/// Maximum number of events per wait.
const EVENTS: usize = 1024;
/// Token of the waker. Listeners have tokens from 1, clients from `CLIENTS_FROM`.
const WAKER: Token = Token(0);
/// First token of clients.
const CLIENTS_FROM: usize = 16;
/// Delay before a failed accept is retried.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Worker {
    server: Arc<Server>,
    poll: Poll,
    arrivals: Receiver<Arrival>,
    connections: HashMap<usize, Connection>,
    next: usize,
    /// Only in the first thread.
    acceptors: Vec<Acceptor>,
    threads: Threads,
    number: usize,
    /// A spare thread has one client, while clients are few.
    is_spare: bool,
    shedding: ThreadShedding,
    busy_poll: BusyPoll,
    sample_interval: SampleInterval,
    accept_again: bool,
    scratch: Vec<u8>,
    upcoming: ParsedRequest,
}

impl Worker {
    /// Creates a thread's state.
    ///
    /// # Errors
    /// No descriptors.
    pub(super) fn new(server: Arc<Server>) -> io::Result<(Worker, Inbox)> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let (send, arrivals) = std::sync::mpsc::channel();
        let upcoming = ParsedRequest::new(server.clone());
        let worker = Worker {
            server,
            poll,
            arrivals,
            connections: HashMap::new(),
            next: CLIENTS_FROM,
            acceptors: Vec::new(),
            threads: Threads::default(),
            number: 0,
            is_spare: false,
            shedding: ThreadShedding::default(),
            busy_poll: BusyPoll::default(),
            sample_interval: SampleInterval::default(),
            accept_again: false,
            scratch: Vec::new(),
            upcoming,
        };
        Ok((worker, Inbox::new(send, waker)))
    }

    pub(super) fn join(&mut self, number: usize, threads: Threads) {
        (self.number, self.is_spare, self.threads) = (number, threads.is_spare(number), threads);
    }

    /// Makes this thread the one that accepts clients.
    ///
    /// # Errors
    /// Errors of epoll.
    pub(super) fn accept_by(&mut self, acceptors: Vec<Acceptor>) -> io::Result<()> {
        assert!(acceptors.len() < CLIENTS_FROM - 1, "few listeners");
        self.acceptors = acceptors;
        for (at, acceptor) in self.acceptors.iter_mut().enumerate() {
            self.poll.registry().register(acceptor.source(), Token(at + 1), mio::Interest::READABLE)?;
        }
        Ok(())
    }

    /// Serves until the server stops.
    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let mut ready: Vec<usize> = Vec::new();
        while !self.server.is_stopping.load(Ordering::Relaxed) {
            let soon = (!ready.is_empty()).then_some(Duration::ZERO);
            let timeout = soon.or(self.accept_again.then_some(ACCEPT_AGAIN));
            if let Err(err) = self.wait(&mut events, timeout)
                && err.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!("clients cannot be waited for (epoll_wait): {err}");
                std::thread::sleep(ACCEPT_AGAIN);
            }
            let mut accepts = std::mem::take(&mut self.accept_again);
            for event in &events {
                match event.token() {
                    WAKER => ready.extend(self.take_arrivals_and_killed()),
                    Token(at) if at < CLIENTS_FROM => accepts = true,
                    Token(at) => {
                        if let Some(connection) = self.connections.get_mut(&at) {
                            let is_closed = event.is_read_closed() || event.is_error();
                            connection.wake(event.is_readable(), is_closed);
                            ready.push(at);
                        }
                    }
                }
            }
            if accepts {
                self.accept();
            }
            ready.sort_unstable();
            ready.dedup();
            let remote = self.remote_clients(&ready);
            let again = self.round(&ready);
            ready.clear();
            ready.extend(again);
            remote.into_iter().for_each(|(at, there)| self.pair(at, there));
            if self.is_spare && self.shedding.lasts(&self.threads) {
                self.hand_over_idle();
            }
        }
        let ids: Vec<usize> = self.connections.keys().copied().collect();
        ids.into_iter().for_each(|id| self.close(id));
    }

    fn wait(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        match timeout {
            None if self.connections.len() == 1 && self.threads.may_busy_poll() => {
                self.busy_poll.wait(&mut self.poll, events)
            }
            _ => self.poll.poll(events, timeout),
        }
    }

    /// A turn for each connection, then the end of the batch if there are changes, then the replies. Returns
    /// the connections with more work.
    fn round(&mut self, ready: &[usize]) -> Vec<usize> {
        let mut writers = Vec::new();
        self.turns(ready, &mut writers);
        if !writers.is_empty() {
            self.sync_for(&writers);
        }
        let mut again = Vec::new();
        for at in ready {
            let Some(connection) = self.connections.get_mut(at) else { continue };
            let sent = connection.send(&self.server, (self.poll.registry(), Token(*at)));
            if sent.is_err() || connection.is_done() {
                self.close(*at);
            } else if connection.is_ready() {
                again.push(*at);
            }
        }
        again
    }

    /// A turn for each connection, in groups with overlapping memory fetches. `writers` gets the connections
    /// with a possible change: its batch ends before their reply.
    fn turns(&mut self, ready: &[usize], writers: &mut Vec<usize>) {
        let (mut group, mut next) = (0, 0);
        while group < ready.len() {
            while next < ready.len() && !self.upcoming.is_full() {
                if let Some(connection) = self.connections.get_mut(&ready[next]) {
                    connection.receive(&mut self.upcoming);
                }
                next += 1;
            }
            self.upcoming.fetch();
            for at in &ready[group..next] {
                let Some(connection) = self.connections.get_mut(at) else { continue };
                let turn = connection.turn(&self.server, &mut self.upcoming, &mut self.scratch);
                if turn.is_broken {
                    self.close(*at);
                } else if turn.writes {
                    writers.push(*at);
                }
            }
            group = next;
        }
    }

    /// Ends the batch of the writers. After a failure the writers get errors, since their changes may be
    /// lost. If each write must be durable, they are closed without replies.
    fn sync_for(&mut self, writers: &[usize]) {
        let Err(err) = self.server.keyspace.blobs().end_batch() else { return };
        if self.server.config.durability != Durability::Always {
            tracing::error!("{} clients get errors, because their changes may be lost: {err}", writers.len());
            let refused = BlobError::NotDurable(format!("the change may be lost: {err}"));
            for at in writers {
                if let Some(connection) = self.connections.get_mut(at) {
                    connection.refuse_turn(&refused);
                }
            }
            return;
        }
        tracing::error!(
            "the server closes {} clients without replies, because their writes may be lost: {err}",
            writers.len()
        );
        for at in writers {
            if let Some(connection) = self.connections.get_mut(at) {
                connection.forget_replies();
            }
            self.close(*at);
        }
    }

    /// Accepts clients from the inbox, and closes killed ones. Returns the connections that may be ready.
    fn take_arrivals_and_killed(&mut self) -> Vec<usize> {
        let mut ready = Vec::new();
        while let Ok(arrival) = self.arrivals.try_recv() {
            let at = self.next;
            self.next += 1;
            let mut connection = match arrival {
                Arrival::New(stream, session, place) => Connection::new(stream, session, place, &self.server),
                Arrival::Moved(connection) => *connection,
            };
            match connection.register(self.poll.registry(), Token(at)) {
                Ok(()) => {
                    self.connections.insert(at, connection);
                    ready.push(at);
                }
                Err(err) => {
                    tracing::warn!("a client cannot be served, and is closed: {err}");
                    connection.end(&self.server);
                }
            }
        }
        let is_killed = |connection: &Connection| connection.session.client.killed.load(Ordering::Relaxed);
        let killed: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, connection)| is_killed(connection))
            .map(|(at, _)| *at)
            .collect();
        killed.into_iter().for_each(|at| self.close(at));
        ready
    }

    /// Hands its idle clients to shared threads.
    fn hand_over_idle(&mut self) {
        let idle = self.connections.iter().filter(|(_, connection)| connection.is_idle());
        let idle: Vec<usize> = idle.map(|(at, _)| *at).collect();
        idle.into_iter().for_each(|at| self.hand_over(at, self.threads.for_moved()));
    }

    /// The ready clients that stay on another processor than this thread, and their processors. Sampled now
    /// and then.
    fn remote_clients(&mut self, ready: &[usize]) -> Vec<(usize, usize)> {
        if !self.sample_interval.is_due() || !self.threads.may_pair() {
            return Vec::new();
        }
        let here = sched_getcpu();
        self.threads.seen_on(self.number, here);
        let mut processor_of = |at: &usize| self.connections.get_mut(at)?.remote_processor(here);
        ready.iter().filter_map(|at| Some((*at, processor_of(at)?))).collect()
    }

    /// Brings this thread and an idle client to the same processor, `there`.
    fn pair(&mut self, at: usize, there: usize) {
        if !self.connections.get(&at).is_some_and(Connection::is_idle) {
            return;
        }
        if self.connections.len() > 1 {
            if let Some(thread) = self.threads.sharing_on(there, self.number) {
                self.hand_over(at, thread);
            }
        } else if self.threads.may_move(sched_getcpu(), there) {
            match affinity::move_to(there) {
                Ok(true) => self.threads.seen_on(self.number, there),
                Ok(false) => {}
                Err(err) => {
                    tracing::info!("a thread cannot move to the processor of its client: {err}");
                    self.sample_interval.end();
                }
            }
        }
    }

    /// Hands a client over to another thread. Bytes that arrived in between raise an event there.
    fn hand_over(&mut self, at: usize, number: usize) {
        let Some(mut connection) = self.connections.remove(&at) else { return };
        let left = match connection.stream_mut().deregister(self.poll.registry()) {
            Ok(()) => self.threads.inbox(number).take_over(connection),
            Err(err) => {
                tracing::warn!("a client cannot move to another thread, and is closed: {err}");
                Some(connection)
            }
        };
        if let Some(connection) = left {
            connection.end(&self.server);
        }
    }

    /// Accepts new clients and assigns them to threads.
    fn accept(&mut self) {
        for at in 0..self.acceptors.len() {
            loop {
                match self.acceptors[at].accept() {
                    Ok((stream, address, local)) => {
                        self.admit(stream, (address, local), self.acceptors[at].protocol());
                    }
                    Err(err) if err.kind() == io::ErrorKind::WouldBlock => break,
                    Err(err) if err.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(err) => {
                        // Descriptors or memory have run out for a while. No event reports the end of that.
                        let cure = accept_cure(&err);
                        tracing::warn!("no client is accepted for now ({err}): {cure}");
                        self.accept_again = true;
                        break;
                    }
                }
            }
        }
    }

    fn admit(&self, stream: Stream, (address, local): (String, String), protocol: Protocol) {
        let max = self.server.config.clients_max;
        let inbox = self.threads.for_next();
        // Wakes all threads: any of them may have the client by then.
        let threads = self.threads.clone();
        let wake = move || threads.wake();
        let Some(client) = self.server.clients.add(address, local, max, wake) else {
            let line = commands::full(protocol);
            let _ = rustix::net::send(&stream, line, rustix::net::SendFlags::NOSIGNAL);
            return;
        };
        let id = client.id;
        let session = Session::new(client, protocol, self.server.config.password.is_none());
        if !inbox.take(stream, session) {
            self.server.clients.remove(id);
        }
    }

    fn close(&mut self, at: usize) {
        if let Some(connection) = self.connections.remove(&at) {
            connection.end(&self.server);
        }
    }
}

/// The cure of an accept that failed.
fn accept_cure(err: &io::Error) -> &'static str {
    use rustix::io::Errno;
    match Errno::from_io_error(err) {
        Some(Errno::MFILE) => "raise the limit of open files of this server, or lower --clients-max",
        Some(Errno::NFILE) => "raise the limit of open files of the machine (sysctl fs.file-max)",
        Some(Errno::NOMEM | Errno::NOBUFS) => "free memory, or raise the limit of the control group",
        _ => "it is tried again",
    }
}
