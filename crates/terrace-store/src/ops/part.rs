//! Changes of a part of a blob: at an offset, at its end, of its size.
//!
//! - Behind the end, where the blob's extent has room: in place. No record names those bytes yet, and the old blob stands if ours does not arrive.
//! - Within a large blob: in place, while readers of it wait or look again. After a power cut each page is the old one or the new.
//! - Else by copy: the new blob is written elsewhere, as by a whole put. A blob that grows gets half as much again, so that appends copy little.

use super::commit::{self, Bytes, Content, Place};
use super::get::read_bytes;
use super::{check_size, room};
use crate::error::Result;
use crate::index::{BucketState, Entry, Expect, Table, find};
use crate::log::Room;
use crate::record::{Blob, FIRST, INLINE, INLINE_MAX, PUT_BYTES, UNCHECKED};
use crate::space::{Extent, PAGE, UNIT};
use crate::state::StoreState;

/// Blobs from this size on are changed in place, bytes.
const LARGE: u64 = 64 << 10;
/// Bytes that are copied at once.
const PIECE: usize = 256 << 10;

/// A change of bytes from `offset` on.
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

/// Where a patch begins: at an offset, or at the end.
#[derive(Debug, Clone, Copy)]
pub(crate) enum At {
    Offset(u64),
    End,
}

/// Puts `data` into a blob, which is made if there is none; a gap before it reads as zeros. The size of the blob then.
///
/// # Errors
/// The store is full; a removed bucket; a key or blob that is too large; failing I/O, after which of a large blob a part may have changed. Else the old one stands.
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

/// Writes into the blob's own extent, if that is still the way; the number of the change and the size of the blob then.
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

/// Declares bytes that a record names unchecked before the first of them changes, and asks for the room of the change's record.
///
/// # Errors
/// The log is full, or broken.
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
    // A start after a kill would miss the old bytes otherwise, and drop all records from the blob's on.
    state.log.flush().map(drop)
}

/// Writes bytes of a blob, which the journal keeps, too.
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

/// The blob as it is to become, written elsewhere; None: it has changed meanwhile.
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
        // An error of a read of what is another blob's by now is none.
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
    // A blob that grows will grow again.
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

/// The bytes from `at` on of the blob as it is to become: those that it has, zeros behind, the patch over both.
fn compose(state: &StoreState, blob: &Blob, patch: &Patch<'_>, at: u64, piece: &mut [u8]) -> Result<()> {
    let old = blob.size.saturating_sub(at).min(piece.len() as u64) as usize;
    if old > 0 {
        read_bytes(state, blob, at, &mut piece[..old])?;
    }
    piece[old..].fill(0);
    overlay(piece, at, patch);
    Ok(())
}

/// Writes a piece of a new blob; its last page, and a fresh page of slots, as a whole.
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

/// Puts the part of a patch that lies in the piece from `at` on into it.
fn overlay(piece: &mut [u8], at: u64, patch: &Patch<'_>) {
    let (from, to) = (patch.offset.max(at), patch.end().min(at + piece.len() as u64));
    if from < to {
        let data = &patch.data[(from - patch.offset) as usize..(to - patch.offset) as usize];
        piece[(from - at) as usize..(to - at) as usize].copy_from_slice(data);
    }
}

/// Sets the size of a blob; false: there is none.
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
