//! Commands of memcached's text protocol, on the strings of database 0.
//!
//! The commands are rows of a table like those of Redis' protocol, so the server parses requests ahead, too
//! ([`crate::net`]). Replies are lines of text. `flush_all` removes keys of all types.

mod admin;
mod change;
mod fetch;
mod parts;
mod store;

use std::sync::atomic::Ordering;

use super::context::{Context, Flags, Keys, Row, Session};
use crate::blobs::BlobError;
use crate::error::{Outcome, Refusal};
use crate::server::Server;
use crate::wire::memcached::words_before_data;
use crate::wire::{Args, Reply};
use parts::line;

const NOREPLY: &[u8] = b"noreply";

const NONE: Keys = Keys { first: 0, last: 0, step: 0 };
const ONE: Keys = Keys { first: 1, last: 1, step: 1 };
const ALL: Keys = Keys { first: 1, last: -1, step: 1 };
const BEHIND_TIME: Keys = Keys { first: 2, last: -1, step: 1 };
const READ: Flags = Flags::READ;
const WRITE: Flags = Flags::WRITE;
const OTHER: Flags = Flags::FAST;

const fn row(
    name: &'static str,
    arity: i32,
    keys: Keys,
    flags: Flags,
    run: fn(&mut Context<'_>) -> Outcome,
) -> Row {
    Row { name, arity, keys, flags, elements: NONE, run }
}

/// All commands, with the number of words without `noreply`. Storage commands check it themselves.
static ROWS: &[Row] = &[
    row("get", -2, ALL, READ, fetch::get),
    row("gets", -2, ALL, READ, fetch::gets),
    row("set", -1, ONE, WRITE, store::set),
    row("add", -1, ONE, WRITE, store::add),
    row("cas", -1, ONE, WRITE, store::cas),
    row("delete", -2, ONE, WRITE, change::delete),
    row("incr", 3, ONE, WRITE, change::incr),
    row("decr", 3, ONE, WRITE, change::decr),
    row("touch", 3, ONE, WRITE, change::touch),
    row("gat", -3, BEHIND_TIME, WRITE, fetch::gat),
    row("gats", -3, BEHIND_TIME, WRITE, fetch::gats),
    row("replace", -1, ONE, WRITE, store::replace),
    row("append", -1, ONE, WRITE, store::append),
    row("prepend", -1, ONE, WRITE, store::prepend),
    row("flush_all", -1, NONE, WRITE, change::flush_all),
    row("stats", -1, NONE, OTHER, admin::stats),
    row("version", 1, NONE, OTHER, admin::version),
    row("verbosity", -1, NONE, OTHER, admin::verbosity),
    row("quit", 1, NONE, OTHER, admin::quit),
];

/// Finds the row of a name, in lower case.
pub(crate) fn find(name: &[u8]) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name.as_bytes() == name)
}

/// [`super::run`] for memcached's protocol.
pub(crate) fn run(
    server: &Server,
    session: &mut Session,
    row: Option<&'static Row>,
    args: Args<'_>,
    out: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) -> bool {
    let mark = out.len();
    let bytes_max = server.config.buffers_bytes_max / 2;
    let (is_quiet, args) = row.map_or((false, args), |row| without_noreply(row, args));
    let reply = Reply::new(out, bytes_max, false);
    let mut context = Context { server, session, args, reply, scratch, rows: ROWS };
    let done = match row.filter(|row| row.accepts(args.len())) {
        Some(row) => (row.run)(&mut context),
        None => Err(line("ERROR")),
    };
    let done = match context.reply.is_truncated() {
        true => Err(line("SERVER_ERROR out of memory writing the reply; ask for fewer keys at a time")),
        false => done,
    };
    // The store has changed nothing in that case.
    let is_refused = matches!(done, Err(Refusal::Store(BlobError::NotDurable(_))));
    if let Err(refusal) = done {
        server.counters.errors.fetch_add(1, Ordering::Relaxed);
        context.reply.take_back(mark);
        context.reply.raw_line(&line_of(&refusal));
    }
    if is_quiet {
        out.truncate(mark);
    }
    !is_refused && row.is_some_and(|row| row.flags.contains(WRITE))
}

/// Whether a web page made a browser send this: HTTP to a local port. All commands are in lower case.
pub(crate) fn is_of_a_browser(name: &[u8]) -> bool {
    let words: [&[u8]; 7] = [b"GET", b"PUT", b"POST", b"DELETE", b"HEAD", b"OPTIONS", b"Host:"];
    words.contains(&name)
}

/// Whether the client wants no reply, and the words without `noreply`.
fn without_noreply<'a>(row: &Row, args: Args<'a>) -> (bool, Args<'a>) {
    match words_before_data(row.name.as_bytes()) {
        // In storage commands `noreply` has a fixed position, followed by the data.
        words @ 1.. => (args.get(words) == Some(NOREPLY), args),
        // All further words are keys.
        0 if row.keys.last < 0 => (false, args),
        0 => {
            let last = args.len() - 1;
            let least = row.arity.unsigned_abs() as usize;
            let is_quiet = last >= least && args.at(last) == NOREPLY;
            (is_quiet, if is_quiet { args.before(last) } else { args })
        }
    }
}

pub(super) fn line_of(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Other(line) => line.clone(),
        Refusal::WrongType => "CLIENT_ERROR the key holds no string".to_owned(),
        Refusal::Store(BlobError::Full | BlobError::NoMemory) => {
            "SERVER_ERROR out of memory storing object".to_owned()
        }
        other => format!("SERVER_ERROR {other}"),
    }
}
