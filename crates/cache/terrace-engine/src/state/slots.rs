//! Index and slots of devices: operations of [`State`] on both.

use crate::file::object::{Object, ObjectId, ObjectRef};
use crate::segment::flag::{LEAVING, REUSED, UNSYNCED};
use crate::state::compressed::{WAS_HERE, WAS_READ};
use crate::state::device::{DemoteCandidate, Device, Parked, Restored};
use crate::state::{Leaving, State};
use std::sync::atomic::Ordering;
use terrace_policy::device::log::{REINSERT_AT, REMEMBER_AT};
use terrace_policy::prefetch::Span;
use terrace_policy::{AccessCounts, InsertReason, Victim};
use terrace_shm::index::Place;
use terrace_shm::{Below, DeviceSlot, Entry, State as EntryState};

impl State {
    /// [`State::insert`] of a page that was read from its slot. The slot stays as a copy.
    pub(super) fn insert_from_device(
        &mut self,
        place: Place,
        frame: u32,
        slot: DeviceSlot,
        reason: InsertReason,
    ) -> bool {
        self.remap(place, frame);
        self.pages.publish_present(place, frame);
        let targets = self.targets.as_mut().expect("an entry names its tier");
        targets.set_copy(frame, slot);
        if let Some(device) = targets.of_mut(slot) {
            device.events.promoted += 1;
        }
        let came_back = targets.note_hit(slot);
        let shadow = self.lru.policy.shadow().filter(|_| came_back);
        let refault = self.lru_add(frame, shadow.map_or(WAS_HERE, |shadow| shadow.0.get()), reason);
        // If its region is reclaimed now, the page is worth another write later.
        self.pages.flags(frame).fetch_or(REUSED, Ordering::Relaxed);
        refault
    }

    /// Replaces the frame of a clean page, which the policy does not list, by the slot with its copy. False:
    /// there is no copy.
    pub(super) fn return_to_copy(&mut self, place: Place, frame: u32) -> bool {
        let Some(slot) = self.targets.as_mut().and_then(|targets| targets.take_copy(frame)) else {
            return false;
        };
        self.pages.publish_on_device(place, slot);
        self.free_mapped(frame);
        true
    }
    /// Keeps the copy of a page at `place` that moves from `frame` to the compressed pool.
    pub(super) fn keep_copy_below(&mut self, place: Place, frame: u32) {
        if let Some(targets) = &mut self.targets
            && let Some(slot) = targets.take_copy(frame)
        {
            targets.set_copy_below(place, slot);
        }
    }
    /// Keeps the copy of a compressed page at `place` that moves to `frame`.
    pub(super) fn take_copy_up(&mut self, place: Place, frame: u32) {
        if let Some(targets) = &mut self.targets
            && let Some(slot) = targets.take_copy_below(place)
        {
            targets.set_copy(frame, slot);
        }
    }

    /// Invalidates the copy of a page before its content in `frame` changes.
    pub(super) fn end_copy(&mut self, o: &Object, page: u64, frame: u32) {
        let Some(targets) = &mut self.targets else { return };
        targets.end_parked(o.id(), page, page);
        if let Some(slot) = targets.take_copy(frame) {
            targets.end(slot, o.id(), page);
        }
    }
    /// [`State::end_copy`] of a compressed page.
    pub(super) fn end_copy_below(&mut self, place: Place) {
        if let Some(slot) = self.targets.as_mut().and_then(|targets| targets.take_copy_below(place)) {
            self.end_slot(place, slot);
        }
    }
    /// Invalidates the slot of the page at `place`, which no entry names any more.
    pub(super) fn end_slot(&mut self, place: Place, slot: DeviceSlot) {
        let (object, page) = self.pages.index.owner_of(place);
        let id = self.objects.in_slot(object).map(|o| o.id());
        let Some(targets) = &mut self.targets else { return };
        match id {
            Some(id) => targets.end(slot, id, page),
            None => targets.kill(slot),
        }
    }
    /// Drops the page at `place` if it is below DRAM.
    pub(crate) fn invalidate(&mut self, place: Place) {
        let Some(below) = self.pages.index.get(place).below() else { return };
        self.pages.make_absent(place, 0);
        match below {
            Below::Compressed(handle) => {
                self.compressed.as_mut().expect("an entry names its pool").pool.remove(handle);
                self.end_copy_below(place);
            }
            Below::Device(slot) => self.end_slot(place, slot),
        }
    }
    /// [`State::invalidate`] by page.
    pub(crate) fn invalidate_page(&mut self, o: &Object, page: u64) {
        if let Some(place) = self.pages.index.find(o.slot_index(), page).filter(|_| self.objects.is_known(o))
        {
            self.invalidate(place);
        }
    }
    /// Drops a page's slot that is unreadable, or holds other content.
    pub(crate) fn lose_slot(&mut self, o: &Object, page: u64) {
        let below =
            self.pages.index.find(o.slot_index(), page).map(|place| self.pages.index.get(place).below());
        if let Some(Some(Below::Device(slot))) = below
            && let Some(device) = self.targets.as_mut().and_then(|targets| targets.of_mut(slot))
        {
            device.events.damaged += 1;
        }
        self.invalidate_page(o, page);
    }
    /// Drops the parked pages `[first, last]` of a changed object. During a device's scan this covers
    /// anything that it may hold.
    pub(super) fn end_parked(&mut self, o: &Object, first: u64, last: u64) {
        if let Some(targets) = &mut self.targets {
            targets.end_parked(o.id(), first, last);
        }
    }
}

impl State {
    /// Decides whether a victim is first written to a device. Until then it stays in the policy's lists.
    pub(super) fn should_demote(&mut self, v: &Victim, place: Place, now_ns: u64) -> Option<DemoteCandidate> {
        let reused = self.pages.flags(v.slot).load(Ordering::Relaxed) & REUSED != 0;
        let targets = self.targets.as_mut()?;
        // The refusal comes first: it is cheap, and hits nearly all pages of a sequential scan.
        let level = match targets.copy_of(v.slot) {
            None => targets.admits(reused, now_ns)?,
            Some(copy) if targets.rises(copy) => {
                targets.begin_batch(now_ns);
                targets.admits_to(0, true).then_some(0)?
            }
            Some(_) => return None,
        };
        let page = DemoteCandidate { shadow: v.shadow, level, ..self.candidate(v.slot, place)? };
        self.lru.policy.restore(v.slot);
        self.pages.flags(v.slot).fetch_or(LEAVING, Ordering::Relaxed);
        Some(page)
    }
    /// A page in a frame that may go to a device.
    fn candidate(&self, frame: u32, place: Place) -> Option<DemoteCandidate> {
        let (slot, page) = self.pages.index.owner_of(place);
        let object = self.objects.in_slot(slot)?.id();
        let entry = self.pages.index.get(place);
        // Slots of unpublished files have 32-bit page indexes.
        let named = u32::try_from(page).is_ok();
        named.then_some(DemoteCandidate { place, frame, entry, object, page, level: 0, shadow: None })
    }
    /// Frees the frame of a page after its copy was written, unless the frame is in other use by now.
    fn leave_with_copy(&mut self, page: &DemoteCandidate, leaving: &mut Leaving) {
        let DemoteCandidate { place, frame, shadow, .. } = *page;
        self.stay(page);
        if !self.lru.policy.contains(frame) {
            return;
        }
        let compresses = leaving.compresses;
        match compresses.then(|| self.compress_candidate(frame, place, shadow)).flatten() {
            Some(candidate) => leaving.to_compressed.push(candidate),
            None => {
                self.lru.policy.remove(frame);
                self.return_to_copy(place, frame);
                self.counts.pgsteal += 1;
            }
        }
    }
    /// Cancels the demotion of a page: it may be evicted again.
    pub(crate) fn stay(&self, page: &DemoteCandidate) {
        self.pages.flags(page.frame).fetch_and(!LEAVING, Ordering::Relaxed);
    }
    /// Whether the page is unchanged since its demotion began.
    pub(crate) fn is_still(&self, page: &DemoteCandidate) -> bool {
        let flags = self.pages.flags(page.frame).load(Ordering::Relaxed);
        self.pages.index.get(page.place) == page.entry && flags & UNSYNCED == 0
    }
    /// Ends a demotion to `slot`. An unchanged page gets the slot as its copy. Then it leaves its frame, or
    /// joins the pages to be compressed.
    pub(crate) fn finish_demotion(
        &mut self,
        page: &DemoteCandidate,
        slot: DeviceSlot,
        crc: u32,
        leaving: &mut Leaving,
    ) {
        if self.keep_copy(page, slot, crc) {
            self.leave_with_copy(page, leaving);
        } else {
            self.stay(page);
        }
    }
}

/// Identities, scans and staging of files.
impl State {
    pub(crate) fn target_mut(&mut self, number: usize) -> Option<&mut Device> {
        self.targets.as_mut()?.at_mut(number)
    }
    /// Memory for the device tiers beside the index, bytes.
    pub(crate) fn device_bytes(&self) -> u64 {
        self.targets.as_ref().map_or(0, |targets| targets.bytes(self.frames.populated()))
    }
    /// Clean pages without a copy in frames from `next` on, used more than once or not: at most `most`. Moves
    /// `next` behind them.
    pub(crate) fn unwritten(&self, next: &mut u32, most: usize, reused: bool) -> Vec<DemoteCandidate> {
        let mut found = Vec::new();
        while *next < self.frames.populated() && found.len() < most {
            found.extend(self.clean_page(*next, reused));
            *next += 1;
        }
        found
    }
    /// Clean pages of a span to be staged down: used at most once, without a copy, and not pinned. They are
    /// marked as leaving until they are written.
    pub(crate) fn begin_stage_down(&self, o: &Object, span: Span) -> Vec<DemoteCandidate> {
        let mut frames = Vec::new();
        self.for_span(o, span, |_, entry| frames.extend(entry.frame()));
        let is_free = |frame: &u32| {
            let flags = self.pages.flags(*frame).load(Ordering::Relaxed);
            flags & LEAVING == 0 && self.lru.policy.contains(*frame) && !self.pins.is_pinned(*frame)
        };
        let pages = frames.into_iter().filter(is_free).filter_map(|frame| self.clean_page(frame, false));
        let pages: Vec<DemoteCandidate> = pages.collect();
        pages.iter().for_each(|page| {
            self.pages.flags(page.frame).fetch_or(LEAVING, Ordering::Relaxed);
        });
        pages
    }
    /// Number of pages of a span on device tiers, also as copies of resident pages.
    pub(crate) fn on_devices(&self, o: &Object, span: Span) -> u64 {
        let Some(targets) = &self.targets else { return 0 };
        let mut pages = 0;
        self.for_span(o, span, |place, entry| pages += u64::from(targets.slot_of(place, entry).is_some()));
        pages
    }
    /// Calls `each` for the entries of a span's pages in the index.
    fn for_span(&self, o: &Object, span: Span, mut each: impl FnMut(Place, Entry)) {
        if self.objects.is_known(o) && span.pages > 0 {
            let (first, last) = (span.first, span.end() - 1);
            self.pages.index.for_range(o.slot_index(), first, last, |_, place| {
                each(place, self.pages.index.get(place));
            });
        }
    }
    fn clean_page(&self, frame: u32, reused: bool) -> Option<DemoteCandidate> {
        let page = self.candidate(frame, self.pages.place_of(frame)?)?;
        if self.targets.as_ref()?.copy_of(frame).is_some() {
            return None;
        }
        let flags = self.pages.flags(frame).load(Ordering::Relaxed);
        let used_again = flags & REUSED != 0 || self.lru.touches().peek(frame) > 1;
        let clean = page.entry.state() == EntryState::Present && flags & UNSYNCED == 0;
        (clean && used_again == reused).then_some(page)
    }
    /// Makes `slot`, to which the page was written, its only copy. False: the page has changed meanwhile.
    pub(crate) fn keep_copy(&mut self, page: &DemoteCandidate, slot: DeviceSlot, crc: u32) -> bool {
        let still = self.is_still(page);
        let Some(targets) = &mut self.targets else { return false };
        if still {
            if let Some(before) = targets.take_copy(page.frame) {
                targets.end(before, page.object, page.page);
            }
            targets.set_copy(page.frame, slot);
        }
        let Some(device) = targets.of_mut(slot) else { return false };
        if still {
            device.fill(slot, crc);
            device.note_page_of(page.object);
            device.events.demoted += 1;
        } else {
            device.queue_tombstone(page.object, page.page, page.page);
        }
        still
    }
    /// Makes a page of a published file name a slot with its content.
    pub(crate) fn name_slot(&mut self, o: &Object, page: u64, slot: DeviceSlot) {
        let place = self.pages.index.ensure(o.slot_index(), page);
        let entry = place.map(|place| self.pages.index.get(place));
        let frame = entry.and_then(Entry::frame);
        let compressed = entry.and_then(Entry::handle).is_some();
        let clean = |frame| self.pages.flags(frame).load(Ordering::Relaxed) & UNSYNCED == 0;
        let Some(targets) = &mut self.targets else { return };
        match (place, entry.map(Entry::state), frame) {
            (Some(place), Some(EntryState::Absent), _) => {
                self.pages.publish_on_device(place, slot);
                self.pages.index.count_present(place, 1);
            }
            (_, Some(EntryState::Present), Some(frame))
                if clean(frame) && targets.copy_of(frame).is_none() =>
            {
                targets.set_copy(frame, slot);
            }
            (Some(place), _, _) if compressed && targets.copy_below(place).is_none() => {
                targets.set_copy_below(place, slot);
            }
            // The index has no room, the page is being written, or another slot has it.
            _ => targets.end(slot, o.id(), page),
        }
    }
    /// Removes the slots of all pages of an object, except on targets under scan. Pages without another place
    /// become absent.
    pub(crate) fn take_slots(&mut self, o: &Object) -> Vec<(u32, DeviceSlot)> {
        let mut taken = Vec::new();
        for (page, place) in self.places(o, 0, u64::MAX) {
            let entry = self.pages.index.get(place);
            let Some(targets) = &mut self.targets else { return taken };
            let slot = targets.slot_of(place, entry);
            let Some(slot) = slot.filter(|slot| targets.of(*slot).is_some_and(|of| !of.is_scanning())) else {
                continue;
            };
            match (entry.frame(), entry.below()) {
                (Some(frame), _) => drop(targets.take_copy(frame)),
                (_, Some(Below::Compressed(_))) => drop(targets.take_copy_below(place)),
                _ => self.pages.make_absent(place, 0),
            }
            taken.extend(u32::try_from(page).ok().map(|page| (page, slot)));
        }
        taken
    }
    /// Notes an identity recorded on target `number`, unless the file has changed since event `wrote`.
    pub(crate) fn note_recorded(&mut self, number: usize, id: ObjectId, digest: u64, wrote: u64) {
        let same = match self.objects.get(&id) {
            Some(o) => o.slot().write_clock.load(Ordering::Relaxed) == wrote,
            None => true,
        };
        if let Some(device) =
            self.targets.as_mut().filter(|_| same).and_then(|targets| targets.at_mut(number))
        {
            device.unrecorded.remove(&id);
            device.recorded.insert(id, digest);
        }
    }
    pub(crate) fn install(&mut self, number: usize, restored: Restored) {
        let Some(device) = self.target_mut(number) else { return };
        device.install(restored);
        let objects: Vec<ObjectRef> = self.objects.values().cloned().collect();
        for o in &objects {
            let kept = self.take_over_slots(number, o);
            self.begin_restore_on(number, o, &kept);
        }
        let Some(device) = self.target_mut(number) else { return };
        let unknown = device.parked.iter().filter(|(_, parked)| parked.digest.is_none());
        for id in unknown.map(|(id, _)| *id).collect::<Vec<_>>() {
            device.unpark(id, 0, u64::MAX);
        }
    }
    /// A dead terraced's entries, and pages read from their slots since, keep slots that the scan confirms.
    /// Drops slots of other pages in memory or on other targets, because a tombstone may be lost. Returns the
    /// pages that keep their slots, sorted.
    fn take_over_slots(&mut self, number: usize, o: &Object) -> Vec<u64> {
        let (places, mut kept) = (self.places(o, 0, u64::MAX), Vec::new());
        let Some(device) = self.target_mut(number) else {
            return kept;
        };
        let Parked { digest, pages: found } = device.parked.remove(&o.id()).unwrap_or_default();
        let (mut found, mut rest) = (found.into_iter().peekable(), Vec::new());
        for (page, place) in places {
            rest.extend(std::iter::from_fn(|| found.next_if(|(at, _)| u64::from(*at) < page)));
            let there = found.next_if(|(at, _)| u64::from(*at) == page);
            let entry = self.pages.index.get(place);
            let Some(targets) = &mut self.targets else { return kept };
            let named = targets.slot_of(place, entry);
            let Some(device) = targets.at_mut(number) else { return kept };
            let named = named.filter(|slot| device.has(*slot));
            if named.is_some() && there.map(|(_, slot)| slot) == named {
                kept.push(page);
                continue;
            }
            match there {
                Some(there) if entry.state() == EntryState::Absent => rest.push(there),
                Some((_, slot)) => device.lose_parked(o.id(), page, page, &[slot]),
                None => {}
            }
            match (named, entry.frame(), entry.below()) {
                (None, ..) => {}
                (_, Some(frame), _) => drop(targets.take_copy(frame)),
                (_, _, Some(Below::Device(_))) => self.pages.make_absent(place, 0),
                (_, _, Some(Below::Compressed(_))) => drop(targets.take_copy_below(place)),
                _ => {}
            }
        }
        rest.extend(found);
        if let Some(device) = self.target_mut(number) {
            if !rest.is_empty() {
                device.parked.insert(o.id(), Parked { digest, pages: rest });
            }
            if !kept.is_empty() {
                device.note_page_of(o.id());
            }
        }
        kept
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Named {
    No,
    /// The entry of a page without a frame.
    Entry(Place),
    Frame(u32),
    /// The place of a compressed page with its copy in the slot.
    Compressed(Place),
    /// An unpublished file.
    Parked,
}

/// Reclaim of regions, and moves between slots.
impl State {
    /// Owner of the slot that was written for a page.
    pub(crate) fn names(&self, slot: DeviceSlot, object: ObjectId, page: u64) -> Named {
        let Some(targets) = &self.targets else { return Named::No };
        if targets.is_parked_at(slot, object, page) {
            return Named::Parked;
        }
        let o = self.objects.get(&object);
        let Some(place) = o.and_then(|o| self.pages.index.find(o.slot_index(), page)) else {
            return Named::No;
        };
        let entry = self.pages.index.get(place);
        match entry.frame() {
            _ if targets.slot_of(place, entry) != Some(slot) => Named::No,
            Some(frame) => Named::Frame(frame),
            None if entry.handle().is_some() => Named::Compressed(place),
            None => Named::Entry(place),
        }
    }
    /// Hits of a page's slot, if the page is worth another write when its region is reclaimed. None: too few
    /// reads, or a page in memory, which can be written later.
    pub(crate) fn reinsertion_hits(&self, slot: DeviceSlot, object: ObjectId, page: u64) -> Option<u8> {
        let hits = self.targets.as_ref()?.of(slot)?.hits_of(slot);
        let only_there = || matches!(self.names(slot, object, page), Named::Entry(_) | Named::Parked);
        (hits >= REINSERT_AT && only_there()).then_some(hits)
    }
    /// Moves a page from slot `from` to `to` of the same target, after its content was written there.
    pub(crate) fn move_slot(
        &mut self,
        from: DeviceSlot,
        to: DeviceSlot,
        crc: u32,
        object: ObjectId,
        page: u64,
    ) {
        let named = self.names(from, object, page);
        let Some(device) = self.targets.as_mut().and_then(|targets| targets.of_mut(to)) else { return };
        if named == Named::No {
            device.queue_tombstone(object, page, page);
            return;
        }
        device.fill(to, crc);
        device.events.reinserted += 1;
        device.kill(from);
        if named == Named::Parked {
            device.repark(object, page, to);
        }
        let Some(targets) = &mut self.targets else { return };
        match named {
            Named::Entry(place) => self.pages.publish_on_device(place, to),
            Named::Frame(frame) => targets.set_copy(frame, to),
            Named::Compressed(place) => targets.set_copy_below(place, to),
            Named::Parked | Named::No => {}
        }
    }
    /// Moves a page from slot `from` to `to` of another target, after its content was written there.
    /// `is_same`: it has not changed meanwhile.
    pub(crate) fn move_down(
        &mut self,
        from: DeviceSlot,
        to: DeviceSlot,
        crc: u32,
        (object, page): (ObjectId, u64),
        is_same: bool,
    ) {
        let named = self.names(from, object, page);
        let Some(targets) = &mut self.targets else { return };
        match named {
            Named::Entry(place) if is_same && targets.arrive(to, crc, object) => {
                self.pages.publish_on_device(place, to);
                // The page may change before the reclaim of the region.
                targets.end(from, object, page);
                targets.note_moved(from);
            }
            Named::Parked if is_same && targets.repark(from, to, crc, object, page) => {}
            _ => targets.queue_tombstone(to, object, page),
        }
    }
    /// Whether a slot, filled in this lap of its region, is the page's only place. False for parked pages of
    /// a published file: their restore is due.
    pub(crate) fn is_only_there(&self, slot: DeviceSlot, lap: u64, object: ObjectId, page: u64) -> bool {
        let device = self.targets.as_ref().and_then(|targets| targets.of(slot));
        device.is_some_and(|device| device.lap_of(slot) == lap)
            && match self.names(slot, object, page) {
                Named::Entry(_) => true,
                Named::Parked => self.objects.get(&object).is_none(),
                _ => false,
            }
    }
    /// Drops the slot of a page with its region: no tombstone is needed.
    pub(crate) fn drop_slot(&mut self, slot: DeviceSlot, object: ObjectId, page: u64) {
        let named = self.names(slot, object, page);
        if let Named::Entry(place) = named {
            let of = self.targets.as_ref().and_then(|targets| targets.of(slot));
            let hits = of.map_or(0, |device| device.hits_of(slot));
            self.pages.make_absent(place, if hits >= REMEMBER_AT { WAS_READ } else { WAS_HERE });
        }
        let Some(targets) = &mut self.targets else { return };
        match named {
            Named::No => return,
            Named::Frame(frame) => drop(targets.take_copy(frame)),
            Named::Compressed(place) => drop(targets.take_copy_below(place)),
            Named::Entry(_) | Named::Parked => {}
        }
        let Some(device) = targets.of_mut(slot) else { return };
        device.kill(slot);
        device.events.dropped += u64::from(matches!(named, Named::Entry(_) | Named::Parked));
        if named == Named::Parked {
            device.forget_parked(object, page);
        }
    }
    /// Ends the reclaim of a region after all its keys. Slots still in use show damaged keys: it then
    /// searches the whole index. `region`: index within target `number`.
    pub(crate) fn drop_region(&mut self, number: usize, region: u32) {
        let live = |state: &State| {
            let of = state.targets.as_ref().and_then(|targets| targets.at(number));
            of.map_or(0, |device| device.log.live_in(region))
        };
        if live(self) == 0 {
            return;
        }
        let of = self.targets.as_ref().and_then(|targets| targets.at(number));
        let region_named = of.map_or(0, |device| device.table.first_region() + region);
        self.drop_slots(number, |slot| slot.region() == region_named);
        debug_assert_eq!(live(self), 0, "all that names slots was looked through");
    }
    /// Drops slots of a target, for any owner: the whole index is searched.
    pub(crate) fn drop_slots(&mut self, number: usize, which: impl Fn(DeviceSlot) -> bool) {
        let mut left: Vec<(DeviceSlot, ObjectId, u64)> = Vec::new();
        let Some(targets) = &self.targets else { return };
        let Some(device) = targets.at(number) else { return };
        for o in self.objects.values() {
            self.pages.index.for_range(o.slot_index(), 0, u64::MAX, |page, place| {
                let slot = targets.slot_of(place, self.pages.index.get(place));
                left.extend(slot.map(|slot| (slot, o.id(), page)));
            });
        }
        left.extend(device.all_parked());
        left.retain(|(slot, ..)| device.has(*slot) && which(*slot));
        for (slot, object, page) in left {
            self.drop_slot(slot, object, page);
        }
    }
}
