//! The frame pool's size: the memory limit minus all else that is kept for the user, in chunks of 2 MiB.

use crate::config::MEMORY_MIN;
use crate::engine::{Engine, Extra};
use crate::file::object::Object;
use crate::segment::flag::{HELD, REUSED};
use crate::state::Core;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrace_policy::{Touches, Why};
use terrace_shm::index::Place;
use terrace_shm::layout::{CHUNK_FRAMES, HUGE};
use terrace_shm::protocol::publish;
use terrace_shm::ring::Ring;
use terrace_shm::{Entry, ObjectSlot, PAGE_SIZE, State};

/// Bytes of metadata that a page costs in a densely cached file.
const METADATA_PER_PAGE: u64 = 22;

impl Engine {
    /// Frames that the pool may hold now.
    pub(crate) fn pool_frames(&self) -> u32 {
        (self.chunks.load(Ordering::Relaxed) as u32) * CHUNK_FRAMES as u32
    }

    /// What files, clients and observers need, bytes: objects, tables of inodes and handles, rings, the recording and the sample.
    pub(crate) fn tables_bytes(&self, core: &Core) -> u64 {
        let rings = self.clients.count() * Ring::bytes(self.config.ring_slots);
        let slots = self.handles.segment.slots_used() as usize * size_of::<ObjectSlot>();
        let objects = core.objects.len() * (size_of::<Object>() + 96);
        (rings + slots + objects) as u64
            + self.tracing.bytes()
            + self.sample_bytes.load(Ordering::Relaxed)
            + self.extra.get().map_or(0, Extra::bytes)
    }

    /// Fits the pool into the budget: called when the budget or what else it pays for has changed, and regularly. False if
    /// pages that are dirty or in use are in the way; the next call goes on.
    pub(crate) fn adjust_pool(&self) -> bool {
        self.fit_tier();
        {
            let mut core = self.core.lock();
            // Under the lock: of two limits that are set at once, the last one counts.
            let limit = self.memory.load(Ordering::Relaxed);
            let index_max = (limit / 16).max(1 << 20) as usize;
            core.index.set_limit(index_max);
            // What a full pool needs at the least, so that it does not grow only to shrink again; and a reserve, so that
            // books may grow, and a client may come, between two calls.
            let full = limit / PAGE_SIZE as u64 * METADATA_PER_PAGE;
            let reserve = limit / 400 + (64 << 10) + Ring::bytes(self.config.ring_slots) as u64;
            let tier = core.tier.as_ref().map_or(0, |t| t.target().max(t.pool.bytes()) + t.books_bytes());
            let metadata = core.metadata().total().max(full) + self.tables_bytes(&core) + reserve + tier;
            let chunks = (limit.saturating_sub(metadata) / HUGE as u64).max(1);
            let chunks =
                chunks.min(u64::from(self.handles.segment.geometry().frames_max) / CHUNK_FRAMES as u64);
            if chunks != self.chunks.swap(chunks, Ordering::Relaxed) {
                core.frames.set_limit(chunks as u32 * CHUNK_FRAMES as u32);
                core.policy.set_capacity(chunks as usize * CHUNK_FRAMES);
            }
        }
        loop {
            let mut core = self.core.lock();
            if !core.frames.must_shrink() {
                // Now that frames have made room for it.
                core.tier.iter_mut().for_each(|tier| tier.pool.set_limit(tier.target()));
                return true;
            }
            if !core.drop_top_chunk() {
                drop(core);
                self.writeback_bell.ring();
                return false;
            }
        }
    }

    /// True if one more client may have a ring: all of them together take an eighth of the limit at the most. Whoever gets
    /// none uses the main door.
    pub(crate) fn admits_client_ring(&self) -> bool {
        let rings = (self.clients.count() + 1) * Ring::bytes(self.config.ring_slots);
        self.reclaim_bell.ring();
        rings as u64 <= self.memory.load(Ordering::Relaxed) / 8
    }

    /// Sets the memory limit of a live instance and waits until it holds.
    ///
    /// # Errors
    /// `InvalidInput` under the minimum or over what the segment has room for; a writeback that fails: the old limit is
    /// in force again then.
    pub fn resize(&self, bytes: u64) -> io::Result<()> {
        let frames_max = u64::from(self.handles.segment.geometry().frames_max) * PAGE_SIZE as u64;
        if bytes < MEMORY_MIN || bytes > frames_max {
            let m = format!(
                "{bytes} bytes is not between the minimum of {MEMORY_MIN} and this instance's maximum of {frames_max}"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, m));
        }
        let old = self.set_limit(bytes);
        while !self.adjust_pool() {
            if let Err(e) = self.flush_all(false) {
                self.set_limit(old);
                self.adjust_pool();
                return Err(e);
            }
            // What is left is on its way in or out: the end of a read is told, of all else we find out.
            self.fault_done.wait_for(&mut self.core.lock(), Duration::from_millis(5));
        }
        Ok(())
    }

    /// Puts another limit into force, also for a daemon that takes over; the one before.
    fn set_limit(&self, bytes: u64) -> u64 {
        self.handles.segment.header().limit_bytes.store(bytes, Ordering::Relaxed);
        self.memory.swap(bytes, Ordering::Relaxed)
    }

    /// Backs a chunk of frames with memory, a huge page if possible. Not under the lock: it takes a while.
    pub(crate) fn back_with_memory(&self, first_frame: u32) -> Backed {
        if !self.config.huge_pages {
            return Backed::Small;
        }
        let start = self.handles.segment.frame(first_frame).cast::<libc::c_void>();
        // SAFETY: the range is a chunk of the segment mapping; neither advice changes content.
        let advise = |len, advice| match unsafe { libc::madvise(start, len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error()),
        };
        // Collapsing fills what is not there yet, but wants something to begin with. Populating all of it first took twelve
        // times as long: 1.8 ms a chunk against 0.15.
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
}

/// How a chunk of frames got its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backed {
    Huge,
    /// In small pages, and there are no others.
    Small,
    /// In small pages, but it may be worth another try.
    NotYet,
}

impl Core {
    /// Brings the next chunk into use: its first frame.
    pub(crate) fn grow_pool(&mut self) -> u32 {
        let first = self.frames.grow();
        self.note_populated();
        first
    }

    fn note_populated(&self) {
        self.handles.segment.header().populated.store(self.frames.populated(), Ordering::Release);
    }

    /// Books how a chunk was backed, outside the lock; if it has left the pool meanwhile, its memory goes back.
    pub(crate) fn note_backed(&mut self, first: u32, backed: Backed) {
        if first >= self.frames.populated() {
            self.give_back(first, first + CHUNK_FRAMES as u32);
        } else if backed == Backed::Huge {
            self.huge_chunks.insert(first);
        }
    }

    /// After a restart: these frames are in use, and as many as ever before have memory.
    pub(crate) fn recover_frames(&mut self, in_use: &[u32]) {
        let noted = self.handles.segment.header().populated.load(Ordering::Acquire);
        let needed = in_use.iter().max().map_or(0, |f| f + 1).next_multiple_of(CHUNK_FRAMES as u32);
        let frames_max = self.handles.segment.geometry().frames_max;
        self.frames.recover(noted.max(needed).min(frames_max), in_use.iter().copied());
        self.note_populated();
        // A chunk that was being backed when the daemon died belongs to nobody.
        self.give_back(self.frames.populated(), frames_max);
        // Nobody remembers which chunks had huge pages: reclaim asks for them again, which costs nothing where they are.
        self.hasty_chunks = (0..self.frames.populated()).step_by(CHUNK_FRAMES).collect();
    }

    /// Empties the top chunk and gives its memory back; its pages move to frames below, for which the policy gives up others. False
    /// if pages that are dirty or in use are in the way.
    ///
    /// All under one lock: were the hole punched later, the chunk could have grown again and be full of new pages by then.
    fn drop_top_chunk(&mut self) -> bool {
        let end = self.frames.populated();
        let first = end - CHUNK_FRAMES as u32;
        for frame in first..end {
            if self.frames.is_free(frame) {
                continue;
            }
            let clean = self.handles.frame_flags(frame).load(Ordering::Relaxed) & HELD == 0;
            let Some(place) = self.place_of(frame).filter(|_| clean) else { return false };
            if self.index.get(place).state() != State::Present {
                return false;
            }
            // The policy may give up this very page to make room.
            let room = self.claim();
            match room {
                Some(to) if self.place_of(frame) == Some(place) => self.move_page(place, frame, to),
                Some(to) => self.unclaim(to),
                None => {
                    let (slot, page) = self.index.whose(place);
                    let o = self.object_in_slot(slot).expect("a page has an object").clone();
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

    /// Moves a clean page to a claimed frame. To the policy it is a page that left and came back at once: it was worth keeping.
    fn move_page(&mut self, place: Place, from: u32, to: u32) {
        let (seg, mut touches) = (self.handles.segment.clone(), self.touches());
        let count = touches.take(from);
        let flags = self.handles.frame_flags(from).load(Ordering::Relaxed);
        self.handles.frame_flags(to).store(flags & REUSED, Ordering::Relaxed);
        // SAFETY: both frames are in bounds and not the same; the content of a present page changes under this lock only, and
        // the new frame is claimed.
        unsafe { std::ptr::copy_nonoverlapping(seg.frame(from), seg.frame(to), PAGE_SIZE) };
        let clock = self.index.tick();
        publish(self.index.entry(place), Entry::present(to, clock));
        self.hand_over(place, from, to);
        let shadow = self.policy.shadow();
        self.policy.remove(from);
        self.list(to, shadow, Why::Read, false);
        touches.set(to, count);
    }

    /// Gives the memory of frames that belong to nobody back to the machine.
    fn give_back(&self, first: u32, end: u32) {
        if first >= end {
            return;
        }
        let (at, bytes) =
            (self.handles.segment.frame_offset(first), u64::from(end - first) * PAGE_SIZE as u64);
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        if let Err(e) = rustix::fs::fallocate(self.handles.segment_fd.as_fd(), flags, at, bytes) {
            tracing::warn!("memory of frames {first}..{end} not given back: {e}");
        }
    }
}
