//! Tests of commands from a client's view, over a blob store in memory.

mod basics;
mod memcached;
mod model;
mod refusals;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Session, run};
use crate::config::Config;
use crate::server::Server;
use crate::testing::MemoryBlobs;
use crate::wire::Protocol;
use crate::wire::request::{Parser, Progress, Request};

/// A server with one client and a manual clock.
pub(super) struct Lab {
    pub(crate) server: Server,
    pub(crate) blobs: Arc<MemoryBlobs>,
    pub(crate) clock: Arc<AtomicU64>,
    session: Session,
}

/// Initial time of the clock, milliseconds since 1970.
pub(super) const BEGAN: u64 = 1_000_000_000_000;

impl Lab {
    pub(super) fn new() -> Lab {
        Lab::with(Config::for_memory(1 << 30), 64 << 20)
    }

    pub(super) fn with(config: Config, decoded_max: usize) -> Lab {
        let (blobs, clock) = (Arc::new(MemoryBlobs::default()), Arc::new(AtomicU64::new(BEGAN)));
        let reads = clock.clone();
        let now = Arc::new(move || reads.load(Ordering::Relaxed));
        let server = Server::new(blobs.clone(), config, decoded_max, now);
        let client = server.clients.add("test:1".into(), "test:2".into(), 10, || {}).unwrap();
        let session = Session::new(client, Protocol::Resp, server.config.password.is_none());
        Lab { server, blobs, clock, session }
    }

    pub(super) fn pass(&self, milliseconds: u64) {
        self.clock.fetch_add(milliseconds, Ordering::Relaxed);
    }

    /// Runs a command. Returns the raw reply.
    pub(super) fn raw<T: AsRef<[u8]>>(&mut self, words: &[T]) -> Vec<u8> {
        let mut text = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            text.extend(format!("${}\r\n", word.as_ref().len()).bytes());
            text.extend(word.as_ref());
            text.extend(b"\r\n");
        }
        let mut parser = Parser::new(self.server.config.limits());
        assert!(matches!(parser.advance(&text, true), Ok(Progress::Complete(_))));
        let (mut request, mut out, mut scratch) = (Request::default(), Vec::new(), Vec::new());
        parser.take(&mut request);
        let args = request.args(&text);
        run(
            &self.server,
            &mut self.session,
            crate::commands::table::find(args.at(0)),
            args,
            &mut out,
            &mut scratch,
        );
        out
    }

    /// Runs a line of words. Returns the reply, lines joined by spaces.
    pub(super) fn ask(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').map(|word| if word == "''" { "" } else { word }).collect();
        let reply = String::from_utf8(self.raw(&words)).unwrap();
        reply.trim_end().replace("\r\n", " ")
    }

    pub(super) fn closes(&self) -> bool {
        self.session.closes
    }
}

/// Runs each line and compares the reply.
pub(super) fn check(lab: &mut Lab, talk: &[(&str, &str)]) {
    for (line, reply) in talk {
        assert_eq!(lab.ask(line), *reply, "{line}");
    }
}
