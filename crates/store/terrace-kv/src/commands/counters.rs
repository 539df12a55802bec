//! Commands on strings as numbers and bits: INCR, DECR, INCRBY, DECRBY, INCRBYFLOAT, GETBIT, SETBIT.

use super::args::int;
use super::context::Context;
use super::decimal::Number;
use super::strings::check_size;
use crate::error::{Outcome, Refusal};
use crate::keyspace::word::Kind;
use crate::wire::number::{parse_int, write_int};

fn add(context: &mut Context<'_>, amount: i64) -> Outcome {
    let (db, key) = (context.db(), context.key());
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let found = locked.read_string(db, key, context.scratch)?;
    let old = match found {
        Some(_) => parse_int(context.scratch).ok_or(Refusal::NotInteger)?,
        None => 0,
    };
    let overflow = || Refusal::err("increment or decrement would overflow");
    let new = old.checked_add(amount).ok_or_else(overflow)?;
    context.scratch.clear();
    write_int(context.scratch, new);
    locked.rewrite(db, key, found, context.scratch)?;
    context.reply.int(new);
    Ok(())
}

pub(super) fn incr(context: &mut Context<'_>) -> Outcome {
    add(context, 1)
}
pub(super) fn decr(context: &mut Context<'_>) -> Outcome {
    add(context, -1)
}
pub(super) fn incrby(context: &mut Context<'_>) -> Outcome {
    let amount = int(context.args.at(2))?;
    add(context, amount)
}
pub(super) fn decrby(context: &mut Context<'_>) -> Outcome {
    let amount = int(context.args.at(2))?.checked_neg();
    add(context, amount.ok_or_else(|| Refusal::err("decrement would overflow"))?)
}

pub(super) fn incrbyfloat(context: &mut Context<'_>) -> Outcome {
    let (db, key) = (context.db(), context.key());
    let mut locked = context.keyspace().lock_keys(db, [key]);
    let found = locked.read_string(db, key, context.scratch)?;
    let old = match found {
        Some(_) => Number::parse(context.scratch).ok_or(Refusal::NotFloat)?,
        None => Number::ZERO,
    };
    let new = old.plus(Number::parse(context.args.at(2)).ok_or(Refusal::NotFloat)?)?;
    locked.rewrite(db, key, found, new.as_bytes())?;
    context.reply.text(new);
    Ok(())
}

/// Maximum bit offset, as in Redis.
const BIT_MAX: i64 = (512 << 20) * 8 - 1;

fn bit_offset(context: &Context<'_>) -> Outcome<(u64, u8)> {
    let bit = int(context.args.at(2)).ok().filter(|bit| (0..=BIT_MAX).contains(bit));
    let bit = bit.ok_or_else(|| Refusal::err("bit offset is not an integer or out of range"))?;
    Ok((bit as u64 / 8, 0x80 >> (bit % 8)))
}

pub(super) fn getbit(context: &mut Context<'_>) -> Outcome {
    let (db, key, (byte, mask)) = (context.db(), context.key(), bit_offset(context)?);
    let mut locked = context.keyspace().lock_keys(db, [key]);
    context.scratch.clear();
    if locked.stat_of(db, key, Kind::String)?.is_some() {
        context.keyspace().blobs().get_at(db, key, byte, 1, context.scratch)?;
    }
    context.reply.int(u8::from(context.scratch.first().is_some_and(|byte| byte & mask != 0)));
    Ok(())
}

/// SETBIT key offset 0 | 1
pub(super) fn setbit(context: &mut Context<'_>) -> Outcome {
    let (db, key, (byte, mask)) = (context.db(), context.key(), bit_offset(context)?);
    let set = match context.args.at(3) {
        b"0" => false,
        b"1" => true,
        _ => return Err(Refusal::err("bit is not an integer or out of range")),
    };
    let mut locked = context.keyspace().lock_keys(db, [key]);
    context.scratch.clear();
    let found = locked.stat_of(db, key, Kind::String)?;
    if found.is_some() {
        context.keyspace().blobs().get_at(db, key, byte, 1, context.scratch)?;
    }
    let old = context.scratch.first().copied().unwrap_or(0);
    let new = if set { old | mask } else { old & !mask };
    check_size(context, byte + 1)?;
    match found {
        Some(_) if context.scratch.first() == Some(&new) => {}
        Some(_) => locked.write_at(db, key, byte, &[new])?,
        None => locked.write_behind_zeros(db, key, byte, &[new])?,
    }
    context.reply.int(u8::from(old & mask != 0));
    Ok(())
}
