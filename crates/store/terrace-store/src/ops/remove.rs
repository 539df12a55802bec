//! Removal of one blob, or of all blobs of a bucket.

use super::commit::{self, Place};
use super::room;
use crate::error::Result;
use crate::index::{BucketState, Expect, HeldEntry, find_held, take, take_all};
use crate::log::Room;
use crate::record::{Record, TAGGED};
use crate::space::Extent;
use crate::state::StoreState;

/// Removes a blob, if it exists and `expect` holds.
///
/// # Errors
/// The bucket was removed; I/O errors of the log.
pub(crate) fn remove(state: &StoreState, bucket: &BucketState, key: &[u8], expect: Expect) -> Result<bool> {
    room::or_after_sync(state, || remove_now(state, bucket, key, expect))
}

fn remove_now(state: &StoreState, bucket: &BucketState, key: &[u8], expect: Expect) -> Result<bool> {
    let place = Place::of_removal(state, bucket, key)?;
    let (number, extent) = {
        let mut table = bucket.write(place.hash);
        place.check_bucket()?;
        let Some(held) = find_held(&mut table, place.hash, key) else { return Ok(false) };
        if !expect.holds(Some(held.get())) {
            return Ok(false);
        }
        bucket.note_change(Some(key), &state.memory);
        let number = if bucket.is_scratch() {
            state.take_unlogged()
        } else {
            state.append(&Record::Remove { bucket: bucket.id, key }, Room::Gives)?
        };
        (number, take_out(state, bucket, held))
    };
    commit::retire(state, bucket, number, extent);
    commit::finish(state, bucket, number).map(|()| true)
}

/// Takes a blob out of its table and the counts. Returns its extent.
pub(super) fn take_out(state: &StoreState, bucket: &BucketState, held: HeldEntry<'_>) -> Extent {
    let entry = take(held, &state.hashes, &state.memory);
    if entry.blob.has(TAGGED) {
        state.tags.pass_on(&(bucket.id, Some((*entry.key).into())), None, &state.memory);
    }
    bucket.count(-1, entry.blob.size, 0);
    state.counts.size(entry.blob.size, 0);
    state.counts.blob(-1, entry.logged_bytes());
    entry.extent()
}

/// Removes all blobs of a bucket, and with `gone` the bucket itself.
///
/// # Errors
/// As [`remove`].
pub(crate) fn clear(state: &StoreState, bucket: &BucketState, gone: bool) -> Result<u64> {
    match bucket.is_scratch() {
        true => state.check_open()?,
        false => state.check_change(true)?,
    }
    let mut extents = Vec::new();
    let number = {
        let mut tables = bucket.write_all();
        Place { bucket, key: &[], hash: 0 }.check_bucket()?;
        let bucket_id = bucket.id;
        let record = if gone {
            Record::BucketGone { bucket: bucket_id }
        } else {
            Record::BucketClear { bucket: bucket_id }
        };
        // The files of a removed bucket stay.
        if !gone {
            bucket.note_change(None, &state.memory);
        }
        let number = state.append(&record, Room::Clears)?;
        for table in &mut tables {
            for entry in take_all(table, &state.memory) {
                state.counts.size(entry.blob.size, 0);
                state.counts.blob(-1, entry.logged_bytes());
                extents.push(entry.extent());
            }
        }
        bucket.count_none();
        state.tags.clear(bucket.id, gone, &state.memory);
        if gone {
            bucket.set_gone();
        }
        number
    };
    for extent in extents {
        commit::retire(state, bucket, number, extent);
    }
    // The files of a removed bucket are not written any more: its removal holds their turn.
    match gone {
        true => commit::finish_bucket(state, number)?,
        false => commit::finish(state, bucket, number)?,
    }
    Ok(number)
}
