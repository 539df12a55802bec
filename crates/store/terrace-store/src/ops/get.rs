//! Reads of blobs. The bytes are copied without a lock; the copy counts if the blob has not changed in
//! between (optimistic read). After failed tries a read locks the blob's table.

use crate::error::Result;
use crate::index::{BucketState, Stat, find};
use crate::record::{Blob, INLINE};
use crate::space::UNIT;
use crate::state::StoreState;

/// Tries before a read holds the table's lock, which blocks writers.
const FAILED_TRIES_MAX: u32 = 3;

/// Calls `copy` until the blob is the same before and after. None: there is no blob.
pub(super) fn steady<T>(
    state: &StoreState,
    bucket: &BucketState,
    key: &[u8],
    mut copy: impl FnMut(&Blob) -> Result<T>,
) -> Result<Option<(T, Stat)>> {
    let hash = state.hashes.of(key);
    for _ in 0..FAILED_TRIES_MAX {
        let (blob, stat) = match find(&bucket.read(hash), hash, key) {
            Some(entry) => (entry.blob, Stat::from(entry)),
            None => return Ok(None),
        };
        // The result, even an error, is void if the extent went to another blob in between.
        let copied = copy(&blob);
        let is_current = blob.has(INLINE)
            || find(&bucket.read(hash), hash, key).is_some_and(|entry| entry.version() == stat.version);
        if is_current {
            return copied.map(|copied| Some((copied, stat)));
        }
    }
    let table = bucket.read(hash);
    match find(&table, hash, key) {
        Some(entry) => copy(&entry.blob).map(|copied| Some((copied, entry.into()))),
        None => Ok(None),
    }
}

/// Reads bytes of a blob from `at` to fill `buf`. The blob must have them.
///
/// # Errors
/// Failing I/O.
pub(super) fn read_bytes(state: &StoreState, blob: &Blob, at: u64, buf: &mut [u8]) -> Result<()> {
    match blob.inline() {
        Some(bytes) => {
            buf.copy_from_slice(&bytes[at as usize..][..buf.len()]);
            Ok(())
        }
        None => state.heap.read(blob.start() * UNIT + at, buf),
    }
}

/// Reads a blob of at most `max` bytes into `out`, replacing its content. Of a larger blob it reads nothing.
///
/// # Errors
/// Failing I/O.
pub(crate) fn get(
    state: &StoreState,
    bucket: &BucketState,
    key: &[u8],
    max: u64,
    out: &mut Vec<u8>,
) -> Result<Option<Stat>> {
    state.check_open()?;
    let found = steady(state, bucket, key, |blob| {
        if blob.size > max {
            out.clear();
            return Ok(());
        }
        // Avoids clearing bytes that are overwritten anyway.
        out.resize(blob.size as usize, 0);
        read_bytes(state, blob, 0, out)
    })?;
    if found.is_none() {
        out.clear();
    }
    Ok(found.map(|((), stat)| stat))
}

/// Reads at `offset` into `buf`. Returns the number of bytes, less than `buf` holds only at the blob's end.
///
/// # Errors
/// Failing I/O.
pub(crate) fn get_at(
    state: &StoreState,
    bucket: &BucketState,
    key: &[u8],
    offset: u64,
    buf: &mut [u8],
) -> Result<Option<(usize, Stat)>> {
    state.check_open()?;
    steady(state, bucket, key, |blob| {
        let n = blob.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        if n > 0 {
            read_bytes(state, blob, offset, &mut buf[..n])?;
        }
        Ok(n)
    })
}

pub(crate) fn stat(state: &StoreState, bucket: &BucketState, key: &[u8]) -> Option<Stat> {
    let hash = state.hashes.of(key);
    find(&bucket.read(hash), hash, key).map(Stat::from)
}
