//! Commands on keys of any type: DEL, EXISTS, TYPE, RENAME, COPY, MOVE, OBJECT and others. Also on whole
//! databases: DBSIZE, FLUSHDB, FLUSHALL, RANDOMKEY.

use super::args::{int, is};
use super::context::Context;
use super::subcommands::help_or_refuse;
use crate::blobs::{DATABASES, Db};
use crate::error::{Outcome, Refusal};
use crate::keyspace::word::{Form, Kind};
use crate::wire::number::parse_int;

/// DEL key..., UNLINK key...
pub(super) fn del(context: &mut Context<'_>) -> Outcome {
    let mut count = 0;
    for key in context.args.from(1) {
        let mut locked = context.keyspace().lock_keys(context.session.db, [key]);
        count += u64::from(locked.remove(context.session.db, key)?);
    }
    context.reply.int(count);
    Ok(())
}

/// EXISTS key..., TOUCH key...
pub(super) fn exists(context: &mut Context<'_>) -> Outcome {
    let there = |key: &&[u8]| context.keyspace().stat(context.session.db, key).is_some();
    let count = context.args.from(1).filter(there).count();
    context.reply.int(count);
    Ok(())
}

pub(super) fn type_of(context: &mut Context<'_>) -> Outcome {
    let found = context.keyspace().stat(context.db(), context.key());
    context.reply.status(found.map_or("none", |(word, _)| word.kind.name()));
    Ok(())
}

/// Renames the first key to the second. Returns whether it was done.
fn rename_unless(context: &mut Context<'_>, only_absent: bool) -> Outcome<bool> {
    let (db, from, to) = (context.db(), context.key(), context.args.at(2));
    let mut locked = context.keyspace().lock_keys(db, [from, to]);
    locked.stat(db, from).ok_or(Refusal::NoSuchKey)?;
    if only_absent && locked.stat(db, to).is_some() {
        return Ok(false);
    }
    locked.rename((db, from), (db, to))?;
    Ok(true)
}

pub(super) fn rename(context: &mut Context<'_>) -> Outcome {
    rename_unless(context, false)?;
    context.reply.ok();
    Ok(())
}

pub(super) fn renamenx(context: &mut Context<'_>) -> Outcome {
    let done = rename_unless(context, true)?;
    context.reply.int(u8::from(done));
    Ok(())
}

/// Parses the number of a database.
///
/// # Errors
/// No such database.
pub(super) fn database(arg: &[u8]) -> Outcome<Db> {
    let number = int(arg)?;
    let number = Db::try_from(number).ok().filter(|db| *db < DATABASES);
    number.ok_or_else(|| Refusal::err("DB index is out of range"))
}

pub(super) fn move_key(context: &mut Context<'_>) -> Outcome {
    let (db, key, to) = (context.db(), context.key(), database(context.args.at(2))?);
    if db == to {
        return Err(Refusal::err("source and destination objects are the same"));
    }
    let mut locked = context.keyspace().lock_keys_in([(db, key), (to, key)]);
    let moves = locked.stat(db, key).is_some() && locked.stat(to, key).is_none();
    if moves {
        locked.rename((db, key), (to, key))?;
    }
    context.reply.int(u8::from(moves));
    Ok(())
}

/// COPY source destination [DB number] [REPLACE]
pub(super) fn copy(context: &mut Context<'_>) -> Outcome {
    let (db, from, to) = (context.db(), context.key(), context.args.at(2));
    let (mut target, mut replaces) = (db, false);
    let mut words = context.args.from(3);
    while let Some(word) = words.next() {
        match () {
            () if is(word, "REPLACE") => replaces = true,
            () if is(word, "DB") => target = database(words.next().ok_or(Refusal::Syntax)?)?,
            () => return Err(Refusal::Syntax),
        }
    }
    if (db, from) == (target, to) {
        return Err(Refusal::err("source and destination objects are the same"));
    }
    let mut locked = context.keyspace().lock_keys_in([(db, from), (target, to)]);
    let copies = locked.stat(db, from).is_some() && (replaces || locked.stat(target, to).is_none());
    if copies {
        locked.copy((db, from), (target, to))?;
    }
    context.reply.int(u8::from(copies));
    Ok(())
}

pub(super) fn dbsize(context: &mut Context<'_>) -> Outcome {
    context.reply.int(context.keyspace().len(context.db()));
    Ok(())
}

/// ASYNC and SYNC have no different effect.
fn check_flush(context: &Context<'_>) -> Outcome {
    match context.args.get(1) {
        Some(word) if context.args.len() > 2 || !(is(word, "ASYNC") || is(word, "SYNC")) => {
            Err(Refusal::Syntax)
        }
        _ => Ok(()),
    }
}

/// FLUSHDB [ASYNC | SYNC]
pub(super) fn flushdb(context: &mut Context<'_>) -> Outcome {
    check_flush(context)?;
    context.keyspace().clear(context.db())?;
    context.reply.ok();
    Ok(())
}

/// FLUSHALL [ASYNC | SYNC]
pub(super) fn flushall(context: &mut Context<'_>) -> Outcome {
    check_flush(context)?;
    for db in 0..DATABASES {
        context.keyspace().clear(db)?;
    }
    context.reply.ok();
    Ok(())
}

/// Tries of RANDOMKEY. It then returns a key that may have just expired.
const RANDOM_TRIES: usize = 16;

pub(super) fn randomkey(context: &mut Context<'_>) -> Outcome {
    let (keyspace, db) = (context.keyspace(), context.db());
    for _ in 0..RANDOM_TRIES {
        let Some(key) = keyspace.any_key(db) else { break };
        if keyspace.stat(db, &key).is_some() {
            context.reply.bulk(&key);
            return Ok(());
        }
    }
    context.reply.null();
    Ok(())
}

/// Maximum length of a string that Redis embeds in its object.
const EMBEDDED_MAX: u64 = 44;

/// OBJECT ENCODING key and similar: clients and tests use them to inspect values.
pub(super) fn object(context: &mut Context<'_>) -> Outcome {
    let what = context.args.at(1);
    let is_there = ["ENCODING", "REFCOUNT", "IDLETIME", "FREQ"].into_iter().any(|name| is(what, name));
    let (3, Some(key), true) = (context.args.len(), context.args.get(2), is_there) else {
        return help_or_refuse(context);
    };
    let found = context.keyspace().stat(context.db(), key);
    let Some((word, size)) = found else {
        context.reply.null();
        return Ok(());
    };
    match () {
        () if is(what, "ENCODING") => {
            let number = word.kind == Kind::String && size <= 20 && {
                context.keyspace().read_string(context.session.db, key, context.scratch)?;
                parse_int(context.scratch).is_some()
            };
            context.reply.text(match (word.kind, word.form) {
                (Kind::String, _) if number => "int",
                (Kind::String, _) if size <= EMBEDDED_MAX => "embstr",
                (Kind::String, _) => "raw",
                (_, Form::Compact) => "listpack",
                (Kind::Hash, Form::Log | Form::Pieces) => "hashtable",
                (Kind::Zset, Form::Log | Form::Pieces) => "skiplist",
            });
        }
        () if is(what, "REFCOUNT") => context.reply.int(1),
        // Accesses of a key are not tracked.
        () => context.reply.int(0),
    }
    Ok(())
}
