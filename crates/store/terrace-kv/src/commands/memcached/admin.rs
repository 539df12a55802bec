//! memcached's commands on the server and connection: stats, version, verbosity, quit.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};

use super::parts::{BAD_FORMAT, DB, line};
use crate::commands::context::Context;
use crate::error::Outcome;
use crate::events::Event;
use crate::wire::memcached::unsigned;

/// The reported memcached version: the last one without meta commands.
const VERSION: &str = "1.5.22";

pub(super) fn version(context: &mut Context<'_>) -> Outcome {
    context.reply.raw_line(&format!("VERSION {VERSION}"));
    Ok(())
}

/// verbosity level [noreply]: no effect, the configuration sets the log level.
pub(super) fn verbosity(context: &mut Context<'_>) -> Outcome {
    match context.args.get(1) {
        None => Err(line("ERROR")),
        Some(level) if unsigned(level).is_none() => Err(line(BAD_FORMAT)),
        Some(_) => {
            context.reply.raw(b"OK\r\n");
            Ok(())
        }
    }
}

pub(super) fn quit(context: &mut Context<'_>) -> Outcome {
    context.session.closes = true;
    Ok(())
}

/// stats [settings | reset | items | slabs | sizes | conns]
pub(super) fn stats(context: &mut Context<'_>) -> Outcome {
    match (context.args.get(1), context.args.len()) {
        (None, _) => general(context),
        (Some(b"settings"), 2) => settings(context),
        (Some(b"reset"), 2) => {
            context.server.events.reset();
            context.reply.raw(b"RESET\r\n");
            return Ok(());
        }
        // There are no slabs.
        (Some(b"items" | b"slabs" | b"sizes" | b"conns"), 2) => {}
        _ => return Err(line("ERROR")),
    }
    context.reply.raw(b"END\r\n");
    Ok(())
}

fn stat(context: &mut Context<'_>, name: &str, value: impl Display) {
    context.reply.raw_line(&format!("STAT {name} {value}"));
}

fn general(context: &mut Context<'_>) {
    let server = context.server;
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (_, limit) = server.keyspace.blobs().memory();
    let (came, refused) = server.clients.totals();
    stat(context, "pid", std::process::id());
    stat(context, "uptime", server.since.elapsed().as_secs());
    stat(context, "time", server.keyspace.now() / 1000);
    stat(context, "version", VERSION);
    stat(context, "terrace_version", env!("CARGO_PKG_VERSION"));
    stat(context, "pointer_size", usize::BITS);
    stat(context, "max_connections", server.config.clients_max);
    stat(context, "curr_connections", server.clients.len());
    stat(context, "total_connections", came);
    stat(context, "rejected_connections", refused);
    for (name, count) in server.events.all() {
        stat(context, name, count);
    }
    stat(context, "bytes_read", load(&server.counters.input_bytes));
    stat(context, "bytes_written", load(&server.counters.output_bytes));
    stat(context, "limit_maxbytes", limit);
    stat(context, "threads", server.config.all_threads());
    stat(context, "bytes", server.keyspace.blobs().bytes(DB));
    stat(context, "curr_items", server.keyspace.len(DB));
    stat(context, "total_items", server.events.get(Event::CmdSet));
    stat(context, "evictions", 0);
}

fn settings(context: &mut Context<'_>) {
    let config = &context.server.config;
    let (_, limit) = context.keyspace().blobs().memory();
    stat(context, "maxbytes", limit);
    stat(context, "maxconns", config.clients_max);
    stat(context, "evictions", "off");
    stat(context, "cas_enabled", "yes");
    stat(context, "item_size_max", config.value_bytes_max);
    stat(context, "num_threads", config.all_threads());
    stat(context, "client_flags_size", size_of::<u32>());
    stat(context, "binding_protocol", "ascii");
    stat(context, "flush_enabled", "yes");
}
