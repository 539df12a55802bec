//! Chunks of the frame pool, 2 MiB each: growth, memory, and release when the pool shrinks.

use crate::nodes::Nodes;
use crate::segment::flag::{LEAVING, REUSED, UNSYNCED};
use crate::state::State;
use crate::state::frames::Frames;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrace_policy::{AccessCounts, InsertReason};
use terrace_shm::index::Place;
use terrace_shm::layout::CHUNK_FRAMES;
use terrace_shm::{PAGE_SIZE, State as EntryState};

/// Memory of a chunk of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backed {
    Huge,
    /// In small pages; huge ones are not available.
    Small,
    /// In small pages; another attempt may succeed.
    NotYet,
}

impl State {
    /// Sets the nodes on which frames are placed. Called before any frame is in use.
    pub(crate) fn place_on(&mut self, nodes: Arc<Nodes>) {
        let frames_max = self.handles.segment.geometry().frames_max;
        self.frames = Frames::new(frames_max, nodes.count());
        self.nodes = nodes;
    }

    /// Brings the next chunk into use, on `node`. Returns its first frame.
    pub(crate) fn grow_pool(&mut self, node: usize) -> u32 {
        let first = self.frames.grow(node);
        self.note_populated();
        first
    }

    fn note_populated(&self) {
        self.handles.segment.header().populated.store(self.frames.populated(), Ordering::Release);
    }

    /// Notes the memory of a chunk backed outside the lock. Frees it if the chunk has left the pool.
    pub(crate) fn note_backed(&mut self, first: u32, backed: Backed) {
        if first >= self.frames.populated() {
            self.give_back(first, first + CHUNK_FRAMES as u32);
        } else if backed == Backed::Huge {
            self.huge_chunks.insert(first);
        }
    }

    /// After a restart: takes over the frames in use. Chunks ever populated stay populated.
    pub(crate) fn recover_frames(&mut self, in_use: &[u32]) {
        let noted = self.handles.segment.header().populated.load(Ordering::Acquire);
        let needed = in_use.iter().max().map_or(0, |f| f + 1).next_multiple_of(CHUNK_FRAMES as u32);
        let frames_max = self.handles.segment.geometry().frames_max;
        self.frames.recover(noted.max(needed).min(frames_max), in_use.iter().copied());
        self.note_populated();
        // A chunk that was being backed when the daemon died has no owner.
        self.give_back(self.frames.populated(), frames_max);
        // The segment does not record huge pages: reclaim requests them again, free of cost where they exist.
        // Chunks above the limit go soon.
        self.unbacked_chunks =
            (0..self.frames.populated().min(self.frames.limit())).step_by(CHUNK_FRAMES).collect();
    }

    /// Empties the top chunk and frees its memory. Its pages move to lower frames, for which the policy
    /// evicts other pages. False: pages that are dirty or in use prevent it.
    ///
    /// All under one lock: before a later punch the chunk could come back into use, with new pages.
    pub(crate) fn drop_top_chunk(&mut self) -> bool {
        let end = self.frames.populated();
        let first = end - CHUNK_FRAMES as u32;
        for frame in first..end {
            if self.frames.is_free(frame) {
                continue;
            }
            let clean = self.pages.flags(frame).load(Ordering::Relaxed) & UNSYNCED == 0;
            let Some(place) = self.pages.place_of(frame).filter(|_| clean) else { return false };
            if self.pages.index.get(place).state() != EntryState::Present {
                return false;
            }
            // The policy may evict this very page to make room.
            let room = self.claim();
            match room {
                Some(to) if self.pages.place_of(frame) == Some(place) => self.relocate(place, frame, to),
                Some(to) => self.unclaim(to),
                None => {
                    let (slot, page) = self.pages.index.owner_of(place);
                    let o = self.objects.in_slot(slot).expect("a page has an object").clone();
                    self.drop_page(&o, page, place, frame);
                }
            }
        }
        self.give_back(first, end);
        self.frames.drop_top_chunk();
        self.huge_chunks.remove(&first);
        self.note_populated();
        true
    }

    /// Drops all clean pages of a chunk above the limit, and frees the memory of its free frames. Drops the
    /// chunk if it is the top one and empty.
    pub(crate) fn vacate_chunk(&mut self, first: u32) {
        let end = first + CHUNK_FRAMES as u32;
        for frame in first..end {
            // Pages under compression leave soon.
            let is_clean = self.pages.flags(frame).load(Ordering::Relaxed) & (UNSYNCED | LEAVING) == 0;
            let place = self.pages.place_of(frame).filter(|_| is_clean && !self.frames.is_free(frame));
            let Some(place) =
                place.filter(|&place| self.pages.index.get(place).state() == EntryState::Present)
            else {
                continue;
            };
            self.lru.policy.remove(frame);
            if !self.return_to_copy(place, frame) {
                self.release(place, frame, self.shadow_of(None));
            }
            self.counts.pgsteal += 1;
        }
        let mut free_from = first;
        for frame in first..=end {
            if frame == end || !self.frames.is_free(frame) {
                self.give_back(free_from, frame);
                free_from = frame + 1;
            }
        }
        let is_empty = (first..end).all(|frame| self.frames.is_free(frame));
        if is_empty && end == self.frames.populated() {
            self.frames.drop_top_chunk();
            self.huge_chunks.remove(&first);
            self.note_populated();
        }
    }

    /// Moves a clean page to a claimed frame. For the policy this is an eviction and an immediate refault:
    /// the page is worth keeping.
    fn relocate(&mut self, place: Place, from: u32, to: u32) {
        let (seg, mut touches) = (self.handles.segment.clone(), self.lru.touches());
        let count = touches.take(from);
        let flags = self.pages.flags(from).load(Ordering::Relaxed);
        self.pages.flags(to).store(flags & REUSED, Ordering::Relaxed);
        // SAFETY: two different frames in bounds. A present page changes under this lock only, and the new
        // frame is claimed.
        unsafe { std::ptr::copy_nonoverlapping(seg.frame(from), seg.frame(to), PAGE_SIZE) };
        self.pages.publish_present(place, to);
        self.remap(place, to);
        if let Some(targets) = &mut self.targets
            && let Some(slot) = targets.take_copy(from)
        {
            targets.set_copy(to, slot);
        }
        self.free_mapped(from);
        let shadow = self.lru.policy.shadow();
        self.lru.policy.remove(from);
        self.lru_insert(to, shadow, InsertReason::Read, false);
        touches.set(to, count);
    }

    /// Frees the memory of frames without owner.
    fn give_back(&self, first: u32, end: u32) {
        if let Err(e) = self.handles.punch(first..end) {
            tracing::warn!("memory of page frames {first}..{end} cannot be given back to the system: {e}");
        }
    }
}
