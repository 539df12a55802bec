//! Commands on expiry times: EXPIRE, TTL, PERSIST and variants. Also the options EX, PX, EXAT, PXAT of other
//! commands.

use super::args::{int, is};
use super::context::Context;
use crate::blobs::Db;
use crate::error::{Outcome, Refusal};
use crate::keyspace::LockedKeys;
use crate::keyspace::word::Word;

/// The unit and origin of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    /// Seconds instead of milliseconds.
    pub(crate) seconds: bool,
    /// Relative to now instead of 1970.
    pub(crate) relative: bool,
}

pub(super) const EX: Unit = Unit { seconds: true, relative: true };
pub(super) const PX: Unit = Unit { seconds: false, relative: true };
pub(super) const EXAT: Unit = Unit { seconds: true, relative: false };
pub(super) const PXAT: Unit = Unit { seconds: false, relative: false };

impl Unit {
    pub(super) fn of_option(word: &[u8]) -> Option<Unit> {
        [("EX", EX), ("PX", PX), ("EXAT", EXAT), ("PXAT", PXAT)]
            .into_iter()
            .find(|(name, _)| is(word, name))
            .map(|(_, unit)| unit)
    }

    /// The time in milliseconds since 1970, possibly negative.
    ///
    /// # Errors
    /// The time exceeds 64 bits.
    pub(super) fn at(self, value: i64, now: u64, command: &'static str) -> Outcome<i64> {
        let milliseconds = if self.seconds { value.checked_mul(1000) } else { Some(value) };
        let from = if self.relative { now as i64 } else { 0 };
        milliseconds.and_then(|value| value.checked_add(from)).ok_or(Refusal::ExpireTime(command))
    }

    /// Like `at`, for a new key: the value must be positive.
    ///
    /// # Errors
    /// Not an integer, not positive, or out of range.
    pub(super) fn of_new(self, arg: &[u8], now: u64, command: &'static str) -> Outcome<i64> {
        match int(arg)? {
            value if value > 0 => self.at(value, now, command),
            _ => Err(Refusal::ExpireTime(command)),
        }
    }
}

/// Sets the expiry time of an existing key. A time in the past removes it.
pub(super) fn expire_at(locked: &mut LockedKeys<'_>, db: Db, key: &[u8], word: Word, at: i64) -> Outcome {
    match u64::try_from(at) {
        Ok(at) if at > locked.now() => locked.set_expiry(db, key, word, Some(at)),
        _ => locked.remove(db, key).map(drop),
    }
}

/// The conditions NX, XX, GT, LT.
#[derive(Debug, Default)]
struct Condition {
    absent: bool,
    present: bool,
    greater: bool,
    less: bool,
}

impl Condition {
    fn parse(context: &Context<'_>) -> Outcome<Condition> {
        let mut condition = Condition::default();
        for word in context.args.from(3) {
            match () {
                () if is(word, "NX") => condition.absent = true,
                () if is(word, "XX") => condition.present = true,
                () if is(word, "GT") => condition.greater = true,
                () if is(word, "LT") => condition.less = true,
                () => {
                    let word = String::from_utf8_lossy(word);
                    return Err(Refusal::err(format_args!("Unsupported option {word}")));
                }
            }
        }
        if condition.absent && (condition.present || condition.greater || condition.less) {
            return Err(Refusal::err("NX and XX, GT or LT options at the same time are not compatible"));
        }
        if condition.greater && condition.less {
            return Err(Refusal::err("GT and LT options at the same time are not compatible"));
        }
        Ok(condition)
    }

    /// A key without expiry time counts as living forever.
    fn holds(&self, old: Option<u64>, new: i64) -> bool {
        let old = old.map_or(i64::MAX, |old| old as i64);
        let is_volatile = old != i64::MAX;
        (!self.absent || !is_volatile)
            && (!self.present || is_volatile)
            && (!self.greater || (is_volatile && new > old))
            && (!self.less || new < old)
    }
}

fn set(context: &mut Context<'_>, unit: Unit, command: &'static str) -> Outcome {
    let (db, key) = (context.db(), context.key());
    let value = int(context.args.at(2))?;
    let condition = Condition::parse(context)?;
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let at = unit.at(value, locked.now(), command)?;
    let done = match locked.stat(db, key) {
        Some((word, _)) if condition.holds(word.expires, at) => {
            expire_at(&mut locked, db, key, word, at)?;
            true
        }
        _ => false,
    };
    context.reply.int(u8::from(done));
    Ok(())
}

/// EXPIRE key seconds [NX | XX | GT | LT]
pub(super) fn expire(context: &mut Context<'_>) -> Outcome {
    set(context, EX, "expire")
}
/// PEXPIRE key milliseconds [NX | XX | GT | LT]
pub(super) fn pexpire(context: &mut Context<'_>) -> Outcome {
    set(context, PX, "pexpire")
}
/// EXPIREAT key seconds-since-1970 [NX | XX | GT | LT]
pub(super) fn expireat(context: &mut Context<'_>) -> Outcome {
    set(context, EXAT, "expireat")
}
/// PEXPIREAT key milliseconds-since-1970 [NX | XX | GT | LT]
pub(super) fn pexpireat(context: &mut Context<'_>) -> Outcome {
    set(context, PXAT, "pexpireat")
}

pub(super) fn persist(context: &mut Context<'_>) -> Outcome {
    let (db, key) = (context.db(), context.key());
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let found = locked.stat(db, key).filter(|(word, _)| word.expires.is_some());
    if let Some((word, _)) = found {
        locked.set_expiry(db, key, word, None)?;
    }
    context.reply.int(u8::from(found.is_some()));
    Ok(())
}

/// Replies with a value derived from the expiry time. -2: the key does not exist. -1: it does not expire.
fn reply_expiry(context: &mut Context<'_>, of: impl Fn(u64, u64) -> u64) -> Outcome {
    let keyspace = context.keyspace();
    match keyspace.stat(context.db(), context.key()).map(|(word, _)| word.expires) {
        None => context.reply.int(-2),
        Some(None) => context.reply.int(-1),
        Some(Some(expires)) => context.reply.int(of(expires, keyspace.now())),
    }
    Ok(())
}

pub(super) fn ttl(context: &mut Context<'_>) -> Outcome {
    reply_expiry(context, |expires, now| (expires.saturating_sub(now) + 500) / 1000)
}
pub(super) fn pttl(context: &mut Context<'_>) -> Outcome {
    reply_expiry(context, |expires, now| expires.saturating_sub(now))
}
pub(super) fn expiretime(context: &mut Context<'_>) -> Outcome {
    reply_expiry(context, |expires, _| (expires + 500) / 1000)
}
pub(super) fn pexpiretime(context: &mut Context<'_>) -> Outcome {
    reply_expiry(context, |expires, _| expires)
}
