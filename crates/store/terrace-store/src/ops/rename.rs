//! Renaming of blobs, within a bucket or into another.

use super::commit::{self, Bytes, Place};
use super::remove::take_out;
use super::{check_size, put, room};
use crate::error::{Error, Result};
use crate::index::{BucketState, Entry, Expect, Table, ask_entry, find, find_held, insert};
use crate::log::Room;
use crate::record::{Blob, FIRST, Record, TAGGED};
use crate::space::Extent;
use crate::state::StoreState;
use compact_bytes::CompactBytes;
use terrace_sync::RwLockWriteGuard;

/// A bucket and a key.
type Named<'a> = (&'a BucketState, &'a [u8]);

/// Renames a blob if `expect` holds for the new key, replacing the blob of that key. Returns false if it does
/// not hold, or the blob does not exist.
///
/// # Errors
/// The bucket was removed; the log is full or fails.
pub(crate) fn rename(state: &StoreState, from: Named<'_>, to: Named<'_>, expect: Expect) -> Result<bool> {
    finish(state, (from.0, to.0), change(state, from, to, expect, None)?)
}

/// Like [`rename`] with [`Expect::Any`], with new bytes and a new user's word in the same record.
///
/// # Errors
/// As [`rename`]; the store is full.
pub(crate) fn rename_as(
    state: &StoreState,
    from: Named<'_>,
    to: Named<'_>,
    content: &[u8],
    meta: u64,
) -> Result<bool> {
    if from.0.id == to.0.id && from.1 == to.1 {
        let put = put::put(state, to.0, to.1, &[content], meta, Expect::Present, 0);
        return Ok(put?.is_some());
    }
    let size = check_size(Some(content.len() as u64))?;
    let content = room::place(state, to.0, &[content], (size, 0))?;
    let changed = change(state, from, to, Expect::Any, Some(Bytes { content, size, meta: Some(meta) }));
    if !matches!(changed, Ok(Some(_))) {
        state.heap.free(content.extent());
    }
    finish(state, (from.0, to.0), changed?)
}

fn finish(state: &StoreState, buckets: (&BucketState, &BucketState), number: Option<u64>) -> Result<bool> {
    let Some(number) = number else { return Ok(false) };
    commit::finish(state, buckets.1, number)?;
    commit::finish(state, buckets.0, number).map(|()| true)
}

/// Returns the number of the change, or of an earlier one if both keys are equal. None: the blob does not
/// exist, or `expect` does not hold.
fn change(
    state: &StoreState,
    (bucket, from): Named<'_>,
    (to_bucket, to): Named<'_>,
    expect: Expect,
    bytes: Option<Bytes>,
) -> Result<Option<u64>> {
    let old = Place::new(state, bucket, from)?;
    let new = Place::new(state, to_bucket, to)?;
    check_kinds(bucket, to_bucket)?;
    let (number, retired) = {
        let (mut source, mut target) = lock(&old, &new);
        old.check_bucket()?;
        new.check_bucket()?;
        let Some((mut blob, number)) = find(&source, old.hash, from).map(|entry| (entry.blob, entry.number))
        else {
            return Ok(None);
        };
        let left = bytes.map(|_| Extent::of(&blob));
        blob.set(FIRST, false);
        if let Some(bytes) = bytes {
            bytes.describe(&mut blob);
        }
        let gone: &mut Table = target.as_mut().unwrap_or(&mut source);
        if !expect.holds(find(gone, new.hash, to)) {
            return Ok(None);
        }
        if bucket.id == to_bucket.id && from == to {
            return Ok(Some(number));
        }
        let mut ahead = ask_entry(gone, to, &state.memory)?;
        bucket.note_change(Some(from), &state.memory);
        to_bucket.note_change(Some(to), &state.memory);
        let number = if bucket.is_scratch() {
            state.take_unlogged()
        } else {
            let record = Record::Move { from_bucket: bucket.id, from, bucket: to_bucket.id, blob, key: to };
            state.append(&record, Room::Takes)?
        };
        let gone: &mut Table = target.as_mut().unwrap_or(&mut source);
        let replaced = find_held(gone, new.hash, to).map(|held| take_out(state, to_bucket, held));
        if blob.has(TAGGED) {
            let (from, to) = ((bucket.id, Some(from.into())), (to_bucket.id, Some(to.into())));
            state.tags.pass_on(&from, Some(&to), &state.memory);
        }
        find_held(&mut source, old.hash, from).map(|held| take_out(state, bucket, held));
        let target: &mut Table = target.as_mut().unwrap_or(&mut source);
        let entry = Box::new(Entry { key: CompactBytes::new(to), blob, number });
        state.counts.blob(1, entry.logged_bytes());
        state.counts.size(0, blob.size);
        to_bucket.count(1, 0, blob.size);
        ahead.keep(insert(target, &state.hashes, new.hash, entry));
        (log_tags(state, &new, blob)?.unwrap_or(number), [replaced, left])
    };
    for extent in retired.into_iter().flatten() {
        commit::retire(state, to_bucket, number, extent);
    }
    to_bucket.split_if_large(&state.hashes, &state.memory);
    Ok(Some(number))
}

/// Logs the tags of a renamed blob. Returns the number of the last such record. A log compaction may have
/// written the tags under the new key, or miss them under the old key. The rename record alone would lose
/// them there.
///
/// # Errors
/// The log fails.
fn log_tags(state: &StoreState, new: &Place<'_>, blob: Blob) -> Result<Option<u64>> {
    let Place { bucket, key, .. } = *new;
    if !blob.has(TAGGED) || bucket.is_scratch() {
        return Ok(None);
    }
    let mut last = None;
    for tag in state.tags.of(&(bucket.id, Some(key.into()))) {
        let record = Record::Tag { bucket: bucket.id, whole: false, on: true, tag: tag.as_bytes(), key };
        last = Some(state.append(&record, Room::Gives)?);
    }
    Ok(last)
}

/// # Errors
/// The blob would change between logged and unlogged.
fn check_kinds(bucket: &BucketState, to_bucket: &BucketState) -> Result<()> {
    if bucket.is_scratch() == to_bucket.is_scratch() {
        return Ok(());
    }
    let what = "a blob cannot move between a scratch bucket and a kept one; get the blob and put it".into();
    Err(Error::Invalid { what })
}

/// Locks the tables of both places in the common lock order. One guard if both are in the same table.
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
