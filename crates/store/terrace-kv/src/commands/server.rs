//! Commands on the server: COMMAND, CONFIG, SAVE, SHUTDOWN, TIME, MEMORY, and others that clients and test
//! suites need.

use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use super::args::is;
use super::context::{Context, Row};
use super::glob;
use super::subcommands::help_or_refuse;
use crate::blobs::DATABASES;
use crate::config::Durability;
use crate::error::{Outcome, Refusal};
use crate::server::Server;
use crate::wire::Reply;

/// COMMAND [COUNT | LIST | INFO name... | DOCS name... | GETKEYS command...]
pub(super) fn command(context: &mut Context<'_>) -> Outcome {
    let (args, rows, reply) = (context.args, context.rows, &mut context.reply);
    let find = |name: &[u8]| rows.iter().find(|row| is(name, row.name));
    match args.get(1) {
        None => {
            reply.array(rows.len());
            rows.iter().for_each(|row| describe(row, reply));
        }
        Some(what) if is(what, "COUNT") && args.len() == 2 => reply.int(rows.len()),
        Some(what) if is(what, "LIST") => reply.texts(rows.iter().map(|row| row.name)),
        Some(what) if is(what, "INFO") && args.len() > 2 => {
            reply.array(args.len() - 2);
            for name in args.from(2) {
                match find(name) {
                    Some(row) => describe(row, reply),
                    None => reply.null(),
                }
            }
        }
        Some(what) if is(what, "INFO") => {
            reply.array(rows.len());
            rows.iter().for_each(|row| describe(row, reply));
        }
        // The documentation belongs to Redis.
        Some(what) if is(what, "DOCS") => reply.map(0),
        Some(what) if is(what, "GETKEYS") && args.len() > 2 => {
            let row = find(args.at(2)).ok_or_else(|| Refusal::err("Invalid command specified"))?;
            if !row.accepts(args.len() - 2) {
                return Err(Refusal::err("Invalid number of arguments specified for command"));
            }
            let keys: Vec<_> = row.keys.of(args.after(2)).collect();
            reply.texts(keys);
        }
        Some(_) => return help_or_refuse(context),
    }
    Ok(())
}

/// Describes a command for cluster clients: the positions of its keys.
fn describe(row: &Row, reply: &mut Reply<'_>) {
    reply.array(10);
    reply.text(row.name);
    reply.int(row.arity);
    let flags = row.flags.names();
    reply.set(flags.len());
    flags.into_iter().for_each(|flag| reply.status(flag));
    reply.int(row.keys.first);
    reply.int(row.keys.last);
    reply.int(row.keys.step);
    // Categories, tips, key specifications, subcommands.
    reply.set(0);
    (0..3).for_each(|_| reply.array(0));
}

fn settings(server: &Server) -> Vec<(&'static str, String)> {
    let config = &server.config;
    let (append, fsync) = match config.durability {
        Durability::Always => ("yes", "always"),
        Durability::EverySecond => ("yes", "everysec"),
        Durability::Never => ("no", "no"),
    };
    let (_, memory) = server.keyspace.blobs().memory();
    vec![
        ("appendfsync", fsync.to_owned()),
        ("appendonly", append.to_owned()),
        ("databases", DATABASES.to_string()),
        ("dir", config.dir.display().to_string()),
        ("io-threads", config.all_threads().to_string()),
        ("maxclients", config.clients_max.to_string()),
        ("maxmemory", memory.to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        ("port", config.port.to_string()),
        ("proto-max-bulk-len", config.value_bytes_max.to_string()),
        ("save", String::new()),
        ("timeout", "0".to_owned()),
    ]
}

/// Settings of Redis' encodings, with its defaults. Setting them is accepted for clients and test suites, and
/// has no effect.
const ENCODINGS: &[(&str, &str)] = &[
    ("hash-max-listpack-entries", "512"),
    ("hash-max-listpack-value", "64"),
    ("hash-max-ziplist-entries", "512"),
    ("hash-max-ziplist-value", "64"),
    ("zset-max-listpack-entries", "128"),
    ("zset-max-listpack-value", "64"),
    ("zset-max-ziplist-entries", "128"),
    ("zset-max-ziplist-value", "64"),
];

/// Checks that a setting may be set at run time.
fn check_set(server: &Server, name: &[u8]) -> Outcome {
    if ENCODINGS.iter().any(|(known, _)| is(name, known)) {
        return Ok(());
    }
    let text = String::from_utf8_lossy(name);
    Err(match settings(server).iter().any(|(known, _)| is(name, known)) {
        true => Refusal::err(format_args!(
            "CONFIG SET failed - '{text}' is set when the server starts; see `terrace serve kv --help`"
        )),
        false => {
            Refusal::err(format_args!("Unknown option or number of arguments for CONFIG SET - '{text}'"))
        }
    })
}

/// CONFIG GET pattern..., CONFIG SET name value..., CONFIG RESETSTAT
pub(super) fn config(context: &mut Context<'_>) -> Outcome {
    let (what, args) = (context.args.at(1), context.args);
    match args.len() {
        3.. if is(what, "GET") => {
            let mut all = settings(context.server);
            all.extend(ENCODINGS.iter().map(|(name, value)| (*name, (*value).to_owned())));
            all.retain(|(name, _)| {
                args.from(2).any(|pattern| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
            });
            context.reply.map(all.len());
            for (name, value) in all {
                context.reply.text(name);
                context.reply.text(value);
            }
        }
        4.. if is(what, "SET") => {
            if args.len() % 2 == 1 {
                return Err(Refusal::Syntax);
            }
            args.from(2).step_by(2).try_for_each(|name| check_set(context.server, name))?;
            context.reply.ok();
        }
        2 if is(what, "RESETSTAT") => {
            let (server, keyspace) = (&context.server.counters, context.keyspace().counters());
            for counter in
                [&server.commands, &server.errors, &keyspace.hits, &keyspace.misses, &keyspace.expired]
            {
                counter.store(0, Ordering::Relaxed);
            }
            context.reply.ok();
        }
        _ => return help_or_refuse(context),
    }
    Ok(())
}

/// DEBUG SET-ACTIVE-EXPIRE 0 | 1: turns active expiry off or on. Other subcommands are not supported.
pub(super) fn debug(context: &mut Context<'_>) -> Outcome {
    match (context.args.at(1), context.args.get(2)) {
        (what, Some(value)) if is(what, "SET-ACTIVE-EXPIRE") => {
            context.keyspace().expire_actively(value != b"0");
            context.reply.ok();
            Ok(())
        }
        _ => help_or_refuse(context),
    }
}

/// FUNCTION FLUSH, LIST: there are no functions.
pub(super) fn function(context: &mut Context<'_>) -> Outcome {
    match context.args.at(1) {
        what if is(what, "FLUSH") => context.reply.ok(),
        what if is(what, "LIST") => context.reply.array(0),
        _ => return help_or_refuse(context),
    }
    Ok(())
}

/// MEMORY USAGE key: bytes of key and value.
pub(super) fn memory(context: &mut Context<'_>) -> Outcome {
    let key = context.args.get(2).filter(|_| is(context.args.at(1), "USAGE"));
    let Some(key) = key else { return help_or_refuse(context) };
    match context.keyspace().stat(context.db(), key) {
        Some((_, size)) => context.reply.int(size + key.len() as u64),
        None => context.reply.null(),
    }
    Ok(())
}

/// SAVE: makes all acknowledged changes durable.
pub(super) fn save(context: &mut Context<'_>) -> Outcome {
    context.keyspace().blobs().sync()?;
    context.reply.ok();
    Ok(())
}

/// SHUTDOWN [NOSAVE | SAVE] [NOW] [FORCE]: ends the server without a reply. All acknowledged changes are
/// durable then. SHUTDOWN ABORT always fails.
pub(super) fn shutdown(context: &mut Context<'_>) -> Outcome {
    let has = |option: &str| context.args.from(1).any(|word| is(word, option));
    if context.args.len() == 2 && has("ABORT") {
        return Err(Refusal::err("No shutdown in progress."));
    }
    let options = ["NOSAVE", "SAVE", "NOW", "FORCE"];
    let is_option = |word: &[u8]| options.into_iter().any(|option| is(word, option));
    if !context.args.from(1).all(is_option) || (has("NOSAVE") && has("SAVE")) {
        return Err(Refusal::Syntax);
    }
    context.session.closes = true;
    context.server.is_stopping.store(true, Ordering::Relaxed);
    Ok(())
}

fn now() -> std::time::Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

pub(super) fn lastsave(context: &mut Context<'_>) -> Outcome {
    context.reply.int(now().as_secs());
    Ok(())
}

pub(super) fn time(context: &mut Context<'_>) -> Outcome {
    let now = now();
    context.reply.texts([now.as_secs().to_string(), now.subsec_micros().to_string()]);
    Ok(())
}
