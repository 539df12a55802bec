//! Ranges of sorted sets: by place, by score, by member.

use std::ops::Range;

use super::args::{int, is, slice};
use super::context::Context;
use super::zsets::{change, read, write_members};
use crate::error::{Outcome, Refusal};
use crate::keyspace::collection::Collection;
use crate::keyspace::zset::{Ranked, Zset};
use crate::wire::number::parse_float;

/// Order of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Place,
    Score,
    Member,
}

/// A range.
#[derive(Debug, Clone)]
enum Bounds {
    Place(i64, i64),
    /// Scores, and whether each is in the range.
    Score((f64, bool), (f64, bool)),
    Member(Limit, Limit),
}

/// The end of a range of members.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Limit {
    Lowest,
    Highest,
    At(Box<[u8]>, bool),
}

fn score_limit(arg: &[u8]) -> Outcome<(f64, bool)> {
    let (number, included) = match arg {
        [b'(', number @ ..] => (number, false),
        number => (number, true),
    };
    let score = parse_float(number).ok_or_else(|| Refusal::err("min or max is not a float"))?;
    Ok((score, included))
}

fn member_limit(arg: &[u8]) -> Outcome<Limit> {
    match arg {
        b"-" => Ok(Limit::Lowest),
        b"+" => Ok(Limit::Highest),
        [b'(', member @ ..] => Ok(Limit::At(member.into(), false)),
        [b'[', member @ ..] => Ok(Limit::At(member.into(), true)),
        _ => Err(Refusal::err("min or max not valid string range item")),
    }
}

impl Bounds {
    fn parse(by: By, min: &[u8], max: &[u8]) -> Outcome<Bounds> {
        Ok(match by {
            By::Place => Bounds::Place(int(min)?, int(max)?),
            By::Score => Bounds::Score(score_limit(min)?, score_limit(max)?),
            By::Member => Bounds::Member(member_limit(min)?, member_limit(max)?),
        })
    }

    /// The places of the members in the range. By member, all must have one score.
    fn places(&self, zset: &Zset) -> Range<usize> {
        let (start, end) = match self {
            Bounds::Place(start, stop) => return slice(*start, *stop, zset.len()),
            Bounds::Score((min, min_in), (max, max_in)) => {
                let start = if *min_in { zset.below_score(*min) } else { zset.to_score(*min) };
                (start, if *max_in { zset.to_score(*max) } else { zset.below_score(*max) })
            }
            Bounds::Member(min, max) => (min.place(zset, false), max.place(zset, true)),
        };
        start..end.max(start)
    }

    /// The members in the range, from its end if `rev`, after the first `skip`, at most `take`.
    fn select<'a>(&self, zset: &'a Zset, rev: bool, skip: usize, take: usize) -> Vec<&'a Ranked> {
        let Range { start, end } = match (self, self.places(zset)) {
            // These places are counted from the end that the range begins at.
            (Bounds::Place(..), places) if rev => zset.len() - places.end..zset.len() - places.start,
            (_, places) => places,
        };
        let skip = skip.min(end - start);
        let take = take.min(end - start - skip);
        let begin = if rev { end - skip - take } else { start + skip };
        zset.range(begin..begin + take, rev)
    }
}

impl Limit {
    /// How many members stand before this beginning of a range, or up to this end of one.
    fn place(&self, zset: &Zset, is_end: bool) -> usize {
        match self {
            Limit::Lowest => 0,
            Limit::Highest => zset.len(),
            // Those up to a name are those below the next one.
            Limit::At(name, included) if *included == is_end => zset.below_name(&[name, &b"\0"[..]].concat()),
            Limit::At(name, _) => zset.below_name(name),
        }
    }
}

/// A range with all its options.
#[derive(Debug)]
struct Query {
    by: By,
    rev: bool,
    with_scores: bool,
    limit: Option<(i64, i64)>,
}

impl Query {
    fn new(by: By, rev: bool) -> Query {
        Query { by, rev, with_scores: false, limit: None }
    }

    /// Options behind the two bounds; `all`: those of ZRANGE, which chooses order and direction, too.
    fn parse(mut self, context: &Context<'_>, all: bool) -> Outcome<Query> {
        let mut words = context.args.from(4);
        while let Some(word) = words.next() {
            match () {
                () if is(word, "WITHSCORES") => self.with_scores = true,
                () if is(word, "LIMIT") => {
                    let mut number = || words.next().ok_or(Refusal::Syntax).and_then(int);
                    self.limit = Some((number()?, number()?));
                }
                () if all && is(word, "BYSCORE") => self.by = By::Score,
                () if all && is(word, "BYLEX") => self.by = By::Member,
                () if all && is(word, "REV") => self.rev = true,
                () => return Err(Refusal::Syntax),
            }
        }
        if self.limit.is_some() && self.by == By::Place {
            let why = "syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX";
            return Err(Refusal::err(why));
        }
        if self.with_scores && self.by == By::Member {
            return Err(Refusal::err("syntax error, WITHSCORES not supported in combination with BYLEX"));
        }
        Ok(self)
    }

    fn answer(&self, context: &mut Context<'_>) -> Outcome {
        let (first, second) = (context.args.at(2), context.args.at(3));
        // From the highest on the bounds come in that order, too; places do not.
        let swapped = self.rev && self.by != By::Place;
        let (min, max) = if swapped { (second, first) } else { (first, second) };
        let bounds = Bounds::parse(self.by, min, max)?;
        let (skip, take) = self.limit.unwrap_or((0, -1));
        let take = usize::try_from(take).unwrap_or(usize::MAX);
        // A negative offset selects nothing.
        let (skip, take) = usize::try_from(skip).map_or((0, 0), |skip| (skip, take));
        read(context, |zset, reply| {
            let members = bounds.select(zset, self.rev, skip, take);
            write_members(reply, members.into_iter(), self.with_scores);
        })
    }
}

/// ZRANGE key start stop [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]
pub fn zrange(context: &mut Context<'_>) -> Outcome {
    Query::new(By::Place, false).parse(context, true)?.answer(context)
}
/// ZREVRANGE key start stop [WITHSCORES]
pub fn zrevrange(context: &mut Context<'_>) -> Outcome {
    Query::new(By::Place, true).parse(context, false)?.answer(context)
}
/// ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]
pub fn zrangebyscore(context: &mut Context<'_>) -> Outcome {
    Query::new(By::Score, false).parse(context, false)?.answer(context)
}
/// ZREVRANGEBYSCORE key max min [WITHSCORES] [LIMIT offset count]
pub fn zrevrangebyscore(context: &mut Context<'_>) -> Outcome {
    Query::new(By::Score, true).parse(context, false)?.answer(context)
}
/// ZRANGEBYLEX key min max [LIMIT offset count]
pub fn zrangebylex(context: &mut Context<'_>) -> Outcome {
    Query::new(By::Member, false).parse(context, false)?.answer(context)
}
/// ZREVRANGEBYLEX key max min [LIMIT offset count]
pub fn zrevrangebylex(context: &mut Context<'_>) -> Outcome {
    Query::new(By::Member, true).parse(context, false)?.answer(context)
}

fn count(context: &mut Context<'_>, by: By) -> Outcome {
    let bounds = Bounds::parse(by, context.args.at(2), context.args.at(3))?;
    read(context, |zset, reply| reply.int(bounds.places(zset).len()))
}

/// ZCOUNT key min max
pub fn zcount(context: &mut Context<'_>) -> Outcome {
    count(context, By::Score)
}
/// ZLEXCOUNT key min max
pub fn zlexcount(context: &mut Context<'_>) -> Outcome {
    count(context, By::Member)
}

fn remove(context: &mut Context<'_>, by: By) -> Outcome {
    let bounds = Bounds::parse(by, context.args.at(2), context.args.at(3))?;
    let gone = change(context, |zset, _| {
        let members: Vec<Ranked> =
            bounds.select(&zset.content, false, 0, usize::MAX).into_iter().cloned().collect();
        Ok(members.iter().filter(|ranked| zset.content.delete(&ranked.member, &mut zset.log)).count())
    })?;
    context.reply.int(gone);
    Ok(())
}

/// ZREMRANGEBYRANK key start stop
pub fn zremrangebyrank(context: &mut Context<'_>) -> Outcome {
    remove(context, By::Place)
}
/// ZREMRANGEBYSCORE key min max
pub fn zremrangebyscore(context: &mut Context<'_>) -> Outcome {
    remove(context, By::Score)
}
/// ZREMRANGEBYLEX key min max
pub fn zremrangebylex(context: &mut Context<'_>) -> Outcome {
    remove(context, By::Member)
}
