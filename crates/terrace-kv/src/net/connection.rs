//! One client: bytes in, requests, replies, bytes out.
//!
//! A turn reads what has come, up to a limit, and carries it out; the replies are sent when the whole round of its thread is done, and
//! synced if they must be. Its buffers shrink when they are empty.
//!
//! A client may send many requests before it reads a reply. So replies gather up to a limit, and behind it requests, which wait; then the client is
//! not read from. The events that a connection needs follow from this state alone, after each round: see [`Connection::interest`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mio::{Interest, Registry, Token};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::affinity::RemoteSamples;
use super::ahead::{Ahead, Foreseen};
use super::stream::Stream;
use crate::blobs::BlobError;
use crate::commands::{self, Session};
use crate::server::Server;
use crate::wire::Incoming;
use crate::wire::request::Malformed;

/// Bytes that one turn reads.
const READ_MAX: usize = 256 * 1024;
/// Room for one read, bytes.
const READ_STEP: usize = 16 * 1024;
/// Bytes of replies after which a turn ends.
const REPLIED_MAX: usize = 1 << 20;
/// A buffer that is empty keeps this much, bytes.
const KEPT: usize = 64 * 1024;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    /// Received; up to `begin` it is done with.
    input: Vec<u8>,
    begin: usize,
    parser: Incoming,
    ahead: Ahead,
    /// Replies; up to `sent` they are sent.
    output: Vec<u8>,
    sent: usize,
    /// The part that other connections see, and the state of commands.
    pub session: Session,
    /// There may be more to read.
    is_readable: bool,
    /// The other end is closed: what is left is read up to its end.
    is_closed: bool,
    /// The events that epoll reports.
    watched: Interest,
    /// A request that is complete waits for the next turn, or for room in the output.
    is_waiting: bool,
    /// With so many bytes unsent requests wait, and with so many that wait the client is not read from.
    waiting_max: usize,
    /// The client has sent its last byte, or what is no request.
    is_over: bool,
    /// Bytes that came since its last turn.
    received: usize,
    is_broken: bool,
    /// The end of the output before this turn, and replies since.
    turn_from: usize,
    replied: usize,
    remote: RemoteSamples,
    /// At its thread.
    pub place: Place,
}

/// Counts among the clients of a thread as long as it lives.
#[derive(Debug)]
pub struct Place(Arc<AtomicUsize>);

impl Place {
    /// One more.
    pub fn among(clients: &Arc<AtomicUsize>) -> Place {
        clients.fetch_add(1, Ordering::Relaxed);
        Place(clients.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Outcome of a turn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Turn {
    /// Something may have been changed.
    pub writes: bool,
    /// The connection is broken.
    pub is_broken: bool,
}

impl Connection {
    /// A new client.
    pub fn new(stream: Stream, session: Session, place: Place, server: &Server) -> Connection {
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

    /// An event has told of something to read, and of the end of the stream.
    pub fn wake(&mut self, is_readable: bool, is_closed: bool) {
        self.is_readable |= is_readable || is_closed;
        self.is_closed |= is_closed;
    }

    /// Reads before its turn comes, and notes the keys of the requests that wait.
    pub fn receive(&mut self, foreseen: &mut Foreseen) {
        if self.reads() {
            self.read();
        }
        // What is no request is refused in its turn.
        let _ = self.ahead.parse(&mut self.parser, &self.input[self.begin..], &self.session, foreseen);
    }

    /// Carries out what has come, and reads on.
    pub fn turn(&mut self, server: &Server, foreseen: &mut Foreseen, scratch: &mut Vec<u8>) -> Turn {
        let (mut turn, counted) = (Turn::default(), self.session.client.buffers_bytes());
        (self.turn_from, self.replied) = (self.output.len(), 0);
        let output_max = self.turn_from + REPLIED_MAX;
        loop {
            turn.writes |= self.run_requests(server, foreseen, scratch, output_max);
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

    /// Whether nothing of a request or a reply is left here.
    pub fn is_idle(&self) -> bool {
        self.begin == self.input.len() && self.unsent() == 0 && !self.is_ready() && !self.is_done()
    }

    /// The processor on which its client runs, if that stays another one than `here`, where its thread does. Before a reply is sent: the client's
    /// acknowledgement may be received on the thread's processor.
    pub fn remote_processor(&mut self, here: usize) -> Option<usize> {
        self.remote.add(here, self.stream.client_processor())
    }

    /// Whether the connection has something to do without a new event.
    pub fn is_ready(&self) -> bool {
        let runs = self.is_waiting && self.unsent() < self.waiting_max && !self.session.closes;
        self.reads() || runs
    }

    /// Whether it takes more bytes of the client.
    fn takes(&self) -> bool {
        let is_full = self.is_waiting && self.input.len() - self.begin >= self.waiting_max;
        !self.is_over && !self.session.closes && !is_full
    }

    fn reads(&self) -> bool {
        self.is_readable && self.takes()
    }

    /// The events without which it would not go on. What is readable while no event of it is wanted is one as soon as it is wanted again (epoll_ctl(2)).
    fn interest(&self) -> Interest {
        match (self.takes(), self.unsent() > 0) {
            (_, false) => Interest::READABLE,
            (true, true) => Interest::READABLE | Interest::WRITABLE,
            (false, true) => Interest::WRITABLE,
        }
    }

    /// Has epoll report these events from now on.
    fn watch(&mut self, (registry, token): (&Registry, Token)) -> io::Result<()> {
        let interest = self.interest();
        if interest != std::mem::replace(&mut self.watched, interest) {
            let is_stuck = !interest.is_readable() && !self.is_over;
            self.session.client.is_stuck.store(is_stuck, Ordering::Relaxed);
            self.stream.watch(registry, token, interest)?;
        }
        Ok(())
    }

    /// Has the epoll of its thread report its events.
    ///
    /// # Errors
    /// Those of epoll.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.watched = self.interest();
        self.stream.register(registry, token, self.watched)
    }

    /// Whether all is done: the client wants no more, or may not, and has everything.
    pub fn is_done(&self) -> bool {
        (self.session.closes || (self.is_over && !self.is_waiting)) && self.unsent() == 0
    }

    fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    fn read(&mut self) {
        if self.input.capacity() - self.input.len() < READ_STEP {
            // As much again as has come, so that a long request is not copied often, but not much more than it needs: all that is allocated counts.
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
                // A short read has emptied the stream (epoll(7)): what comes next, the end too, is an event.
                self.is_readable = bytes == room || self.is_closed;
                self.received += bytes;
            }
            Err(Errno::AGAIN) => self.is_readable = false,
            Err(_) => self.is_broken = true,
        }
    }

    /// Carries out the requests that have come whole.
    fn run_requests(
        &mut self,
        server: &Server,
        foreseen: &mut Foreseen,
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
                let parsed = self.ahead.parse(&mut self.parser, bytes, &self.session, foreseen);
                foreseen.fetch();
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
                if self.output.capacity() > KEPT {
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

    /// The last reply to a client that sent no request.
    fn refuse(&mut self, server: &Server, malformed: &Malformed) {
        commands::refuse(&self.session, malformed, &mut self.output);
        server.counters.closed.fetch_add(1, Ordering::Relaxed);
        self.session.closes = true;
        self.begin = self.input.len();
    }

    fn trim_input(&mut self) {
        // Not each time: requests that wait would be copied as often as one of them is carried out.
        if self.begin < self.input.len() / 2 {
            return;
        }
        self.input.drain(..self.begin);
        self.begin = 0;
        if self.input.is_empty() && self.input.capacity() > KEPT {
            self.input = Vec::new();
        }
    }

    /// Sends what it can; an event is to tell when the stream takes more.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(&mut self, server: &Server, at: (&Registry, Token)) -> io::Result<()> {
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
            if self.output.capacity() > KEPT {
                self.output = Vec::new();
                self.count(server);
            }
        } else if sent > 0 {
            self.session.client.note_taken();
            // A client that always leaves something would make it longer and longer.
            if self.sent >= self.output.len() / 2 {
                self.output.drain(..self.sent);
                self.sent = 0;
            }
        }
        self.watch(at)
    }

    /// Refuses the requests of this turn: each reply becomes this error.
    pub fn refuse_turn(&mut self, err: &BlobError) {
        self.output.truncate(self.turn_from);
        for _ in 0..self.replied {
            commands::refuse_write(&self.session, err, &mut self.output);
        }
    }

    /// Forgets replies that must not be sent.
    pub fn forget_replies(&mut self) {
        self.output.clear();
        self.sent = 0;
    }

    /// Counts its buffers, which had `before` bytes. Where those of all clients have too much, others that do nothing are to go first; false: this one is.
    fn may_grow(&mut self, server: &Server, before: usize) -> bool {
        let (now, all) = self.count(server);
        if now <= before || now <= KEPT {
            return true;
        }
        let (max, has_memory) = (server.config.buffers_bytes_max, server.keyspace.blobs().has_room(0));
        if all <= max && has_memory {
            return true;
        }
        let client = &self.session.client;
        let (stays, closed) = server.clients.make_room(client, KEPT, max, has_memory);
        server.counters.closed.fetch_add(closed + u64::from(!stays), Ordering::Relaxed);
        if !stays {
            let address = &client.address;
            tracing::warn!(
                "client {address} is closed: requests and replies take {all} bytes; raise --memory, or send less at a time"
            );
        }
        stays
    }

    /// Counts its buffers; what they have, and what those of all clients have.
    fn count(&mut self, server: &Server) -> (usize, usize) {
        let parsed = self.parser.bytes() + self.ahead.bytes();
        let now = self.input.capacity() + self.output.capacity() + parsed;
        (now, server.clients.count_buffers(&self.session.client, now))
    }

    /// The client is gone.
    pub fn end(self, server: &Server) {
        server.clients.count_buffers(&self.session.client, 0);
        server.clients.remove(self.session.client.id);
    }

    /// Its stream.
    pub fn stream_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }
}
