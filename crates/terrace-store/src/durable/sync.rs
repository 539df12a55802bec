//! A sync: the heap, then a mark, then the log.
//!
//! 1. Of the records up to S all bytes stand in the heap: each was written before its record. fsync of the heap.
//! 2. The record *mark S*: a start after a power cut believes the records up to S without a look at the heap. It must: the extents of older ones
//!    among them may hold other blobs by then, and would seem damaged.
//! 3. fdatasync of the log. Only now is the room free that records up to S have retired.
//!
//! Threads that ask at the same time wait for one of them; its sync covers those that asked before it began.

use crate::error::Result;
use crate::journal::Held;
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
    while state.durable.upto.load(Ordering::Acquire) < number {
        sync_now(state)?;
    }
    Ok(())
}

/// Has the kernel hold the record with this number and all before it, or makes them durable.
///
/// # Errors
/// A write or sync failed.
pub(crate) fn hold(state: &StoreState, number: u64) -> Result<()> {
    let (upto, held) = state.log.flush()?;
    match held {
        Held::Lacks => return sync_upto(state, number),
        Held::Long => state.wake.signal(),
        Held::All => {}
    }
    state.heap.space().release_replaced(upto);
    if state.log.journal.is_full() { sync_upto(state, number) } else { Ok(()) }
}

/// Completes a sync that has begun and then failed. The caller has the turn.
///
/// # Errors
/// A write or sync failed.
pub(crate) fn complete(state: &StoreState) -> Result<()> {
    if state.log.journal.begun().is_some() { sync_now(state) } else { Ok(()) }
}

/// One sync: of all, or of what one that failed was to make durable. The caller has the turn.
fn sync_now(state: &StoreState) -> Result<()> {
    let result = try_sync(state);
    if result.is_err() {
        state.durable.note(&result);
    }
    result
}

fn try_sync(state: &StoreState) -> Result<()> {
    let journal = &state.log.journal;
    let last = journal.begun().unwrap_or_else(|| {
        let last = state.log.last();
        journal.begin_sync(last, last);
        last
    });
    state.heap.sync()?;
    let mark = state.append(&Record::Mark { upto: last }, Room::Own)?;
    state.log.sync()?;
    journal.end_sync();
    // With nothing in between the mark itself leaves nothing to do.
    note_durable(state, if mark == last + 1 { mark } else { last });
    state.durable.syncs.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// The records up to this one are durable.
pub(crate) fn note_durable(state: &StoreState, upto: u64) {
    state.durable.upto.fetch_max(upto, Ordering::AcqRel);
    state.durable.note(&Ok(()));
    let mut space = state.heap.space();
    space.release(upto);
    space.release_replaced(upto);
}
