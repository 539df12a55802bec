//! A sync: the heap, then a mark, then the log.
//!
//! 1. fsync of the heap. It covers all records up to S: the bytes of each were written before its record.
//! 2. The record *mark S*. After a power cut a start trusts the records up to S without checking the heap. A
//!    check would see damage: extents of older records may hold other blobs by then.
//! 3. fdatasync of the log. Only then is the room free that records up to S have retired.
//!
//! Concurrent callers share a sync (group commit): it covers all callers that came before it began.

use crate::error::Result;
use crate::journal::Coverage;
use crate::log::Room;
use crate::record::Record;
use crate::state::StoreState;
use std::sync::atomic::Ordering;

/// Makes all changes before the call durable.
///
/// # Errors
/// A write or sync failed.
pub(crate) fn sync(state: &StoreState) -> Result<()> {
    sync_upto(state, state.log.last())
}

/// Makes the records up to this number durable.
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

/// Waits until the kernel holds the records up to this number, or makes them durable.
///
/// # Errors
/// A write or sync failed.
pub(crate) fn hold(state: &StoreState, number: u64) -> Result<()> {
    let (upto, held) = state.log.flush()?;
    match held {
        Coverage::Lacks => return sync_upto(state, number),
        Coverage::Long => state.wake.signal(),
        Coverage::All => {}
    }
    state.heap.space().release_replaced(upto);
    if state.log.journal.is_full() { sync_upto(state, number) } else { Ok(()) }
}

/// Completes a sync that has begun and failed. The caller holds the turn.
///
/// # Errors
/// A write or sync failed.
pub(crate) fn complete(state: &StoreState) -> Result<()> {
    if state.log.journal.begun().is_some() { sync_now(state) } else { Ok(()) }
}

/// Runs one sync: of all records, or of those that a failed sync was to cover. The caller holds the turn.
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
    // A mark that directly follows record S is covered, too: nothing else is left to sync.
    note_durable(state, if mark == last + 1 { mark } else { last });
    state.durable.syncs.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Records that all records up to this one are durable.
pub(crate) fn note_durable(state: &StoreState, upto: u64) {
    state.durable.upto.fetch_max(upto, Ordering::AcqRel);
    state.durable.note(&Ok(()));
    let mut space = state.heap.space();
    space.release(upto);
    space.release_replaced(upto);
}
