//! All targets of the tiers on devices: which of them has a slot, which pages have copies there, which target a page that leaves memory goes to.
//!
//! ```text
//!   a page leaves memory ──► tier 0, if that takes it; else tier 1, ...     (`Targets::admits`)
//!   a batch for a tier   ──► shares of its targets                          (`Targets::place`: the placement engine)
//!   a region goes        ──► what was hit there goes to the next tier       (`reclaim/organize.rs`)
//!   a page is read twice below tier 0 ──► tier 0, when it leaves memory     (`Targets::rises`)
//! ```
//! Each target is a log of its own ([`Device`]): what one of them holds, forgets or loses concerns no other. A page has one slot over all of
//! them at a time. Two may hold keys of one page after a crash; both are right, and the second one that is named is buried
//! (`state/slots.rs::name_slot`).

use super::device::{Device, note_mean};
use crate::device::Record;
use crate::file::object::ObjectId;
use crate::rings::ReadTotals;
use crate::table::{Map, trim};
use terrace_policy::device::cost::ReadCost;
use terrace_policy::device::log::REINSERT_AT;
use terrace_policy::placement::{CUT, Placement, Share, Target};
use terrace_shm::device_table::TARGETS_MAX;
use terrace_shm::index::Place;
use terrace_shm::{Below, DeviceSlot, Entry, PAGE_SIZE};

/// The targets.
#[derive(Debug)]
pub(crate) struct Targets {
    /// The fastest tier first.
    pub all: Vec<Device>,
    /// Slot + 1 of the copy of each frame's page; 0: none.
    copies: Vec<u32>,
    /// Slots of the copies of compressed pages, by place.
    copies_below: Map<u32, DeviceSlot>,
    /// The engine of each tier, the fastest first.
    placement: Vec<Box<dyn Placement>>,
    /// When the last batch of pages left memory.
    batch_at: Option<u64>,
    source_cost: ReadCost,
    /// Pages that clients have read from the source, in how many reads, and how long that took, ns.
    clients_read: (u64, u64, u64),
    /// Pages that came from DRAM to targets that were removed.
    pub demoted_to_removed: u64,
}

/// Those of all targets, by number.
pub(crate) type Speeds = [Speed; TARGETS_MAX];

/// A target as the placement engine sees it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Speed {
    /// Bytes that it has to write before.
    pub queued: u64,
    /// Bytes a second.
    pub write: f64,
}

/// Targets: life and sums.
impl Targets {
    /// The targets of an engine with so many frames, before what they hold is known. `placement`: an engine for each tier.
    pub(crate) fn new(all: Vec<Device>, frames_max: usize, placement: Vec<Box<dyn Placement>>) -> Targets {
        debug_assert!(all.iter().all(|device| usize::from(device.config.level) < placement.len()));
        Targets {
            all,
            copies: vec![0; frames_max],
            copies_below: Map::default(),
            placement,
            batch_at: None,
            source_cost: ReadCost::default(),
            clients_read: (0, 0, 0),
            demoted_to_removed: 0,
        }
    }
    /// A target goes, and its counts with it.
    pub(crate) fn remove(&mut self, number: usize) {
        if let Some(device) = self.at(number) {
            let counts = device.counts(0);
            self.demoted_to_removed += counts.demoted.saturating_sub(counts.moved_down);
        }
        self.all.retain(|device| device.config.number != number);
    }
    /// The target of this number, if there is one.
    pub(crate) fn at(&self, number: usize) -> Option<&Device> {
        self.all.iter().find(|device| device.config.number == number)
    }
    /// [`Targets::at`].
    pub(crate) fn at_mut(&mut self, number: usize) -> Option<&mut Device> {
        self.all.iter_mut().find(|device| device.config.number == number)
    }
    /// One more, or none. `engine` makes the placement engine of a tier; `levels`: the tier of each target from now on, by number.
    pub(crate) fn change(
        &mut self,
        more: Option<Device>,
        levels: &[(usize, u8)],
        engine: impl Fn(u8) -> Box<dyn Placement>,
    ) {
        self.all.extend(more);
        for (number, level) in levels {
            if let Some(device) = self.at_mut(*number) {
                device.config.level = *level;
            }
        }
        self.all.sort_by_key(|device| (device.config.level, device.config.number));
        let lowest = self.all.iter().map(|device| device.config.level).max();
        let needed = lowest.map_or(0, |lowest| lowest + 1);
        // Engines of tiers that are no more stay: pages may be on their way there.
        (self.placement.len() as u8..needed).for_each(|level| self.placement.push(engine(level)));
    }
    /// The numbers of those of a tier.
    pub(crate) fn of_level(&self, level: u8) -> Vec<usize> {
        let of_tier = self.all.iter().filter(|device| device.config.level == level);
        of_tier.map(|device| device.config.number).collect()
    }
    /// Pages of earlier runs that only they have.
    pub(crate) fn pages_left(&self) -> u64 {
        self.all.iter().map(|device| device.owed.pages_left()).sum()
    }
    /// Bytes of all of them.
    pub(crate) fn devices_bytes(&self) -> u64 {
        self.all.iter().map(|device| device.config.bytes).sum()
    }
    /// The target that has a slot.
    pub(crate) fn of(&self, slot: DeviceSlot) -> Option<&Device> {
        self.all.iter().find(|device| device.has(slot))
    }
    /// [`Targets::of`].
    pub(crate) fn of_mut(&mut self, slot: DeviceSlot) -> Option<&mut Device> {
        self.all.iter_mut().find(|device| device.has(slot))
    }
    /// Memory for the tiers beside the index, bytes: that of their pages, and copies of the frames in use and of compressed pages.
    pub(crate) fn bytes(&self, frames_populated: u32) -> u64 {
        let copies = frames_populated as usize * 4 + self.copies_below.capacity() * 9;
        self.all.iter().map(Device::bytes_of_pages).sum::<u64>() + copies as u64
    }
    /// Sums of the reads of clients: what is new counts for the costs.
    pub(crate) fn note_client_reads(&mut self, totals: &ReadTotals) {
        for device in &mut self.all {
            let number = device.config.number;
            device.note_client_reads(totals.device_hits[number], totals.device_read_ns[number]);
        }
        let now = (totals.misses, totals.reads, totals.read_ns);
        let before = std::mem::replace(&mut self.clients_read, now);
        let new = |now: u64, before: u64| now.saturating_sub(before);
        let (pages, reads, ns) = (new(now.0, before.0), new(now.1, before.1), new(now.2, before.2));
        note_mean(&mut self.source_cost, pages, reads, ns);
    }
    /// The source was read; `known`: most of the pages had been in memory before.
    pub(crate) fn note_source_read(&mut self, pages: u64, ns: u64, known: bool) {
        self.source_cost.note(pages, ns, known);
    }
}

/// Targets: where pages go that leave memory.
impl Targets {
    /// The tier that a page that leaves memory is to be written to before, if any; `reused`: it was used again there, or came back. `now_ns`: the time of
    /// its batch. Those that are admitted have to be placed ([`Targets::place`]).
    pub(crate) fn admits(&mut self, reused: bool, now_ns: u64) -> Option<u8> {
        self.begin_batch(now_ns);
        (0..self.placement.len() as u8).find(|level| self.admits_to(*level, reused))
    }
    /// Likewise of a page that is to go to a tier.
    pub(crate) fn admits_to(&mut self, level: u8, reused: bool) -> bool {
        let mut of_tier = self.all.iter_mut().filter(|device| device.config.level == level);
        of_tier.any(|device| device.admits(reused))
    }
    /// Pages leave memory, or a tier, at this time.
    pub(crate) fn begin_batch(&mut self, now_ns: u64) {
        if self.batch_at == Some(now_ns) {
            return;
        }
        let before = self.batch_at.replace(now_ns).unwrap_or(now_ns);
        let passed = now_ns.saturating_sub(before);
        self.all.iter_mut().for_each(|device| device.begin_batch(passed, &self.source_cost));
    }
    /// Shares out pages that were admitted to a tier: the lengths in pages of their pieces, and how fast each target is. The caller writes them there. What has
    /// no share stays where it is.
    pub(crate) fn place(&mut self, level: u8, pieces: &[u64], speeds: &Speeds) -> Vec<Share> {
        let of_tier = self.all.iter_mut().filter(|device| device.config.level == level);
        let allowed: Vec<(usize, u64)> =
            of_tier.filter_map(|device| Some((device.config.number, device.take_pending()?))).collect();
        let shares = self.share_out(level, pieces, &allowed, speeds);
        for share in &shares {
            if let Some(device) = self.at_mut(share.target) {
                device.spend((share.bytes / CUT) as u32);
            }
        }
        shares
    }
    /// Likewise of pages that are kept at the end of an instance: targets that were never full come first, and with `room_only` no others take any.
    pub(crate) fn place_last(
        &mut self,
        level: u8,
        pieces: &[u64],
        speeds: &Speeds,
        room_only: bool,
    ) -> Vec<Share> {
        let is_meant = |device: &Device| {
            let full = device.log.has_been_full();
            device.config.level == level && device.is_serving() && !(room_only && full)
        };
        let of_tier = self.all.iter().filter(|device| is_meant(device));
        let allowed: Vec<(usize, u64)> = of_tier.map(|device| (device.config.number, u64::MAX)).collect();
        self.share_out(level, pieces, &allowed, speeds)
    }
    /// Asks the engine of the tier. `allowed`: pages that each of these targets may take.
    fn share_out(
        &mut self,
        level: u8,
        pieces: &[u64],
        allowed: &[(usize, u64)],
        speeds: &Speeds,
    ) -> Vec<Share> {
        // Room that was never filled is filled first. Logs without any go on for ever.
        let room = |number: usize| self.at(number).map_or(0, |device| device.log.never_filled());
        let pages: u64 = pieces.iter().sum();
        let has_room = allowed.iter().map(|(number, _)| room(*number)).sum::<u64>() >= pages;
        let fastest = allowed.iter().map(|(number, _)| speeds[*number].write).fold(0.0, f64::max);
        let target = |&(number, most): &(usize, u64)| {
            let free = if has_room { room(number) } else { u64::from(u32::MAX) };
            Target {
                free: free.min(most) * PAGE_SIZE as u64,
                queued: speeds[number].queued,
                // A target whose writes were held up has to get some, or it would never be seen to be fast again.
                write: speeds[number].write.max(fastest / SLOWER_MAX),
            }
        };
        let targets: Vec<Target> = allowed.iter().map(target).collect();
        let bytes: Vec<u64> = pieces.iter().map(|pages| pages * PAGE_SIZE as u64).collect();
        let mut shares = Vec::new();
        if let Some(engine) = self.placement.get_mut(usize::from(level)).filter(|_| !targets.is_empty()) {
            engine.place(&bytes, &targets, &mut shares);
        }
        shares.iter_mut().for_each(|share| share.target = allowed[share.target].0);
        shares
    }
    /// Tiers.
    pub(crate) fn levels(&self) -> u8 {
        self.placement.len() as u8
    }
    /// Whether pages are written to any of them.
    pub(crate) fn is_on(&self) -> bool {
        self.all.iter().any(Device::is_on)
    }
    /// Whether a page with this copy is worth a write to the fastest tier when it leaves memory: it was read below that often enough.
    pub(crate) fn rises(&self, copy: DeviceSlot) -> bool {
        self.of(copy).is_some_and(|device| device.config.level > 0 && device.hits_of(copy) >= REINSERT_AT)
    }
}

/// The slowest target of a tier counts as so much slower than the fastest.
const SLOWER_MAX: f64 = 64.0;

/// Targets: slots and copies.
impl Targets {
    /// A page was read from its slot. Whether it counts as a recent refault.
    pub(crate) fn note_hit(&mut self, slot: DeviceSlot) -> bool {
        let source = self.source_cost;
        self.of_mut(slot).is_some_and(|device| device.note_hit(slot, &source))
    }
    /// Pages of a target were read.
    pub(crate) fn note_read(&mut self, number: usize, pages: u64, ns: u64) {
        if let Some(device) = self.at_mut(number) {
            device.note_read(pages, ns);
        }
    }
    /// Nothing names the slot any more.
    pub(crate) fn kill(&mut self, slot: DeviceSlot) {
        if let Some(device) = self.of_mut(slot) {
            device.kill(slot);
        }
    }
    /// Nothing names the slot any more, and what it holds is the content of this page no longer.
    pub(crate) fn end(&mut self, slot: DeviceSlot, object: ObjectId, page: u64) {
        if let Some(device) = self.of_mut(slot) {
            device.kill(slot);
            device.bury(object, page, page);
        }
    }
    /// A page was written to a slot, and nothing names it.
    pub(crate) fn bury(&mut self, slot: DeviceSlot, object: ObjectId, page: u64) {
        if let Some(device) = self.of_mut(slot) {
            device.bury(object, page, page);
        }
    }
    /// A page comes to a slot, which its entry is about to name. False: its target is gone.
    pub(crate) fn arrive(&mut self, slot: DeviceSlot, crc: u32, object: ObjectId) -> bool {
        let Some(device) = self.of_mut(slot) else { return false };
        device.fill(slot, crc);
        device.note_page_of(object);
        device.events.demoted += 1;
        true
    }
    /// A page went from this slot to another target.
    pub(crate) fn note_moved(&mut self, from: DeviceSlot) {
        if let Some(device) = self.of_mut(from) {
            device.events.moved_down += 1;
        }
    }
    /// A parked page was written to a slot of another target: it is parked there from now on. False: that target knows the file by another identity.
    pub(crate) fn repark(
        &mut self,
        from: DeviceSlot,
        to: DeviceSlot,
        crc: u32,
        object: ObjectId,
        page: u64,
    ) -> bool {
        let digest = self.of(from).and_then(|device| device.parked.get(&object)?.digest);
        let Some(digest) = digest else { return false };
        if !self.of_mut(to).is_some_and(|device| device.park_one(object, digest, page, to)) {
            return false;
        }
        self.arrive(to, crc, object);
        if let Some(device) = self.of_mut(from) {
            device.forget_parked(object, page);
        }
        self.end(from, object, page);
        self.note_moved(from);
        true
    }
    /// The pages `[first, last]` of a file change: what is parked of them goes. What a target holds that is being scanned is not known yet: whatever it is.
    pub(crate) fn end_parked(&mut self, object: ObjectId, first: u64, last: u64) {
        for device in &mut self.all {
            device.unpark(object, first, last);
            if device.is_scanning() {
                device.bury(object, first, last);
            }
        }
    }
    /// The slot that holds a copy of the page in a frame.
    pub(crate) fn copy_of(&self, frame: u32) -> Option<DeviceSlot> {
        self.copies[frame as usize].checked_sub(1).map(DeviceSlot::from_bits)
    }
    pub(crate) fn set_copy(&mut self, frame: u32, slot: DeviceSlot) {
        self.copies[frame as usize] = slot.bits() + 1;
    }
    /// The frame's page has no copy any more; the slot that it had.
    pub(crate) fn take_copy(&mut self, frame: u32) -> Option<DeviceSlot> {
        let slot = self.copy_of(frame);
        self.copies[frame as usize] = 0;
        slot
    }

    /// The slot that holds a copy of the compressed page at `place`.
    pub(crate) fn copy_below(&self, place: Place) -> Option<DeviceSlot> {
        self.copies_below.get(&place.0).copied()
    }
    pub(crate) fn set_copy_below(&mut self, place: Place, slot: DeviceSlot) {
        self.copies_below.insert(place.0, slot);
    }
    pub(crate) fn take_copy_below(&mut self, place: Place) -> Option<DeviceSlot> {
        let slot = self.copies_below.remove(&place.0);
        trim(&mut self.copies_below);
        slot
    }

    /// The slot that holds the page of an entry: alone, or as a copy.
    pub(crate) fn slot_of(&self, place: Place, entry: Entry) -> Option<DeviceSlot> {
        match (entry.frame(), entry.below()) {
            (Some(frame), _) => self.copy_of(frame),
            (_, Some(Below::Device(slot))) => Some(slot),
            (_, Some(Below::Compressed(_))) => self.copy_below(place),
            (None, None) => None,
        }
    }

    /// The slot of a parked page, if it is this one.
    pub(crate) fn is_parked_at(&self, slot: DeviceSlot, object: ObjectId, page: u64) -> bool {
        self.of(slot).is_some_and(|device| device.parked_at(object, page) == Some(slot))
    }
    /// A region goes, and with it the identities that it recorded: they are to be recorded again.
    pub(crate) fn forget_records(&mut self, number: usize, records: impl Iterator<Item = Record>) {
        let Some(device) = self.at_mut(number) else { return };
        for record in records {
            if let Record::File { object, digest } = record
                && device.recorded.get(&object) == Some(&digest)
            {
                device.recorded.remove(&object);
                device.unrecorded.insert(object);
            }
        }
    }
}
