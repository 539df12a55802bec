//! memcached's commands that change or remove items without new data: delete, incr, decr, touch, flush_all.

use super::parts::{BAD_FORMAT, DB, expires, key, line};
use crate::commands::context::Context;
use crate::commands::expire::expire_at;
use crate::error::Outcome;
use crate::events::Event;
use crate::wire::memcached::{seconds_of, unsigned};
use crate::wire::number::write_int;

const NOT_FOUND: &[u8] = b"NOT_FOUND\r\n";

/// delete key [0] [noreply]
pub(super) fn delete(context: &mut Context<'_>) -> Outcome {
    let key = key(context.key())?;
    // Earlier versions had a time here in which the key could not be added again.
    if context.args.from(2).ne([b"0"]) && context.args.len() > 2 {
        return Err(line("CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]"));
    }
    let there = context.keyspace().lock_keys(DB, [key]).remove(DB, key)?;
    context.server.events.count(if there { Event::DeleteHits } else { Event::DeleteMisses });
    context.reply.raw(if there { b"DELETED\r\n" } else { NOT_FOUND });
    Ok(())
}

/// Maximum length of a numeric value, bytes.
const NUMBER_MAX: usize = 20;

fn count(
    context: &mut Context<'_>,
    (hit, miss): (Event, Event),
    new: impl FnOnce(u64, u64) -> u64,
) -> Outcome {
    let key = key(context.key())?;
    let amount = unsigned(context.args.at(2));
    let amount = amount.ok_or_else(|| line("CLIENT_ERROR invalid numeric delta argument"))?;
    let mut locked = context.keyspace().lock_keys(DB, [key]);
    let Some(word) = locked.read_string(DB, key, context.scratch)? else {
        context.server.events.count(miss);
        context.reply.raw(NOT_FOUND);
        return Ok(());
    };
    context.server.events.count(hit);
    // memcached itself pads a value that became shorter with spaces.
    let old = context.scratch.trim_ascii_end();
    let old = Some(old).filter(|old| old.len() <= NUMBER_MAX).and_then(unsigned);
    let old = old.ok_or_else(|| line("CLIENT_ERROR cannot increment or decrement non-numeric value"))?;
    context.scratch.clear();
    write_int(context.scratch, new(old, amount));
    locked.rewrite(DB, key, Some(word), context.scratch)?;
    context.reply.raw(context.scratch);
    context.reply.raw(b"\r\n");
    Ok(())
}

/// incr key amount [noreply]: wraps around at 64 bits.
pub(super) fn incr(context: &mut Context<'_>) -> Outcome {
    count(context, (Event::IncrHits, Event::IncrMisses), u64::wrapping_add)
}
/// decr key amount [noreply]: stops at 0.
pub(super) fn decr(context: &mut Context<'_>) -> Outcome {
    count(context, (Event::DecrHits, Event::DecrMisses), u64::saturating_sub)
}

/// touch key exptime [noreply]
pub(super) fn touch(context: &mut Context<'_>) -> Outcome {
    let key = key(context.key())?;
    let seconds = seconds_of(context.args.at(2));
    let seconds = seconds.ok_or_else(|| line("CLIENT_ERROR invalid exptime argument"))?;
    let mut locked = context.keyspace().lock_keys(DB, [key]);
    let events = &context.server.events;
    events.count(Event::CmdTouch);
    let Some((word, _)) = locked.stat(DB, key) else {
        events.count(Event::TouchMisses);
        context.reply.raw(NOT_FOUND);
        return Ok(());
    };
    events.count(Event::TouchHits);
    match expires(seconds, &locked) {
        Some(at) => expire_at(&mut locked, DB, key, word, at)?,
        None => locked.set_expiry(DB, key, word, None)?,
    }
    context.reply.raw(b"TOUCHED\r\n");
    Ok(())
}

/// flush_all [0] [noreply]: removes all keys of the database, of all types.
pub(super) fn flush_all(context: &mut Context<'_>) -> Outcome {
    match (context.args.len(), context.args.get(1).map(seconds_of)) {
        (1, _) | (2, Some(Some(..=0))) => {}
        (2, Some(Some(_))) => return Err(line("CLIENT_ERROR flush_all with a delay is not supported")),
        (2, _) => return Err(line("CLIENT_ERROR invalid exptime argument")),
        _ => return Err(line(BAD_FORMAT)),
    }
    context.server.events.count(Event::CmdFlush);
    context.keyspace().clear(DB)?;
    context.reply.raw(b"OK\r\n");
    Ok(())
}
