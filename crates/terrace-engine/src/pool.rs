//! The frame pool's size: the memory limit minus all else that is kept for the user, in chunks of 2 MiB.

use crate::config::MEMORY_MIN;
use crate::engine::Engine;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use terrace_shm::layout::{CHUNK_FRAMES, HUGE};
use terrace_shm::ring::Ring;
use terrace_shm::{PAGE_SIZE, State};

/// Bytes of metadata that a page costs in a densely cached file.
const METADATA_PER_PAGE: u64 = 25;

impl Engine {
    /// Frames that the pool may hold now.
    pub(crate) fn pool_frames(&self) -> u32 {
        (self.chunks.load(Ordering::Relaxed) as u32) * CHUNK_FRAMES as u32
    }

    /// Memory kept for the user beside frames, bytes: index, books, touch table, rings, namespace tables.
    pub(crate) fn metadata_bytes(&self, core: &crate::core::Core) -> u64 {
        let per_frame = core.frames.populated() as usize * 2; // touch count and flags
        let rings = self.clients.count() * Ring::bytes(self.config.ring_slots);
        (core.index.resident_bytes() + core.heap_bytes() + per_frame + rings) as u64
            + self.extra_bytes.load(Ordering::Relaxed)
    }

    /// Fits the pool into the budget: called when the budget or what else it pays for has changed, and regularly.
    pub(crate) fn adjust_pool(&self) {
        let limit = self.memory.load(Ordering::Relaxed);
        let chunks = {
            let mut core = self.core.lock();
            let index_max = (limit / 16).max(1 << 20) as usize;
            core.index.trim(index_max);
            // What a full pool needs at the least, so that it does not grow only to shrink again; and a reserve, so that
            // books may grow between two calls.
            let full = limit / PAGE_SIZE as u64 * METADATA_PER_PAGE;
            let metadata = self.metadata_bytes(&core).max(full) + limit / 400 + (64 << 10);
            let chunks = (limit.saturating_sub(metadata) / HUGE as u64).max(1);
            let chunks =
                chunks.min(u64::from(self.handles.segment.geometry().frames_max) / CHUNK_FRAMES as u64);
            if chunks != self.chunks.swap(chunks, Ordering::Relaxed) {
                core.frames.set_limit(chunks as u32 * CHUNK_FRAMES as u32);
                core.policy.set_capacity(chunks as usize * CHUNK_FRAMES);
            }
            chunks
        };
        while self.core.lock().frames.populated() > chunks as u32 * CHUNK_FRAMES as u32 {
            if !self.drop_top_chunk() {
                // Dirty pages are in the way: writeback first, the next call goes on.
                self.writeback_bell.ring();
                return;
            }
        }
    }

    /// Sets the memory limit of a live instance and waits until it holds.
    ///
    /// # Errors
    /// `InvalidInput` under the minimum or over what the segment has room for; a writeback that fails.
    pub fn resize(&self, bytes: u64) -> io::Result<()> {
        let frames_max = u64::from(self.handles.segment.geometry().frames_max) * PAGE_SIZE as u64;
        if bytes < MEMORY_MIN || bytes > frames_max {
            let m = format!(
                "{bytes} bytes is not between the minimum of {MEMORY_MIN} and this instance's maximum of {frames_max}"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, m));
        }
        self.memory.store(bytes, Ordering::Relaxed);
        loop {
            self.adjust_pool();
            if self.core.lock().frames.populated() <= self.pool_frames() {
                return Ok(());
            }
            self.flush_all(false)?;
        }
    }

    /// Empties the top chunk and gives its memory back. False if dirty pages are in the way.
    fn drop_top_chunk(&self) -> bool {
        let mut core = self.core.lock();
        let end = core.frames.populated();
        let first = end - CHUNK_FRAMES as u32;
        for frame in first..end {
            if core.frames.is_free(frame) {
                continue;
            }
            let clean = self.handles.frame_flags(frame).load(Ordering::Relaxed) == 0;
            let Some(place) = core.place_of(frame).filter(|_| clean) else { return false };
            if core.index.get(place).state() != State::Present {
                return false;
            }
            let (slot, page) = core.index.whose(place);
            let o = core.object_in_slot(slot).expect("a page has an object").clone();
            core.drop_page(&o, page, place, frame);
        }
        core.frames.drop_top_chunk();
        drop(core);
        self.huge_chunks.lock().remove(&first);
        let at = self.handles.segment.frame_offset(first);
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        if let Err(e) = rustix::fs::fallocate(self.handles.segment_fd.as_fd(), flags, at, HUGE as u64) {
            tracing::warn!("memory of a dropped chunk not given back: {e}");
        }
        true
    }

    /// Backs a chunk of frames with memory, a huge page if possible. False if it may be worth another try.
    pub(crate) fn back_with_memory(&self, first_frame: u32) -> bool {
        if !self.config.huge_pages {
            return true;
        }
        let start = self.handles.segment.frame(first_frame).cast::<libc::c_void>();
        // SAFETY: the range is a chunk of the segment mapping; populating and collapsing change no content.
        let collapsed = unsafe {
            libc::madvise(start, HUGE, libc::MADV_POPULATE_WRITE);
            libc::madvise(start, HUGE, libc::MADV_COLLAPSE)
        };
        if collapsed == 0 {
            self.huge_chunks.lock().insert(first_frame);
            return true;
        }
        io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL)
    }
}
