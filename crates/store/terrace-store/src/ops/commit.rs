//! Commit of a blob's new description: log record, table entry and counts change under the lock of the
//! table. The files of removals, renames, metadata and tags do the same.

use super::{file_name, persist};
use crate::durable;
use crate::error::{Error, Result};
use crate::index::{Ahead, BucketState, Entry, Expect, Table, ask_entry, find, find_mut, insert};
use crate::log::{Logged, Room};
use crate::options::SyncPolicy;
use crate::record::{Blob, FIRST, INLINE, INLINE_MAX, Record, UNCHECKED};
use crate::space::Extent;
use crate::state::StoreState;
use compact_bytes::CompactBytes;

/// A key of a bucket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub bucket: &'a BucketState,
    pub key: &'a [u8],
    pub hash: u64,
}

/// The place of a blob's bytes: an own extent, or inline in the record.
#[derive(Debug, Clone, Copy)]
pub(super) enum Content {
    Heap { extent: Extent, crc: u32 },
    Inline([u8; INLINE_MAX]),
}

impl Content {
    pub(super) fn extent(&self) -> Extent {
        match self {
            Content::Heap { extent, .. } => *extent,
            Content::Inline(_) => Extent::NONE,
        }
    }
}

/// A blob's new bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes {
    pub content: Content,
    pub size: u64,
    /// The user's word. None: unchanged.
    pub meta: Option<u64>,
}

impl Bytes {
    pub(super) fn describe(self, blob: &mut Blob) {
        match self.content {
            Content::Heap { extent, crc } => {
                blob.set_start(extent.start);
                (blob.units, blob.crc) = (extent.units, crc);
                blob.set(INLINE, false);
            }
            Content::Inline(bytes) => blob.set_inline(bytes),
        }
        blob.set(FIRST, true);
        blob.set(UNCHECKED, false);
        blob.size = self.size;
        blob.meta = self.meta.unwrap_or(blob.meta);
    }
}

impl<'a> Place<'a> {
    /// Place of a key for a change of its blob.
    pub(super) fn new(state: &StoreState, bucket: &'a BucketState, key: &'a [u8]) -> Result<Place<'a>> {
        Place::of_change(state, bucket, key, false)
    }

    /// Place of a key for the removal of its blob.
    pub(super) fn of_removal(
        state: &StoreState,
        bucket: &'a BucketState,
        key: &'a [u8],
    ) -> Result<Place<'a>> {
        Place::of_change(state, bucket, key, true)
    }

    fn of_change(
        state: &StoreState,
        bucket: &'a BucketState,
        key: &'a [u8],
        frees: bool,
    ) -> Result<Place<'a>> {
        match bucket.is_scratch() {
            true => state.check_open()?,
            false => state.check_change(frees)?,
        }
        super::check_key(key)?;
        let place = Place { bucket, key, hash: state.hashes.of(key) };
        // A quick check before bytes are written. The check under the lock decides.
        place.check_file_name().map(|()| place)
    }

    /// Checks that the bucket takes the key, while the caller holds its table.
    ///
    /// # Errors
    /// The bucket was removed, or has come to persist and the key is too long for a file name.
    pub(super) fn check_bucket(&self) -> Result<()> {
        if self.bucket.is_gone() {
            return Err(Error::NoBucket { name: self.bucket.name() });
        }
        self.check_file_name()
    }

    fn check_file_name(&self) -> Result<()> {
        if self.bucket.persist().is_some() { file_name::check(self.key) } else { Ok(()) }
    }
}

/// A committed change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replaced {
    pub number: u64,
    /// The user's word of the replaced blob. None: there was no blob.
    pub meta: Option<u64>,
}

/// Gives the blob new bytes if `expect` holds, with a record of the kind `room`. Otherwise frees the extent.
pub(super) fn replace(
    state: &StoreState,
    place: &Place<'_>,
    expect: Expect,
    bytes: Bytes,
    room: Room,
) -> Result<Option<Replaced>> {
    let (mut old, mut old_first) = (Extent::NONE, None);
    let replaced = {
        let mut table = place.bucket.write(place.hash);
        let entry = find(&table, place.hash, place.key);
        if let Err(e) = place.check_bucket() {
            Err(e)
        } else if !expect.holds(entry) {
            Ok(None)
        } else {
            let is_new = entry.is_none();
            let old_meta = entry.map(|entry| entry.blob.meta);
            let mut blob = entry.map_or_else(new_blob, |entry| entry.blob);
            old = Extent::of(&blob);
            old_first = entry.filter(|entry| entry.blob.has(FIRST)).map(|entry| entry.number);
            bytes.describe(&mut blob);
            // Memory is needed only for a new name, so most puts skip this.
            let ahead = if is_new { ask_entry(&table, place.key, &state.memory).map(Some) } else { Ok(None) };
            let logged = ahead.and_then(|ahead| set_blob(state, &mut table, place, blob, (room, ahead)));
            logged.map(|logged| Some((logged, old_meta)))
        }
    };
    match &replaced {
        Ok(Some((Logged { number, sealed }, _))) if old_first.is_some_and(|first| first > *sealed) => {
            match state.log.journal.is_on() && !place.bucket.is_scratch() {
                true => state.heap.space().replace(*number, old),
                false => state.heap.free(old),
            }
            place.bucket.split_if_large(&state.hashes, &state.memory);
        }
        Ok(Some((Logged { number, .. }, _))) => {
            retire(state, place.bucket, *number, old);
            place.bucket.split_if_large(&state.hashes, &state.memory);
        }
        Ok(None) | Err(_) => state.heap.free(bytes.content.extent()),
    }
    Ok(replaced?.map(|(logged, meta)| Replaced { number: logged.number, meta }))
}

fn new_blob() -> Blob {
    let mut blob = Blob::default();
    blob.set_score(128);
    blob
}

/// Logs the blob's description and enters it in its table, which the caller has locked. For a new name,
/// `ahead` is the memory that the caller has reserved.
///
/// # Errors
/// The log is full or has failed: nothing has changed.
pub(super) fn set_blob(
    state: &StoreState,
    table: &mut Table,
    place: &Place<'_>,
    blob: Blob,
    (room, ahead): (Room, Option<Ahead<'_>>),
) -> Result<Logged> {
    let Place { bucket, key, hash } = *place;
    bucket.note_change(Some(key), &state.memory);
    let logged = if bucket.is_scratch() {
        Logged { number: state.take_unlogged(), sealed: 0 }
    } else {
        state.append_over(&Record::Put { bucket: bucket.id, blob, key }, room)?
    };
    let number = logged.number;
    match find_mut(table, hash, key) {
        Some(entry) => {
            bucket.count(0, entry.blob.size, blob.size);
            state.counts.size(entry.blob.size, blob.size);
            (entry.blob, entry.number) = (blob, number);
        }
        None => {
            let entry = Box::new(Entry { key: CompactBytes::new(key), blob, number });
            state.counts.blob(1, entry.logged_bytes());
            state.counts.size(0, blob.size);
            bucket.count(1, 0, blob.size);
            let grown = insert(table, &state.hashes, hash, entry);
            ahead.expect("asked for a new name").keep(grown);
        }
    }
    Ok(logged)
}

/// Retires an extent that the record `number` has replaced.
pub(super) fn retire(state: &StoreState, bucket: &BucketState, number: u64, extent: Extent) {
    if extent.units == 0 {
        return;
    }
    if bucket.is_scratch() {
        return state.heap.free(extent);
    }
    if state.heap.retire(number, extent) {
        state.wake.signal();
    }
}

/// Finishes the change `number`: waits until it is durable or the kernel holds it, as the policy states. With
/// [`StoreState::batches`] the end of the batch does so.
pub(super) fn finish(state: &StoreState, bucket: &BucketState, number: u64) -> Result<()> {
    if bucket.is_scratch() {
        return Ok(());
    }
    finish_bucket(state, number)?;
    match state.sync {
        SyncPolicy::Always if !state.batches => persist::write_out(state, bucket),
        SyncPolicy::Always | SyncPolicy::Every(_) | SyncPolicy::Never => Ok(()),
    }
}

/// Like [`finish`], for a change of a bucket.
pub(super) fn finish_bucket(state: &StoreState, number: u64) -> Result<()> {
    match state.sync {
        _ if state.batches => Ok(()),
        SyncPolicy::Always => durable::sync_upto(state, number),
        SyncPolicy::Every(_) | SyncPolicy::Never => durable::hold(state, number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::buckets;
    use crate::options::StoreOptions;
    use crate::segment::Segment;

    #[test]
    fn a_key_too_long_for_a_file_stays_out_of_a_new_directory() {
        let dir = tempfile::tempdir().unwrap();
        let options = StoreOptions { memory_bytes: 16 << 20, sync: SyncPolicy::Never, ..Default::default() };
        let segment = Segment::create(&options).unwrap();
        let io = terrace_io::BlockingIo::default();
        let (state, _) = crate::open::open(dir.path(), &options, &segment, std::sync::Arc::new(io)).unwrap();
        let bucket = buckets::get_or_create(&state, "b").unwrap();
        // The put has checked the bucket before it persists, and locks its table afterwards.
        let place = Place::new(&state, &bucket, &[b'k'; 300]).unwrap();
        buckets::make_persistent(&state, &bucket, &dir.path().join("files")).unwrap();
        let bytes = Bytes { content: Content::Inline([0; INLINE_MAX]), size: 0, meta: None };
        let replaced = replace(&state, &place, Expect::Any, bytes, Room::Takes);
        assert!(matches!(replaced, Err(Error::TooLarge { .. })), "{replaced:?}");
        assert_eq!(bucket.len(), 0);
        state.heap.engine().halt();
    }
}
