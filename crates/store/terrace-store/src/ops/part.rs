//! Partial changes of a blob: write at an offset, append, truncate.
//!
//! - Behind the end, if the extent has room: in place. No record names those bytes yet, so a crash leaves the
//!   old blob.
//! - Within a large blob: in place, while its readers wait or retry. After a power cut each page is old or
//!   new.
//! - Otherwise by copy: the new blob is written elsewhere, like a whole put. A growing blob gets half as much
//!   room again, so that appends copy little.

use super::commit::{self, Bytes, Content, Place};
use super::get::read_bytes;
use super::{check_size, room};
use crate::error::Result;
use crate::index::{BucketState, Entry, Expect, Table, find};
use crate::log::Room;
use crate::record::{Blob, FIRST, INLINE, INLINE_MAX, PUT_BYTES, UNCHECKED};
use crate::space::{Extent, PAGE, UNIT};
use crate::state::StoreState;

/// Minimum size of a blob that is changed in place, bytes.
const LARGE: u64 = 64 << 10;
/// Bytes of one copy step.
const PIECE: usize = 256 << 10;

/// New bytes of a blob from `offset`.
#[derive(Clone, Copy)]
struct Patch<'a> {
    offset: u64,
    data: &'a [u8],
}

impl Patch<'_> {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

/// Start of a patch: an offset, or the end of the blob.
#[derive(Debug, Clone, Copy)]
pub(crate) enum At {
    Offset(u64),
    End,
}

/// Writes `data` into a blob, which is created if missing; a gap reads as zeros. Returns the new size.
///
/// # Errors
/// The store is full; the bucket was removed; the key or blob is too large. Then the old blob stays. I/O
/// errors may leave a large blob partly changed.
pub(crate) fn write(
    state: &StoreState,
    bucket: &BucketState,
    key: &[u8],
    at: At,
    data: &[u8],
) -> Result<u64> {
    let place = Place::new(state, bucket, key)?;
    loop {
        let seen = {
            let table = bucket.read(place.hash);
            find(&table, place.hash, key).map(|entry| (entry.blob, entry.version()))
        };
        let (blob, expect) = match seen {
            Some((blob, version)) => (blob, Expect::Version(version)),
            None => (Blob::default(), Expect::Absent),
        };
        let patch = Patch { offset: start(at, &blob), data };
        check_size(patch.offset.checked_add(data.len() as u64))?;
        if seen.is_some() && is_in_place(&blob, &patch) {
            if let Some((number, size)) = write_in_place(state, &place, at, data)? {
                return commit::finish(state, bucket, number).map(|()| size);
            }
            continue;
        }
        let size = blob.size.max(patch.end());
        let Some(bytes) = copy(state, &place, &blob, expect, &patch, size)? else { continue };
        if let Some(done) = commit::replace(state, &place, expect, bytes, Room::Takes)? {
            return commit::finish(state, bucket, done.number).map(|()| size);
        }
    }
}

fn start(at: At, blob: &Blob) -> u64 {
    match at {
        At::Offset(offset) => offset,
        At::End => blob.size,
    }
}

fn is_in_place(blob: &Blob, patch: &Patch<'_>) -> bool {
    let room = Extent::of(blob).bytes();
    !blob.has(INLINE) && patch.end() <= room && (patch.offset >= blob.size || blob.size >= LARGE)
}

/// Writes into the blob's own extent, if that is still possible. Returns the number of the change and the new
/// size.
fn write_in_place(state: &StoreState, place: &Place<'_>, at: At, data: &[u8]) -> Result<Option<(u64, u64)>> {
    let mut table = place.bucket.write(place.hash);
    place.check_bucket()?;
    let Some(mut blob) = find(&table, place.hash, place.key).map(|entry| entry.blob) else { return Ok(None) };
    let patch = Patch { offset: start(at, &blob), data };
    if !is_in_place(&blob, &patch) {
        return Ok(None);
    }
    let base = blob.start() * UNIT;
    state.heap.prefetch(base + patch.offset, data.len().min(PAGE as usize));
    let is_behind = patch.offset >= blob.size;
    let room = match is_behind || place.bucket.is_scratch() {
        true => Room::Takes,
        false => {
            declare_unchecked(state, &mut table, place, &mut blob)?;
            Room::Gives
        }
    };
    if is_behind {
        let mut hasher = crc32fast::Hasher::new_with_initial_len(blob.crc, blob.size);
        let mut at = blob.size;
        let zeros = [0; PAGE as usize];
        while at < patch.offset {
            let n = (patch.offset - at).min(PAGE) as usize;
            write_kept(state, place, base + at, &zeros[..n])?;
            hasher.update(&zeros[..n]);
            at += n as u64;
        }
        hasher.update(data);
        blob.crc = hasher.finalize();
    } else {
        blob.set(UNCHECKED, true);
    }
    match is_behind && Extent::of(&blob).is_pages() {
        true => {
            state.heap.write_end(base, patch.offset, data)?;
            keep(state, place, base + patch.offset, data);
        }
        false => write_kept(state, place, base + patch.offset, data)?,
    }
    blob.size = blob.size.max(patch.end());
    blob.set(FIRST, false);
    let logged = commit::set_blob(state, &mut table, place, blob, (room, None))?;
    Ok(Some((logged.number, blob.size)))
}

/// Marks bytes that a record names as unchecked, before the first of them changes. Reserves room for the
/// record of the change.
///
/// # Errors
/// The log is full or has failed.
fn declare_unchecked(
    state: &StoreState,
    table: &mut Table,
    place: &Place<'_>,
    blob: &mut Blob,
) -> Result<()> {
    let bytes = PUT_BYTES + place.key.len() as u64;
    if blob.has(UNCHECKED) {
        return state.ask_log(bytes);
    }
    state.ask_log(2 * bytes)?;
    blob.set(UNCHECKED, true);
    blob.set(FIRST, false);
    commit::set_blob(state, table, place, *blob, (Room::Gives, None))?;
    // Otherwise a start after a kill would miss the old bytes, and drop all records from the blob's on.
    state.log.flush().map(drop)
}

/// Writes bytes of a blob into the heap and the journal.
fn write_kept(state: &StoreState, place: &Place<'_>, offset: u64, data: &[u8]) -> Result<()> {
    state.heap.write_all(offset, data)?;
    keep(state, place, offset, data);
    Ok(())
}

fn keep(state: &StoreState, place: &Place<'_>, offset: u64, data: &[u8]) {
    if state.log.journal.is_on() {
        room::keep(state, place.bucket, offset, (&[data], crc32fast::hash(data)));
    }
}

/// Writes the changed blob to its new place. None: the blob has changed in between.
fn copy(
    state: &StoreState,
    place: &Place<'_>,
    blob: &Blob,
    expect: Expect,
    patch: &Patch<'_>,
    size: u64,
) -> Result<Option<Bytes>> {
    let copied = if size <= INLINE_MAX as u64 {
        let mut bytes = [0; INLINE_MAX];
        compose(state, blob, patch, 0, &mut bytes[..size as usize]).map(|()| Content::Inline(bytes))
    } else {
        copy_to_heap(state, place, blob, patch, size)
    };
    let is_current = expect.holds(find(&place.bucket.read(place.hash), place.hash, place.key));
    match copied {
        Ok(content) if is_current => Ok(Some(Bytes { content, size, meta: None })),
        Ok(content) => {
            state.heap.free(content.extent());
            Ok(None)
        }
        // The error is void if the extent that was read went to another blob in between.
        Err(e) => {
            if is_current {
                Err(e)
            } else {
                Ok(None)
            }
        }
    }
}

fn copy_to_heap(
    state: &StoreState,
    place: &Place<'_>,
    blob: &Blob,
    patch: &Patch<'_>,
    size: u64,
) -> Result<Content> {
    // A blob that grows will probably grow again.
    let room = if size > blob.size && blob.size >= PAGE { size + size / 2 } else { size };
    let claim = room::claim_more(state, size, room)?;
    let extent = claim.extent;
    let copied = (|| {
        let (mut buffer, mut hasher) = (vec![0; PIECE.min(size as usize)], crc32fast::Hasher::new());
        let mut at = 0;
        while at < size {
            let n = (size - at).min(PIECE as u64) as usize;
            let piece = &mut buffer[..n];
            compose(state, blob, patch, at, piece)?;
            hasher.update(piece);
            write_piece(state, &claim, at, piece)?;
            keep(state, place, extent.offset() + at, piece);
            at += n as u64;
        }
        Ok(hasher.finalize())
    })();
    if claim.fresh {
        state.heap.space().offer(extent);
    }
    if copied.is_err() {
        state.heap.free(extent);
    }
    copied.map(|crc| Content::Heap { extent, crc })
}

/// Composes the bytes of the changed blob from `at`: old bytes, zeros behind them, the patch over both.
fn compose(state: &StoreState, blob: &Blob, patch: &Patch<'_>, at: u64, piece: &mut [u8]) -> Result<()> {
    let old = blob.size.saturating_sub(at).min(piece.len() as u64) as usize;
    if old > 0 {
        read_bytes(state, blob, at, &mut piece[..old])?;
    }
    piece[old..].fill(0);
    overlay(piece, at, patch);
    Ok(())
}

/// Writes a piece of a new blob. Its last page, and a fresh page of slots, are written whole.
fn write_piece(state: &StoreState, claim: &crate::space::Claim, at: u64, piece: &[u8]) -> Result<()> {
    let extent = claim.extent;
    let whole = if extent.is_pages() || claim.fresh { PAGE as usize } else { 1 };
    if piece.len().is_multiple_of(whole) {
        return state.heap.write_all(extent.offset() + at, piece);
    }
    let mut padded = piece.to_vec();
    padded.resize(piece.len().div_ceil(whole) * whole, 0);
    state.heap.write_all(extent.offset() + at, &padded)
}

/// Copies the patch's part that overlaps a piece at `at` into the piece.
fn overlay(piece: &mut [u8], at: u64, patch: &Patch<'_>) {
    let (from, to) = (patch.offset.max(at), patch.end().min(at + piece.len() as u64));
    if from < to {
        let data = &patch.data[(from - patch.offset) as usize..(to - patch.offset) as usize];
        piece[(from - at) as usize..(to - at) as usize].copy_from_slice(data);
    }
}

/// Sets the size of a blob. Returns false if it does not exist.
///
/// # Errors
/// As [`write`].
pub(crate) fn truncate(state: &StoreState, bucket: &BucketState, key: &[u8], size: u64) -> Result<bool> {
    let place = Place::new(state, bucket, key)?;
    check_size(Some(size))?;
    loop {
        let table = bucket.read(place.hash);
        let Some(entry) = find(&table, place.hash, key) else { return Ok(false) };
        let (blob, expect) = (entry.blob, Expect::Version(Entry::version(entry)));
        drop(table);
        if size == blob.size {
            return Ok(true);
        }
        if size > blob.size {
            let grown = write(state, bucket, key, At::Offset(size), &[])?;
            debug_assert!(grown >= size);
            return Ok(true);
        }
        let nothing = Patch { offset: size, data: &[] };
        let Some(bytes) = copy(state, &place, &blob, expect, &nothing, size)? else { continue };
        if let Some(done) = commit::replace(state, &place, expect, bytes, Room::Takes)? {
            return commit::finish(state, bucket, done.number).map(|()| true);
        }
    }
}
