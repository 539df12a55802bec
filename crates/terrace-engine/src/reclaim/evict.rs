//! Pages leave DRAM: the policy names them, and some are compressed.

use crate::context::Context;
use crate::path::resize;
use crate::reclaim::compress;
use terrace_shm::compress::Compressor;

/// Frames freed under one state lock.
pub(crate) const BATCH: usize = 64;

/// Evicts some pages, compresses those that are worth it. Frames freed, or used otherwise by now.
pub(crate) fn evict_batch(cx: &Context, compressor: Option<&mut Compressor>) -> usize {
    let mut leaving = Vec::new();
    let freed = {
        let mut state = cx.state.lock();
        let freed = state.reclaim(BATCH, compressor.is_some().then_some(&mut leaving));
        if freed == 0 && state.dirty.totals.all() > 0 {
            cx.writeback_wakeup.signal();
        }
        freed
    };
    if let Some(compressor) = compressor {
        compress::compress(cx, &leaving, compressor);
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
