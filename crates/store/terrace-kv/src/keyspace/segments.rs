//! Large collections in pieces: write, append, clean, copy, and removal with their keys. For the order of the
//! steps see [`super::segment_list`].

use std::cell::RefCell;

use super::collection::Collection;
use super::segment_list::SegmentList;
use super::word::{Form, Word};
use crate::blobs::{BlobError, Blobs, Db, Result};
use crate::error::{Outcome, Refusal};

/// Maximum number of pieces that one command cleans.
const CLEANED_MAX: usize = 2;
/// Maximum size of the kept buffer for cleaning, bytes: it is not counted.
const CLEANED_KEPT_MAX: usize = 512 << 10;

thread_local! {
    /// Buffer of the piece being cleaned. A new allocation each time would be returned to the system, and
    /// cleared again.
    static CLEANED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Replaces or removes the blob of a key by `change`, then removes the pieces that it named. `old`: its form,
/// if known.
pub(super) fn replace<T>(
    blobs: &dyn Blobs,
    (db, key): (Db, &[u8]),
    old: Option<Form>,
    change: impl FnOnce() -> Result<T>,
) -> Outcome<T> {
    let is_whole = old.is_some_and(|form| form != Form::Pieces);
    match if is_whole { None } else { SegmentList::find(blobs, db, key)? } {
        Some(chain) => Ok(without(blobs, key, &chain, change)?),
        None => Ok(change()?),
    }
}

/// Removes the pieces of a key, after `change` has replaced or removed its head.
fn without<T>(
    blobs: &dyn Blobs,
    key: &[u8],
    chain: &SegmentList,
    change: impl FnOnce() -> Result<T>,
) -> Result<T> {
    chain.note(blobs, key)?;
    let changed = change();
    let tidied = if changed.is_ok() { chain.remove(blobs) } else { chain.forget_note(blobs) };
    if let Err(err) = tidied {
        tracing::warn!("pieces of a removed collection take space until the next start: {err}");
    }
    changed
}

/// Writes a whole collection in pieces. `name` then writes the key's head.
pub(super) fn write<C: Collection>(
    blobs: &dyn Blobs,
    (db, key): (Db, &[u8]),
    content: &mut C,
    name: impl FnOnce(&[u8]) -> Outcome,
) -> Outcome<SegmentList> {
    let records = content.encode();
    let (mut cuts, mut at) = (vec![0], 0);
    C::walk(&records, |bytes, _| {
        at += bytes;
        if SegmentList::is_piece(at - cuts.last().copied().unwrap_or(0)) {
            cuts.push(at);
        }
    })
    .map_err(|_| damaged(key))?;
    if cuts.last() != Some(&at) {
        cuts.push(at);
    }
    with_new_chain(blobs, (db, key), name, |chain| {
        for cut in cuts.windows(2) {
            let piece = &records[cut[0]..cut[1]];
            let at = chain.append(blobs, piece)?;
            set_places(content, piece, at);
        }
        content.dead_records().clear();
        Ok(())
    })
}

/// Copies the pieces of a key for another key. `name` then writes that key's head.
pub(super) fn copy(
    blobs: &dyn Blobs,
    from: &SegmentList,
    to: (Db, &[u8]),
    name: impl FnOnce(&[u8]) -> Outcome,
) -> Outcome {
    let fill =
        |chain: &mut SegmentList| from.read(blobs, |_, records| chain.append(blobs, records).map(drop));
    with_new_chain(blobs, to, name, fill).map(drop)
}

/// Moves a collection in pieces to a key of another database, replacing that key. The pieces are copied; one
/// change of the store moves the key.
pub(super) fn change_database(
    blobs: &dyn Blobs,
    chain: &SegmentList,
    word: Word,
    from: (Db, &[u8]),
    to: (Db, &[u8]),
) -> Outcome {
    copy(blobs, chain, to, |head| {
        replace(blobs, to, None, || {
            without(blobs, from.1, chain, || blobs.rename_as(from, to, word.pack(), head))
        })
        .map(drop)
    })
}

/// Fills a new chain, then names it by the key. A failure removes the chain.
fn with_new_chain(
    blobs: &dyn Blobs,
    (db, key): (Db, &[u8]),
    name: impl FnOnce(&[u8]) -> Outcome,
    fill: impl FnOnce(&mut SegmentList) -> Result<()>,
) -> Outcome<SegmentList> {
    let mut chain = SegmentList::create(blobs, db, key)?;
    let filled = fill(&mut chain).map_err(Into::into);
    let named = filled.and_then(|()| name(&chain.head()));
    let tidied = if named.is_ok() { chain.forget_note(blobs) } else { chain.remove(blobs) };
    if let Err(err) = tidied {
        tracing::warn!("the note of a collection's pieces stays until the next start: {err}");
    }
    named.map(|()| chain)
}

/// Refuses a damaged value.
pub(super) fn damaged(key: &[u8]) -> Refusal {
    let why = format!("the value of key '{}' is damaged; delete it", String::from_utf8_lossy(key));
    Refusal::Store(BlobError::Failed(why))
}

/// Appends the records of changes to the last piece.
pub(super) fn append<C: Collection>(
    blobs: &dyn Blobs,
    content: &mut C,
    chain: &mut SegmentList,
    log: &[u8],
) -> Result<()> {
    let expected = chain.end();
    let at = chain.append(blobs, log)?;
    if at != expected {
        set_places(content, log, at);
        content.dead_records().moved(expected, at);
    }
    Ok(())
}

/// Cleans the first pieces, if most records are dead.
pub(super) fn clean<C: Collection>(
    blobs: &dyn Blobs,
    (key, word): (&[u8], Word),
    content: &mut C,
    chain: &mut SegmentList,
) -> Result<()> {
    for _ in 0..CLEANED_MAX {
        if !chain.is_sparse(content.encoded_bytes() as u64) {
            break;
        }
        CLEANED.with_borrow_mut(|records| {
            let cleaned = clean_first(blobs, (key, word), content, chain, records);
            if records.capacity() > CLEANED_KEPT_MAX {
                *records = Vec::new();
            }
            cleaned
        })?;
    }
    Ok(())
}

fn clean_first<C: Collection>(
    blobs: &dyn Blobs,
    (key, word): (&[u8], Word),
    content: &mut C,
    chain: &mut SegmentList,
    records: &mut Vec<u8>,
) -> Result<()> {
    chain.read_first(blobs, records)?;
    let begin = chain.begin();
    let (mut live, mut left) = (Vec::new(), Vec::new());
    let mut dead_records = content.dead_records().sorted(begin).iter().copied().peekable();
    let mut at = 0;
    let walked = C::walk(records, |bytes, name| {
        let is_superseded = dead_records.next_if_eq(&(at as u32)).is_some();
        if name.is_some() && !is_superseded {
            live.extend_from_slice(&records[at..at + bytes]);
            left.push(begin + at as u64);
        }
        at += bytes;
    });
    walked
        .map_err(|_| BlobError::Failed("a part of this key's value is damaged; delete the key".to_owned()))?;
    debug_assert!(dead_records.next().is_none(), "each place that was noted is a record's");
    debug_assert_eq!(places(content, &live), left, "what is not noted counts");
    if !live.is_empty() {
        let at = chain.append(blobs, &live)?;
        set_places(content, &live, at);
        // If the piece stays, it is cleaned again: these records are dead now.
        left.into_iter().for_each(|place| content.dead_records().note(place));
    }
    let dropped = chain.drop_first(blobs, key, word, records.len());
    if chain.begin() != begin {
        content.dead_records().forget(begin);
    }
    dropped
}

/// Places of the elements that these records set.
fn places<C: Collection>(content: &C, records: &[u8]) -> Vec<u64> {
    let mut places = Vec::new();
    let _ = C::walk(records, |_, name| places.extend(name.and_then(|name| content.place(name))));
    places
}

/// Sets the places of the elements of these records, which begin at `at`.
fn set_places<C: Collection>(content: &mut C, records: &[u8], at: u64) {
    let mut at = at;
    let walked = C::walk(records, |bytes, name| {
        if let Some(name) = name {
            content.set_place(name, at);
        }
        at += bytes as u64;
    });
    debug_assert_eq!(walked, Ok(()), "records that were just written");
}
