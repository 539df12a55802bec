//! memcached's commands that read items: get, gets, and gat, gats, which also set the expiry time.

use super::parts::{BAD_FORMAT, DB, expires, key, line};
use crate::commands::context::Context;
use crate::commands::expire::expire_at;
use crate::error::{Outcome, Refusal};
use crate::events::Event;
use crate::keyspace::word::Word;
use crate::wire::memcached::{KEY_MAX, seconds_of};
use crate::wire::number::write_int;

pub(super) fn get(context: &mut Context<'_>) -> Outcome {
    fetch(context, 1, false, read)
}
pub(super) fn gets(context: &mut Context<'_>) -> Outcome {
    fetch(context, 1, true, read)
}
pub(super) fn gat(context: &mut Context<'_>) -> Outcome {
    let seconds = time(context)?;
    fetch(context, 2, false, |context, key| read_and_touch(context, key, seconds))
}
pub(super) fn gats(context: &mut Context<'_>) -> Outcome {
    let seconds = time(context)?;
    fetch(context, 2, true, |context, key| read_and_touch(context, key, seconds))
}

fn time(context: &Context<'_>) -> Outcome<i64> {
    seconds_of(context.args.at(1)).ok_or_else(|| line("CLIENT_ERROR invalid exptime argument"))
}

/// An item's word, and a number that changes with each write. The bytes are in the scratch buffer.
type Found = Option<(Word, u64)>;

/// Maximum length of the line before an item, bytes: its key and three numbers.
const HEAD_MAX: usize = KEY_MAX + 80;

fn fetch(
    context: &mut Context<'_>,
    first: usize,
    with_unique: bool,
    read: impl Fn(&mut Context<'_>, &[u8]) -> Outcome<Found>,
) -> Outcome {
    let (mut head, mut hits) = (Vec::with_capacity(HEAD_MAX), 0);
    let keys = context.args.from(first);
    let asked = keys.len() as u64;
    for word in keys {
        let key = key(word)?;
        let found = match read(context, key) {
            // Like MGET: a key of another type counts as missing.
            Err(Refusal::WrongType) => None,
            found => found?,
        };
        if let Some((word, version)) = found {
            hits += 1;
            let unique = with_unique.then(|| context.server.unique_of(version));
            write_head(&mut head, key, word.flags, context.scratch.len(), unique);
            for part in [&*head, &**context.scratch, b"\r\n"] {
                context.reply.raw(part);
            }
        }
    }
    context.reply.raw(b"END\r\n");
    let events = &context.server.events;
    events.add(Event::CmdGet, asked);
    events.add(Event::GetHits, hits);
    if hits < asked {
        events.add(Event::GetMisses, asked - hits);
    }
    Ok(())
}

/// `VALUE <key> <flags> <bytes> [<unique>]`.
fn write_head(head: &mut Vec<u8>, key: &[u8], flags: u32, bytes: usize, unique: Option<u64>) {
    head.clear();
    head.extend_from_slice(b"VALUE ");
    head.extend_from_slice(key);
    head.push(b' ');
    write_int(head, flags);
    head.push(b' ');
    write_int(head, bytes);
    if let Some(unique) = unique {
        head.push(b' ');
        write_int(head, unique);
    }
    head.extend_from_slice(b"\r\n");
}

fn read(context: &mut Context<'_>, key: &[u8]) -> Outcome<Found> {
    context.keyspace().read_string(DB, key, context.scratch)
}

/// Reads an item and sets its expiry time. That changes the item: the result describes it afterwards.
fn read_and_touch(context: &mut Context<'_>, key: &[u8], seconds: i64) -> Outcome<Found> {
    let mut locked = context.keyspace().lock_keys(DB, [key]);
    let events = &context.server.events;
    events.count(Event::CmdTouch);
    let Some(word) = locked.read_string(DB, key, context.scratch)? else {
        events.count(Event::TouchMisses);
        return Ok(None);
    };
    events.count(Event::TouchHits);
    let version = locked.version(DB, key).ok_or_else(|| line(BAD_FORMAT))?;
    match expires(seconds, &locked) {
        Some(at) => expire_at(&mut locked, DB, key, word, at)?,
        None if word.expires.is_some() => locked.set_expiry(DB, key, word, None)?,
        None => {}
    }
    Ok(Some((word, locked.version(DB, key).unwrap_or(version))))
}
