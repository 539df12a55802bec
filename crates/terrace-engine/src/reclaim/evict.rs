//! Pages leave DRAM: the policy names them; some are written to a device, some are compressed.

use crate::context::Context;
use crate::path::resize;
use crate::reclaim::append::CONTENT_MAX;
use crate::reclaim::{compress, demote};
use crate::state::Leaving;
use terrace_shm::compress::Compressor;

/// Frames freed under one state lock.
pub(crate) const BATCH: usize = 64;

/// Evicts some pages, and keeps those below DRAM that are worth it. Frames freed, or used otherwise by now.
pub(crate) fn evict_batch(cx: &Context, compressor: Option<&mut Compressor>) -> usize {
    let compresses = compressor.is_some();
    let mut leaving = Leaving { now_ns: cx.clock.now_ns(), compresses, ..Leaving::default() };
    // A device takes a long write in the time of a short one.
    let batch = if cx.device.is_some() { CONTENT_MAX } else { BATCH };
    let freed = {
        let mut state = cx.state.lock();
        let below = compresses || cx.device.is_some();
        let freed = state.reclaim(batch, below.then_some(&mut leaving));
        if freed == 0 && state.dirty.totals.all() > 0 {
            cx.writeback_wakeup.signal();
        }
        freed
    };
    demote::demote(cx, &mut leaving);
    if let Some(compressor) = compressor {
        compress::compress(cx, &leaving.to_compressed, compressor);
    }
    freed
}

/// Evicts all clean pages. Pages dropped.
pub(crate) fn drop_clean(cx: &Context) -> u64 {
    let mut dropped = 0;
    loop {
        let freed = cx.state.lock().evict(BATCH, None) as u64;
        dropped += freed;
        if freed == 0 {
            return dropped + resize::empty_compressed(cx);
        }
    }
}
