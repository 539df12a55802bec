//! A blob gets another key, in its bucket or in another.

use super::commit::{self, Place};
use super::part::extent_of;
use super::remove::take_out;
use crate::error::Result;
use crate::index::{BucketState, Entry, Expect, Table, ask_entry, find, insert};
use crate::log::Room;
use crate::record::{FIRST, Record, TAGGED};
use crate::state::StoreState;
use parking_lot::RwLockWriteGuard;

/// Renames a blob, if `expect` holds of the new key; what had that is gone then. False: there is no such blob, or it does not hold.
///
/// # Errors
/// A removed bucket; a full or failing log.
pub(crate) fn rename(
    state: &StoreState,
    (bucket, from): (&BucketState, &[u8]),
    (to_bucket, to): (&BucketState, &[u8]),
    expect: Expect,
) -> Result<bool> {
    let old = Place::new(state, bucket, from)?;
    let new = Place::new(state, to_bucket, to)?;
    if bucket.is_scratch() != to_bucket.is_scratch() {
        let what =
            "a blob cannot move between a scratch bucket and one that is kept; get it and put it".into();
        return Err(crate::error::Error::Invalid { what });
    }
    let (number, replaced) = {
        let (mut source, mut target) = lock(&old, &new);
        old.check_bucket()?;
        new.check_bucket()?;
        let Some(mut blob) = find(&source, old.hash, from).map(|entry| entry.blob) else { return Ok(false) };
        blob.set(FIRST, false);
        let gone: &mut Table = target.as_mut().unwrap_or(&mut source);
        if !expect.holds(find(gone, new.hash, to)) {
            return Ok(false);
        }
        if bucket.id == to_bucket.id && from == to {
            return Ok(true);
        }
        let _ahead = ask_entry(gone, to, &state.memory)?;
        bucket.note_change(Some(from), &state.memory);
        to_bucket.note_change(Some(to), &state.memory);
        let number = if bucket.is_scratch() {
            state.take_unlogged()
        } else {
            let record = Record::Move { from_bucket: bucket.id, from, bucket: to_bucket.id, blob, key: to };
            state.log.append(&record, Room::Takes)?
        };
        let gone: &mut Table = target.as_mut().unwrap_or(&mut source);
        let replaced = find(gone, new.hash, to).map(|entry| extent_of(&entry.blob));
        take_out(state, to_bucket, gone, new.hash, to);
        if blob.has(TAGGED) {
            let (from, to) = ((bucket.id, Some(from.into())), (to_bucket.id, Some(to.into())));
            state.tags.pass_on(&from, Some(&to), &state.memory);
        }
        take_out(state, bucket, &mut source, old.hash, from);
        let target: &mut Table = target.as_mut().unwrap_or(&mut source);
        let entry = Entry { key: to.into(), blob, number };
        state.counts.blob(1, entry.logged_bytes());
        state.counts.size(0, blob.size);
        to_bucket.count(1, 0, blob.size);
        insert(target, &state.hashes, new.hash, entry, &state.memory);
        (number, replaced)
    };
    if let Some(extent) = replaced {
        commit::retire(state, to_bucket, number, extent);
    }
    to_bucket.split_if_large(&state.hashes, &state.memory);
    commit::finish(state, to_bucket, number)?;
    commit::finish(state, bucket, number).map(|()| true)
}

/// The tables of both, in the order in which all take them; one if both are in the same.
fn lock<'a>(
    old: &Place<'a>,
    new: &Place<'a>,
) -> (RwLockWriteGuard<'a, Table>, Option<RwLockWriteGuard<'a, Table>>) {
    if old.bucket.id == new.bucket.id {
        return old.bucket.write_two(old.hash, new.hash);
    }
    if old.bucket.id < new.bucket.id {
        let source = old.bucket.write(old.hash);
        return (source, Some(new.bucket.write(new.hash)));
    }
    let target = new.bucket.write(new.hash);
    (old.bucket.write(old.hash), Some(target))
}
