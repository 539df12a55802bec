//! A connection: reads requests, runs them, sends replies.
//!
//! A turn reads and runs received requests up to a limit. The replies are sent at the end of the thread's
//! round, after a sync if required. Empty buffers shrink.
//!
//! A client may send many requests before it reads a reply. Unsent replies gather up to a limit. Then
//! requests wait up to a limit. Then the connection is no longer read. The events to watch follow from this
//! state after each round: see [`Connection::interest`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mio::{Interest, Registry, Token};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::affinity::RemoteSamples;
use super::pipeline::{Ahead, ParsedRequest};
use super::stream::Stream;
use crate::blobs::BlobError;
use crate::commands::{self, Session};
use crate::server::Server;
use crate::wire::Incoming;
use crate::wire::request::Malformed;

/// Maximum bytes that one turn reads.
const READ_MAX: usize = 256 * 1024;
/// Minimum room for one read, bytes.
const READ_STEP: usize = 16 * 1024;
/// Bytes of replies after which a turn ends.
const REPLIED_MAX: usize = 1 << 20;
/// Capacity that an empty buffer keeps, bytes.
const BUFFER_KEPT_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    /// Received bytes. Those before `begin` are consumed.
    input: Vec<u8>,
    begin: usize,
    parser: Incoming,
    ahead: Ahead,
    /// Replies. Those before `sent` are sent.
    output: Vec<u8>,
    sent: usize,
    /// The client's entry for other connections, and the state of commands.
    pub(crate) session: Session,
    /// The socket may be readable.
    is_readable: bool,
    /// The peer has closed its side: the rest is read to the end.
    is_closed: bool,
    /// Events registered with epoll.
    watched: Interest,
    /// A complete request waits for the next turn, or for room in the output.
    is_waiting: bool,
    /// Limit of unsent replies, and of waiting requests, bytes.
    waiting_max: usize,
    /// The client has sent its last byte, or a malformed request.
    is_over: bool,
    /// Bytes received since the last turn.
    received: usize,
    is_broken: bool,
    /// Length of the output before this turn, and replies since.
    turn_from: usize,
    replied: usize,
    remote: RemoteSamples,
    /// Counts the connection for its thread.
    pub(crate) place: Place,
}

/// Counts as a client of a thread while it lives.
#[derive(Debug)]
pub(super) struct Place(Arc<AtomicUsize>);

impl Place {
    /// Counts one more client.
    pub(super) fn among(clients: &Arc<AtomicUsize>) -> Place {
        clients.fetch_add(1, Ordering::Relaxed);
        Place(clients.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// The turn may have changed the store.
    pub(crate) writes: bool,
    pub(crate) is_broken: bool,
}

impl Connection {
    pub(super) fn new(stream: Stream, session: Session, place: Place, server: &Server) -> Connection {
        let parser = Incoming::new(session.protocol, server.config.limits());
        Connection {
            stream,
            input: Vec::new(),
            begin: 0,
            parser,
            ahead: Ahead::default(),
            output: Vec::new(),
            sent: 0,
            session,
            is_readable: true,
            is_closed: false,
            watched: Interest::READABLE,
            is_waiting: false,
            waiting_max: server.config.waiting_bytes_max(),
            is_over: false,
            received: 0,
            is_broken: false,
            turn_from: 0,
            replied: 0,
            remote: RemoteSamples::default(),
            place,
        }
    }

    /// Notes an event: the socket is readable, or its peer has closed it.
    pub(super) fn wake(&mut self, is_readable: bool, is_closed: bool) {
        self.is_readable |= is_readable || is_closed;
        self.is_closed |= is_closed;
    }

    /// Reads ahead of the turn, and notes the keys of the waiting requests.
    pub(super) fn receive(&mut self, upcoming: &mut ParsedRequest) {
        if self.reads() {
            self.read();
        }
        // A malformed request is refused in the turn.
        let _ = self.ahead.parse(&mut self.parser, &self.input[self.begin..], &self.session, upcoming);
    }

    /// Runs the received requests, and reads on.
    pub(super) fn turn(
        &mut self,
        server: &Server,
        upcoming: &mut ParsedRequest,
        scratch: &mut Vec<u8>,
    ) -> Turn {
        let (mut turn, counted) = (Turn::default(), self.session.client.buffers_bytes());
        (self.turn_from, self.replied) = (self.output.len(), 0);
        let output_max = self.turn_from + REPLIED_MAX;
        loop {
            turn.writes |= self.run_requests(server, upcoming, scratch, output_max);
            if !self.reads() || self.received >= READ_MAX || self.is_broken {
                break;
            }
            self.read();
        }
        let received = std::mem::take(&mut self.received);
        if received > 0 {
            server.counters.input_bytes.fetch_add(received as u64, Ordering::Relaxed);
            self.session.client.note_sent();
        }
        turn.is_broken = self.is_broken || !self.may_grow(server, counted);
        turn
    }

    /// Whether no request, reply or part of one is left.
    pub(super) fn is_idle(&self) -> bool {
        self.begin == self.input.len() && self.unsent() == 0 && !self.is_ready() && !self.is_done()
    }

    /// The client's processor, if it stays different from `here`, the thread's. Called before a reply is
    /// sent, since the client's acknowledgement may arrive on the thread's processor.
    pub(super) fn remote_processor(&mut self, here: usize) -> Option<usize> {
        self.remote.add(here, self.stream.client_processor())
    }

    /// Whether the connection has work without a new event.
    pub(super) fn is_ready(&self) -> bool {
        let runs = self.is_waiting && self.unsent() < self.waiting_max && !self.session.closes;
        self.reads() || runs
    }

    /// Whether the connection accepts more bytes.
    fn takes(&self) -> bool {
        let is_full = self.is_waiting && self.input.len() - self.begin >= self.waiting_max;
        !self.is_over && !self.session.closes && !is_full
    }

    fn reads(&self) -> bool {
        self.is_readable && self.takes()
    }

    /// The events that the connection needs to go on. Re-enabling an event reports data that arrived
    /// meanwhile (epoll_ctl(2)).
    fn interest(&self) -> Interest {
        match (self.takes(), self.unsent() > 0) {
            (_, false) => Interest::READABLE,
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (false, true) => Interest::WRITABLE,
        }
    }

    /// Registers the current interest with epoll.
    fn watch(&mut self, (registry, token): (&Registry, Token)) -> io::Result<()> {
        let interest = self.interest();
        if interest != std::mem::replace(&mut self.watched, interest) {
            let is_stuck = !interest.is_readable() && !self.is_over;
            self.session.client.is_stuck.store(is_stuck, Ordering::Relaxed);
            self.stream.watch(registry, token, interest)?;
        }
        Ok(())
    }

    /// Registers the connection with its thread's epoll.
    ///
    /// # Errors
    /// Errors of epoll.
    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.watched = self.interest();
        self.stream.register(registry, token, self.watched)
    }

    /// Whether the connection is finished: no more requests, and all replies are sent.
    pub(super) fn is_done(&self) -> bool {
        (self.session.closes || (self.is_over && !self.is_waiting)) && self.unsent() == 0
    }

    fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    fn read(&mut self) {
        if self.input.capacity() - self.input.len() < READ_STEP {
            // Grows by the amount received so far, so a long request is rarely copied. Never much more than
            // needed: all capacity counts.
            let step = (self.input.len() - self.begin).clamp(READ_STEP, READ_MAX.max(self.ahead.needs()));
            self.input.reserve_exact(step);
        }
        let room = self.input.capacity() - self.input.len();
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recv(&self.stream, spare_capacity(&mut self.input), RecvFlags::empty())
        });
        match received {
            Ok((0, _)) => self.is_over = true,
            Ok((bytes, _)) => {
                // A short read has drained the socket (epoll(7)): later data, or its end, is a new event.
                self.is_readable = bytes == room || self.is_closed;
                self.received += bytes;
            }
            Err(Errno::AGAIN) => self.is_readable = false,
            Err(_) => self.is_broken = true,
        }
    }

    /// Runs the complete requests.
    fn run_requests(
        &mut self,
        server: &Server,
        upcoming: &mut ParsedRequest,
        scratch: &mut Vec<u8>,
        output_max: usize,
    ) -> bool {
        let mut writes = false;
        self.is_waiting = false;
        while self.begin < self.input.len() && !self.session.closes {
            let has_room = self.unsent() < self.waiting_max && self.output.len() < output_max;
            let bytes = &self.input[self.begin..];
            if self.ahead.is_empty() {
                self.ahead.tidy();
                let parsed = self.ahead.parse(&mut self.parser, bytes, &self.session, upcoming);
                upcoming.fetch();
                if let Err(malformed) = parsed
                    && self.ahead.is_empty()
                {
                    self.refuse(server, &malformed);
                    break;
                }
            }
            if !has_room {
                self.is_waiting = !self.ahead.is_empty();
                break;
            }
            let Some((row, args, length)) = self.ahead.take(bytes) else { break };
            if !args.is_empty() {
                let before = self.output.len();
                writes |= commands::run(server, &mut self.session, row, args, &mut self.output, scratch);
                self.replied += usize::from(self.output.len() > before);
                if self.output.capacity() > BUFFER_KEPT_MAX {
                    self.count(server);
                }
                server.keyspace.blobs().release();
            }
            self.begin += length;
        }
        self.ahead.tidy();
        self.trim_input();
        writes
    }

    /// Sends the last reply after a malformed request.
    fn refuse(&mut self, server: &Server, malformed: &Malformed) {
        commands::refuse(&self.session, malformed, &mut self.output);
        server.counters.closed.fetch_add(1, Ordering::Relaxed);
        self.session.closes = true;
        self.begin = self.input.len();
    }

    fn trim_input(&mut self) {
        // Only from half on: otherwise each request that runs would copy the waiting ones.
        if self.begin < self.input.len() / 2 {
            return;
        }
        self.input.drain(..self.begin);
        self.begin = 0;
        if self.input.is_empty() && self.input.capacity() > BUFFER_KEPT_MAX {
            self.input = Vec::new();
        }
    }

    /// Sends as much as possible. An event follows when the socket takes more.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) fn send(&mut self, server: &Server, at: (&Registry, Token)) -> io::Result<()> {
        let before = self.sent;
        while self.unsent() > 0 {
            let rest = &self.output[self.sent..];
            match rustix::io::retry_on_intr(|| rustix::net::send(&self.stream, rest, SendFlags::NOSIGNAL)) {
                Ok(bytes) => self.sent += bytes,
                Err(Errno::AGAIN) => break,
                Err(err) => return Err(err.into()),
            }
        }
        let sent = self.sent - before;
        server.counters.output_bytes.fetch_add(sent as u64, Ordering::Relaxed);
        if self.unsent() == 0 {
            self.output.clear();
            self.sent = 0;
            if self.output.capacity() > BUFFER_KEPT_MAX {
                self.output = Vec::new();
                self.count(server);
            }
        } else if sent > 0 {
            self.session.client.note_taken();
            // Otherwise a client that always leaves a rest would grow the buffer without limit.
            if self.sent >= self.output.len() / 2 {
                self.output.drain(..self.sent);
                self.sent = 0;
            }
        }
        self.watch(at)
    }

    /// Refuses the requests of this turn: this error replaces each reply.
    pub(super) fn refuse_turn(&mut self, err: &BlobError) {
        self.output.truncate(self.turn_from);
        for _ in 0..self.replied {
            commands::refuse_write(&self.session, err, &mut self.output);
        }
    }

    /// Drops replies that must not be sent.
    pub(super) fn forget_replies(&mut self) {
        self.output.clear();
        self.sent = 0;
    }

    /// Counts its buffers, which had `before` bytes. If all clients' buffers exceed the limit, idle clients
    /// are closed first. Returns false if this client must be closed.
    fn may_grow(&mut self, server: &Server, before: usize) -> bool {
        let (now, all) = self.count(server);
        if now <= before || now <= BUFFER_KEPT_MAX {
            return true;
        }
        let (max, has_memory) = (server.config.buffers_bytes_max, server.keyspace.blobs().has_room(0));
        if all <= max && has_memory {
            return true;
        }
        let client = &self.session.client;
        let (stays, closed) = server.clients.make_room(client, BUFFER_KEPT_MAX, max, has_memory);
        server.counters.closed.fetch_add(closed + u64::from(!stays), Ordering::Relaxed);
        if !stays {
            let address = &client.address;
            tracing::warn!(
                "client {address} is closed: the buffers of all clients take {all} bytes; raise --memory, or send less at a time"
            );
        }
        stays
    }

    /// Counts its buffers. Returns their size, and that of all clients.
    fn count(&mut self, server: &Server) -> (usize, usize) {
        let parsed = self.parser.bytes() + self.ahead.bytes();
        let now = self.input.capacity() + self.output.capacity() + parsed;
        (now, server.clients.count_buffers(&self.session.client, now))
    }

    pub(super) fn end(self, server: &Server) {
        server.clients.count_buffers(&self.session.client, 0);
        server.clients.remove(self.session.client.id);
    }

    pub(super) fn stream_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }
}
