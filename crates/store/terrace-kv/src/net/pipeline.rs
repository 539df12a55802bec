//! Pipelined requests of a connection, parsed ahead. One prefetch for all of them replaces a wait for memory
//! in each ([`Blobs::prefetch`]).

use std::sync::Arc;

use smallvec::SmallVec;

use crate::blobs::{Blobs, Db, Wanted};
use crate::commands::{self, Row, Session};
use crate::keyspace::Keyspace;
use crate::server::Server;
use crate::wire::Incoming;
use crate::wire::request::{Args, Malformed, Progress, Request};

/// Maximum number of requests parsed ahead, and of keys noted per request.
const AHEAD_MAX: usize = 16;

/// A parsed request that waits.
#[derive(Debug, Default)]
struct Waiting {
    request: Request,
    /// Size of the request, bytes.
    length: usize,
    row: Option<&'static Row>,
}

/// The waiting requests of one connection.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    waiting: Vec<Waiting>,
    /// Requests before this index have run.
    next: usize,
    /// Entries from this index are unused.
    end: usize,
    /// Size of all waiting requests, bytes.
    length: usize,
    /// Minimum number of bytes missing to the next request.
    needs: usize,
}

impl Ahead {
    /// Minimum number of bytes missing to the last, incomplete request.
    pub(super) fn needs(&self) -> usize {
        self.needs
    }

    /// Whether no request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.next == self.end
    }

    /// Memory, bytes.
    pub(super) fn bytes(&self) -> usize {
        self.waiting.iter().map(|waiting| size_of::<Waiting>() + waiting.request.bytes()).sum()
    }

    /// Parses received requests and notes their keys. `bytes` begins with the first waiting request.
    ///
    /// # Errors
    /// The next request is malformed. The error returns once the requests before it have run.
    pub(super) fn parse(
        &mut self,
        parser: &mut Incoming,
        bytes: &[u8],
        session: &Session,
        upcoming: &mut ParsedRequest,
    ) -> Result<(), Malformed> {
        let (before, mut have_elements) = ((self.end, self.length), false);
        // The limits differ before and after the password, so requests are then parsed one by one.
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
                upcoming.note(session.db, row, args);
                have_elements |= row.elements.first > 0;
            }
            self.end += 1;
            self.length += length;
        }
        if have_elements {
            self.fetch_elements(before, bytes, session.db, upcoming.keyspace());
        }
        Ok(())
    }

    /// Prefetches elements that requests from the given one look up. Consecutive requests on one collection
    /// form one prefetch.
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

    /// Frees memory of finished requests, if all have run.
    pub(super) fn tidy(&mut self) {
        if self.is_empty() {
            self.waiting[..self.end].iter_mut().for_each(|waiting| waiting.request.clear());
            (self.next, self.end) = (0, 0);
        }
    }

    /// Takes the next request: its command, arguments and size in bytes. `bytes` begins with it.
    pub(super) fn take<'a>(&'a mut self, bytes: &'a [u8]) -> Option<(Option<&'static Row>, Args<'a>, usize)> {
        if self.is_empty() {
            return None;
        }
        let Waiting { request, length, row } = &self.waiting[self.next];
        self.next += 1;
        self.length -= length;
        Some((*row, request.args(bytes), *length))
    }
}

/// Prefetches several elements. A single one gains nothing.
fn fetch(keyspace: &Keyspace, db: Db, key: &[u8], names: &mut SmallVec<[&[u8]; AHEAD_MAX]>) {
    if names.len() > 1 {
        keyspace.prefetch_elements(db, key, names);
    }
    names.clear();
}

/// Keys that requests are about to look up.
#[derive(Debug)]
pub(super) struct ParsedRequest {
    server: Arc<Server>,
    db: Db,
    wanted: Vec<Wanted>,
}

impl ParsedRequest {
    pub(super) fn new(server: Arc<Server>) -> ParsedRequest {
        ParsedRequest { server, db: 0, wanted: Vec::with_capacity(2 * AHEAD_MAX) }
    }

    /// Whether the keys fill one prefetch.
    pub(super) fn is_full(&self) -> bool {
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

    /// Prefetches for these keys, and clears them. A single key gains nothing.
    pub(super) fn fetch(&mut self) {
        if self.wanted.len() > 1 {
            self.blobs().prefetch(self.db, &self.wanted);
        }
        self.wanted.clear();
    }
}
