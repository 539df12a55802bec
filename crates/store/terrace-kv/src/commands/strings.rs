//! Commands on strings as bytes: GET, SET, MGET, MSET, APPEND, GETRANGE, SETRANGE and others. Numbers and
//! bits are in [`super::counters`].

use super::args::{int, is, slice};
use super::context::Context;
use super::expire::{EX, PX, Unit, expire_at};
use crate::blobs::Db;
use crate::error::{Outcome, Refusal};
use crate::keyspace::LockedKeys;
use crate::keyspace::word::{Form, Kind, Word};

pub(super) fn get(context: &mut Context<'_>) -> Outcome {
    let found = context.keyspace().read_string(context.db(), context.key(), context.scratch)?;
    context.reply.optional(found.map(|_| &**context.scratch));
    Ok(())
}

pub(super) fn mget(context: &mut Context<'_>) -> Outcome {
    context.reply.array(context.args.len() - 1);
    for key in context.args.from(1) {
        // A key of another type counts as missing.
        let found = match context.keyspace().read_string(context.session.db, key, context.scratch) {
            Err(Refusal::WrongType) => None,
            found => found?,
        };
        context.reply.optional(found.map(|_| &**context.scratch));
    }
    Ok(())
}

#[derive(Debug, Default)]
struct SetOptions<'a> {
    absent: bool,
    present: bool,
    get: bool,
    keep_expiry: bool,
    expires: Option<(Unit, &'a [u8])>,
}

impl<'a> SetOptions<'a> {
    fn parse(context: &Context<'a>) -> Outcome<SetOptions<'a>> {
        let mut options = SetOptions::default();
        let mut words = context.args.from(3);
        while let Some(word) = words.next() {
            match Unit::of_option(word) {
                Some(unit) if options.expires.is_none() => {
                    options.expires = Some((unit, words.next().ok_or(Refusal::Syntax)?));
                }
                None if is(word, "NX") => options.absent = true,
                None if is(word, "XX") => options.present = true,
                None if is(word, "GET") => options.get = true,
                None if is(word, "KEEPTTL") => options.keep_expiry = true,
                _ => return Err(Refusal::Syntax),
            }
        }
        let contradicts =
            options.absent && options.present || options.keep_expiry && options.expires.is_some();
        if contradicts { Err(Refusal::Syntax) } else { Ok(options) }
    }
}

/// SET key value [NX | XX] [GET] [EX seconds | PX ms | EXAT s | PXAT ms | KEEPTTL]
pub(super) fn set(context: &mut Context<'_>) -> Outcome {
    let (db, key, value) = (context.db(), context.key(), context.args.at(2));
    let options = SetOptions::parse(context)?;
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let expires = options.expires.map(|(unit, arg)| unit.of_new(arg, locked.now(), "set")).transpose()?;
    if options.get {
        let found = locked.read_string(db, key, context.scratch)?;
        context.reply.optional(found.map(|_| &**context.scratch));
    }
    let looks = options.absent || options.present || options.keep_expiry;
    let old = if looks { locked.stat(db, key).map(|(word, _)| word) } else { None };
    if options.absent && old.is_some() || options.present && old.is_none() {
        if !options.get {
            context.reply.null();
        }
        return Ok(());
    }
    let kept = old.filter(|_| options.keep_expiry).and_then(|old| old.expires);
    write(&mut locked, db, key, STRING, expires.or(kept.map(|kept| kept as i64)), value)?;
    if !options.get {
        context.reply.ok();
    }
    Ok(())
}

const STRING: Word = Word { kind: Kind::String, form: Form::Compact, expires: None, flags: 0 };

/// Writes a whole string with this word and expiry time. A time in the past removes the key.
pub(super) fn write(
    locked: &mut LockedKeys<'_>,
    db: Db,
    key: &[u8],
    word: Word,
    expires: Option<i64>,
    value: &[u8],
) -> Outcome {
    match expires.map(u64::try_from) {
        None => locked.write(db, key, word, value),
        Some(Ok(at)) if at > locked.now() => locked.write(db, key, Word { expires: Some(at), ..word }, value),
        Some(_) => locked.remove(db, key).map(drop),
    }
}

pub(super) fn setnx(context: &mut Context<'_>) -> Outcome {
    let (db, key) = (context.db(), context.key());
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let absent = locked.stat(db, key).is_none();
    if absent {
        write(&mut locked, db, key, STRING, None, context.args.at(2))?;
    }
    context.reply.int(u8::from(absent));
    Ok(())
}

fn set_with_lifetime(context: &mut Context<'_>, unit: Unit, command: &'static str) -> Outcome {
    let (db, key) = (context.db(), context.key());
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let expires = unit.of_new(context.args.at(2), locked.now(), command)?;
    write(&mut locked, db, key, STRING, Some(expires), context.args.at(3))?;
    context.reply.ok();
    Ok(())
}

/// SETEX key seconds value
pub(super) fn setex(context: &mut Context<'_>) -> Outcome {
    set_with_lifetime(context, EX, "setex")
}
/// PSETEX key milliseconds value
pub(super) fn psetex(context: &mut Context<'_>) -> Outcome {
    set_with_lifetime(context, PX, "psetex")
}

pub(super) fn getset(context: &mut Context<'_>) -> Outcome {
    let (db, key) = (context.db(), context.key());
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let found = locked.read_string(db, key, context.scratch)?;
    context.reply.optional(found.map(|_| &**context.scratch));
    write(&mut locked, db, key, STRING, None, context.args.at(2))
}

pub(super) fn getdel(context: &mut Context<'_>) -> Outcome {
    let (db, key) = (context.db(), context.key());
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let found = locked.read_string(db, key, context.scratch)?;
    if found.is_some() {
        locked.remove(db, key)?;
    }
    context.reply.optional(found.map(|_| &**context.scratch));
    Ok(())
}

/// GETEX key [EX seconds | PX ms | EXAT s | PXAT ms | PERSIST]
pub(super) fn getex(context: &mut Context<'_>) -> Outcome {
    let (db, key, args) = (context.db(), context.key(), context.args);
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let expires = match (args.len(), args.get(2), args.get(3)) {
        (2, ..) => None,
        (3, Some(word), _) if is(word, "PERSIST") => Some(None),
        (4, Some(word), Some(time)) => {
            let unit = Unit::of_option(word).ok_or(Refusal::Syntax)?;
            Some(Some(unit.of_new(time, locked.now(), "getex")?))
        }
        _ => return Err(Refusal::Syntax),
    };
    let found = locked.read_string(db, key, context.scratch)?;
    context.reply.optional(found.map(|_| &**context.scratch));
    match (found, expires) {
        (Some(word), Some(None)) => locked.set_expiry(db, key, word, None),
        (Some(word), Some(Some(at))) => expire_at(&mut locked, db, key, word, at),
        _ => Ok(()),
    }
}

/// The pairs of MSET and MSETNX, in order.
fn pairs<'a>(context: &Context<'a>, command: &str) -> Outcome<Vec<(&'a [u8], &'a [u8])>> {
    let args = context.args;
    match args.len() % 2 {
        1 => Ok(args.from(1).step_by(2).zip(args.from(2).step_by(2)).collect()),
        _ => Err(Refusal::Arity(command.to_owned())),
    }
}

/// MSET key value [key value]...
pub(super) fn mset(context: &mut Context<'_>) -> Outcome {
    let (db, pairs) = (context.db(), pairs(context, "mset")?);
    let mut locked = context.keyspace().lock_keys(db, pairs.iter().map(|(key, _)| *key));
    for (key, value) in pairs {
        write(&mut locked, db, key, STRING, None, value)?;
    }
    context.reply.ok();
    Ok(())
}

/// MSETNX key value [key value]...
pub(super) fn msetnx(context: &mut Context<'_>) -> Outcome {
    let (db, pairs) = (context.db(), pairs(context, "msetnx")?);
    let mut locked = context.keyspace().lock_keys(db, pairs.iter().map(|(key, _)| *key));
    let all_absent = !pairs.iter().any(|(key, _)| locked.stat(db, key).is_some());
    if all_absent {
        for (key, value) in pairs {
            write(&mut locked, db, key, STRING, None, value)?;
        }
    }
    context.reply.int(u8::from(all_absent));
    Ok(())
}

/// Refuses a value above the size limit.
pub(super) fn check_size(context: &Context<'_>, bytes: u64) -> Outcome {
    let max = context.server.config.value_bytes_max;
    match bytes <= max {
        true => Ok(()),
        false => Err(Refusal::err(format_args!("string exceeds maximum allowed size ({max} bytes)"))),
    }
}

pub(super) fn append(context: &mut Context<'_>) -> Outcome {
    let (db, key, value) = (context.db(), context.key(), context.args.at(2));
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let old = locked.stat_of(db, key, Kind::String)?;
    let size = old.map_or(0, |(_, size)| size) + value.len() as u64;
    check_size(context, size)?;
    match old {
        Some(_) => locked.append(db, key, value)?,
        None => write(&mut locked, db, key, STRING, None, value)?,
    }
    context.reply.int(size);
    Ok(())
}

pub(super) fn strlen(context: &mut Context<'_>) -> Outcome {
    match context.keyspace().stat(context.db(), context.key()) {
        Some((word, _)) if word.kind != Kind::String => return Err(Refusal::WrongType),
        found => context.reply.int(found.map_or(0, |(_, size)| size)),
    }
    Ok(())
}

/// GETRANGE key start end
pub(super) fn getrange(context: &mut Context<'_>) -> Outcome {
    let (db, key) = (context.db(), context.key());
    let (start, stop) = (int(context.args.at(2))?, int(context.args.at(3))?);
    // The keys are locked, since the range depends on the size.
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let size = locked.stat_of(db, key, Kind::String)?.map_or(0, |(_, size)| size);
    let range = slice(start, stop, size as usize);
    context.scratch.clear();
    if !range.is_empty() {
        context.keyspace().blobs().get_at(db, key, range.start as u64, range.len(), context.scratch)?;
    }
    context.reply.bulk(context.scratch);
    Ok(())
}

/// SETRANGE key offset value
pub(super) fn setrange(context: &mut Context<'_>) -> Outcome {
    let (db, key, value) = (context.db(), context.key(), context.args.at(3));
    let offset =
        u64::try_from(int(context.args.at(2))?).map_err(|_| Refusal::err("offset is out of range"))?;
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let old = locked.stat_of(db, key, Kind::String)?;
    let size = old.map_or(0, |(_, size)| size);
    if value.is_empty() {
        context.reply.int(size);
        return Ok(());
    }
    check_size(context, offset.saturating_add(value.len() as u64))?;
    match old {
        Some(_) => locked.write_at(db, key, offset, value)?,
        None => locked.write_behind_zeros(db, key, offset, value)?,
    }
    context.reply.int(size.max(offset + value.len() as u64));
    Ok(())
}
