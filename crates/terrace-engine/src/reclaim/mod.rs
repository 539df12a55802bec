//! Free frames ahead of need: the policy names victims, [`crate::state`] withdraws them.

pub(crate) mod cpu_headroom;

use crate::engine::Engine;
use crate::path::resize::Backed;
use crate::state::compressed::Judge;
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrace_shm::compress::Compressor;

/// Frames freed under one core lock.
pub(crate) const BATCH: usize = 64;
/// Chunks whose huge page is tried for again at the next round, at the most: on a machine that gives none we stop asking.
const RETRIES_MAX: usize = 16;

impl Engine {
    /// Below this many free frames reclaim is woken.
    pub(crate) fn free_low(&self) -> u32 {
        (self.pool_frames() / 512).clamp(32, 4096)
    }
    /// Reclaim goes on until this many are free.
    fn free_high(&self) -> u32 {
        self.free_low() * 2
    }

    /// Body of the reclaim thread: grows the pool up to its limit, then evicts ahead of need; follows the budget.
    pub(crate) fn reclaim_loop(&self) {
        let mut compressor = self.compressor();
        let mut judge = Judge::new();
        while !self.stopping.load(Ordering::Acquire) {
            self.reclaim_bell.wait(Duration::from_millis(500));
            self.core.lock().policy.set_time(self.uptime_ms());
            self.adjust_pool();
            self.note_idle(&mut judge);
            while self.reclaim_batch(compressor.as_mut()) {
                if let Some(compressor) = &mut compressor {
                    match self.judge_tier(&mut judge) {
                        0 => {}
                        moved => self.follow_boundary(moved, compressor),
                    }
                }
            }
            self.back_hasty_chunks();
        }
    }

    /// Gives huge pages to chunks that came into use without. A chunk whose pages are under I/O is tried again later.
    fn back_hasty_chunks(&self) {
        let chunks = std::mem::take(&mut self.core.lock().hasty_chunks);
        let mut again = Vec::new();
        for chunk in chunks {
            let backed = self.back_with_memory(chunk);
            self.core.lock().note_backed(chunk, backed);
            if backed == Backed::NotYet && again.len() < RETRIES_MAX {
                again.push(chunk);
            }
        }
        let mut core = self.core.lock();
        let populated = core.frames.populated();
        core.hasty_chunks.extend(again.into_iter().filter(|&c| c < populated));
    }

    /// Evicts some pages, compresses those that are worth it. Frames freed, or used otherwise by now.
    pub(crate) fn evict_batch(&self, compressor: Option<&mut Compressor>) -> usize {
        let mut leaving = Vec::new();
        let freed = {
            let mut core = self.core.lock();
            let freed = core.relieve(BATCH, compressor.is_some().then_some(&mut leaving));
            if freed == 0 && core.dirt.totals.all() > 0 {
                self.writeback_bell.ring();
            }
            freed
        };
        if let Some(compressor) = compressor {
            self.compress(&leaving, compressor);
        }
        freed
    }

    /// One step towards the high watermark; false when there, or when nothing can be freed.
    fn reclaim_batch(&self, compressor: Option<&mut Compressor>) -> bool {
        let grow = {
            let core = self.core.lock();
            if core.frames.free_count() >= self.free_high() {
                return false;
            }
            core.frames.can_grow().then(|| core.frames.populated())
        };
        let Some(grow) = grow else { return self.evict_batch(compressor) > 0 };
        // Backing a chunk with memory takes a while: not under the lock.
        let backed = self.back_with_memory(grow);
        let mut core = self.core.lock();
        if core.frames.populated() == grow && core.frames.can_grow() {
            core.grow_pool();
        }
        core.note_backed(grow, backed);
        true
    }

    /// Evicts all clean pages. Pages dropped.
    pub fn drop_clean(&self) -> u64 {
        let mut dropped = 0;
        loop {
            let freed = self.core.lock().evict(BATCH, None) as u64;
            dropped += freed;
            if freed == 0 {
                return dropped + self.empty_tier();
            }
        }
    }
}
