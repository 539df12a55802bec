//! Room in the heap for a blob's bytes. On a full disk a sync first frees the room of overwritten blobs. The
//! journal gets the written bytes, too.

use super::commit::Content;
use crate::durable;
use crate::error::Result;
use crate::index::BucketState;
use crate::record::INLINE_MAX;
use crate::space::{Claim, PAGE};
use crate::state::StoreState;

/// Claims room for `size` bytes. If the disk is full, a sync first releases the room of overwritten blobs.
///
/// # Errors
/// The store is full.
pub(super) fn claim(state: &StoreState, size: u64) -> Result<Claim> {
    or_after_sync(state, || state.heap.claim(size))
}

/// Calls `f`. On a full disk, calls it again if a sync releases room of old blobs or of the journal.
///
/// # Errors
/// Errors of `f`, or of the sync.
pub(super) fn or_after_sync<T>(state: &StoreState, f: impl Fn() -> Result<T>) -> Result<T> {
    match f() {
        Err(e) if e.is_full() => {
            let waits = state.heap.space().retired_bytes() > 0 || state.log.journal.is_begun();
            if waits {
                durable::sync(state)?;
            }
            if state.log.journal.give_back() | waits { f() } else { Err(e) }
        }
        done => done,
    }
}

/// Adds bytes of a bucket's blob that were written into the heap to the journal, with their checksum.
pub(super) fn keep(state: &StoreState, bucket: &BucketState, offset: u64, (parts, crc): (&[&[u8]], u32)) {
    if !bucket.is_scratch() {
        state.log.journal.keep(offset, parts, crc);
    }
}

/// Like [`claim`], with room for `room` bytes if possible.
///
/// # Errors
/// As [`claim`].
pub(super) fn claim_more(state: &StoreState, size: u64, room: u64) -> Result<Claim> {
    if room > size
        && let Ok(claim) = state.heap.claim(room)
    {
        return Ok(claim);
    }
    claim(state, size)
}

/// Writes the bytes of a blob to newly claimed room, of `room` bytes if possible. If size and `room` fit
/// inline, nothing is written: the bytes go into the record.
///
/// # Errors
/// The store is full; writeback fails.
pub(super) fn place(
    state: &StoreState,
    bucket: &BucketState,
    parts: &[&[u8]],
    (size, room): (u64, u64),
) -> Result<Content> {
    if size.max(room) <= INLINE_MAX as u64 {
        let (mut bytes, mut at) = ([0; INLINE_MAX], 0);
        for part in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        return Ok(Content::Inline(bytes));
    }
    let claim = claim_more(state, size, room)?;
    // The room is in no CPU cache: it is fetched while the checksum is computed.
    state.heap.prefetch(claim.extent.offset(), size.min(PAGE) as usize);
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    state.heap.fill(&claim, parts, size)?;
    let crc = hasher.finalize();
    keep(state, bucket, claim.extent.offset(), (parts, crc));
    Ok(Content::Heap { extent: claim.extent, crc })
}
