//! Eviction: the policy names pages that leave DRAM. Some are written to a device, some are compressed.

use crate::context::Context;
use crate::path::resize;
use crate::reclaim::compress;
use crate::state::Leaving;
use crate::state::device::DemoteCandidate;
use crate::tier::append::CONTENT_MAX;
use crate::tier::demote;
use terrace_shm::compress::Compressor;

/// Frames freed under one state lock.
pub(crate) const BATCH: usize = 64;

/// Minimum number of pages in a write to a device while frames are free: each write has a page of keys.
const WRITE_MIN: usize = 128;

/// At most 1/`POOL_PART` of the frames leave at once.
const POOL_PART: usize = 16;

/// Pages that wait for a joint write to a device.
pub(crate) type Waiting = Vec<DemoteCandidate>;

/// Evicts some pages, and keeps valuable ones below DRAM. Returns the frames freed, or already reused.
pub(crate) fn evict_batch(cx: &Context, compressor: Option<&mut Compressor>, waiting: &mut Waiting) -> usize {
    let compresses = compressor.is_some();
    let to_device = std::mem::take(waiting);
    let waited = to_device.len();
    let mut leaving = Leaving { now_ns: cx.clock.now_ns(), compresses, to_device, ..Leaving::default() };
    // A device takes as long for a short write as for a long one.
    let batch = if cx.has_devices() { CONTENT_MAX } else { BATCH };
    // With several targets, each gets a part of the batch.
    let at_once = cx.devices.len().min(cx.pool_frames() as usize / (POOL_PART * CONTENT_MAX)).max(1);
    let mut freed = 0;
    for _ in 0..at_once {
        let mut state = cx.state.lock();
        let below = compresses || cx.has_devices();
        let more = state.reclaim(batch, below.then_some(&mut leaving));
        if more == 0 && state.dirty.totals.all() > 0 {
            cx.writeback_wakeup.signal();
        }
        freed += more;
        if more == 0 || leaving.to_device.len() == waited {
            break;
        }
    }
    let new = leaving.to_device.len() - waited;
    // If only pages for devices leave, a wait would keep their frames.
    if leaving.to_device.len() < WRITE_MIN * at_once && freed > new {
        *waiting = std::mem::take(&mut leaving.to_device);
    }
    demote::demote(cx, &mut leaving);
    if let Some(compressor) = compressor {
        compress::compress(cx, &leaving.to_compressed, compressor);
    }
    freed
}

pub(crate) fn write_waiting(cx: &Context, waiting: &mut Waiting) {
    let to_device = std::mem::take(waiting);
    demote::demote(cx, &mut Leaving { now_ns: cx.clock.now_ns(), to_device, ..Leaving::default() });
}

/// Evicts all clean pages. Returns their number.
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
