//! Which frames are free: a bitmap in groups of sixteen, so that a run of pages filled together finds adjacent frames.
//!
//! The lowest frame that will do is taken: so the top of the pool is the first to be empty when it has to shrink.
//! Frames come into use chunk by chunk (2 MiB), lowest first, and leave from the top when the pool shrinks.

use crate::state::bits::BitSet;
use terrace_shm::BLOCK_PAGES;
use terrace_shm::layout::CHUNK_FRAMES;

/// The free frames of the pool.
#[derive(Debug)]
pub(crate) struct Frames {
    /// One bit a frame, 1 = free; one word a group.
    groups: Vec<u16>,
    /// Groups below the limit that are wholly free.
    whole: BitSet,
    /// Groups below the limit that have free frames and others.
    partial: BitSet,
    /// Frames below this have memory.
    populated: u32,
    /// Frames at or above this are not handed out.
    limit: u32,
    /// Free frames; and those of them above the limit.
    free: u32,
    hidden: u32,
}

impl Frames {
    /// Room for `frames_max` frames, none of which is in use yet.
    pub(crate) fn new(frames_max: u32) -> Frames {
        let groups_max = (frames_max as usize).div_ceil(BLOCK_PAGES);
        Frames {
            groups: Vec::with_capacity(groups_max),
            whole: BitSet::new(groups_max),
            partial: BitSet::new(groups_max),
            populated: 0,
            limit: 0,
            free: 0,
            hidden: 0,
        }
    }
    /// Frames that can be handed out.
    pub(crate) fn free_count(&self) -> u32 {
        self.free - self.hidden
    }
    /// Free frames, also those above the limit.
    pub(crate) fn idle(&self) -> u32 {
        self.free
    }
    /// More frames have memory than may have.
    pub(crate) fn must_shrink(&self) -> bool {
        self.populated > self.limit
    }
    pub(crate) fn populated(&self) -> u32 {
        self.populated
    }
    /// Frames at or above this are not handed out.
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }
    /// Frames handed out.
    pub(crate) fn in_use(&self) -> u32 {
        self.populated - self.free
    }
    /// Memory of the bitmaps, as far as they are used: a word a group and a bit in each of two sets.
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.groups) + 2 * self.groups.len().div_ceil(8)
    }
    pub(crate) fn is_free(&self, frame: u32) -> bool {
        let (g, b) = (frame as usize / BLOCK_PAGES, frame as usize % BLOCK_PAGES);
        self.groups.get(g).is_some_and(|w| w >> b & 1 == 1)
    }
    /// The next chunk may come into use.
    pub(crate) fn can_grow(&self) -> bool {
        self.populated < self.limit
    }
    /// Brings the next chunk into use: its first frame.
    pub(crate) fn grow(&mut self) -> u32 {
        let first = self.populated;
        self.populated += CHUNK_FRAMES as u32;
        for frame in (first..self.populated).step_by(BLOCK_PAGES) {
            self.groups.push(u16::MAX);
            self.whole.insert(frame as usize / BLOCK_PAGES);
        }
        self.free += CHUNK_FRAMES as u32;
        first
    }
    /// Sets the number of frames that may be in use, rounded down to chunks. Frames above it are not
    /// allocated any more.
    pub(crate) fn set_limit(&mut self, frames: u32) {
        self.limit = frames / CHUNK_FRAMES as u32 * CHUNK_FRAMES as u32;
        self.file_all();
    }
    /// Takes the top chunk out of use. All its frames must be free.
    pub(crate) fn drop_top_chunk(&mut self) -> u32 {
        let first = self.populated - CHUNK_FRAMES as u32;
        assert!((first..self.populated).all(|f| self.is_free(f)), "chunk dropped with frames in use");
        let groups = first as usize / BLOCK_PAGES;
        (groups..self.groups.len()).for_each(|g| self.whole.remove(g));
        self.groups.truncate(groups);
        if first >= self.limit {
            self.hidden -= CHUNK_FRAMES as u32;
        }
        self.populated = first;
        self.free -= CHUNK_FRAMES as u32;
        first
    }
    /// After a restart: frames below `populated` exist, and these are in use.
    pub(crate) fn recover(&mut self, populated: u32, in_use: impl Iterator<Item = u32>) {
        while self.populated < populated {
            self.grow();
        }
        for f in in_use {
            let (g, b) = (f as usize / BLOCK_PAGES, f as usize % BLOCK_PAGES);
            assert!(self.groups[g] >> b & 1 == 1, "frame {f} has two owners");
            self.groups[g] &= !(1 << b);
            self.free -= 1;
        }
        self.file_all();
    }
    fn file_all(&mut self) {
        self.whole.clear();
        self.partial.clear();
        let below = self.groups.len().min(self.limit as usize / BLOCK_PAGES);
        (0..below).for_each(|g| self.file(g));
        self.hidden = self.groups[below..].iter().map(|w| w.count_ones()).sum();
    }
    /// Puts a group, which is below the limit, where it belongs now.
    fn file(&mut self, g: usize) {
        let (whole, partial) = (&mut self.whole, &mut self.partial);
        match self.groups[g] {
            0 => partial.remove(g),
            u16::MAX => {
                partial.remove(g);
                whole.insert(g);
            }
            _ => partial.insert(g),
        }
    }
    /// Takes frames of a group.
    fn take(&mut self, g: usize, mask: u16) {
        debug_assert_eq!(self.groups[g] & mask, mask);
        if self.groups[g] == u16::MAX {
            self.whole.remove(g);
        }
        self.groups[g] &= !mask;
        self.free -= mask.count_ones();
        self.file(g);
    }
    /// A free frame, from a group that is broken already if there is one.
    pub(crate) fn alloc(&mut self) -> Option<u32> {
        let g = self.partial.first().or_else(|| self.whole.first())?;
        let b = self.groups[g].trailing_zeros();
        self.take(g, 1 << b);
        Some((g * BLOCK_PAGES) as u32 + b)
    }
    /// `n` adjacent frames (at most a run), if a whole group is free.
    pub(crate) fn alloc_run(&mut self, n: usize) -> Option<u32> {
        debug_assert!((1..=BLOCK_PAGES).contains(&n));
        let g = self.whole.first()?;
        self.take(g, u16::MAX >> (BLOCK_PAGES - n));
        Some((g * BLOCK_PAGES) as u32)
    }
    pub(crate) fn free(&mut self, frame: u32) {
        let (g, b) = (frame as usize / BLOCK_PAGES, frame as usize % BLOCK_PAGES);
        assert!(self.groups[g] >> b & 1 == 0, "frame {frame} freed twice");
        self.groups[g] |= 1 << b;
        self.free += 1;
        if frame < self.limit {
            self.file(g);
        } else {
            self.hidden += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_adjacent_and_singles_fill_gaps() {
        let mut f = Frames::new(2 * CHUNK_FRAMES as u32);
        f.set_limit(2 * CHUNK_FRAMES as u32);
        f.grow();
        let run = f.alloc_run(16).unwrap();
        let three = f.alloc_run(3).unwrap();
        let one = f.alloc().unwrap();
        assert_eq!(one / 16, three / 16, "a single frame comes from the broken group");
        assert_eq!(run % 16, 0);
        f.free(run + 3);
        assert_eq!(f.free_count() as usize, CHUNK_FRAMES - 19);
        assert!(f.can_grow());
    }

    #[test]
    fn nothing_is_handed_out_above_the_limit() {
        let mut f = Frames::new(2 * CHUNK_FRAMES as u32);
        let chunk = CHUNK_FRAMES as u32;
        f.set_limit(2 * chunk);
        f.grow();
        f.grow();
        let all: Vec<u32> = std::iter::from_fn(|| f.alloc()).collect();
        assert_eq!(all.len(), 2 * CHUNK_FRAMES);
        f.set_limit(chunk);
        f.free(2 * chunk - 1);
        assert_eq!((f.free_count(), f.idle(), f.alloc(), f.alloc_run(1)), (0, 1, None, None));
        f.free(3);
        assert_eq!(f.alloc(), Some(3));
        f.set_limit(2 * chunk);
        assert_eq!(f.alloc(), Some(2 * chunk - 1));
        f.set_limit(chunk);
        all.iter().for_each(|&x| f.free(x));
        assert!(f.must_shrink());
        assert_eq!((f.drop_top_chunk(), f.free_count(), f.idle()), (chunk, chunk, chunk));
    }

    #[test]
    fn every_frame_once() {
        let mut f = Frames::new(2 * CHUNK_FRAMES as u32);
        f.set_limit(CHUNK_FRAMES as u32);
        f.grow();
        let mut all: Vec<u32> = std::iter::from_fn(|| f.alloc()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..CHUNK_FRAMES as u32).collect::<Vec<_>>());
        for x in all {
            f.free(x);
        }
        assert_eq!(f.drop_top_chunk(), 0);
        assert_eq!((f.populated(), f.free_count()), (0, 0));
    }
}
