//! Execution of a request of Redis' protocol: checks of name, number of arguments, password and slot, then
//! the command.

use std::sync::atomic::Ordering;

use super::args::is;
use super::context::{Context, Flags, Replies, Row, Session};
use super::table;
use crate::blobs::BlobError;
use crate::cluster::Route;
use crate::error::{Outcome, Refusal};
use crate::server::Server;
use crate::wire::{Args, Reply};

/// [`super::run`] for Redis' protocol.
pub(super) fn run(
    server: &Server,
    session: &mut Session,
    row: Option<&'static Row>,
    args: Args<'_>,
    out: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
) -> bool {
    let mark = out.len();
    let skip = session.replies == Replies::SkipNext;
    if skip {
        session.replies = Replies::Skip;
    }
    let bytes_max = server.config.buffers_bytes_max / 2;
    let reply = Reply::new(out, bytes_max, session.resp3);
    let mut context = Context { server, session, args, reply, scratch, rows: table::ROWS };
    let (done, writes) = match check(&context, row) {
        _ if is_of_refused_transaction(context.session, args.at(0), row) => {
            (end_or_refuse(&mut context), false)
        }
        Ok(row) => ((row.run)(&mut context), row.flags.contains(Flags::WRITE)),
        Err(refusal) => (Err(refusal), false),
    };
    let done = match context.reply.is_truncated() {
        true => Err(Refusal::err(format_args!(
            "the reply is longer than {bytes_max} bytes; ask for less at a time"
        ))),
        false => done,
    };
    // The store has changed nothing in that case.
    let writes = writes && !matches!(done, Err(Refusal::Store(BlobError::NotDurable(_))));
    if let Err(refusal) = done {
        server.counters.errors.fetch_add(1, Ordering::Relaxed);
        context.reply.take_back(mark);
        context.reply.error(&refusal.to_string());
    }
    match session.replies {
        Replies::On | Replies::SkipNext => {}
        Replies::Off => out.truncate(mark),
        Replies::Skip => {
            out.truncate(mark);
            session.replies = Replies::On;
        }
    }
    writes
}

/// True if a request belongs to a transaction after a refused MULTI. A transaction runs all of its commands,
/// or none. A command that runs alone would run a second time at the client's retry.
fn is_of_refused_transaction(session: &mut Session, name: &[u8], row: Option<&Row>) -> bool {
    if !session.refuses_transaction {
        session.refuses_transaction = row.is_none() && is(name, "MULTI");
        return false;
    }
    // These commands end the state, or the connection.
    !row.is_some_and(|row| ["reset", "quit"].contains(&row.name))
}

/// Replies to a request of such a transaction.
fn end_or_refuse(context: &mut Context<'_>) -> Outcome {
    let name = context.args.at(0);
    let ends = is(name, "EXEC") || is(name, "DISCARD");
    context.session.refuses_transaction = !ends;
    if is(name, "DISCARD") {
        context.reply.ok();
        return Ok(());
    }
    let line = match ends {
        true => "EXECABORT Transaction discarded because of previous errors.",
        false => {
            "ERR the command is not carried out: its MULTI was refused; EXEC or DISCARD ends the transaction"
        }
    };
    Err(Refusal::Other(line.to_owned()))
}

/// Whether a web page made a browser send this: HTTP to a local port, with commands as its body.
pub(super) fn is_of_a_browser(name: &[u8]) -> bool {
    is(name, "POST") || is(name, "HOST:")
}

/// The row of a request that may run on this server.
fn check(context: &Context<'_>, row: Option<&'static Row>) -> Outcome<&'static Row> {
    let args = context.args;
    let row = row.ok_or_else(|| unknown(args))?;
    if !row.accepts(args.len()) {
        return Err(Refusal::Arity(row.name.to_owned()));
    }
    if !context.session.is_known && !row.flags.contains(Flags::NO_AUTH) {
        return Err(Refusal::Other("NOAUTH Authentication required.".to_owned()));
    }
    if let Some(cluster) = &context.server.config.cluster {
        match cluster.route(row.keys.of(args)) {
            Route::Here => {}
            Route::Moved(slot, node) => {
                return Err(Refusal::Other(format!("MOVED {slot} {}:{}", node.host, node.port)));
            }
            Route::Crosses => {
                let line = "CROSSSLOT Keys in request don't hash to the same slot";
                return Err(Refusal::Other(line.to_owned()));
            }
        }
    }
    Ok(row)
}

/// Maximum of a request's bytes that an error repeats.
const REPEATED_MAX: usize = 128;

/// Redis' command families that are missing, with the error text.
const ABSENT: &[(&str, &[&str])] = &[
    (
        // Some clients make each pipeline a transaction by default.
        "there are no transactions; send a pipeline without one (redis-py: pipeline(transaction=False))",
        &["MULTI EXEC DISCARD WATCH UNWATCH"],
    ),
    ("there are no scripts and no functions", &["EVAL EVAL_RO EVALSHA EVALSHA_RO FCALL FCALL_RO SCRIPT"]),
    (
        "there are no channels, nothing is published",
        &["PUBLISH PUBSUB PSUBSCRIBE PUNSUBSCRIBE SPUBLISH SSUBSCRIBE SUBSCRIBE SUNSUBSCRIBE UNSUBSCRIBE"],
    ),
    (
        "there are no lists, sets and streams; use strings, hashes and sorted sets",
        &[
            "BLMOVE BLMPOP BLPOP BRPOP BRPOPLPUSH LINDEX LINSERT LLEN LMOVE LMPOP LPOP LPOS LPUSH LPUSHX LRANGE LREM LSET LTRIM",
            "RPOP RPOPLPUSH RPUSH RPUSHX",
            "SADD SCARD SDIFF SDIFFSTORE SINTER SINTERCARD SINTERSTORE SISMEMBER SMEMBERS SMISMEMBER SPOP SRANDMEMBER SREM",
            "SSCAN SUNION SUNIONSTORE",
            "XACK XADD XAUTOCLAIM XCLAIM XDEL XGROUP XINFO XLEN XPENDING XRANGE XREAD XREADGROUP XREVRANGE XSETID XTRIM",
        ],
    ),
];

fn why_absent(name: &[u8]) -> Option<&'static str> {
    let is_of = |lines: &[&str]| lines.iter().any(|line| line.split(' ').any(|absent| is(name, absent)));
    ABSENT.iter().find(|(_, lines)| is_of(lines)).map(|(why, _)| *why)
}

fn unknown(args: Args<'_>) -> Refusal {
    let text = |word: &[u8]| String::from_utf8_lossy(&word[..word.len().min(REPEATED_MAX)]).into_owned();
    if let Some(why) = why_absent(args.at(0)) {
        return Refusal::err(format_args!("unknown command '{}': {why}", text(args.at(0))));
    }
    let mut beginning = String::new();
    for word in args.from(1) {
        if beginning.len() >= REPEATED_MAX {
            break;
        }
        beginning += &format!("'{}' ", text(word));
    }
    Refusal::err(format_args!(
        "unknown command '{}', with args beginning with: {beginning}",
        text(args.at(0))
    ))
}
