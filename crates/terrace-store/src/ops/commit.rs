//! A blob gets another description: the one place where a table of blobs, the log and the counts change together.

use super::{file_name, persist};
use crate::durable;
use crate::error::{Error, Result};
use crate::index::{BucketState, Entry, Expect, Table, ask_entry, find, find_mut, insert};
use crate::log::Room;
use crate::options::SyncPolicy;
use crate::record::{Blob, Record};
use crate::space::Extent;
use crate::state::StoreState;

/// A key of a bucket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub bucket: &'a BucketState,
    pub key: &'a [u8],
    pub hash: u64,
}

/// The bytes that a blob gets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes {
    pub extent: Extent,
    pub size: u64,
    pub crc: u32,
    /// The user's word; None: as it was.
    pub meta: Option<u64>,
}

impl<'a> Place<'a> {
    pub(super) fn new(state: &StoreState, bucket: &'a BucketState, key: &'a [u8]) -> Result<Place<'a>> {
        state.check_open()?;
        super::check_key(key)?;
        if bucket.persist().is_some() {
            file_name::check(key)?;
        }
        Ok(Place { bucket, key, hash: state.hashes.of(key) })
    }

    /// # Errors
    /// The bucket was removed.
    pub(super) fn check_bucket(&self) -> Result<()> {
        if !self.bucket.is_gone() {
            return Ok(());
        }
        Err(Error::NoBucket { name: self.bucket.name().to_string() })
    }
}

/// Gives the blob bytes that stand in an extent of their own, if `expect` holds; the number of the change. Otherwise the extent is free again.
pub(super) fn replace(
    state: &StoreState,
    place: &Place<'_>,
    expect: Expect,
    bytes: Bytes,
) -> Result<Option<u64>> {
    let Bytes { extent, size, crc, meta } = bytes;
    let mut old = Extent::NONE;
    let replaced = {
        let mut table = place.bucket.write(place.hash);
        let entry = find(&table, place.hash, place.key);
        if let Err(e) = place.check_bucket() {
            Err(e)
        } else if !expect.holds(entry) {
            Ok(None)
        } else {
            let is_new = entry.is_none();
            let mut blob = entry.map_or_else(new_blob, |entry| entry.blob);
            old = Extent { start: blob.start(), units: blob.units };
            blob.set_start(extent.start);
            blob.set(crate::record::UNCHECKED, false);
            (blob.units, blob.size, blob.crc) = (extent.units, size, crc);
            blob.meta = meta.unwrap_or(blob.meta);
            // Asked for once it is known that there is a new name: most puts need no memory.
            let ahead = if is_new { ask_entry(&table, place.key, &state.memory).map(Some) } else { Ok(None) };
            ahead.and_then(|_ahead| set_blob(state, &mut table, place, blob)).map(Some)
        }
    };
    match replaced {
        Ok(Some(number)) => {
            retire(state, place.bucket, number, old);
            place.bucket.split_if_large(&state.hashes, &state.memory);
        }
        Ok(None) | Err(_) => state.heap.free(extent),
    }
    replaced
}

fn new_blob() -> Blob {
    let mut blob = Blob::default();
    blob.set_score(128);
    blob
}

/// Logs what the blob is now, and says so in its table, which the caller has locked. For a new name the caller has asked for memory.
///
/// # Errors
/// The log is full, or broken: nothing has changed.
pub(super) fn set_blob(state: &StoreState, table: &mut Table, place: &Place<'_>, blob: Blob) -> Result<u64> {
    let Place { bucket, key, hash } = *place;
    bucket.note_change(Some(key), &state.memory);
    let number = if bucket.is_scratch() {
        state.take_unlogged()
    } else {
        state.log.append(&Record::Put { bucket: bucket.id, blob, key }, Room::Takes)?
    };
    match find_mut(table, hash, key) {
        Some(entry) => {
            bucket.count(0, entry.blob.size, blob.size);
            state.counts.size(entry.blob.size, blob.size);
            (entry.blob, entry.number) = (blob, number);
        }
        None => {
            let entry = Entry { key: key.into(), blob, number };
            state.counts.blob(1, entry.logged_bytes());
            state.counts.size(0, blob.size);
            bucket.count(1, 0, blob.size);
            insert(table, &state.hashes, hash, entry, &state.memory);
        }
    }
    Ok(number)
}

/// The record `number` has replaced what stands in the extent.
pub(super) fn retire(state: &StoreState, bucket: &BucketState, number: u64, extent: Extent) {
    if extent.units == 0 {
        return;
    }
    if bucket.is_scratch() {
        return state.heap.free(extent);
    }
    state.heap.space().retire(number, extent);
    if state.heap.should_release() {
        state.wake.signal();
    }
}

/// The change `number` is done: waits until it is durable, if the store is to.
pub(super) fn finish(state: &StoreState, bucket: &BucketState, number: u64) -> Result<()> {
    match state.sync {
        SyncPolicy::Always if !bucket.is_scratch() => {
            durable::sync_upto(state, number)?;
            persist::write_out(state, bucket)
        }
        SyncPolicy::Always | SyncPolicy::Every(_) | SyncPolicy::Never => Ok(()),
    }
}
