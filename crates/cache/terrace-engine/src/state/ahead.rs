//! Frames with prefetched pages: the unused ones take at most a sixteenth of the pool.

use crate::table::Set;

/// Unused prefetched pages take at most 1/`SHARE` of the pool.
pub(crate) const SHARE: u32 = 16;

/// Frames with prefetched pages. Some may have been used since the last check.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    frames: Set<u32>,
}

impl Ahead {
    #[inline]
    pub(crate) fn remove(&mut self, frame: u32) {
        if !self.frames.is_empty() {
            self.frames.remove(&frame);
        }
    }

    pub(crate) fn add(&mut self, frame: u32) {
        self.frames.insert(frame);
    }

    /// Number of further pages that may be prefetched into a pool of `pool` frames. If `wanted` pages do not
    /// fit, it first forgets used pages.
    pub(super) fn room(&mut self, pool: u32, wanted: usize, unused: impl Fn(u32) -> bool) -> usize {
        let max = (pool / SHARE) as usize;
        if self.frames.len() + wanted > max {
            self.frames.retain(|&frame| unused(frame));
        }
        max.saturating_sub(self.frames.len())
    }
}
