//! A whole put: writes to newly claimed room, then logs the record.

use super::commit::{self, Bytes, Place};
use super::{check, check_size, room};
use crate::error::Result;
use crate::index::{BucketState, Expect, find, find_mut};
use crate::log::Room;
use crate::record::{FIRST, INLINE_MAX, Record};
use crate::state::StoreState;

/// Puts a blob from several parts, if `expect` holds, with room for `room` bytes. None: it does not hold.
/// Otherwise the user's word of the replaced blob, if there was one.
///
/// # Errors
/// The store is full; the bucket was removed; the key or blob is too large; I/O errors. The old blob stays.
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
    // A quick check before bytes are written. The check under the lock decides.
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

/// Puts an inline blob, even on a disk so full that only removals are accepted. For notes that a removal
/// depends on.
///
/// # Errors
/// As [`put`]; the note is too large to be inline.
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

/// Changes the metadata of a blob, if `expect` holds.
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
