//! All targets of the device tiers: owners of slots, copies of pages in memory, and targets for pages that
//! leave memory.
//!
//! ```text
//!   a page leaves memory ──► tier 0, if that takes it; else tier 1, ...     (`Targets::admits`)
//!   a batch for a tier   ──► shares of its targets                          (`Targets::place`: the placement engine)
//!   a region goes        ──► pages with hits go to the next tier            (`tier/organize.rs`)
//!   a page is read twice below tier 0 ──► tier 0, when it leaves memory     (`Targets::rises`)
//! ```
//! Each target is a log of its own ([`Device`]), independent of the others. A page has one slot over all
//! targets at a time. After a crash two targets may have keys of one page. Both are right, and the second one
//! gets a tombstone (`state/slots.rs::name_slot`).

use super::device::{Device, note_mean};
use crate::file::object::ObjectId;
use crate::rings::ReadTotals;
use crate::table::{Map, trim};
use terrace_policy::device::cost::ReadCost;
use terrace_policy::device::log::REINSERT_AT;
use terrace_policy::placement::{CUT, Placement, Share, Target};
use terrace_shm::device_table::TARGETS_MAX;
use terrace_shm::index::Place;
use terrace_shm::{Below, DeviceSlot, Entry, PAGE_SIZE};
use terrace_tier::Record;

#[derive(Debug)]
pub(crate) struct Targets {
    /// The fastest tier first.
    pub(crate) all: Vec<Device>,
    /// Slot + 1 of the copy of each frame's page; 0: none.
    copies: Vec<u32>,
    /// Slots of the copies of compressed pages, by place.
    copies_below: Map<u32, DeviceSlot>,
    /// Placement engine of each tier, the fastest first.
    placement: Vec<Box<dyn Placement>>,
    /// Time of the last batch of pages that left memory.
    batch_at: Option<u64>,
    source_cost: ReadCost,
    /// Pages read by clients from the source, number of reads, and their time, ns.
    clients_read: (u64, u64, u64),
    /// Pages that removed targets received from DRAM.
    pub(crate) demoted_to_removed: u64,
}

pub(crate) type Speeds = [Speed; TARGETS_MAX];

/// Speed of a target, for the placement engine.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Speed {
    /// Bytes.
    pub(crate) queued: u64,
    /// Bytes per second.
    pub(crate) write: f64,
}

/// Life of targets, and sums.
impl Targets {
    /// The targets for `frames_max` frames, before their scans. `placement`: an engine for each tier.
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
    pub(crate) fn remove(&mut self, number: usize) {
        if let Some(device) = self.at(number) {
            let counts = device.counts(0);
            self.demoted_to_removed += counts.demoted.saturating_sub(counts.moved_down);
        }
        self.all.retain(|device| device.config.number != number);
    }
    pub(crate) fn at(&self, number: usize) -> Option<&Device> {
        self.all.iter().find(|device| device.config.number == number)
    }
    pub(crate) fn at_mut(&mut self, number: usize) -> Option<&mut Device> {
        self.all.iter_mut().find(|device| device.config.number == number)
    }
    /// Adds the target `more`, if given, and sets the tiers. `engine`: creates the placement engine of a
    /// tier; `levels`: the new tier of each target, by number.
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
        // Engines of tiers without targets stay, because pages may be under way there.
        (self.placement.len() as u8..needed).for_each(|level| self.placement.push(engine(level)));
    }
    pub(crate) fn of_level(&self, level: u8) -> Vec<usize> {
        let of_tier = self.all.iter().filter(|device| device.config.level == level);
        of_tier.map(|device| device.config.number).collect()
    }
    pub(crate) fn pages_of_earlier_runs(&self) -> u64 {
        self.all.iter().map(|device| device.undestaged.pages_of_earlier_runs()).sum()
    }
    pub(crate) fn devices_bytes(&self) -> u64 {
        self.all.iter().map(|device| device.config.bytes).sum()
    }
    pub(crate) fn of(&self, slot: DeviceSlot) -> Option<&Device> {
        self.all.iter().find(|device| device.has(slot))
    }
    /// [`Targets::of`].
    pub(crate) fn of_mut(&mut self, slot: DeviceSlot) -> Option<&mut Device> {
        self.all.iter_mut().find(|device| device.has(slot))
    }
    /// Memory for the tiers beside the index, bytes: of their pages, and of the copies of frames and
    /// compressed pages.
    pub(crate) fn bytes(&self, frames_populated: u32) -> u64 {
        let copies = frames_populated as usize * 4 + self.copies_below.capacity() * 9;
        self.all.iter().map(Device::bytes_of_pages).sum::<u64>() + copies as u64
    }
    /// Notes the sums of clients' reads; their increase counts for the costs.
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
    /// Notes a read of the source; `known`: most of the pages were cached before.
    pub(crate) fn note_source_read(&mut self, pages: u64, ns: u64, known: bool) {
        self.source_cost.note(pages, ns, known);
    }
}

/// Admission and placement of pages that leave memory.
impl Targets {
    /// The tier that takes a page that leaves memory, if any. `reused`: it was refaulted, or used again;
    /// `now_ns`: time of its batch. Admitted pages must be placed ([`Targets::place`]).
    pub(crate) fn admits(&mut self, reused: bool, now_ns: u64) -> Option<u8> {
        self.begin_batch(now_ns);
        (0..self.placement.len() as u8).find(|level| self.admits_to(*level, reused))
    }
    pub(crate) fn admits_to(&mut self, level: u8, reused: bool) -> bool {
        let mut of_tier = self.all.iter_mut().filter(|device| device.config.level == level);
        of_tier.any(|device| device.admits(reused))
    }
    /// Begins a batch of pages that leave memory, or a tier, at this time.
    pub(crate) fn begin_batch(&mut self, now_ns: u64) {
        if self.batch_at == Some(now_ns) {
            return;
        }
        let before = self.batch_at.replace(now_ns).unwrap_or(now_ns);
        let passed = now_ns.saturating_sub(before);
        self.all.iter_mut().for_each(|device| device.begin_batch(passed, &self.source_cost));
    }
    /// Distributes pages admitted to a tier, given the lengths of their pieces in pages, and the speeds of
    /// all targets. The caller writes them. Pages without a share stay.
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
    /// The same at an instance's end. Never full targets come first; with `room_only` only these.
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
    /// Calls the tier's placement engine. `allowed`: number of pages that each of these targets may take.
    fn share_out(
        &mut self,
        level: u8,
        pieces: &[u64],
        allowed: &[(usize, u64)],
        speeds: &Speeds,
    ) -> Vec<Share> {
        // Never filled regions come first. Full logs have no end.
        let room = |number: usize| self.at(number).map_or(0, |device| device.log.never_filled());
        let pages: u64 = pieces.iter().sum();
        let has_room = allowed.iter().map(|(number, _)| room(*number)).sum::<u64>() >= pages;
        let fastest = allowed.iter().map(|(number, _)| speeds[*number].write).fold(0.0, f64::max);
        let target = |&(number, most): &(usize, u64)| {
            let free = if has_room { room(number) } else { u64::from(u32::MAX) };
            Target {
                free: free.min(most) * PAGE_SIZE as u64,
                queued: speeds[number].queued,
                // A slow target gets some pages, too, for a new measurement of its speed.
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
    pub(crate) fn levels(&self) -> u8 {
        self.placement.len() as u8
    }
    pub(crate) fn is_on(&self) -> bool {
        self.all.iter().any(Device::is_on)
    }
    /// Whether a page with this copy, after enough reads below, is worth a write to the fastest tier.
    pub(crate) fn rises(&self, copy: DeviceSlot) -> bool {
        self.of(copy).is_some_and(|device| device.config.level > 0 && device.hits_of(copy) >= REINSERT_AT)
    }
}

/// Largest factor by which a target counts as slower than the fastest one of its tier.
const SLOWER_MAX: f64 = 64.0;

impl Targets {
    /// Notes a read of a slot. Returns whether it counts as a recent refault.
    pub(crate) fn note_hit(&mut self, slot: DeviceSlot) -> bool {
        let source = self.source_cost;
        self.of_mut(slot).is_some_and(|device| device.note_hit(slot, &source))
    }
    pub(crate) fn note_read(&mut self, number: usize, pages: u64, ns: u64) {
        if let Some(device) = self.at_mut(number) {
            device.note_read(pages, ns);
        }
    }
    /// Notes that no entry names the slot any more.
    pub(crate) fn kill(&mut self, slot: DeviceSlot) {
        if let Some(device) = self.of_mut(slot) {
            device.kill(slot);
        }
    }
    /// Notes that no entry names the slot any more, and that it no longer has the page's content.
    pub(crate) fn end(&mut self, slot: DeviceSlot, object: ObjectId, page: u64) {
        if let Some(device) = self.of_mut(slot) {
            device.kill(slot);
            device.queue_tombstone(object, page, page);
        }
    }
    /// Queues a tombstone for a page that was written to a slot without an owner.
    pub(crate) fn queue_tombstone(&mut self, slot: DeviceSlot, object: ObjectId, page: u64) {
        if let Some(device) = self.of_mut(slot) {
            device.queue_tombstone(object, page, page);
        }
    }
    /// Fills a slot, which an entry is about to name. False: its target was removed.
    pub(crate) fn arrive(&mut self, slot: DeviceSlot, crc: u32, object: ObjectId) -> bool {
        let Some(device) = self.of_mut(slot) else { return false };
        device.fill(slot, crc);
        device.note_page_of(object);
        device.events.demoted += 1;
        true
    }
    /// Notes that a page went from this slot to another target.
    pub(crate) fn note_moved(&mut self, from: DeviceSlot) {
        if let Some(device) = self.of_mut(from) {
            device.events.moved_down += 1;
        }
    }
    /// Parks a page on another target, after its content was written to a slot there. False: that target
    /// knows the file by another identity.
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
    /// Drops the parked pages `[first, last]` of a changed file. On a target under scan the content is
    /// not known yet, and tombstones cover them.
    pub(crate) fn end_parked(&mut self, object: ObjectId, first: u64, last: u64) {
        for device in &mut self.all {
            device.unpark(object, first, last);
            if device.is_scanning() {
                device.queue_tombstone(object, first, last);
            }
        }
    }
    pub(crate) fn copy_of(&self, frame: u32) -> Option<DeviceSlot> {
        self.copies[frame as usize].checked_sub(1).map(DeviceSlot::from_bits)
    }
    pub(crate) fn set_copy(&mut self, frame: u32, slot: DeviceSlot) {
        self.copies[frame as usize] = slot.bits() + 1;
    }
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

    /// The slot with an entry's page, as its only place or as a copy.
    pub(crate) fn slot_of(&self, place: Place, entry: Entry) -> Option<DeviceSlot> {
        match (entry.frame(), entry.below()) {
            (Some(frame), _) => self.copy_of(frame),
            (_, Some(Below::Device(slot))) => Some(slot),
            (_, Some(Below::Compressed(_))) => self.copy_below(place),
            (None, None) => None,
        }
    }

    pub(crate) fn is_parked_at(&self, slot: DeviceSlot, object: ObjectId, page: u64) -> bool {
        self.of(slot).is_some_and(|device| device.parked_at(object, page) == Some(slot))
    }
    /// Forgets the identities recorded in a reclaimed region, for new records.
    pub(crate) fn forget_records(&mut self, number: usize, records: impl Iterator<Item = Record>) {
        let Some(device) = self.at_mut(number) else { return };
        for record in records {
            if let Record::File { object, digest } = record
                && device.recorded.get(&object) == Some(&digest)
            {
                device.void_recorded(object);
            }
        }
    }
}
