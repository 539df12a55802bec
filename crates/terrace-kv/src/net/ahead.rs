//! Requests that have come and wait for their turn, parsed: what their look-ups need is fetched for all of them at a time
//! ([`Blobs::prefetch`]), instead of waiting for memory in each.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::blobs::{Blobs, Db, Wanted};
use crate::commands::{self, Row, Session};
use crate::keyspace::Keyspace;
use crate::server::Server;
use crate::wire::Incoming;
use crate::wire::request::{Args, Malformed, Progress, Request};

/// Requests of one connection that are parsed before the first of them is carried out, and keys of one request that are looked at.
const AHEAD_MAX: usize = 16;

/// A request that waits.
#[derive(Debug, Default)]
struct Waiting {
    request: Request,
    /// Bytes that it takes.
    length: usize,
    row: Option<&'static Row>,
}

/// Those of one connection.
#[derive(Debug, Default)]
pub struct Ahead {
    waiting: Vec<Waiting>,
    /// Those before are carried out.
    next: usize,
    /// Those from here on are not in use.
    end: usize,
    /// Bytes that those which wait take.
    length: usize,
    /// Bytes that the request behind them still needs, at least.
    needs: usize,
}

impl Ahead {
    /// Bytes that the last request, of which a part has come, still needs at least.
    pub fn needs(&self) -> usize {
        self.needs
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.next == self.end
    }

    /// Memory that it keeps, bytes.
    pub fn bytes(&self) -> usize {
        self.waiting.iter().map(|waiting| size_of::<Waiting>() + waiting.request.bytes()).sum()
    }

    /// Parses what has come, of which nobody waits yet, and notes its keys. `bytes` begins with the first request that waits.
    ///
    /// # Errors
    /// The next request is none. It is found again when those before are carried out.
    pub fn parse(
        &mut self,
        parser: &mut Incoming,
        bytes: &[u8],
        session: &Session,
        foreseen: &mut Foreseen,
    ) -> Result<(), Malformed> {
        let (before, mut have_elements) = ((self.end, self.length), false);
        // Before the password other limits hold than after it.
        self.needs = 0;
        let max = if session.is_known { AHEAD_MAX } else { self.next + 1 };
        while self.end < max && self.length < bytes.len() {
            let rest = &bytes[self.length..];
            let length = match parser.advance(rest, session.is_known)? {
                Progress::Complete(length) => length,
                Progress::Needs(bytes) => {
                    self.needs = bytes;
                    break;
                }
            };
            if self.end == self.waiting.len() {
                self.waiting.push(Waiting::default());
            }
            let waiting = &mut self.waiting[self.end];
            parser.take(&mut waiting.request);
            waiting.length = length;
            let args = waiting.request.args(rest);
            waiting.row = args.get(0).and_then(|name| commands::find(session.protocol, name));
            if let Some(row) = waiting.row {
                foreseen.note(session.db, row, args);
                have_elements |= row.elements.first > 0;
            }
            self.end += 1;
            self.length += length;
        }
        if have_elements {
            self.fetch_elements(before, bytes, session.db, foreseen.keyspace());
        }
        Ok(())
    }

    /// Has the processor fetch elements of collections that requests from the given one on look up: those that follow each other in one collection at a time.
    fn fetch_elements(&self, (first, begin): (usize, usize), bytes: &[u8], db: Db, keyspace: &Keyspace) {
        let (mut of, mut at) = (&[][..], begin);
        let mut names: SmallVec<[&[u8]; AHEAD_MAX]> = SmallVec::new();
        for Waiting { request, length, row } in &self.waiting[first..self.end] {
            let args = request.args(&bytes[at..]);
            at += length;
            let Some(row) = row.filter(|row| row.elements.first > 0 && args.len() > 2) else { continue };
            if *of != *args.at(1) {
                fetch(keyspace, db, of, &mut names);
                of = args.at(1);
            }
            names.extend(row.elements.of(args).take(AHEAD_MAX));
        }
        fetch(keyspace, db, of, &mut names);
    }

    /// Gives back memory of requests that are carried out, if all are.
    pub fn tidy(&mut self) {
        if self.is_empty() {
            self.waiting[..self.end].iter_mut().for_each(|waiting| waiting.request.clear());
            (self.next, self.end) = (0, 0);
        }
    }

    /// Takes the next request: its command, its arguments and the bytes that it takes. `bytes` begins with it.
    pub fn take<'a>(&'a mut self, bytes: &'a [u8]) -> Option<(Option<&'static Row>, Args<'a>, usize)> {
        if self.is_empty() {
            return None;
        }
        let Waiting { request, length, row } = &self.waiting[self.next];
        self.next += 1;
        self.length -= length;
        Some((*row, request.args(bytes), *length))
    }
}

/// Has elements fetched; one alone waits for memory either way.
fn fetch(keyspace: &Keyspace, db: Db, key: &[u8], names: &mut SmallVec<[&[u8]; AHEAD_MAX]>) {
    if names.len() > 1 {
        keyspace.prefetch_elements(db, key, names);
    }
    names.clear();
}

/// Keys that requests are going to look up.
#[derive(Debug)]
pub struct Foreseen {
    server: Arc<Server>,
    db: Db,
    wanted: Vec<Wanted>,
}

impl Foreseen {
    /// None.
    pub fn new(server: Arc<Server>) -> Foreseen {
        Foreseen { server, db: 0, wanted: Vec::with_capacity(2 * AHEAD_MAX) }
    }

    /// Whether there are as many as are fetched at a time.
    pub fn is_full(&self) -> bool {
        self.wanted.len() >= AHEAD_MAX
    }

    fn keyspace(&self) -> &Keyspace {
        &self.server.keyspace
    }

    fn blobs(&self) -> &dyn Blobs {
        &**self.server.keyspace.blobs()
    }

    fn note(&mut self, db: Db, row: &Row, args: Args<'_>) {
        if db != self.db {
            self.fetch();
            self.db = db;
        }
        for key in row.keys.of(args).take(AHEAD_MAX) {
            let hash = self.blobs().hash(key);
            if self.wanted.last().is_none_or(|last| last.hash != hash) {
                self.wanted.push(Wanted { hash, reads: row.reads() });
            }
        }
    }

    /// Has the processor fetch what their look-ups need, and forgets them. One key alone waits for memory either way.
    pub fn fetch(&mut self) {
        if self.wanted.len() > 1 {
            self.blobs().prefetch(self.db, &self.wanted);
        }
        self.wanted.clear();
    }
}
