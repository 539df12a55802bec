//! Commands on fields of hashes: HSET, HGET, HDEL, HGETALL, HINCRBY, HRANDFIELD and others. HSCAN is in
//! [`super::scan`].
//!
//! Most reads walk the stored records of a compact hash, and HSET of few pairs edits them. All other commands
//! open the hash.

use hashbrown::{DefaultHashBuilder, HashMap};
use smallvec::SmallVec;

use super::args::{int, is};
use super::context::Context;
use super::decimal::Number;
use crate::error::{Outcome, Refusal};
use crate::keyspace::collection::{Collection, Open};
use crate::keyspace::compact;
use crate::keyspace::hash::Hash;
use crate::keyspace::word::Kind;
use crate::keyspace::{Compact, FieldRecord, LockedKeys, fields};
use crate::wire::Reply;
use crate::wire::number::parse_int;

/// Queries that a stored and an open hash both answer.
trait Fields {
    fn count(&self) -> usize;
    fn get(&self, field: &[u8]) -> Option<&[u8]>;
    fn each(&self, visit: &mut dyn FnMut(&[u8], &[u8]));
}

/// The records of a compact hash, never empty.
struct Walked<'a>(&'a [u8]);

impl<'a> Walked<'a> {
    fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        fields(self.0).map_while(|record| match record {
            Ok(FieldRecord::Set(field, value)) => Some((field, value)),
            _ => None,
        })
    }
}

impl Fields for Walked<'_> {
    fn count(&self) -> usize {
        self.iter().count()
    }
    fn get(&self, wanted: &[u8]) -> Option<&[u8]> {
        self.iter().find(|(field, _)| *field == wanted).map(|(_, value)| value)
    }
    fn each(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.iter().for_each(|(field, value)| visit(field, value));
    }
}

impl Fields for Hash {
    fn count(&self) -> usize {
        self.len()
    }
    fn get(&self, field: &[u8]) -> Option<&[u8]> {
        Hash::get(self, field)
    }
    fn each(&self, visit: &mut dyn FnMut(&[u8], &[u8])) {
        self.iter().for_each(|(field, value)| visit(field, value));
    }
}

/// Reads a hash. A missing one has no fields.
fn read(context: &mut Context<'_>, answer: impl FnOnce(&dyn Fields, &mut Reply<'_>)) -> Outcome {
    let (keyspace, db, key) = (context.keyspace(), context.db(), context.key());
    match keyspace.read_compact(db, key, Kind::Hash, context.scratch)? {
        Compact::Records => answer(&Walked(context.scratch), &mut context.reply),
        Compact::Absent => answer(&Walked(&[]), &mut context.reply),
        Compact::Log => {
            let mut locked = keyspace.lock_keys(db, [key]);
            let open = locked.open_or_new::<Hash>(db, key)?;
            answer(&*open.content, &mut context.reply);
            locked.close(db, key, open)?;
        }
    }
    Ok(())
}

fn change<T>(
    context: &mut Context<'_>,
    change: impl FnOnce(&mut Open<Hash>, &Context<'_>) -> Outcome<T>,
) -> Outcome<T> {
    let (db, key) = (context.db(), context.key());
    let mut locked: LockedKeys<'_> = context.keyspace().lock_keys(db, [key]);
    let mut open = locked.open_or_new::<Hash>(db, key)?;
    let changed = change(&mut open, context)?;
    locked.close(db, key, open)?;
    Ok(changed)
}

fn set_all(context: &mut Context<'_>) -> Outcome<usize> {
    if context.args.len() % 2 == 1 {
        let name = String::from_utf8_lossy(context.args.at(0)).to_ascii_lowercase();
        return Err(Refusal::Arity(name));
    }
    let (db, key, args) = (context.db(), context.key(), context.args);
    let pairs = || args.from(2).step_by(2).zip(args.from(3).step_by(2));
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let found = locked.stat_of(db, key, Kind::Hash)?;
    if pairs().len() <= compact::PAIRS_MAX {
        let pairs = pairs().collect::<SmallVec<[_; 4]>>();
        if let Some(new) = locked.set_compact((db, key), found, &pairs, context.scratch)? {
            return Ok(new);
        }
    }
    let mut hash = locked.open_found_or_new::<Hash>(db, key, found)?;
    let new = pairs().filter(|(field, value)| hash.content.set(field, value, &mut hash.log)).count();
    locked.close(db, key, hash)?;
    Ok(new)
}

/// HSET key field value [field value]...
pub(super) fn hset(context: &mut Context<'_>) -> Outcome {
    let new = set_all(context)?;
    context.reply.int(new);
    Ok(())
}

/// HMSET key field value [field value]...
pub(super) fn hmset(context: &mut Context<'_>) -> Outcome {
    set_all(context)?;
    context.reply.ok();
    Ok(())
}

/// HSETNX key field value
pub(super) fn hsetnx(context: &mut Context<'_>) -> Outcome {
    let new = change(context, |hash, context| {
        let (field, value) = (context.args.at(2), context.args.at(3));
        Ok(hash.content.get(field).is_none() && hash.content.set(field, value, &mut hash.log))
    })?;
    context.reply.int(u8::from(new));
    Ok(())
}

pub(super) fn hdel(context: &mut Context<'_>) -> Outcome {
    let gone = change(context, |hash, context| {
        let fields = context.args.from(2);
        Ok(fields.filter(|field| hash.content.delete(field, &mut hash.log)).count())
    })?;
    context.reply.int(gone);
    Ok(())
}

pub(super) fn hget(context: &mut Context<'_>) -> Outcome {
    let field = context.args.at(2);
    read(context, |hash, reply| reply.optional(hash.get(field)))
}

pub(super) fn hmget(context: &mut Context<'_>) -> Outcome {
    let fields = context.args.from(2);
    read(context, |hash, reply| {
        reply.array(fields.len());
        fields.for_each(|field| reply.optional(hash.get(field)));
    })
}

pub(super) fn hexists(context: &mut Context<'_>) -> Outcome {
    let field = context.args.at(2);
    read(context, |hash, reply| reply.int(u8::from(hash.get(field).is_some())))
}

pub(super) fn hstrlen(context: &mut Context<'_>) -> Outcome {
    let field = context.args.at(2);
    read(context, |hash, reply| reply.int(hash.get(field).map_or(0, <[u8]>::len)))
}

pub(super) fn hlen(context: &mut Context<'_>) -> Outcome {
    read(context, |hash, reply| reply.int(hash.count()))
}

pub(super) fn hgetall(context: &mut Context<'_>) -> Outcome {
    read(context, |hash, reply| {
        reply.map(hash.count());
        hash.each(&mut |field, value| {
            reply.bulk(field);
            reply.bulk(value);
        });
    })
}

pub(super) fn hkeys(context: &mut Context<'_>) -> Outcome {
    read(context, |hash, reply| {
        reply.array(hash.count());
        hash.each(&mut |field, _| reply.bulk(field));
    })
}

pub(super) fn hvals(context: &mut Context<'_>) -> Outcome {
    read(context, |hash, reply| {
        reply.array(hash.count());
        hash.each(&mut |_, value| reply.bulk(value));
    })
}

/// HINCRBY key field amount
pub(super) fn hincrby(context: &mut Context<'_>) -> Outcome {
    let amount = int(context.args.at(3))?;
    let new = change(context, |hash, context| {
        let field = context.args.at(2);
        let old = hash.content.get(field).map_or(Some(0), parse_int);
        let old = old.ok_or_else(|| Refusal::err("hash value is not an integer"))?;
        let overflow = || Refusal::err("increment or decrement would overflow");
        let new = old.checked_add(amount).ok_or_else(overflow)?;
        hash.content.set(field, new.to_string().as_bytes(), &mut hash.log);
        Ok(new)
    })?;
    context.reply.int(new);
    Ok(())
}

/// HINCRBYFLOAT key field amount
pub(super) fn hincrbyfloat(context: &mut Context<'_>) -> Outcome {
    let amount = Number::parse(context.args.at(3)).ok_or(Refusal::NotFloat)?;
    if amount.is_infinite() {
        return Err(Refusal::err("value is NaN or Infinity"));
    }
    let new = change(context, |hash, context| {
        let field = context.args.at(2);
        let old = hash.content.get(field).map_or(Some(Number::ZERO), Number::parse);
        let old = old.ok_or_else(|| Refusal::err("hash value is not a float"))?;
        let new = old.plus(amount)?;
        hash.content.set(field, new.as_bytes(), &mut hash.log);
        Ok(new)
    })?;
    context.reply.text(new);
    Ok(())
}

/// Random indices below `len`: distinct ones, or with repetition if `count` is negative. Each is drawn when
/// the iterator reaches it: a reply above its limit draws no more.
pub(super) fn random_indices(len: usize, count: i64) -> impl ExactSizeIterator<Item = usize> {
    let (wanted, repeats) = (count.unsigned_abs() as usize, count < 0);
    // Fisher-Yates shuffle of the indices. Only displaced positions are stored.
    let mut moved = HashMap::<usize, usize, DefaultHashBuilder>::default();
    let wanted = match len {
        0 => 0,
        _ if repeats => wanted,
        _ => wanted.min(len),
    };
    (0..wanted).map(move |at| {
        if repeats {
            return fastrand::usize(..len);
        }
        let (drawn, first) = (fastrand::usize(at..len), moved.remove(&at).unwrap_or(at));
        if drawn == at { first } else { moved.insert(drawn, first).unwrap_or(drawn) }
    })
}

/// A random index below `len`. None: `len` is 0.
pub(super) fn random_index(len: usize) -> Option<usize> {
    random_indices(len, -1).next()
}

/// Maximum number of random elements with repetition.
const RANDOM_MAX: i64 = 1 << 24;

/// The count of HRANDFIELD and ZRANDMEMBER, and whether `values` was given.
pub(super) fn random_options(context: &Context<'_>, values: &str) -> Outcome<Option<(i64, bool)>> {
    let Some(count) = context.args.get(2) else { return Ok(None) };
    let count = int(count)?;
    let with_values = match (context.args.len(), context.args.get(3)) {
        (3, _) => false,
        (4, Some(word)) if is(word, values) => true,
        _ => return Err(Refusal::Syntax),
    };
    match count > -RANDOM_MAX {
        true => Ok(Some((count, with_values))),
        false => Err(Refusal::OutOfRange),
    }
}

/// HRANDFIELD key [count [WITHVALUES]]
pub(super) fn hrandfield(context: &mut Context<'_>) -> Outcome {
    let options = random_options(context, "WITHVALUES")?;
    let (db, key) = (context.db(), context.key());
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let open = locked.open_or_new::<Hash>(db, key)?;
    let (hash, reply) = (&open.content, &mut context.reply);
    let Some((count, with_values)) = options else {
        reply.optional(random_index(hash.len()).map(|at| hash.at(at).0));
        return locked.close(db, key, open);
    };
    let chosen = random_indices(hash.len(), count);
    // RESP3 nests each pair.
    let pairs = with_values && reply.resp3;
    reply.array(chosen.len() * if with_values && !pairs { 2 } else { 1 });
    reply.each(chosen, |reply, at| {
        if pairs {
            reply.array(2);
        }
        let (field, value) = hash.at(at);
        reply.bulk(field);
        if with_values {
            reply.bulk(value);
        }
    });
    locked.close(db, key, open)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_elements_are_each_as_likely() {
        let mut drawn = [0; 20];
        for _ in 0..20_000 {
            random_indices(20, 5).for_each(|index| drawn[index] += 1);
        }
        // Each is drawn 5,000 times on average, within seven standard deviations (of 61).
        assert!(drawn.iter().all(|count| (4570..5430).contains(count)), "{drawn:?}");
    }

    #[test]
    fn elements_are_drawn_when_they_are_asked_for() {
        let mut drawn = random_indices(5, i64::MIN);
        assert_eq!(drawn.len(), 1 << 63);
        assert!(drawn.by_ref().take(100).all(|at| at < 5));
        let mut different: Vec<usize> = random_indices(5, 9).collect();
        different.sort_unstable();
        assert_eq!(different, [0, 1, 2, 3, 4]);
        assert_eq!(random_indices(5, 2).len(), 2);
        assert_eq!((random_indices(0, -9).len(), random_indices(0, 9).len()), (0, 0));
        assert_eq!((random_index(0), random_index(1)), (None, Some(0)));
    }
}
