//! The engine's data that change together, under the state lock.
//!
//! The parts are plain structures. This file has the operations on two or more parts.

pub(crate) mod ahead;
pub(crate) mod bits;
pub(crate) mod chunks;
pub(crate) mod compressed;
pub(crate) mod destage;
pub(crate) mod device;
pub(crate) mod dirty;
pub(crate) mod evict;
pub(crate) mod frames;
pub(crate) mod lru;
pub(crate) mod metadata;
pub(crate) mod objects;
pub(crate) mod page_table;
pub(crate) mod pins;
pub(crate) mod sampler;
pub(crate) mod slots;
pub(crate) mod targets;
#[cfg(test)]
mod tests;

use crate::clock::Clock;
use crate::file::object::{Object, ObjectId, ObjectRef};
use crate::nodes::Nodes;
use crate::segment::SegmentHandles;
use crate::segment::flag::{LEAVING, REUSED, UNSYNCED, USED};
use crate::table::Set;
use ahead::Ahead;
use compressed::{CompressCandidate, Compressed, WAS_HERE, WAS_READ};
use device::DemoteCandidate;
use dirty::{DirtyAccounting, WritebackOutcome};
use frames::Frames;
use lru::{Lru, MinTtl, TouchView};
use metadata::Metadata;
use objects::Objects;
use page_table::{PageTable, PageVersion};
use pins::Pins;
use sampler::Sampler;
use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use targets::Targets;
use terrace_policy::{AccessCounts, Evict, InsertReason, Shadow, Victim};
use terrace_shm::codec::Coded;
use terrace_shm::compress::Refusal;
use terrace_shm::entry::Below;
use terrace_shm::index::Place;
use terrace_shm::protocol::{publish, replace, withdraw};
use terrace_shm::{Entry, PAGE_SIZE, State as EntryState};

const PAGE: u64 = PAGE_SIZE as u64;
/// Compressed pages dropped under one lock to make room.
pub(crate) const SHRINK_BATCH: usize = 64;

/// Counters of events under the state lock, with the kernel's names.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub(crate) pgscan: u64,
    pub(crate) pgsteal: u64,
    pub(crate) refaults: u64,
    pub(crate) inserted: u64,
    pub(crate) not_admitted: u64,
}

/// A compressed page under promotion to DRAM.
#[derive(Debug)]
pub(crate) struct Promotion {
    pub(crate) place: Place,
    /// The frame claimed for it.
    pub(crate) frame: u32,
    /// The entry when the promotion began.
    pub(crate) seen: Entry,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotPromoted {
    /// No frame: all are dirty or in use.
    NoFrame,
    /// The page is no longer compressed, has moved, or is damaged.
    Gone,
}

/// Pages that leave DRAM for a lower tier. They stay resident until they are stored there.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    pub(crate) now_ns: u64,
    /// The caller compresses pages.
    pub(crate) compresses: bool,
    pub(crate) to_compressed: Vec<CompressCandidate>,
    pub(crate) to_device: Vec<DemoteCandidate>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) handles: Arc<SegmentHandles>,
    pub(crate) pages: PageTable,
    pub(crate) lru: Lru,
    pub(crate) sampler: Sampler,
    pub(crate) frames: Frames,
    pub(crate) objects: Objects,
    pub(crate) dirty: DirtyAccounting,
    pub(crate) compressed: Option<Compressed>,
    /// The targets of device tiers, if there are any.
    pub(crate) targets: Option<Targets>,
    /// Pages being read from the source: (object slot, page).
    pub(crate) in_flight: Set<(u32, u64)>,
    /// Frames handed out without an entry so far.
    pub(crate) claimed: u32,
    pub(crate) ahead: Ahead,
    pub(crate) pins: Pins,
    pub(crate) counts: Counts,
    /// Chunks (first frames) that came into use quickly, without huge pages: reclaim backs them later.
    pub unbacked_chunks: Vec<u32>,
    /// Chunks (first frames) in huge pages.
    pub(crate) huge_chunks: BTreeSet<u32>,
    pub(crate) nodes: Arc<Nodes>,
    victims: Vec<Victim>,
}

impl State {
    pub(crate) fn new(
        handles: Arc<SegmentHandles>,
        policy: Box<dyn Evict>,
        min_ttl: Duration,
        clock: Arc<dyn Clock>,
        compressed: Option<Compressed>,
        targets: Option<Targets>,
    ) -> State {
        let frames_max = handles.segment.geometry().frames_max as usize;
        let sampler = Sampler::new(handles.touches.clone(), frames_max);
        let pins = Pins::new(clock.clone());
        let min_ttl = MinTtl::new(min_ttl, clock);
        State {
            pages: PageTable::new(handles.clone()),
            lru: Lru::new(policy, min_ttl, sampler.watch.clone(), handles.clone()),
            sampler,
            frames: Frames::new(frames_max as u32, 1),
            objects: Objects::new(handles.segment.clone()),
            dirty: DirtyAccounting::default(),
            compressed,
            targets,
            in_flight: Set::default(),
            claimed: 0,
            ahead: Ahead::default(),
            pins,
            counts: Counts::default(),
            unbacked_chunks: Vec::new(),
            huge_chunks: BTreeSet::new(),
            victims: Vec::new(),
            nodes: Arc::default(),
            handles,
        }
    }

    pub(crate) fn metadata(&self) -> Metadata {
        Metadata::of(&self.pages, &*self.lru.policy, &self.frames, self.dirty.totals, self.pins.bytes())
    }

    // ---- objects --------------------------------------------------------------------------------------

    /// Publishes a new object. None: no slot is free near its hash.
    pub(crate) fn add_object(
        &mut self,
        id: ObjectId,
        size: u64,
        flags: u32,
        make: impl FnOnce(u32) -> Object,
    ) -> Option<ObjectRef> {
        self.objects.publish(id, size, flags, self.pages.index.tick(), make)
    }
    /// Removes an object with all its pages, dirty or not.
    pub(crate) fn remove_object(&mut self, o: &Object) {
        self.drop_pages(o, 0, u64::MAX);
        self.pages.index.clear_object(o.slot_index());
        self.objects.remove(o);
    }
    pub(crate) fn unwritten_objects(&self) -> Vec<ObjectRef> {
        self.dirty.objects.iter().filter_map(|id| self.objects.get(id).cloned()).collect()
    }
    /// Whether the page is absent and its content in the source has not changed since `before`. False for an
    /// object forgotten meanwhile.
    pub(crate) fn is_current(&self, o: &Object, page: u64, before: PageVersion) -> bool {
        self.objects.is_known(o) && self.pages.is_unaltered(o, page, before)
    }

    // ---- dirty pages ----------------------------------------------------------------------------------

    /// Marks a page dirty. Called before the page is published: a crash in between must not lose it.
    pub(crate) fn mark_dirty(&mut self, o: &Object, page: u64, frame: u32, now_ns: u64) {
        self.end_copy(o, page, frame);
        self.dirty.mark(self.pages.flags(frame), o, page, now_ns);
    }
    /// Puts a dirty page under writeback. Returns its frame.
    pub(crate) fn begin_writeback(&mut self, o: &Object, page: u64) -> u32 {
        let frame = self.pages.frame_of(o, page).expect("a dirty page has a frame");
        self.dirty.begin_writeback(self.pages.flags(frame), o, page);
        frame
    }
    pub(crate) fn end_writeback(
        &mut self,
        o: &Object,
        page: u64,
        frame: u32,
        outcome: WritebackOutcome,
        now_ns: u64,
    ) {
        self.dirty.end_writeback(self.pages.flags(frame), o, page, outcome, now_ns);
    }
    /// Ends the write of a page to a target. It stays dirty, undestaged or not, since `since` at the latest.
    pub(crate) fn end_target_write(
        &mut self,
        o: &Object,
        page: u64,
        frame: u32,
        undestaged: bool,
        since: u64,
    ) {
        self.dirty.end_target_write(self.pages.flags(frame), o, page, undestaged, since);
    }
    /// Ends a sync: pages unstable before `round` are stable, or (with `lost`, the time) dirty again.
    pub(crate) fn end_sync(&mut self, o: &Object, round: u64, lost: Option<u64>) {
        self.dirty.end_sync(&self.pages, o, round, lost);
    }

    // ---- frames ---------------------------------------------------------------------------------------

    /// A free frame, after an eviction if necessary. None: all frames are dirty or in use.
    pub(crate) fn claim(&mut self) -> Option<u32> {
        self.claim_near(None)
    }
    /// The same, preferably on node `near`.
    pub(crate) fn claim_near(&mut self, near: Option<usize>) -> Option<u32> {
        // An eviction may free only frames above a shrinking pool's limit.
        while self.frames.free_count() == 0 {
            if !self.make_room(near) {
                return None;
            }
        }
        let frame = self.frames.alloc(near)?;
        self.claimed += 1;
        Some(frame)
    }
    /// `n` adjacent frames, without an eviction.
    pub(crate) fn claim_run(&mut self, n: usize, near: Option<usize>) -> Option<u32> {
        let first = self.frames.alloc_run(n, near)?;
        self.claimed += n as u32;
        Some(first)
    }
    /// Frees a claimed frame that was not published.
    pub(crate) fn unclaim(&mut self, frame: u32) {
        self.claimed -= 1;
        self.frames.free(frame);
    }
    fn make_room(&mut self, near: Option<usize>) -> bool {
        if self.frames.can_grow() {
            let node = near.unwrap_or_else(|| self.frames.node_of_next());
            self.nodes.place(&self.handles, self.frames.populated(), node);
            let chunk = self.grow_pool(node);
            self.unbacked_chunks.push(chunk);
            return true;
        }
        self.reclaim(32, None) > 0
    }

    // ---- insertion ------------------------------------------------------------------------------------

    /// Publishes a claimed, filled frame as the page at `place`. Returns whether it was a recent refault.
    pub(crate) fn insert(&mut self, place: Place, frame: u32, reason: InsertReason) -> bool {
        let before = self.pages.index.get(place);
        if let Some(Below::Device(slot)) = before.below() {
            return self.insert_from_device(place, frame, slot, reason);
        }
        let shadow = before.shadow();
        self.map_frame(place, frame);
        self.pages.publish_present(place, frame);
        self.lru_add(frame, shadow, reason)
    }
    pub(crate) fn map_frame(&mut self, place: Place, frame: u32) {
        self.remap(place, frame);
        self.pages.index.count_present(place, 1);
    }
    /// [`State::map_frame`] for a page below DRAM.
    pub(super) fn remap(&mut self, place: Place, frame: u32) {
        self.pages.set_rmap(place, frame);
        self.claimed -= 1;
    }
    /// Adds a page that has become resident to the policy's lists; `shadow`: from its entry. Returns whether
    /// it was a recent refault.
    pub(crate) fn lru_add(&mut self, frame: u32, shadow: u32, reason: InsertReason) -> bool {
        self.counts.inserted += 1;
        let came_back = shadow != 0;
        let was_read = shadow == WAS_READ;
        let shadow = NonZeroU32::new(shadow).filter(|_| !was_read && shadow != WAS_HERE).map(Shadow);
        let refault = self.lru_insert(frame, shadow, reason, reason != InsertReason::Readahead);
        if reason == InsertReason::Read && came_back {
            self.compressed.iter_mut().for_each(Compressed::note_refault);
        }
        // Flags of the frame's previous page, which may have been dropped during its compression.
        let flags = self.pages.flags(frame);
        flags.fetch_and(!(REUSED | LEAVING | USED), Ordering::Relaxed);
        if refault || was_read {
            flags.fetch_or(REUSED, Ordering::Relaxed);
        }
        self.counts.refaults += u64::from(refault);
        refault
    }
    /// Puts a mapped frame, untouched, into the policy's lists. `used`: a program requests the page now.
    /// Returns whether it was a recent refault.
    fn lru_insert(&mut self, frame: u32, shadow: Option<Shadow>, reason: InsertReason, used: bool) -> bool {
        self.lru.touches().set(frame, 0);
        let key = self.pages.key_in(frame).expect("a listed frame is mapped");
        self.sampler.enter(frame, key, used);
        self.lru.insert(frame, key, shadow, reason)
    }
    /// After a restart: lists a page of the predecessor, with the touches of its frame.
    pub(crate) fn lru_adopt(&mut self, frame: u32) {
        let mut touches = self.lru.touches();
        let count = touches.take(frame);
        let key = self.pages.key_in(frame).expect("a page was taken over with its frame");
        self.lru.insert(frame, key, None, InsertReason::Read);
        touches.set(frame, count.min(terrace_shm::touch::TOUCH_MAX));
        self.sampler.enter(frame, key, false);
    }

    // ---- prefetched and pinned pages -------------------------------------------------------------------------

    /// Whether a program has used the page in a mapped frame since its fault.
    fn is_used(&self, touches: &TouchView, frame: u32) -> bool {
        touches.is_touched(frame) || self.pages.flags(frame).load(Ordering::Relaxed) & (REUSED | USED) != 0
    }
    /// Whether a program has used this page, which must be resident.
    pub(crate) fn is_page_used(&self, o: &Object, page: u64) -> bool {
        let touches = self.lru.touches();
        self.pages.frame_of(o, page).is_some_and(|frame| self.is_used(&touches, frame))
    }
    /// Number of pages that may be prefetched into a pool of `pool` frames, if `wanted` are requested.
    pub(crate) fn room_ahead(&mut self, pool: u32, wanted: usize) -> usize {
        let mut ahead = std::mem::take(&mut self.ahead);
        let touches = self.lru.touches();
        let room = ahead
            .room(pool, wanted, |frame| self.lru.policy.contains(frame) && !self.is_used(&touches, frame));
        self.ahead = ahead;
        room
    }
    /// Pins the resident pages `[first, last]` of an object, as far as a pool of `pool` frames allows.
    /// Returns their number.
    pub(crate) fn pin(&mut self, o: &Object, first: u64, last: u64, until_ns: u64, pool: u32) -> u64 {
        if !self.objects.is_known(o) {
            return 0;
        }
        let places = self.places(o, first, last).into_iter();
        let frames = places.filter_map(|(_, place)| self.pages.index.get(place).frame());
        frames.filter(|&frame| self.pins.add(frame, until_ns, pool)).count() as u64
    }

    // ---- eviction -------------------------------------------------------------------------------------

    /// Frees a mapped frame after the caller has withdrawn its page.
    pub(crate) fn free_mapped(&mut self, frame: u32) {
        self.sampler.exit(frame);
        self.ahead.remove(frame);
        self.pins.remove(frame);
        self.pages.clear_rmap(frame);
        self.frames.free(frame);
    }
    /// Drops a resident page, dirty or not, without a shadow.
    fn drop_page(&mut self, o: &Object, page: u64, place: Place, frame: u32) {
        self.end_copy(o, page, frame);
        self.dirty.clean(self.pages.flags(frame), o, page);
        self.lru.policy.remove(frame);
        self.release(place, frame, 0);
    }
    /// Drops all pages `[first, last]` of an object. Absent entries there get new versions: a thread with
    /// older data of the source cannot publish it.
    pub(crate) fn drop_pages(&mut self, o: &Object, first: u64, last: u64) {
        self.end_parked(o, first, last);
        for (page, place) in self.places(o, first, last) {
            match self.pages.index.get(place).frame() {
                Some(frame) => self.drop_page(o, page, place, frame),
                None => self.drop_below(place),
            }
        }
        self.pages.note_change(o);
    }
    /// Withdraws the pages `[first, last]` of an object, and reads those in memory anew. `read` gets adjacent pages:
    /// the first one, and their frames. Pages are dropped if it returns false, or if a compressed page gets no
    /// free frame.
    pub(crate) fn reread_pages(
        &mut self,
        o: &Object,
        first: u64,
        last: u64,
        read: impl Fn(u64, &[u32]) -> bool,
    ) {
        self.end_parked(o, first, last);
        let mut withdrawn = Vec::new();
        for (page, place) in self.places(o, first, last) {
            let entry = self.pages.index.get(place);
            if let Some(frame) = entry.frame() {
                self.end_copy(o, page, frame);
                let clock = self.pages.index.tick();
                withdraw(self.pages.index.entry(place), Entry::busy(frame, clock));
                withdrawn.push((page, place, frame, true));
                continue;
            }
            self.drop_below(place);
            // An eviction could take a frame of above.
            if entry.below().is_some() && self.frames.free_count() > 0 {
                withdrawn.extend(self.claim().map(|frame| (page, place, frame, false)));
            }
        }
        self.pages.note_change(o);
        for run in withdrawn.chunk_by(|a, b| a.0 + 1 == b.0) {
            let frames: Vec<u32> = run.iter().map(|&(_, _, frame, _)| frame).collect();
            let is_read = read(run[0].0, &frames);
            for &(page, place, frame, is_mapped) in run {
                match (is_read, is_mapped) {
                    (true, true) => self.pages.publish_present(place, frame),
                    (true, false) => _ = self.insert(place, frame, InsertReason::Write),
                    (false, true) => self.drop_page(o, page, place, frame),
                    (false, false) => self.unclaim(frame),
                }
            }
        }
    }
    /// Pages of an object with an entry, and the places of their entries.
    fn places(&self, o: &Object, first: u64, last: u64) -> Vec<(u64, Place)> {
        let mut places = Vec::new();
        self.pages.index.for_range(o.slot_index(), first, last, |page, place| places.push((page, place)));
        places
    }
    /// Drops a page that is not in a frame, and gives its entry a new version.
    fn drop_below(&mut self, place: Place) {
        self.invalidate(place);
        let clock = self.pages.index.tick();
        publish(self.pages.index.entry(place), Entry::absent(0, clock));
    }
    /// Drops all pages behind a new end, and zeroes the rest of the last page.
    pub(crate) fn drop_beyond(&mut self, o: &Object, size: u64) {
        self.drop_pages(o, size.div_ceil(PAGE), u64::MAX);
        if !size.is_multiple_of(PAGE) {
            self.zero_tail(o, size);
        }
    }
    /// Zeroes the part of the last page behind the new end, if the page is resident.
    fn zero_tail(&mut self, o: &Object, size: u64) {
        let Some(place) = self.pages.index.find(o.slot_index(), size / PAGE) else { return };
        self.invalidate(place);
        let e = self.pages.index.get(place);
        let clock = self.pages.index.tick();
        if e.state() != EntryState::Present {
            publish(self.pages.index.entry(place), Entry::absent(e.shadow(), clock));
            return;
        }
        withdraw(self.pages.index.entry(place), Entry::busy(e.payload(), clock));
        self.end_copy(o, size / PAGE, e.payload());
        let at = (size % PAGE) as usize;
        // SAFETY: the entry is Busy; the range lies inside the frame.
        unsafe { self.handles.segment.frame(e.payload()).add(at).write_bytes(0, PAGE_SIZE - at) };
        self.pages.publish_present(place, e.payload());
    }

    // ---- compressed pages -----------------------------------------------------------------------------

    /// Decides whether a victim is compressed. Until then it stays in the policy's lists.
    fn should_compress(&mut self, v: &Victim, place: Place) -> Option<CompressCandidate> {
        let page = self.compress_candidate(v.slot, place, v.shadow)?;
        self.lru.policy.restore(v.slot);
        Some(page)
    }
    /// Decides whether a page, listed or a victim, is compressed. Until then it is marked as leaving.
    fn compress_candidate(
        &mut self,
        frame: u32,
        place: Place,
        shadow: Option<Shadow>,
    ) -> Option<CompressCandidate> {
        let flags = self.pages.flags(frame);
        let (slot, _) = self.pages.index.owner_of(place);
        let object = self.objects.in_slot(slot).map(|o| &**o);
        let reused = flags.load(Ordering::Relaxed) & REUSED != 0;
        let (filling, beyond_lz4) = self.compressed.as_mut()?.admits(object, reused)?;
        flags.fetch_or(LEAVING, Ordering::Relaxed);
        let entry = self.pages.index.get(place);
        Some(CompressCandidate { place, frame, entry, shadow, filling, beyond_lz4 })
    }

    /// Ends a compression: frees the frame of the page, whether it was compressed or refused. False: the page
    /// is in other use by now.
    pub(crate) fn finish_store(
        &mut self,
        page: &CompressCandidate,
        coded: Result<Coded<'_>, Refusal>,
    ) -> bool {
        let CompressCandidate { place, frame, entry, shadow, .. } = *page;
        let flags = self.pages.flags(frame).fetch_and(!LEAVING, Ordering::Relaxed);
        let now = self.pages.index.get(place);
        let raced = now != entry || flags & UNSYNCED != 0 || !self.lru.policy.contains(frame);
        let (slot, _) = self.pages.index.owner_of(place);
        let compressed = self.compressed.as_mut().expect("pages leave for it");
        if raced {
            compressed.note_race(now);
            return false;
        }
        compressed.note_result(page, self.objects.in_slot(slot).map(|o| &**o), &coded);
        self.lru.policy.remove(frame);
        let stored = coded.ok().and_then(|coded| {
            let pool = |state: &mut State| state.compressed.as_mut()?.pool.store(coded, place);
            pool(self).or_else(|| {
                self.shrink_compressed(SHRINK_BATCH);
                pool(self)
            })
        });
        match stored {
            Some(handle) => {
                let clock = self.pages.index.tick();
                replace(self.pages.index.entry(place), Entry::compressed(handle, clock));
                self.keep_copy_below(place, frame);
                self.free_mapped(frame);
            }
            None if self.return_to_copy(place, frame) => {}
            None => self.release(place, frame, self.shadow_of(shadow)),
        }
        self.counts.pgsteal += 1;
        true
    }

    /// Drops up to `want` compressed pages, oldest first, and compacts the pool. Returns their number.
    pub(crate) fn shrink_compressed(&mut self, want: usize) -> usize {
        let State { compressed: Some(compressed), pages, targets, .. } = self else { return 0 };
        let mut coldest = Vec::new();
        compressed.pool.coldest(want, &mut coldest);
        for &(handle, place) in &coldest {
            match targets.as_mut().and_then(|targets| targets.take_copy_below(place)) {
                Some(slot) => pages.publish_on_device(place, slot),
                None => pages.make_absent(place, WAS_HERE),
            }
            compressed.pool.evict(handle);
        }
        compressed.compact(&pages.index);
        coldest.len()
    }

    /// First phase of a promotion: claims a frame for the compressed page at `place`. The caller decompresses
    /// it into the frame without the lock, and in any case calls [`State::finish_promotion`].
    pub(crate) fn begin_promotion(&mut self, place: Place) -> Result<Promotion, NotPromoted> {
        if self.pages.index.get(place).handle().is_none() {
            return Err(NotPromoted::Gone);
        }
        let Some(frame) = self.claim() else { return Err(NotPromoted::NoFrame) };
        // The claim may have dropped this page from the compressed pool.
        let seen = self.pages.index.get(place);
        if seen.handle().is_none() {
            self.unclaim(frame);
            return Err(NotPromoted::Gone);
        }
        Ok(Promotion { place, frame, seen })
    }

    /// Second phase: publishes the frame, which holds the page's content if `intact`. No promotion if the
    /// entry has changed meanwhile, or the page is damaged.
    pub(crate) fn finish_promotion(
        &mut self,
        promotion: &Promotion,
        intact: bool,
    ) -> Result<(), NotPromoted> {
        let Promotion { place, frame, seen } = *promotion;
        let handle = seen.handle().expect("only a compressed page is promoted");
        if self.pages.index.get(place) != seen {
            self.unclaim(frame);
            return Err(NotPromoted::Gone);
        }
        if !intact {
            tracing::error!("a compressed page is damaged; it is read from the source again");
            self.unclaim(frame);
            self.invalidate(place);
            return Err(NotPromoted::Gone);
        }
        self.remap(place, frame);
        self.pages.publish_present(place, frame);
        self.take_copy_up(place, frame);
        self.compressed.as_mut().expect("an entry names its pool").note_promotion(handle);
        // A page read this often below DRAM belongs in DRAM.
        let shadow = self.lru.policy.shadow();
        self.lru_insert(frame, shadow, InsertReason::Read, true);
        self.pages.flags(frame).store(REUSED, Ordering::Relaxed);
        Ok(())
    }
}
