//! Frames of pages that were fetched before a program asked for them.

use crate::table::Set;

/// Unused pages may have this part of the pool.
pub(crate) const SHARE: u32 = 16;

/// Frames of pages that were fetched ahead. Their pages may have been used since somebody last looked.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    frames: Set<u32>,
}

impl Ahead {
    /// The page of a frame leaves it.
    #[inline]
    pub(crate) fn remove(&mut self, frame: u32) {
        if !self.frames.is_empty() {
            self.frames.remove(&frame);
        }
    }

    /// The page in a frame was fetched ahead.
    pub(crate) fn add(&mut self, frame: u32) {
        self.frames.insert(frame);
    }

    /// How many more may come into a pool of so many frames; forgets those that are not `unused` any more where there seems to be no room for those that are `wanted`.
    pub(super) fn room(&mut self, pool: u32, wanted: usize, unused: impl Fn(u32) -> bool) -> usize {
        let max = (pool / SHARE) as usize;
        if self.frames.len() + wanted > max {
            self.frames.retain(|&frame| unused(frame));
        }
        max.saturating_sub(self.frames.len())
    }
}
