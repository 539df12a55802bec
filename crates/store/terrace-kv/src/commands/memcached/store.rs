//! memcached's commands that store data: set, add, replace, append, prepend, cas.

use super::parts::{BAD_FORMAT, DB, TOO_LARGE, expires, key, line};
use crate::commands::context::Context;
use crate::commands::strings;
use crate::error::Outcome;
use crate::events::Event;
use crate::keyspace::LockedKeys;
use crate::keyspace::word::{Kind, Word};
use crate::wire::memcached::{length, seconds_of, unsigned, words_before_data};

/// A storage command: the words of its line, and its data.
struct Item<'a> {
    key: &'a [u8],
    flags: u32,
    seconds: i64,
    /// Only for `cas`.
    unique: u64,
    data: &'a [u8],
}

impl<'a> Item<'a> {
    fn of(context: &Context<'a>) -> Outcome<Item<'a>> {
        context.server.events.count(Event::CmdSet);
        let (args, bad) = (context.args, || line(BAD_FORMAT));
        let words = words_before_data(args.at(0));
        if args.len() < words {
            return Err(bad());
        }
        let key = key(args.at(1))?;
        let flags = unsigned(args.at(2)).and_then(|flags| u32::try_from(flags).ok()).ok_or_else(bad)?;
        let seconds = seconds_of(args.at(3)).ok_or_else(bad)?;
        let length = length(args.at(4)).ok_or_else(bad)?;
        let unique = if words > 5 { unsigned(args.at(5)).ok_or_else(bad)? } else { 0 };
        match args.get(words + 1) {
            Some(data) => Ok(Item { key, flags, seconds, unique, data }),
            None if length > context.server.config.value_bytes_max => Err(line(TOO_LARGE)),
            None => Err(line("CLIENT_ERROR bad data chunk")),
        }
    }

    /// Replaces the key's value.
    fn write(&self, context: &mut Context<'_>, locked: &mut LockedKeys<'_>) -> Outcome {
        let word = Word { flags: self.flags, ..Word::new(Kind::String) };
        strings::write(locked, DB, self.key, word, expires(self.seconds, locked), self.data)?;
        context.reply.raw(b"STORED\r\n");
        Ok(())
    }
}

const NOT_STORED: &[u8] = b"NOT_STORED\r\n";

fn write_if(context: &mut Context<'_>, holds: impl FnOnce(bool) -> bool) -> Outcome {
    let item = Item::of(context)?;
    let mut locked = context.keyspace().lock_keys(DB, [item.key]);
    if holds(locked.stat(DB, item.key).is_some()) {
        return item.write(context, &mut locked);
    }
    context.reply.raw(NOT_STORED);
    Ok(())
}

/// set key flags exptime bytes [noreply]
pub(super) fn set(context: &mut Context<'_>) -> Outcome {
    let item = Item::of(context)?;
    let mut locked = context.keyspace().lock_keys(DB, [item.key]);
    item.write(context, &mut locked)
}
/// add key flags exptime bytes [noreply]
pub(super) fn add(context: &mut Context<'_>) -> Outcome {
    write_if(context, |is_there| !is_there)
}
/// replace key flags exptime bytes [noreply]
pub(super) fn replace(context: &mut Context<'_>) -> Outcome {
    write_if(context, |is_there| is_there)
}

/// cas key flags exptime bytes unique [noreply]
pub(super) fn cas(context: &mut Context<'_>) -> Outcome {
    let item = Item::of(context)?;
    let mut locked = context.keyspace().lock_keys(DB, [item.key]);
    // Removes an expired item first.
    let version = locked.stat(DB, item.key).and_then(|_| locked.version(DB, item.key));
    let events = &context.server.events;
    match version.map(|version| context.server.unique_of(version) == item.unique) {
        Some(true) => {
            events.count(Event::CasHits);
            return item.write(context, &mut locked);
        }
        Some(false) => {
            events.count(Event::CasBadval);
            context.reply.raw(b"EXISTS\r\n");
        }
        None => {
            events.count(Event::CasMisses);
            context.reply.raw(b"NOT_FOUND\r\n");
        }
    }
    Ok(())
}

fn join(
    context: &mut Context<'_>,
    join: impl FnOnce(&mut LockedKeys<'_>, &Item<'_>, &mut Vec<u8>) -> Outcome,
) -> Outcome {
    let item = Item::of(context)?;
    let mut locked = context.keyspace().lock_keys(DB, [item.key]);
    let Some((_, size)) = locked.stat_of(DB, item.key, Kind::String)? else {
        context.reply.raw(NOT_STORED);
        return Ok(());
    };
    if size + item.data.len() as u64 > context.server.config.value_bytes_max {
        return Err(line(TOO_LARGE));
    }
    join(&mut locked, &item, context.scratch)?;
    context.reply.raw(b"STORED\r\n");
    Ok(())
}

/// append key flags exptime bytes [noreply]: flags and expiry time stay.
pub(super) fn append(context: &mut Context<'_>) -> Outcome {
    join(context, |locked, item, _| locked.append(DB, item.key, item.data))
}

/// prepend key flags exptime bytes [noreply]
pub(super) fn prepend(context: &mut Context<'_>) -> Outcome {
    join(context, |locked, item, scratch| {
        let found = locked.read_string(DB, item.key, scratch)?;
        scratch.splice(0..0, item.data.iter().copied());
        locked.rewrite(DB, item.key, found, scratch)
    })
}
