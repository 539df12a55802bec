//! Walks in pieces: SCAN, HSCAN, ZSCAN; and KEYS, which walks at once.
//!
//! A cursor is a place in the order of the keys' hashes. It holds nothing on the server, keys that are there all the while come, and a key comes
//! twice only if it shares its hash with another. Elements of a large collection are looked at whole for each piece.

use std::hash::BuildHasher;
use std::sync::LazyLock;

use hashbrown::DefaultHashBuilder;

use super::args::{cursor, int, is};
use super::context::Context;
use super::glob;
use crate::error::{Outcome, Refusal};
use crate::keyspace::collection::{Collection, SMALL};
use crate::keyspace::hash::Hash;
use crate::keyspace::zset::Zset;
use crate::wire::number::float_text;

/// Keys of a piece, unless the client asks for more or less.
const COUNT: usize = 10;
/// Most that it may ask for.
const COUNT_MAX: i64 = 1_000_000;

/// The options of a walk.
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
pub fn scan(context: &mut Context<'_>) -> Outcome {
    let (from, options) = (cursor(context.args.at(1))?, Options::parse(context, 2)?);
    let (keyspace, db) = (context.keyspace(), context.db());
    let page = keyspace.scan(db, from, options.count);
    let is_wanted = |key: &[u8]| {
        options.wants(key)
            && keyspace
                .stat(db, key)
                .is_some_and(|(word, _)| options.kind.is_none_or(|kind| is(kind, word.kind.name())))
    };
    let keys: Vec<_> = page.keys.into_iter().filter(|key| is_wanted(key)).collect();
    context.reply.array(2);
    context.reply.text(page.next.to_string());
    context.reply.texts(keys);
    Ok(())
}

/// KEYS pattern
pub fn keys(context: &mut Context<'_>) -> Outcome {
    let (keyspace, db, pattern) = (context.keyspace(), context.db(), context.args.at(1));
    let reply = &mut context.reply;
    let (mark, mut count) = (reply.mark(), 0);
    keyspace.each_key(db, |key| {
        if glob::matches(pattern, key) && keyspace.stat(db, key).is_some() {
            reply.bulk(key);
            count += 1;
        }
        !reply.is_cut()
    });
    reply.array_since(mark, count);
    Ok(())
}

/// Those of the elements that come next in the order of their hashes, and the next cursor.
fn piece<'a, T>(
    elements: impl Iterator<Item = (&'a [u8], T)>,
    from: u64,
    count: usize,
) -> (Vec<(&'a [u8], T)>, u64) {
    static HASHER: LazyLock<DefaultHashBuilder> = LazyLock::new(DefaultHashBuilder::default);
    // 0 is the beginning and the end.
    let hashed = elements.map(|(name, value)| (HASHER.hash_one(name) | 1, name, value));
    let mut rest: Vec<_> = hashed.filter(|(hash, ..)| *hash >= from).collect();
    rest.sort_unstable_by_key(|(hash, ..)| *hash);
    let next = rest.get(count).map_or(0, |(hash, ..)| *hash);
    let piece = rest.into_iter().take_while(|(hash, ..)| next == 0 || *hash < next);
    (piece.map(|(_, name, value)| (name, value)).collect(), next)
}

fn scan_elements<C: Collection>(
    context: &mut Context<'_>,
    elements: impl for<'a> Fn(&'a C) -> Vec<(&'a [u8], Vec<u8>)>,
) -> Outcome {
    let (db, key) = (context.db(), context.key());
    let (from, options) = (cursor(context.args.at(2))?, Options::parse(context, 3)?);
    let mut held = context.keyspace().hold(db, [key]);
    context.reply.array(2);
    let Some(open) = held.open::<C>(db, key)? else {
        context.reply.text("0");
        context.reply.array(0);
        return Ok(());
    };
    let small = open.content.encoded_bytes() <= SMALL;
    let (from, count) = if small { (0, usize::MAX) } else { (from, options.count) };
    let (found, next) = piece(elements(&open.content).into_iter(), from, count);
    let found: Vec<_> = found.into_iter().filter(|(name, _)| options.wants(name)).collect();
    context.reply.text(next.to_string());
    context.reply.array(found.len() * if options.no_values { 1 } else { 2 });
    for (name, value) in found {
        context.reply.bulk(name);
        if !options.no_values {
            context.reply.bulk(&value);
        }
    }
    held.close(db, key, open)
}

/// HSCAN key cursor [MATCH pattern] [COUNT count] [NOVALUES]
pub fn hscan(context: &mut Context<'_>) -> Outcome {
    scan_elements::<Hash>(context, |hash| hash.iter().map(|(field, value)| (field, value.to_vec())).collect())
}

/// ZSCAN key cursor [MATCH pattern] [COUNT count]
pub fn zscan(context: &mut Context<'_>) -> Outcome {
    scan_elements::<Zset>(context, |zset| {
        let text = |score| float_text(score).into_bytes();
        zset.iter().map(|ranked| (&*ranked.member, text(ranked.score))).collect()
    })
}
