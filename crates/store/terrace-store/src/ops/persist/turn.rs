//! A turn of a persistent bucket: its files are brought up to date with its blobs.

use super::files;
use crate::durable;
use crate::error::Result;
use crate::index::{Behind, BucketState, Persist};
use crate::log::Room;
use crate::record::{Record, TRAIT_PERSISTED};
use crate::state::StoreState;

/// Makes all changes before the call durable, and updates the files of persistent buckets.
///
/// # Errors
/// A write or sync of the store, or of such a file, failed.
pub(crate) fn sync(state: &StoreState) -> Result<()> {
    durable::sync(state)?;
    write_all_out(state)
}

/// [`write_out`] for all persistent buckets.
///
/// # Errors
/// The first error.
pub(super) fn write_all_out(state: &StoreState) -> Result<()> {
    let buckets = state.persisting.lock().clone();
    // A failing directory does not hold up other buckets.
    buckets.iter().map(|bucket| write_out(state, bucket)).fold(Ok(()), Result::and)
}

/// Brings the files of a bucket up to date with its blobs. No change if the bucket does not persist.
///
/// # Errors
/// A write in the directory, or a sync of the store, failed: the next turn tries again.
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

/// Logs that all files are up to date, if they still are.
fn note_persisted(state: &StoreState, bucket: &BucketState, persist: &Persist) -> Result<()> {
    let _tables = bucket.write_all();
    if persist.is_current() && !bucket.is_gone() {
        let record = Record::Trait { bucket: bucket.id, kind: TRAIT_PERSISTED, text: &[] };
        state.append(&record, Room::Own)?;
    }
    Ok(())
}
