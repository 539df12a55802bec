//! SCAN, HSCAN and ZSCAN return keys or elements in pieces; KEYS returns all matching keys in one reply.
//!
//! A cursor is a position in the order of hashes. The server may cache the names of later pieces; a cursor
//! works without this cache. Keys and elements present during the whole scan come at least once. Repeats are
//! possible only for a collection that becomes small during the scan: all of it is then one piece.

use terrace_store::ScanRemainder;

use super::args::{cursor, int, is};
use super::context::Context;
use super::glob;
use crate::error::{Outcome, Refusal};
use crate::keyspace::collection::{Collection, SMALL};
use crate::keyspace::hash::Hash;
use crate::keyspace::zset::Zset;
use crate::wire::Reply;
use crate::wire::number::float_text;

/// Default number of keys or elements of a piece (COUNT).
const COUNT: usize = 10;
/// Maximum number of keys or elements of a piece (COUNT).
const COUNT_MAX: i64 = 1_000_000;

#[derive(Debug)]
struct Options<'a> {
    count: usize,
    pattern: Option<&'a [u8]>,
    kind: Option<&'a [u8]>,
    no_values: bool,
}

impl<'a> Options<'a> {
    fn parse(context: &Context<'a>, begin: usize) -> Outcome<Options<'a>> {
        let mut options = Options { count: COUNT, pattern: None, kind: None, no_values: false };
        let mut words = context.args.from(begin);
        while let Some(word) = words.next() {
            if is(word, "NOVALUES") {
                options.no_values = true;
                continue;
            }
            let value = words.next().ok_or(Refusal::Syntax)?;
            match () {
                () if is(word, "COUNT") => {
                    let count = Some(int(value)?).filter(|count| *count > 0).ok_or(Refusal::Syntax)?;
                    options.count = count.min(COUNT_MAX) as usize;
                }
                () if is(word, "MATCH") => options.pattern = Some(value),
                () if is(word, "TYPE") => options.kind = Some(value),
                () => return Err(Refusal::Syntax),
            }
        }
        Ok(options)
    }

    fn wants(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name))
    }
}

/// SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]
pub(super) fn scan(context: &mut Context<'_>) -> Outcome {
    let (from, options) = (cursor(context.args.at(1))?, Options::parse(context, 2)?);
    let (keyspace, db, reply) = (context.keyspace(), context.db(), &mut context.reply);
    let is_wanted = |key: &[u8]| {
        options.wants(key)
            && keyspace
                .stat(db, key)
                .is_some_and(|(word, _)| options.kind.is_none_or(|kind| is(kind, word.kind.name())))
    };
    reply.array(2);
    let (mark, mut count) = (reply.mark(), 0);
    let next = keyspace.each_key_from(db, from, options.count, |key| {
        if is_wanted(key) {
            reply.bulk(key);
            count += 1;
        }
        !reply.is_truncated()
    });
    reply.before(mark, |reply| {
        reply.text(next.to_string());
        reply.array(count);
    });
    Ok(())
}

pub(super) fn keys(context: &mut Context<'_>) -> Outcome {
    let (keyspace, db, pattern) = (context.keyspace(), context.db(), context.args.at(1));
    let reply = &mut context.reply;
    let (mark, mut count) = (reply.mark(), 0);
    keyspace.each_key(db, |key| {
        if glob::matches(pattern, key) && keyspace.stat(db, key).is_some() {
            reply.bulk(key);
            count += 1;
        }
        !reply.is_truncated()
    });
    reply.array_since(mark, count);
    Ok(())
}

enum Value<'a> {
    Bytes(&'a [u8]),
    Score(f64),
}

impl Value<'_> {
    fn write(&self, reply: &mut Reply<'_>) {
        match self {
            Value::Bytes(bytes) => reply.bulk(bytes),
            Value::Score(score) => reply.text(float_text(*score)),
        }
    }
}

/// A collection that is scanned in pieces.
trait Elements: Collection {
    fn names(&self) -> impl Iterator<Item = &[u8]>;
    /// The names in the order of a small collection's reply: a sorted set's by score.
    fn in_order(&self) -> impl Iterator<Item = &[u8]> {
        self.names()
    }
    fn value(&self, name: &[u8]) -> Option<Value<'_>>;
}

impl Elements for Hash {
    fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.iter().map(|(field, _)| field)
    }
    fn value(&self, field: &[u8]) -> Option<Value<'_>> {
        self.get(field).map(Value::Bytes)
    }
}

impl Elements for Zset {
    fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.members()
    }
    fn in_order(&self) -> impl Iterator<Item = &[u8]> {
        self.iter().map(|ranked| &*ranked.member)
    }
    fn value(&self, member: &[u8]) -> Option<Value<'_>> {
        self.score(member).map(Value::Score)
    }
}

/// The place of an element in scan order: FNV-1a of its name. 0 is the start and the end.
///
/// A scan can continue after a restart, even with another version of terrace. So the function has no seed,
/// and must not change. The hash distribution does not matter: the number of elements limits a piece.
fn place(name: &[u8]) -> u64 {
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash | 1
}

/// Approximate maximum size of a piece, bytes.
const PIECE_BYTES: usize = 1 << 20;

/// The names of a piece, some of which may have been removed, and the next place. A small collection is one
/// piece.
fn piece(content: &mut impl Elements, from: u64, count: usize) -> (Vec<Box<[u8]>>, u64) {
    if content.encoded_bytes() <= SMALL {
        return (content.in_order().map(Box::from).collect(), 0);
    }
    let element_bytes = content.encoded_bytes().div_ceil(content.len());
    let count = count.min(PIECE_BYTES / element_bytes + 1);
    let mut rest = content.scan_cache().take(0, from).unwrap_or_else(|| {
        let names = content.names().map(|name| (place(name), name));
        ScanRemainder::look(from..=u64::MAX, count, content.len(), names)
    });
    let names = rest.piece(count).map(|(_, name)| name).collect();
    let next = rest.begin();
    let memory_max = content.memory_bytes() / 4;
    content.scan_cache().keep(0, rest, memory_max);
    (names, next)
}

fn scan_elements<C: Elements>(context: &mut Context<'_>) -> Outcome {
    let (db, key) = (context.db(), context.key());
    let (from, options) = (cursor(context.args.at(2))?, Options::parse(context, 3)?);
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let reply = &mut context.reply;
    reply.array(2);
    let Some(mut open) = locked.open::<C>(db, key)? else {
        reply.text("0");
        reply.array(0);
        return Ok(());
    };
    let (names, next) = piece(&mut *open.content, from, options.count);
    reply.text(next.to_string());
    let wanted = names.iter().filter(|name| options.wants(name));
    let elements = wanted.filter_map(|name| Some((name, open.content.value(name)?)));
    let (mark, mut count) = (reply.mark(), 0);
    reply.each(elements, |reply, (name, value)| {
        reply.bulk(name);
        count += 1;
        if !options.no_values {
            value.write(reply);
            count += 1;
        }
    });
    reply.array_since(mark, count);
    locked.close(db, key, open)
}

/// HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]
pub(super) fn hscan(context: &mut Context<'_>) -> Outcome {
    scan_elements::<Hash>(context)
}

/// ZSCAN key cursor [MATCH pattern] [COUNT count]
pub(super) fn zscan(context: &mut Context<'_>) -> Outcome {
    scan_elements::<Zset>(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_every_other_server() {
        // The test values of FNV-1a, with the lowest bit set.
        assert_eq!(
            [place(b""), place(b"a"), place(b"foobar")],
            [0xcbf2_9ce4_8422_2325, 0xaf63_dc4c_8601_ec8d, 0x8594_4171_f739_67e9]
        );
    }
}
