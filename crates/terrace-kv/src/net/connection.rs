//! One client: bytes in, requests, replies, bytes out.
//!
//! A turn reads what has come, up to a limit, and carries it out; the replies are sent when the whole round of its thread is done, and
//! synced if they must be. A client that does not read its replies is not read from either. Its buffers shrink when they are empty.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mio::{Registry, Token};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::affinity::RemoteSamples;
use super::ahead::{Ahead, Foreseen};
use super::stream::Stream;
use crate::commands::{self, Session};
use crate::server::Server;
use crate::wire::Incoming;
use crate::wire::request::Malformed;

/// Bytes that one turn reads.
const READ_MAX: usize = 256 * 1024;
/// Room for one read, bytes.
const READ_STEP: usize = 16 * 1024;
/// With so many bytes unsent a client is not read from.
const UNSENT_MAX: usize = 1 << 20;
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
    /// The stream has taken no more: an event tells when it does again.
    awaits_room: bool,
    /// A request that is complete waits for room in the output.
    is_waiting: bool,
    /// The client has sent its last byte, or what is no request.
    is_over: bool,
    /// Bytes that came since its last turn.
    received: usize,
    is_broken: bool,
    /// Bytes of buffers that were counted.
    counted: usize,
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
            awaits_room: false,
            is_waiting: false,
            is_over: false,
            received: 0,
            is_broken: false,
            counted: 0,
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
        if self.is_readable && !self.is_over && !self.session.closes && self.unsent() < UNSENT_MAX {
            self.read();
        }
        // What is no request is refused in its turn.
        let _ = self.ahead.parse(&mut self.parser, &self.input[self.begin..], &self.session, foreseen);
    }

    /// Carries out what has come, and reads on.
    pub fn turn(&mut self, server: &Server, foreseen: &mut Foreseen, scratch: &mut Vec<u8>) -> Turn {
        let (mut turn, counted) = (Turn::default(), self.counted);
        loop {
            turn.writes |= self.run_requests(server, foreseen, scratch);
            let stops = self.is_over || self.is_waiting || !self.is_readable || self.received >= READ_MAX;
            if stops || self.session.closes || self.is_broken {
                break;
            }
            self.read();
        }
        let received = std::mem::take(&mut self.received);
        if received > 0 {
            server.counters.input_bytes.fetch_add(received as u64, Ordering::Relaxed);
            let client = &self.session.client;
            client.active_ms.store(client.since.elapsed().as_millis() as u64, Ordering::Relaxed);
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
        let reads = self.is_readable && !self.is_over;
        self.unsent() < UNSENT_MAX && (reads || self.is_waiting) && !self.session.closes
    }

    /// Whether all is done: the client wants no more, or may not, and has everything.
    pub fn is_done(&self) -> bool {
        (self.session.closes || (self.is_over && !self.is_waiting)) && self.unsent() == 0
    }

    fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    fn read(&mut self) {
        // As much again as has come, within bounds, and no more than that: all that is allocated counts, and the longest request must fit.
        let step = self.input.len().clamp(READ_STEP, READ_MAX);
        self.input.reserve_exact(step);
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
    fn run_requests(&mut self, server: &Server, foreseen: &mut Foreseen, scratch: &mut Vec<u8>) -> bool {
        let mut writes = false;
        self.is_waiting = false;
        while self.begin < self.input.len() && !self.session.closes {
            if self.unsent() >= UNSENT_MAX {
                self.is_waiting = true;
                break;
            }
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
            let Some((row, args, length)) = self.ahead.take(bytes) else { break };
            if !args.is_empty() {
                writes |= commands::run(server, &mut self.session, row, args, &mut self.output, scratch);
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
        self.input.drain(..self.begin);
        self.begin = 0;
        if self.input.is_empty() && self.input.capacity() > KEPT {
            self.input = Vec::new();
        }
    }

    /// Sends what it can; if the stream takes no more, an event is to tell when it does.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn send(&mut self, server: &Server, (registry, token): (&Registry, Token)) -> io::Result<()> {
        let before = self.sent;
        while self.unsent() > 0 {
            let rest = &self.output[self.sent..];
            match rustix::io::retry_on_intr(|| rustix::net::send(&self.stream, rest, SendFlags::NOSIGNAL)) {
                Ok(bytes) => self.sent += bytes,
                Err(Errno::AGAIN) => break,
                Err(err) => return Err(err.into()),
            }
        }
        server.counters.output_bytes.fetch_add((self.sent - before) as u64, Ordering::Relaxed);
        let is_stuck = self.unsent() > 0;
        if is_stuck != std::mem::replace(&mut self.awaits_room, is_stuck) {
            self.stream.watch_room(registry, token, is_stuck)?;
        }
        if !is_stuck {
            self.output.clear();
            self.sent = 0;
            if self.output.capacity() > KEPT {
                self.output = Vec::new();
            }
        }
        Ok(())
    }

    /// Forgets replies that must not be sent.
    pub fn forget_replies(&mut self) {
        self.output.clear();
        self.sent = 0;
    }

    /// Counts its buffers, which had `before` bytes; false: with them all clients together have too much, and this one is to go.
    fn may_grow(&mut self, server: &Server, before: usize) -> bool {
        let (now, all) = self.count(server);
        let max = server.config.buffers_bytes_max;
        let too_much = now > before && now > KEPT && (all > max || !server.keyspace.blobs().has_room(0));
        if too_much {
            tracing::warn!(
                "client {} is closed: requests and replies take {all} bytes; raise --memory, or send less at a time",
                self.session.client.address
            );
            server.counters.closed.fetch_add(1, Ordering::Relaxed);
        }
        !too_much
    }

    /// Counts its buffers; what they have, and what those of all clients have.
    fn count(&mut self, server: &Server) -> (usize, usize) {
        let parsed = self.parser.bytes() + self.ahead.bytes();
        let now = self.input.capacity() + self.output.capacity() + parsed;
        let before = std::mem::replace(&mut self.counted, now);
        (now, server.clients.count_buffers(before, now))
    }

    /// The client is gone.
    pub fn end(mut self, server: &Server) {
        server.clients.count_buffers(std::mem::take(&mut self.counted), 0);
        server.clients.remove(self.session.client.id);
    }

    /// Its stream.
    pub fn stream_mut(&mut self) -> &mut Stream {
        &mut self.stream
    }
}
