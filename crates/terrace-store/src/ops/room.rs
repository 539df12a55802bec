//! Room for the bytes of a blob.

use super::commit::Content;
use crate::durable;
use crate::error::Result;
use crate::index::BucketState;
use crate::record::INLINE_MAX;
use crate::space::{Claim, PAGE};
use crate::state::StoreState;

/// Claims room for `size` bytes. Waits for the room of overwritten blobs, if need be.
///
/// # Errors
/// The store is full.
pub(super) fn claim(state: &StoreState, size: u64) -> Result<Claim> {
    or_after_sync(state, || state.heap.claim(size))
}

/// Does `f`, and once more after a sync if the disk is full and room waits for that: of overwritten or removed blobs, or of the journal.
///
/// # Errors
/// Those of `f`, or of the sync.
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

/// Has the journal keep bytes, with their checksum, that were written into the heap for a bucket.
pub(super) fn keep(state: &StoreState, bucket: &BucketState, offset: u64, (parts, crc): (&[&[u8]], u32)) {
    if !bucket.is_scratch() {
        state.log.journal.keep(offset, parts, crc);
    }
}

/// As [`claim`], if possible with room for `room` bytes.
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

/// Writes the bytes of a blob into room of its own: `room` bytes, where there are as many. Of a few, for which no more room is wanted, nothing is written:
/// they are to stand in the record.
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
    // No cache of the processor holds the room: it comes while the checksum is computed.
    state.heap.prefetch(claim.extent.offset(), size.min(PAGE) as usize);
    let mut hasher = crc32fast::Hasher::new();
    parts.iter().for_each(|part| hasher.update(part));
    state.heap.fill(&claim, parts, size)?;
    let crc = hasher.finalize();
    keep(state, bucket, claim.extent.offset(), (parts, crc));
    Ok(Content::Heap { extent: claim.extent, crc })
}
