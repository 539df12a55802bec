//! One turn: the files of a bucket are brought up to its blobs.

use super::files;
use crate::durable;
use crate::error::Result;
use crate::index::{Behind, BucketState, Persist};
use crate::log::Room;
use crate::record::{Record, TRAIT_PERSISTED};
use crate::state::StoreState;

/// Makes everything durable that was done before the call, and brings the files of buckets that have them up to it.
///
/// # Errors
/// A write or sync of the store failed, or of such a file.
pub(crate) fn sync(state: &StoreState) -> Result<()> {
    durable::sync(state)?;
    write_all_out(state)
}

/// [`write_out`] of all buckets that have files.
///
/// # Errors
/// The first.
pub(super) fn write_all_out(state: &StoreState) -> Result<()> {
    let buckets = state.persisting.lock().clone();
    // One whose directory fails does not hold up the others.
    buckets.iter().map(|bucket| write_out(state, bucket)).fold(Ok(()), Result::and)
}

/// Brings the files of a bucket up to its blobs; nothing, if it has none.
///
/// # Errors
/// A failed write in the directory, or a sync of the store: what was to be written still is.
pub(crate) fn write_out(state: &StoreState, bucket: &BucketState) -> Result<()> {
    let Some(persist) = bucket.persist() else { return Ok(()) };
    let _turn = persist.turn();
    if persist.is_current() || bucket.is_gone() {
        return Ok(());
    }
    let behind = persist.take(&state.memory);
    let written = match &behind {
        Behind::Keys(keys) => files::write_changed(state, bucket, persist, keys),
        Behind::Unknown => files::write_different(state, bucket, persist),
    };
    if written.is_err() {
        match behind {
            Behind::Keys(keys) => keys.iter().for_each(|key| persist.note(key, &state.memory)),
            Behind::Unknown => persist.note_unknown(&state.memory),
        }
        return written;
    }
    note_persisted(state, bucket, persist)
}

/// Logs that the files are as the blobs are, if they still are.
fn note_persisted(state: &StoreState, bucket: &BucketState, persist: &Persist) -> Result<()> {
    let _tables = bucket.write_all();
    if persist.is_current() && !bucket.is_gone() {
        let record = Record::Trait { bucket: bucket.id, kind: TRAIT_PERSISTED, text: &[] };
        state.append(&record, Room::Own)?;
    }
    Ok(())
}
