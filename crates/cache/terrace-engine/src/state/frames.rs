//! Free frames: a bitmap in groups of sixteen, so that pages filled together get adjacent frames.
//!
//! An allocation takes the lowest suitable frame, so the top empties first when the pool shrinks. Frames come
//! into use by chunks (2 MiB), lowest first, and leave from the top.
//!
//! With several memory nodes each chunk has a home node. The requested node comes first.

use crate::state::bits::BitSet;
use terrace_shm::BLOCK_PAGES;
use terrace_shm::layout::CHUNK_FRAMES;

const CHUNK_GROUPS: usize = CHUNK_FRAMES / BLOCK_PAGES;

#[derive(Debug)]
pub(crate) struct Frames {
    /// One bit per frame, 1 = free; one word per group.
    groups: Vec<u16>,
    nodes: Vec<Free>,
    homes: Vec<u8>,
    /// Frames below this have memory.
    populated: u32,
    /// Frames from this one on are not handed out.
    limit: u32,
    /// Free frames; and those above the limit among them.
    free: u32,
    hidden: u32,
}

/// Groups of a node with free frames.
#[derive(Debug)]
struct Free {
    /// Wholly free groups below the limit.
    whole: BitSet,
    /// Partly free groups below the limit.
    partial: BitSet,
    /// Failed requests for frames of this node since it last got a chunk.
    wanted: u32,
}

impl Frames {
    /// Capacity for `frames_max` frames on one or more nodes; none is in use yet.
    pub(crate) fn new(frames_max: u32, nodes: usize) -> Frames {
        let groups_max = (frames_max as usize).div_ceil(BLOCK_PAGES);
        let node = || Free { whole: BitSet::new(groups_max), partial: BitSet::new(groups_max), wanted: 0 };
        Frames {
            groups: Vec::with_capacity(groups_max),
            nodes: (0..nodes).map(|_| node()).collect(),
            homes: Vec::new(),
            populated: 0,
            limit: 0,
            free: 0,
            hidden: 0,
        }
    }
    pub(crate) fn free_count(&self) -> u32 {
        self.free - self.hidden
    }
    /// Free frames, with those above the limit.
    pub(crate) fn idle(&self) -> u32 {
        self.free
    }
    /// Whether more frames have memory than the limit allows.
    pub(crate) fn must_shrink(&self) -> bool {
        self.populated > self.limit
    }
    pub(crate) fn populated(&self) -> u32 {
        self.populated
    }
    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }
    pub(crate) fn in_use(&self) -> u32 {
        self.populated - self.free
    }
    /// Memory of the bitmaps in use: one word per group, and one bit in two sets of each node.
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.groups) + 2 * self.nodes.len() * self.groups.len().div_ceil(8) + self.homes.len()
    }
    /// The node for the next chunk: with most failed requests, else with the fewest chunks.
    pub(crate) fn node_of_next(&self) -> usize {
        let chunks = |node: usize| self.homes.iter().filter(|&&home| usize::from(home) == node).count();
        let rank = |&node: &usize| (self.nodes[node].wanted, std::cmp::Reverse(chunks(node)));
        (0..self.nodes.len()).rev().max_by_key(rank).unwrap_or(0)
    }
    pub(crate) fn set_home(&mut self, first: u32, node: usize) {
        let chunk = first as usize / CHUNK_FRAMES;
        if node >= self.nodes.len() || self.homes.get(chunk).is_none_or(|&home| usize::from(home) == node) {
            return;
        }
        let groups = chunk * CHUNK_GROUPS..(chunk + 1) * CHUNK_GROUPS;
        for g in groups.clone() {
            self.unfile(g);
        }
        self.homes[chunk] = node as u8;
        // A chunk is wholly below the limit or above it.
        if first < self.limit {
            groups.for_each(|g| self.file(g));
        }
    }
    pub(crate) fn is_free(&self, frame: u32) -> bool {
        let (g, b) = (frame as usize / BLOCK_PAGES, frame as usize % BLOCK_PAGES);
        self.groups.get(g).is_some_and(|w| w >> b & 1 == 1)
    }
    /// Whether another chunk may come into use.
    pub(crate) fn can_grow(&self) -> bool {
        self.populated < self.limit
    }
    /// Brings the next chunk into use on a node. Returns its first frame.
    pub(crate) fn grow(&mut self, node: usize) -> u32 {
        let first = self.populated;
        self.populated += CHUNK_FRAMES as u32;
        self.homes.push(node as u8);
        self.nodes[node].wanted = 0;
        for frame in (first..self.populated).step_by(BLOCK_PAGES) {
            self.groups.push(u16::MAX);
            self.nodes[node].whole.insert(frame as usize / BLOCK_PAGES);
        }
        self.free += CHUNK_FRAMES as u32;
        first
    }
    /// Sets the number of frames that may be allocated, rounded down to chunks.
    pub(crate) fn set_limit(&mut self, frames: u32) {
        self.limit = frames / CHUNK_FRAMES as u32 * CHUNK_FRAMES as u32;
        self.file_all();
    }
    /// Takes the top chunk out of use. All its frames must be free.
    pub(crate) fn drop_top_chunk(&mut self) -> u32 {
        let first = self.populated - CHUNK_FRAMES as u32;
        assert!((first..self.populated).all(|f| self.is_free(f)), "chunk dropped with frames in use");
        let groups = first as usize / BLOCK_PAGES;
        (groups..self.groups.len()).for_each(|g| self.unfile(g));
        self.groups.truncate(groups);
        self.homes.pop();
        if first >= self.limit {
            self.hidden -= CHUNK_FRAMES as u32;
        }
        self.populated = first;
        self.free -= CHUNK_FRAMES as u32;
        first
    }
    /// After a restart: frames below `populated` exist, on unknown nodes, and `in_use` are taken.
    pub(crate) fn recover(&mut self, populated: u32, in_use: impl Iterator<Item = u32>) {
        while self.populated < populated {
            self.grow(0);
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
        for node in &mut self.nodes {
            node.whole.clear();
            node.partial.clear();
        }
        let below = self.groups.len().min(self.limit as usize / BLOCK_PAGES);
        (0..below).for_each(|g| self.file(g));
        self.hidden = self.groups[below..].iter().map(|w| w.count_ones()).sum();
    }
    fn node_of(&mut self, g: usize) -> &mut Free {
        &mut self.nodes[usize::from(self.homes[g / CHUNK_GROUPS])]
    }
    /// Files a group below the limit by its present state.
    fn file(&mut self, g: usize) {
        let word = self.groups[g];
        let Free { whole, partial, .. } = self.node_of(g);
        match word {
            0 => partial.remove(g),
            u16::MAX => {
                partial.remove(g);
                whole.insert(g);
            }
            _ => partial.insert(g),
        }
    }
    /// Removes a group from its node's sets.
    fn unfile(&mut self, g: usize) {
        let node = self.node_of(g);
        node.whole.remove(g);
        node.partial.remove(g);
    }
    fn take(&mut self, g: usize, mask: u16) {
        debug_assert_eq!(self.groups[g] & mask, mask);
        if self.groups[g] == u16::MAX {
            self.node_of(g).whole.remove(g);
        }
        self.groups[g] &= !mask;
        self.free -= mask.count_ones();
        self.file(g);
    }
    /// Calls `find` on the node `near`, then on the other nodes.
    fn find(&mut self, near: Option<usize>, find: impl Fn(&Free) -> Option<usize>) -> Option<usize> {
        let near = near.filter(|&near| near < self.nodes.len());
        if let Some(found) = near.and_then(|near| find(&self.nodes[near])) {
            return Some(found);
        }
        if let Some(near) = near {
            self.nodes[near].wanted += 1;
        }
        self.nodes.iter().find_map(find)
    }
    /// A free frame, preferably from a partly used group.
    pub(crate) fn alloc(&mut self, near: Option<usize>) -> Option<u32> {
        let g = self.find(near, |free| free.partial.first().or_else(|| free.whole.first()))?;
        let b = self.groups[g].trailing_zeros();
        self.take(g, 1 << b);
        Some((g * BLOCK_PAGES) as u32 + b)
    }
    /// `n` adjacent frames (at most a group), if a whole group is free.
    pub(crate) fn alloc_run(&mut self, n: usize, near: Option<usize>) -> Option<u32> {
        debug_assert!((1..=BLOCK_PAGES).contains(&n));
        // Single frames on the requested node are better than a run elsewhere.
        if near
            .and_then(|near| self.nodes.get(near))
            .is_some_and(|f| f.whole.first().is_none() && f.partial.first().is_some())
        {
            return None;
        }
        let g = self.find(near, |free| free.whole.first())?;
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
        let mut f = Frames::new(2 * CHUNK_FRAMES as u32, 1);
        f.set_limit(2 * CHUNK_FRAMES as u32);
        f.grow(0);
        let run = f.alloc_run(16, None).unwrap();
        let three = f.alloc_run(3, None).unwrap();
        let one = f.alloc(None).unwrap();
        assert_eq!(one / 16, three / 16, "a single frame comes from the broken group");
        assert_eq!(run % 16, 0);
        f.free(run + 3);
        assert_eq!(f.free_count() as usize, CHUNK_FRAMES - 19);
        assert!(f.can_grow());
    }

    #[test]
    fn nothing_is_handed_out_above_the_limit() {
        let mut f = Frames::new(2 * CHUNK_FRAMES as u32, 1);
        let chunk = CHUNK_FRAMES as u32;
        f.set_limit(2 * chunk);
        f.grow(0);
        f.grow(0);
        let all: Vec<u32> = std::iter::from_fn(|| f.alloc(None)).collect();
        assert_eq!(all.len(), 2 * CHUNK_FRAMES);
        f.set_limit(chunk);
        f.free(2 * chunk - 1);
        assert_eq!((f.free_count(), f.idle(), f.alloc(None), f.alloc_run(1, None)), (0, 1, None, None));
        f.free(3);
        assert_eq!(f.alloc(None), Some(3));
        f.set_limit(2 * chunk);
        assert_eq!(f.alloc(None), Some(2 * chunk - 1));
        f.set_limit(chunk);
        all.iter().for_each(|&x| f.free(x));
        assert!(f.must_shrink());
        assert_eq!((f.drop_top_chunk(), f.free_count(), f.idle()), (chunk, chunk, chunk));
    }

    #[test]
    fn every_frame_once() {
        let mut f = Frames::new(2 * CHUNK_FRAMES as u32, 1);
        f.set_limit(CHUNK_FRAMES as u32);
        f.grow(0);
        let mut all: Vec<u32> = std::iter::from_fn(|| f.alloc(None)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..CHUNK_FRAMES as u32).collect::<Vec<_>>());
        for x in all {
            f.free(x);
        }
        assert_eq!(f.drop_top_chunk(), 0);
        assert_eq!((f.populated(), f.free_count()), (0, 0));
    }

    #[test]
    fn frame_is_taken_on_the_node_where_it_is_wanted() {
        let chunk = CHUNK_FRAMES as u32;
        let mut f = Frames::new(4 * chunk, 2);
        f.set_limit(4 * chunk);
        assert_eq!(f.node_of_next(), 0);
        f.grow(0);
        assert_eq!(f.node_of_next(), 1, "the node without one");
        f.grow(1);
        assert_eq!((f.alloc(Some(1)), f.alloc(Some(0)), f.alloc(None)), (Some(chunk), Some(0), Some(1)));
        assert_eq!(f.alloc_run(16, Some(1)), Some(chunk + 16));
        let rest: Vec<u32> = (0..chunk - 17).map(|_| f.alloc(Some(1)).unwrap()).collect();
        assert!(rest.iter().all(|&frame| frame >= chunk) && f.node_of_next() == 0);
        assert_eq!(f.alloc(Some(1)), Some(2), "another node's is better than none");
        assert_eq!(f.node_of_next(), 1, "one was wanted there");
        f.set_home(0, 1);
        assert_eq!((f.alloc(Some(1)), f.alloc(Some(0))), (Some(3), Some(4)));
        f.free(chunk);
        assert_eq!(f.alloc(Some(1)), Some(5), "the lowest");
        assert_eq!(
            (f.grow(0), f.alloc(Some(0)), f.alloc(Some(7))),
            (2 * chunk, Some(2 * chunk), Some(2 * chunk + 1))
        );
    }

    #[test]
    fn homes_follow_chunks_above_the_limit() {
        let chunk = CHUNK_FRAMES as u32;
        let mut f = Frames::new(2 * chunk, 2);
        f.set_limit(2 * chunk);
        f.grow(0);
        f.grow(1);
        f.set_limit(chunk);
        f.set_home(chunk, 0);
        assert_eq!(f.alloc(Some(1)), Some(0), "none above the limit");
        f.set_limit(2 * chunk);
        assert_eq!(f.free_count(), 2 * chunk - 1);
        f.free(0);
        f.set_limit(chunk);
        assert_eq!((f.drop_top_chunk(), f.free_count()), (chunk, chunk));
    }
}
