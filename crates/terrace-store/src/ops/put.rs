//! A whole put: new room, then the record.

use super::commit::{self, Bytes, Place};
use super::{check, check_size, room};
use crate::error::Result;
use crate::index::{BucketState, Expect, find, find_mut};
use crate::log::Room;
use crate::record::{FIRST, INLINE_MAX, Record};
use crate::state::StoreState;

/// Puts a blob whose bytes come in parts, if `expect` holds, with room for `room` bytes. None: it does not hold; else the user's word of the blob before,
/// if there was one.
///
/// # Errors
/// The store is full; a removed bucket; a key or blob that is too large; failing I/O. The old blob stands.
pub(crate) fn put(
    state: &StoreState,
    bucket: &BucketState,
    key: &[u8],
    parts: &[&[u8]],
    meta: u64,
    expect: Expect,
    room: u64,
) -> Result<Option<Option<u64>>> {
    let place = Place::new(state, bucket, key)?;
    let sum = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.len() as u64));
    let size = check_size(sum)?;
    // Writes nothing in vain; the table decides below.
    if expect != Expect::Any && !expect.holds(find(&bucket.read(place.hash), place.hash, key)) {
        return place.check_bucket().map(|()| None);
    }
    let content = room::place(state, bucket, parts, (size, room))?;
    let bytes = Bytes { content, size, meta: Some(meta) };
    match commit::replace(state, &place, expect, bytes, Room::Takes)? {
        Some(done) => commit::finish(state, bucket, done.number).map(|()| Some(done.meta)),
        None => Ok(None),
    }
}

/// Puts a blob of a few bytes, which stand in its record, as long as there is room for removals: it is a note without which something else cannot be removed.
///
/// # Errors
/// As [`put`]; more bytes than a record takes.
pub(crate) fn put_note(state: &StoreState, bucket: &BucketState, key: &[u8], note: &[u8]) -> Result<()> {
    let place = Place::new(state, bucket, key)?;
    check("a note", note.len() as u64, INLINE_MAX as u64)?;
    let content = room::place(state, bucket, &[note], (note.len() as u64, 0))?;
    let bytes = Bytes { content, size: note.len() as u64, meta: Some(0) };
    match room::or_after_sync(state, || commit::replace(state, &place, Expect::Any, bytes, Room::Gives))? {
        Some(done) => commit::finish(state, bucket, done.number),
        None => Ok(()),
    }
}

/// Changes what is known of a blob beside its bytes, if `expect` holds.
///
/// # Errors
/// As [`put`].
pub(crate) fn describe(
    state: &StoreState,
    bucket: &BucketState,
    key: &[u8],
    expect: Expect,
    change: impl FnOnce(&mut crate::record::Blob),
) -> Result<bool> {
    let place = Place::new(state, bucket, key)?;
    let number = {
        let mut table = bucket.write(place.hash);
        place.check_bucket()?;
        let Some(entry) = find_mut(&mut table, place.hash, key) else { return Ok(false) };
        if !expect.holds(Some(entry)) {
            return Ok(false);
        }
        let mut blob = entry.blob;
        change(&mut blob);
        blob.set(FIRST, false);
        entry.number = if bucket.is_scratch() {
            state.take_unlogged()
        } else {
            state.append(&Record::Put { bucket: bucket.id, blob, key }, Room::Takes)?
        };
        entry.blob = blob;
        entry.number
    };
    commit::finish(state, bucket, number).map(|()| true)
}
