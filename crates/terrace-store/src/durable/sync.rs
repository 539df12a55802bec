//! A sync: the heap, then a mark, then the log.
//!
//! 1. Of the records up to S all bytes stand in the heap: each was written before its record. fsync of the heap.
//! 2. The record *mark S*: a start after a power cut believes the records up to S without a look at the heap. It must: the extents of older ones
//!    among them may hold other blobs by then, and would seem damaged.
//! 3. fdatasync of the log. Only now is the room free that records up to S have retired.
//!
//! Threads that ask at the same time wait for one of them; its sync covers those that asked before it began.

use crate::core::Core;
use crate::error::Result;
use crate::log::Room;
use crate::record::Record;
use std::sync::atomic::Ordering;

/// Makes everything durable that was done before the call.
///
/// # Errors
/// A write or sync failed.
pub(crate) fn sync(core: &Core) -> Result<()> {
    sync_upto(core, core.log.last())
}

/// Makes the record with this number durable, and all before it.
///
/// # Errors
/// A write or sync failed.
pub(crate) fn sync_upto(core: &Core, number: u64) -> Result<()> {
    if core.durable.upto.load(Ordering::Acquire) >= number {
        return Ok(());
    }
    let _turn = core.durable.turn.lock();
    if core.durable.upto.load(Ordering::Acquire) >= number {
        return Ok(());
    }
    sync_now(core)
}

/// One sync. The caller has the turn.
pub(crate) fn sync_now(core: &Core) -> Result<()> {
    let last = core.log.last();
    core.heap.sync()?;
    let mark = core.log.append(&Record::Mark { upto: last }, Room::Gives)?;
    core.log.sync()?;
    // With nothing in between the mark itself leaves nothing to do.
    note_durable(core, if mark == last + 1 { mark } else { last });
    core.durable.syncs.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// The records up to this one are durable.
pub(crate) fn note_durable(core: &Core, upto: u64) {
    core.durable.upto.fetch_max(upto, Ordering::AcqRel);
    core.heap.space().release(upto);
}
