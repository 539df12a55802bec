//! Commands of Redis' and memcached's protocols: a table of Redis' commands ([`table`]), the functions of
//! its rows, and the context of every command ([`Context`]).
//!
//! ```text
//! request ──► run(): name, number of arguments, password, slot of its keys ──► a function of strings, hashes, ...
//!                                                                               └──► Reply, or a Refusal, which becomes the reply
//! ```

pub(crate) mod args;
mod client;
mod cluster;
mod context;
mod counters;
mod decimal;
mod dispatch;
mod expire;
mod glob;
mod hashes;
mod info;
mod keys;
pub(crate) mod memcached;
mod scan;
mod server;
mod strings;
mod subcommands;
pub(crate) mod table;
mod zrange;
mod zsets;

pub(crate) use context::{Row, Session};

use std::sync::atomic::Ordering;

use crate::blobs::BlobError;
use crate::error::Refusal;
use crate::server::Server;
use crate::wire::request::{MEMCACHED_BINARY, Malformed, TLS};
use crate::wire::{Args, Protocol, Reply};

/// Maximum capacity of the kept scratch buffer, bytes: it is not counted.
const SCRATCH_KEPT_MAX: usize = 64 << 10;

/// [`run`] for one protocol.
type Run = fn(&Server, &mut Session, Option<&'static Row>, Args<'_>, &mut Vec<u8>, &mut Vec<u8>) -> bool;

/// Finds the row of a command's name.
pub(crate) fn find(protocol: Protocol, name: &[u8]) -> Option<&'static Row> {
    match protocol {
        Protocol::Resp => table::find(name),
        Protocol::Memcached => memcached::find(name),
    }
}

/// Runs one request by the row of its name, and writes the reply. Returns whether it may have changed the
/// store.
pub(crate) fn run(
    server: &Server,
    session: &mut Session,
    row: Option<&'static Row>,
    args: Args<'_>,
    out: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) -> bool {
    let (is_of_a_browser, run): (fn(&[u8]) -> bool, Run) = match session.protocol {
        Protocol::Resp => (dispatch::is_of_a_browser, dispatch::run),
        Protocol::Memcached => (memcached::is_of_a_browser, memcached::run),
    };
    let spoken = match args.at(0) {
        [MEMCACHED_BINARY] => Some("memcached's binary protocol; configure it for the text protocol"),
        [TLS] => Some("TLS; configure it without TLS"),
        name => is_of_a_browser(name).then_some("HTTP"),
    };
    if let Some(spoken) = spoken {
        tracing::warn!("client {} is closed: it speaks {spoken}", session.client.address);
        server.counters.closed.fetch_add(1, Ordering::Relaxed);
        session.closes = true;
        return false;
    }
    server.counters.commands.fetch_add(1, Ordering::Relaxed);
    let writes = run(server, session, row, args, out, scratch);
    if scratch.capacity() > SCRATCH_KEPT_MAX {
        *scratch = Vec::new();
    }
    writes
}

/// The last reply after a malformed request.
pub(crate) fn refuse(session: &Session, Malformed(why): &Malformed, out: &mut Vec<u8>) {
    let mut reply = Reply::new(out, usize::MAX, session.resp3);
    match session.protocol {
        Protocol::Resp => reply.error(&format!("ERR {why}")),
        Protocol::Memcached => reply.raw_line(why),
    }
}

/// The reply to a request if its change may be lost.
pub(crate) fn refuse_write(session: &Session, err: &BlobError, out: &mut Vec<u8>) {
    let (mut reply, refusal) = (Reply::new(out, usize::MAX, session.resp3), Refusal::Store(err.clone()));
    match session.protocol {
        Protocol::Resp => reply.error(&refusal.to_string()),
        Protocol::Memcached => reply.raw_line(&memcached::line_of(&refusal)),
    }
}

/// The reply to a client above the maximum.
pub(crate) fn full(protocol: Protocol) -> &'static [u8] {
    match protocol {
        Protocol::Resp => b"-ERR max number of clients reached\r\n",
        Protocol::Memcached => b"SERVER_ERROR too many open connections\r\n",
    }
}

#[cfg(test)]
#[path = "tests/mod.rs"]
mod tests;
