//! Commands on ranges of sorted sets, by rank, score or member: ZRANGE, ZCOUNT, ZREMRANGEBYRANK and others.

use std::ops::Range;

use super::args::{int, is, slice};
use super::context::Context;
use super::zsets::{change, read, write_members};
use crate::error::{Outcome, Refusal};
use crate::keyspace::collection::Collection;
use crate::keyspace::zset::{Point, Ranked, Zset, point_of_score};
use crate::wire::number::parse_float;

/// The kind of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Place,
    Score,
    Member,
}

/// An end of a range by score or member.
#[derive(Debug, Clone)]
enum End {
    Lowest,
    Highest,
    /// At a score, or behind it.
    Score(f64, bool),
    /// At a name, or behind it.
    Member(Box<[u8]>, bool),
}

#[derive(Debug, Clone)]
enum Bounds {
    Place(i64, i64),
    Between(End, End),
}

impl End {
    /// Parses the begin of a range, or its last member (`is_last`).
    fn parse(by: By, arg: &[u8], is_last: bool) -> Outcome<End> {
        let (text, included) = match arg {
            [b'(', text @ ..] => (text, false),
            [b'[', text @ ..] if by == By::Member => (text, true),
            text if by == By::Score => (text, true),
            b"-" => return Ok(End::Lowest),
            b"+" => return Ok(End::Highest),
            _ => return Err(Refusal::err("min or max not valid string range item")),
        };
        let behind = included == is_last;
        if by == By::Member {
            return Ok(End::Member(text.into(), behind));
        }
        let score = parse_float(text).ok_or_else(|| Refusal::err("min or max is not a float"))?;
        Ok(End::Score(score, behind))
    }

    /// The position of this end in the set.
    fn point(&self, zset: &Zset, is_last: bool) -> Point {
        match self {
            End::Lowest => point_of_score(f64::NEG_INFINITY, false),
            End::Highest => None,
            End::Score(score, behind) => point_of_score(*score, *behind),
            End::Member(name, behind) => zset.point_of_name(name, *behind, is_last),
        }
    }
}

impl Bounds {
    fn parse(by: By, min: &[u8], max: &[u8]) -> Outcome<Bounds> {
        match by {
            By::Place => Ok(Bounds::Place(int(min)?, int(max)?)),
            _ => Ok(Bounds::Between(End::parse(by, min, false)?, End::parse(by, max, true)?)),
        }
    }

    /// The members in the range, from its end if `rev`, after the first `skip`, at most `take`.
    fn select<'a>(&self, zset: &'a Zset, rev: bool, skip: usize, take: usize) -> Vec<&'a Ranked> {
        match self {
            Bounds::Place(start, stop) => {
                let Range { start, end } = slice(*start, *stop, zset.len());
                // These ranks count from the end that the range begins at.
                let places = if rev { zset.len() - end..zset.len() - start } else { start..end };
                zset.range(places, rev)
            }
            Bounds::Between(start, end) => {
                let members = zset.between(&start.point(zset, false), &end.point(zset, true));
                if rev { pick(members.rev(), skip, take) } else { pick(members, skip, take) }
            }
        }
    }
}

fn pick<'a>(members: impl Iterator<Item = &'a Ranked>, skip: usize, take: usize) -> Vec<&'a Ranked> {
    members.skip(skip).take(take).collect()
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

    /// Parses the options behind the two bounds. `all`: those of ZRANGE, which also sets kind and direction.
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
        // In reverse the bounds are swapped, too; ranks are not.
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
pub(super) fn zrange(context: &mut Context<'_>) -> Outcome {
    Query::new(By::Place, false).parse(context, true)?.answer(context)
}
/// ZREVRANGE key start stop [WITHSCORES]
pub(super) fn zrevrange(context: &mut Context<'_>) -> Outcome {
    Query::new(By::Place, true).parse(context, false)?.answer(context)
}
/// ZRANGEBYSCORE key min max [WITHSCORES] [LIMIT offset count]
pub(super) fn zrangebyscore(context: &mut Context<'_>) -> Outcome {
    Query::new(By::Score, false).parse(context, false)?.answer(context)
}
/// ZREVRANGEBYSCORE key max min [WITHSCORES] [LIMIT offset count]
pub(super) fn zrevrangebyscore(context: &mut Context<'_>) -> Outcome {
    Query::new(By::Score, true).parse(context, false)?.answer(context)
}
/// ZRANGEBYLEX key min max [LIMIT offset count]
pub(super) fn zrangebylex(context: &mut Context<'_>) -> Outcome {
    Query::new(By::Member, false).parse(context, false)?.answer(context)
}
/// ZREVRANGEBYLEX key max min [LIMIT offset count]
pub(super) fn zrevrangebylex(context: &mut Context<'_>) -> Outcome {
    Query::new(By::Member, true).parse(context, false)?.answer(context)
}

fn count(context: &mut Context<'_>, by: By) -> Outcome {
    let start = End::parse(by, context.args.at(2), false)?;
    let end = End::parse(by, context.args.at(3), true)?;
    read(context, |zset, reply| {
        let (start, end) = (start.point(zset, false), end.point(zset, true));
        reply.int(zset.below(&end).saturating_sub(zset.below(&start)));
    })
}

/// ZCOUNT key min max
pub(super) fn zcount(context: &mut Context<'_>) -> Outcome {
    count(context, By::Score)
}
/// ZLEXCOUNT key min max
pub(super) fn zlexcount(context: &mut Context<'_>) -> Outcome {
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
pub(super) fn zremrangebyrank(context: &mut Context<'_>) -> Outcome {
    remove(context, By::Place)
}
/// ZREMRANGEBYSCORE key min max
pub(super) fn zremrangebyscore(context: &mut Context<'_>) -> Outcome {
    remove(context, By::Score)
}
/// ZREMRANGEBYLEX key min max
pub(super) fn zremrangebylex(context: &mut Context<'_>) -> Outcome {
    remove(context, By::Member)
}
