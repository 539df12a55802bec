//! A sync: the heap, then a mark, then the log.
//!
//! 1. Of the records up to S all bytes stand in the heap: each was written before its record. fsync of the heap.
//! 2. The record *mark S*: a start after a power cut believes the records up to S without a look at the heap. It must: the extents of older ones
//!    among them may hold other blobs by then, and would seem damaged.
//! 3. fdatasync of the log. Only now is the room free that records up to S have retired.
//!
//! Threads that ask at the same time wait for one of them; its sync covers those that asked before it began.

use crate::error::Result;
use crate::log::Room;
use crate::record::Record;
use crate::state::StoreState;
use std::sync::atomic::Ordering;

/// Makes everything durable that was done before the call.
///
/// # Errors
/// A write or sync failed.
pub(crate) fn sync(state: &StoreState) -> Result<()> {
    sync_upto(state, state.log.last())
}

/// Makes the record with this number durable, and all before it.
///
/// # Errors
/// A write or sync failed.
pub(crate) fn sync_upto(state: &StoreState, number: u64) -> Result<()> {
    if state.durable.upto.load(Ordering::Acquire) >= number {
        return Ok(());
    }
    let _turn = state.durable.turn.lock();
    if state.durable.upto.load(Ordering::Acquire) >= number {
        return Ok(());
    }
    sync_now(state)
}

/// One sync. The caller has the turn.
pub(crate) fn sync_now(state: &StoreState) -> Result<()> {
    let last = state.log.last();
    state.heap.sync()?;
    let mark = state.append(&Record::Mark { upto: last }, Room::Own)?;
    state.log.sync()?;
    // With nothing in between the mark itself leaves nothing to do.
    note_durable(state, if mark == last + 1 { mark } else { last });
    state.durable.syncs.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// The records up to this one are durable.
pub(crate) fn note_durable(state: &StoreState, upto: u64) {
    state.durable.upto.fetch_max(upto, Ordering::AcqRel);
    state.heap.space().release(upto);
}
