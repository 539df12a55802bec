//! Tags of blobs and buckets: adding and removing.

use super::check;
use super::commit::{self, Place};
use crate::error::Result;
use crate::index::{BucketState, find_mut, tag_bytes};
use crate::log::Room;
use crate::record::{KEY_MAX, Record, TAGGED};
use crate::state::StoreState;

/// Adds a tag to a blob (or to the bucket if `key` is None), or removes it. Returns false if nothing changes,
/// or the blob does not exist.
///
/// # Errors
/// The bucket was removed; a tag over 64 KiB; the log is full or fails.
pub(crate) fn set(
    state: &StoreState,
    bucket: &BucketState,
    key: Option<&[u8]>,
    tag: &str,
    on: bool,
) -> Result<bool> {
    check("a tag", tag.len() as u64, KEY_MAX as u64)?;
    let place = Place::new(state, bucket, key.unwrap_or_default())?;
    let who = (bucket.id, key.map(Box::from));
    let number = {
        let mut table = bucket.write(place.hash);
        place.check_bucket()?;
        let entry = match key {
            Some(key) => match find_mut(&mut table, place.hash, key) {
                None => return Ok(false),
                entry => entry,
            },
            None => None,
        };
        if state.tags.has(tag, &who) == on {
            return Ok(false);
        }
        let room = if on { Room::Takes } else { Room::Gives };
        let record =
            Record::Tag { bucket: bucket.id, whole: key.is_none(), on, tag: tag.as_bytes(), key: place.key };
        let _ahead = if on { Some(state.memory.ask(tag_bytes(tag, &who))?) } else { None };
        let number = if bucket.is_scratch() && key.is_some() {
            state.take_unlogged()
        } else {
            state.append(&record, room)?
        };
        state.tags.set(tag, who, on, &state.memory);
        if let Some(entry) = entry {
            // The flag stays when the last tag is removed: the blob's removal then finds no tags.
            entry.blob.set(TAGGED, true);
        }
        number
    };
    if key.is_none() { commit::finish_bucket(state, number) } else { commit::finish(state, bucket, number) }
        .map(|()| true)
}
