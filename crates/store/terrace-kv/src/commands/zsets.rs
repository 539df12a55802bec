//! Commands on members and scores of sorted sets: ZADD, ZREM, ZSCORE, ZRANK, ZPOPMIN and others. Range
//! commands are in [`super::zrange`].

use super::args::{int, is};
use super::context::Context;
use super::hashes::{random_index, random_indices, random_options};
use crate::error::{Outcome, Refusal};
use crate::keyspace::collection::{Collection, Open};
use crate::keyspace::zset::{Ranked, Zset};
use crate::wire::Reply;
use crate::wire::number::parse_float;

/// Reads a sorted set. A missing one has no members.
pub(super) fn read(context: &mut Context<'_>, answer: impl FnOnce(&Zset, &mut Reply<'_>)) -> Outcome {
    let (db, key) = (context.db(), context.key());
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let open = locked.open_or_new::<Zset>(db, key)?;
    answer(&open.content, &mut context.reply);
    locked.close(db, key, open)
}

pub(super) fn change<T>(
    context: &mut Context<'_>,
    change: impl FnOnce(&mut Open<Zset>, &Context<'_>) -> Outcome<T>,
) -> Outcome<T> {
    let (db, key) = (context.db(), context.key());
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let mut open = locked.open_or_new::<Zset>(db, key)?;
    let changed = change(&mut open, context)?;
    locked.close(db, key, open)?;
    Ok(changed)
}

/// Writes members, with scores if wanted. RESP3 nests each pair.
pub(super) fn write_members<'a>(
    reply: &mut Reply<'_>,
    members: impl ExactSizeIterator<Item = &'a Ranked>,
    with_scores: bool,
) {
    let pairs = with_scores && reply.resp3;
    reply.array(members.len() * if with_scores && !pairs { 2 } else { 1 });
    reply.each(members, |reply, ranked| {
        if pairs {
            reply.array(2);
        }
        reply.bulk(&ranked.member);
        if with_scores {
            reply.double(ranked.score);
        }
    });
}

#[derive(Debug, Default, Clone, Copy)]
struct AddOptions {
    absent: bool,
    present: bool,
    greater: bool,
    less: bool,
    counts_changed: bool,
    increments: bool,
}

/// Result of ZADD for one member.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Added {
    /// Unchanged: the conditions do not hold, or the score is the same.
    Nothing(Option<f64>),
    New(f64),
    Changed(f64),
}

impl AddOptions {
    /// The options, and the position of the first score.
    fn parse(context: &Context<'_>) -> Outcome<(AddOptions, usize)> {
        let (mut options, mut at) = (AddOptions::default(), 2);
        for word in context.args.from(2) {
            match () {
                () if is(word, "NX") => options.absent = true,
                () if is(word, "XX") => options.present = true,
                () if is(word, "GT") => options.greater = true,
                () if is(word, "LT") => options.less = true,
                () if is(word, "CH") => options.counts_changed = true,
                () if is(word, "INCR") => options.increments = true,
                () => break,
            }
            at += 1;
        }
        let scores = context.args.len() - at;
        if scores == 0 || scores % 2 == 1 {
            return Err(Refusal::Syntax);
        }
        if options.absent && options.present {
            return Err(Refusal::err("XX and NX options at the same time are not compatible"));
        }
        let orders =
            [options.greater, options.less, options.absent].into_iter().filter(|order| *order).count();
        if orders > 1 {
            return Err(Refusal::err("GT, LT, and/or NX options at the same time are not compatible"));
        }
        if options.increments && scores > 2 {
            return Err(Refusal::err("INCR option supports a single increment-element pair"));
        }
        Ok((options, at))
    }

    fn add(self, zset: &mut Open<Zset>, member: &[u8], score: f64) -> Outcome<Added> {
        let old = zset.content.score(member);
        if self.absent && old.is_some() || self.present && old.is_none() {
            return Ok(Added::Nothing(None));
        }
        let new = if self.increments { old.unwrap_or(0.0) + score } else { score };
        if new.is_nan() {
            return Err(Refusal::err("resulting score is not a number (NaN)"));
        }
        let Some(old) = old else {
            zset.content.set(member, new, &mut zset.log);
            return Ok(Added::New(new));
        };
        if self.greater && new <= old || self.less && new >= old {
            return Ok(Added::Nothing(None));
        }
        zset.content.set(member, new, &mut zset.log);
        Ok(if old == new { Added::Nothing(Some(new)) } else { Added::Changed(new) })
    }
}

fn score(arg: &[u8]) -> Outcome<f64> {
    parse_float(arg).ok_or(Refusal::NotFloat)
}

/// ZADD key [NX | XX] [GT | LT] [CH] [INCR] score member [score member]...
pub(super) fn zadd(context: &mut Context<'_>) -> Outcome {
    let (options, at) = AddOptions::parse(context)?;
    let scores = context.args.from(at).step_by(2).map(score).collect::<Outcome<Vec<f64>>>()?;
    let added = change(context, |zset, context| {
        let members = context.args.from(at + 1).step_by(2);
        members
            .zip(scores)
            .map(|(member, score)| options.add(zset, member, score))
            .collect::<Outcome<Vec<Added>>>()
    })?;
    if options.increments {
        match added[0] {
            Added::Nothing(None) => context.reply.null(),
            Added::Nothing(Some(score)) | Added::New(score) | Added::Changed(score) => {
                context.reply.double(score)
            }
        }
        return Ok(());
    }
    let counts = |added: &&Added| match added {
        Added::New(_) => true,
        Added::Changed(_) => options.counts_changed,
        Added::Nothing(_) => false,
    };
    context.reply.int(added.iter().filter(counts).count());
    Ok(())
}

/// ZINCRBY key amount member
pub(super) fn zincrby(context: &mut Context<'_>) -> Outcome {
    let amount = score(context.args.at(2))?;
    let options = AddOptions { increments: true, ..AddOptions::default() };
    let added = change(context, |zset, context| options.add(zset, context.args.at(3), amount))?;
    match added {
        Added::Nothing(score) => context.reply.double(score.unwrap_or(0.0)),
        Added::New(score) | Added::Changed(score) => context.reply.double(score),
    }
    Ok(())
}

pub(super) fn zrem(context: &mut Context<'_>) -> Outcome {
    let gone = change(context, |zset, context| {
        let members = context.args.from(2);
        Ok(members.filter(|member| zset.content.delete(member, &mut zset.log)).count())
    })?;
    context.reply.int(gone);
    Ok(())
}

pub(super) fn zcard(context: &mut Context<'_>) -> Outcome {
    read(context, |zset, reply| reply.int(zset.len()))
}

fn write_score(reply: &mut Reply<'_>, score: Option<f64>) {
    match score {
        Some(score) => reply.double(score),
        None => reply.null(),
    }
}

pub(super) fn zscore(context: &mut Context<'_>) -> Outcome {
    let member = context.args.at(2);
    read(context, |zset, reply| write_score(reply, zset.score(member)))
}

pub(super) fn zmscore(context: &mut Context<'_>) -> Outcome {
    let members = context.args.from(2);
    read(context, |zset, reply| {
        reply.array(members.len());
        members.for_each(|member| write_score(reply, zset.score(member)));
    })
}

fn rank(context: &mut Context<'_>, from_highest: bool) -> Outcome {
    let member = context.args.at(2);
    let with_score = match (context.args.len(), context.args.get(3)) {
        (3, _) => false,
        (4, Some(word)) if is(word, "WITHSCORE") => true,
        _ => return Err(Refusal::Syntax),
    };
    read(context, |zset, reply| {
        let Some(rank) = zset.rank(member) else {
            return if with_score { reply.null_array() } else { reply.null() };
        };
        if with_score {
            reply.array(2);
        }
        reply.int(if from_highest { zset.len() - 1 - rank } else { rank });
        if with_score {
            write_score(reply, zset.score(member));
        }
    })
}

/// ZRANK key member [WITHSCORE]
pub(super) fn zrank(context: &mut Context<'_>) -> Outcome {
    rank(context, false)
}
/// ZREVRANK key member [WITHSCORE]
pub(super) fn zrevrank(context: &mut Context<'_>) -> Outcome {
    rank(context, true)
}

fn pop(context: &mut Context<'_>, from_highest: bool) -> Outcome {
    let count = match (context.args.len(), context.args.get(2)) {
        (3, Some(count)) => Some(int(count)?),
        (2, _) => None,
        _ => return Err(Refusal::Syntax),
    };
    let wanted = usize::try_from(count.unwrap_or(1));
    let wanted = wanted.map_err(|_| Refusal::err("value is out of range, must be positive"))?;
    let gone = change(context, |zset, _| {
        let ends: Vec<Ranked> = match from_highest {
            true => zset.content.iter().rev().take(wanted).cloned().collect(),
            false => zset.content.iter().take(wanted).cloned().collect(),
        };
        for ranked in &ends {
            zset.content.delete(&ranked.member, &mut zset.log);
        }
        Ok(ends)
    })?;
    if context.reply.resp3 && count.is_none() && !gone.is_empty() {
        // A single pair is not nested.
        context.reply.array(2);
        context.reply.bulk(&gone[0].member);
        context.reply.double(gone[0].score);
        return Ok(());
    }
    write_members(&mut context.reply, gone.iter(), true);
    Ok(())
}

/// ZPOPMIN key [count]
pub(super) fn zpopmin(context: &mut Context<'_>) -> Outcome {
    pop(context, false)
}
/// ZPOPMAX key [count]
pub(super) fn zpopmax(context: &mut Context<'_>) -> Outcome {
    pop(context, true)
}

/// Maximum number of members found by rank. For more, all members are listed once.
const FOUND_MAX: usize = 200;

/// ZRANDMEMBER key [count [WITHSCORES]]
pub(super) fn zrandmember(context: &mut Context<'_>) -> Outcome {
    let options = random_options(context, "WITHSCORES")?;
    read(context, |zset, reply| match options {
        None => {
            let chosen = random_index(zset.len()).and_then(|at| zset.at(at));
            reply.optional(chosen.map(|ranked| &*ranked.member));
        }
        Some((count, with_scores)) => {
            let places = random_indices(zset.len(), count);
            if places.len() <= FOUND_MAX {
                let chosen = places.map(|at| zset.at(at).expect("a place of this set"));
                return write_members(reply, chosen, with_scores);
            }
            let all: Vec<&Ranked> = zset.iter().collect();
            write_members(reply, places.map(|at| all[at]), with_scores);
        }
    })
}
