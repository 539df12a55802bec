//! Size of the frame pool: the memory limit minus all other memory of the instance, in chunks of 2 MiB.

use crate::config::{CompressedConfig, EngineConfig, MEMORY_MIN};
use crate::context::Context;
use crate::file::object::Object;
use crate::path::sync;
use crate::segment::SegmentHandles;
use crate::state::chunks::Backed;
use crate::state::targets::Targets;
use crate::state::{SHRINK_BATCH, State};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrace_shm::layout::{CHUNK_FRAMES, HUGE, ZSPAGE_SIZE};
use terrace_shm::ring::Ring;
use terrace_shm::{ObjectSlot, PAGE_SIZE};

/// Minimum ceiling: a pool needs this much.
const CEILING_MIN: u64 = MEMORY_MIN / 4;
/// A larger fall of the ceiling drops used pages: their move to other chunks takes ten times as long.
const FAST_SHRINK_ABOVE: u64 = 4 * HUGE as u64;
/// Minimum chunks of the pool: reads and writes need frames.
const CHUNKS_MIN: u64 = 2;
/// Attempts at writeback of pages that block a resize.
const TRIES_MAX: u32 = 50;
/// Bytes of metadata that a page costs in a densely cached file.
const METADATA_PER_PAGE: u64 = 22;

/// Index bytes for a page on a device, if the file is there completely.
const SLOT_INDEX: u64 = 9;

/// Memory of files, clients and observers, bytes: objects, tables of inodes and handles, rings, the recording
/// and the sample.
pub(crate) fn tables_bytes(cx: &Context, state: &State) -> u64 {
    objects_bytes(cx, state) + cx.counted_memory()
}

/// Memory of files, bytes.
fn objects_bytes(cx: &Context, state: &State) -> u64 {
    let slots = cx.handles.segment.slots_used() as usize * size_of::<ObjectSlot>();
    let objects = state.objects.len() * (size_of::<Object>() + 96);
    (slots + objects) as u64
}

/// Fits the pool into the budget, regularly and after a change of the budget or its use. False: dirty or used
/// pages prevent it; the next call continues.
pub(crate) fn adjust_pool(cx: &Context) -> bool {
    let fast_shrink = cx.fast_shrink.load(Ordering::Relaxed);
    set_compressed_limits(cx);
    if !fast_shrink {
        shrink_compressed(cx);
    }
    limit_frames(cx);
    let done = if fast_shrink { drop_fast(cx) } else { drop_chunks(cx) };
    if fast_shrink {
        cx.fast_shrink.store(false, Ordering::Relaxed);
        shrink_compressed(cx);
        // The compressed tier has given back memory, which raises the limit of frames.
        limit_frames(cx);
    }
    if !done {
        cx.writeback_wakeup.signal();
    }
    done
}

fn limit_frames(cx: &Context) {
    {
        let mut state = cx.state.lock();
        // Read under the lock: of two concurrent limits the last one counts.
        let limit = cx.budget();
        let devices_bytes = state.targets.as_ref().map_or(0, Targets::devices_bytes);
        let on_device = devices_bytes / PAGE_SIZE as u64 * SLOT_INDEX;
        let index_max = (limit / 16 + on_device).max(1 << 20) as usize;
        state.pages.index.set_limit(index_max);
        // The metadata of a full pool, so that it does not grow and shrink again. A reserve lets metadata
        // grow, and a client register, between two calls.
        let full = limit / PAGE_SIZE as u64 * METADATA_PER_PAGE;
        let reserve = limit / 400 + (64 << 10) + Ring::bytes(cx.config.ring_slots) as u64;
        let tier =
            state.compressed.as_ref().map_or(0, |t| t.target().max(t.pool.bytes()) + t.metadata_bytes());
        let (usage, users) = (state.metadata(), cx.counted_memory());
        let others = objects_bytes(cx, &state) + reserve + state.device_bytes();
        // The index may grow up to its limit. The compressed tier can give back all its memory.
        let index_growth = (index_max as u64).saturating_sub(usage.index.total() as u64);
        let least = usage.total() + index_growth + others + CHUNKS_MIN * HUGE as u64;
        cx.users_max.store(limit.saturating_sub(least), Ordering::Relaxed);
        let metadata = usage.total().max(full) + others + users + tier;
        let chunks = (limit.saturating_sub(metadata) / HUGE as u64).max(1);
        let chunks = chunks.min(u64::from(cx.handles.segment.geometry().frames_max) / CHUNK_FRAMES as u64);
        if chunks != cx.chunks.swap(chunks, Ordering::Relaxed) {
            state.frames.set_limit(chunks as u32 * CHUNK_FRAMES as u32);
            state.lru.policy.set_capacity(chunks as usize * CHUNK_FRAMES);
        }
    }
}

/// Drops the chunks above the limit; their used pages move to other chunks. False: a chunk cannot be dropped.
fn drop_chunks(cx: &Context) -> bool {
    loop {
        let mut state = cx.state.lock();
        if !state.frames.must_shrink() {
            // Frames have made room for it.
            state.compressed.iter_mut().for_each(|tier| tier.pool.set_limit(tier.target()));
            return true;
        }
        if !state.drop_top_chunk() {
            return false;
        }
    }
}

/// Frees all clean pages above the limit. False: other pages are there.
fn drop_fast(cx: &Context) -> bool {
    let mut end = u32::MAX;
    loop {
        let mut state = cx.state.lock();
        end = end.min(state.frames.populated());
        if end <= state.frames.limit() {
            return !state.frames.must_shrink();
        }
        end -= CHUNK_FRAMES as u32;
        state.vacate_chunk(end);
    }
}

/// See [`crate::Engine::resize`].
pub(crate) fn resize(cx: &Context, bytes: u64) -> io::Result<()> {
    let frames_max = u64::from(cx.handles.segment.geometry().frames_max) * PAGE_SIZE as u64;
    if bytes < MEMORY_MIN || bytes > frames_max {
        let m = format!(
            "memory of {bytes} bytes is not between the minimum of {MEMORY_MIN} and this instance's maximum of {frames_max}"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, m));
    }
    let old = set_limit(cx, bytes, false);
    while !adjust_pool(cx) {
        if cx.budget() < bytes {
            return Ok(()); // Less memory in the machine at the moment: reclaim shrinks the pool.
        }
        // Unwritten pages hold on to their frames.
        if let Err(e) = sync::write_all_back(cx, false, |_| true) {
            set_limit(cx, old.0, old.1);
            adjust_pool(cx);
            return Err(e);
        }
        // The remaining frames are under I/O. Faults signal `fault_done`; poll for the rest.
        cx.fault_done.wait_for(&mut cx.state.lock(), Duration::from_millis(5));
    }
    Ok(())
}

/// See [`crate::Engine::make_room`].
pub(crate) fn make_room(cx: &Context, spare: u64) -> bool {
    for _ in 0..TRIES_MAX {
        let fits = adjust_pool(cx);
        if cx.counted_memory() + spare > cx.users_max.load(Ordering::Relaxed) {
            return false;
        }
        if fits {
            return true;
        }
        if sync::write_all_back(cx, false, |_| true).is_err() {
            return false;
        }
        cx.fault_done.wait_for(&mut cx.state.lock(), Duration::from_millis(5));
    }
    false
}

/// Sets the ceiling; see [`crate::Engine::set_ceiling`].
pub(crate) fn set_ceiling(cx: &Context, bytes: u64) {
    let bytes = if bytes < cx.memory.load(Ordering::Relaxed) { bytes.max(CEILING_MIN) } else { u64::MAX };
    let before = cx.budget();
    if cx.ceiling.swap(bytes, Ordering::Relaxed) != bytes {
        if before.saturating_sub(cx.budget()) > FAST_SHRINK_ABOVE {
            cx.fast_shrink.store(true, Ordering::Relaxed);
        }
        adjust_pool(cx);
        cx.reclaim_wakeup.signal();
    }
}

/// Sets the limit, also for a successor. Returns the old one, and whether it was automatic.
fn set_limit(cx: &Context, bytes: u64, auto: bool) -> (u64, bool) {
    let header = cx.handles.segment.header();
    let was_auto = header.limit_is_auto.swap(auto.into(), Ordering::Relaxed) != 0;
    header.limit_bytes.store(bytes, Ordering::Relaxed);
    (cx.memory.swap(bytes, Ordering::Relaxed), was_auto)
}

/// The limit of the daemon's predecessor, or else that of the configuration.
pub(crate) fn inherited_limit(config: &EngineConfig, handles: &SegmentHandles) -> u64 {
    let header = handles.segment.header();
    let limit = &header.limit_bytes;
    match limit.compare_exchange(0, config.memory_bytes, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            header.limit_is_auto.store(config.memory_is_auto.into(), Ordering::Relaxed);
            config.memory_bytes
        }
        Err(limit) => limit,
    }
}

pub(crate) fn resize_auto(cx: &Context) {
    // The pool keeps its size until the next ceiling.
    let _ = cx.ceiling.compare_exchange(u64::MAX, cx.budget(), Ordering::Relaxed, Ordering::Relaxed);
    set_limit(cx, u64::from(cx.handles.segment.geometry().frames_max) * PAGE_SIZE as u64, true);
}

/// Backs a chunk of frames with memory, if possible a huge page. Slow, therefore without the lock.
pub(crate) fn back_with_memory(cx: &Context, first_frame: u32) -> Backed {
    if !cx.config.huge_pages {
        return Backed::Small;
    }
    let start = cx.handles.segment.frame(first_frame).cast::<libc::c_void>();
    // SAFETY: the range is a chunk of the segment mapping; neither advice changes content.
    let advise = |len, advice| match unsafe { libc::madvise(start, len, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().raw_os_error()),
    };
    // Collapsing fills the rest of a chunk, but needs one populated page. To populate the whole chunk first
    // took 1.8 ms instead of 0.15.
    let collapsed =
        advise(PAGE_SIZE, libc::MADV_POPULATE_WRITE).and_then(|()| advise(HUGE, libc::MADV_COLLAPSE));
    let backed = match collapsed {
        Ok(()) => return Backed::Huge,
        Err(Some(libc::EINVAL)) => Backed::Small,
        Err(_) => Backed::NotYet,
    };
    let _ = advise(HUGE, libc::MADV_POPULATE_WRITE);
    backed
}

/// Fits the compressed tier's share to the memory limit.
fn set_compressed_limits(cx: &Context) {
    let limit = cx.budget().saturating_sub(cx.counted_memory());
    let all = u32::try_from(limit / HUGE as u64).unwrap_or(u32::MAX);
    // A share beyond the compressed pool's capacity would waste memory of DRAM.
    let pool_max = u64::from(cx.handles.segment.geometry().zspages_max) * ZSPAGE_SIZE as u64 / HUGE as u64;
    let share = |percent: u32| (u64::from(all) * u64::from(percent) / 100).min(pool_max) as u32;
    let CompressedConfig { min_percent, max_percent, .. } = cx.config.compressed;
    let mut state = cx.state.lock();
    let Some(tier) = &mut state.compressed else { return };
    tier.balancer.set_limits(share(min_percent)..=share(max_percent), all);
    tier.pool.set_limit(tier.target().min(tier.pool.limit()));
}

/// Shrinks the compressed pool to its limit, in bounded steps under each lock.
pub(crate) fn shrink_compressed(cx: &Context) {
    let mut tries_without_progress = 0;
    loop {
        let mut state = cx.state.lock();
        let Some(tier) = &state.compressed else { return };
        let (before, pages) = (tier.pool.bytes(), tier.pool.stored_pages() as usize);
        // Touched pages survive the first visit. A whole round without progress ends the loop.
        if before <= tier.pool.limit() || tries_without_progress * SHRINK_BATCH > pages {
            return;
        }
        // Dropped pages leave holes: several of them free a zspage.
        let gone = state.shrink_compressed(SHRINK_BATCH);
        let moved = gone > 0 || state.compressed.as_ref().is_some_and(|tier| tier.pool.bytes() < before);
        tries_without_progress = if moved { 0 } else { tries_without_progress + 1 };
    }
}

/// Drops all compressed pages, in bounded steps under each lock. Returns their number.
pub(crate) fn empty_compressed(cx: &Context) -> u64 {
    let mut dropped = 0;
    loop {
        let mut state = cx.state.lock();
        if state.compressed.as_ref().is_none_or(|tier| tier.pool.stored_pages() == 0) {
            return dropped;
        }
        dropped += state.shrink_compressed(SHRINK_BATCH) as u64;
    }
}
