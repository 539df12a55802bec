//! A target of a device tier: it takes clean pages that leave memory, and reads them faster than the source.
//! `state/targets.rs` has all targets together.
//!
//! Life of a page in it:
//! 1. The policy evicts the page, and [`State::evict`](super::State::evict) calls
//!    [`Targets::admits`](super::targets::Targets::admits). The reclaim thread writes it with other pages
//!    (`tier/demote.rs`). The entry then names the slot.
//! 2. Readers read the slot themselves (`terrace-preload/src/device.rs`, `path/read.rs`). The page goes to
//!    DRAM and keeps its slot as a *copy*. If it leaves clean, its entry names the slot again, without a
//!    write.
//! 3. A change of its content ends the slot. The next write to the device takes a *tombstone* along, so that
//!    no restart uses the slot ([`Device::queue_tombstone`]).
//! 4. When its region is the oldest, `tier/regions.rs` drops the page, or writes an often read one again at
//!    the log's head.
//!
//! Pages of unpublished files are *parked* ([`Parked`]): a scan has found them, or the kernel has forgotten
//! their file. They become valid when the file is published with the same identity (`tier/park.rs`).

use crate::file::object::ObjectId;
use crate::state::destage::DestageIndex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrace_api::tiers::{DeviceCounts, REMOVING, SCANNING, SERVING};
use terrace_policy::Shadow;
use terrace_policy::device::admit::{Admit, Benefit, Budget, Worth, second_hit_is_refault};
use terrace_policy::device::cost::{ReadCost, SOURCE_NS, device_ns, saved_a_hit};
use terrace_policy::device::log::{Log, Place as LogPlace};
use terrace_shm::device_table::check_of;
use terrace_shm::entry::DeviceSlot;
use terrace_shm::index::Place;
use terrace_shm::{DeviceTable, Entry, PAGE_SIZE};
use terrace_tier::Record;
use terrace_tier::format::TO_THE_END;
use terrace_tier::{Access, DeviceConfig};

/// Cost of a write per page, ns, to judge the benefit of the tier: 1 MiB at 1 GB/s.
const WRITE_NS: u64 = 4_000;

/// Index bytes for 16 pages of a completely cached file: a leaf and its word.
const INDEX_BYTES_16: u64 = 136;

/// A page to be written to a device before it leaves its frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DemoteCandidate {
    pub(crate) place: Place,
    pub(crate) frame: u32,
    pub(crate) entry: Entry,
    pub(crate) object: u64,
    pub(crate) page: u64,
    /// The tier for it; 0 is the fastest.
    pub(crate) level: u8,
    pub(super) shadow: Option<Shadow>,
}

/// Pages on the device of an unpublished file.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    /// Identity of the file with these pages as its content; None: unknown, and the pages are not valid.
    pub(crate) digest: Option<u64>,
    /// Page and slot, sorted by page.
    pub(crate) pages: Vec<(u32, DeviceSlot)>,
}

impl Parked {
    fn find(&self, page: u64) -> Option<usize> {
        self.pages.binary_search_by_key(&page, |(page, _)| (*page).into()).ok()
    }
}

/// Results of a scan.
#[derive(Debug)]
pub(crate) struct Restored {
    pub(crate) log: Log,
    /// By region.
    pub(crate) fillings: Vec<(u64, u32)>,
    pub(crate) parked: HashMap<ObjectId, Parked>,
    pub(crate) checks: Vec<(DeviceSlot, u32)>,
    /// File and page of keys with damaged content.
    pub(crate) damaged: Vec<(ObjectId, u64)>,
}

/// Counters of events since the start of terraced.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct DeviceEvents {
    /// Pages read by the daemon, and the time for them, ns.
    pub(crate) reads: u64,
    pub(crate) read_ns: u64,
    /// Pages demoted from memory; written again; dropped with their region; promoted.
    pub(crate) demoted: u64,
    pub(crate) reinserted: u64,
    pub(crate) dropped: u64,
    pub(crate) promoted: u64,
    /// Pages moved to the next tier when their region was reclaimed.
    pub(crate) moved_down: u64,
    /// All bytes written.
    pub(crate) written_bytes: u64,
    /// Pages with a checksum that did not match.
    pub(crate) damaged: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Status {
    /// The device is being scanned: pages are read, none are written.
    Scanning,
    Serving,
    /// Under removal: pages are read, none are written, and all regions are reclaimed.
    Leaving,
    /// A write has failed: pages are read, none are written any more.
    Off(String),
}

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) config: DeviceConfig,
    pub(crate) table: Arc<DeviceTable>,
    pub(crate) status: Status,
    /// Reason why the target does not answer at the moment.
    pub(crate) late: Option<String>,
    /// A scan has counted the live slots.
    counted: bool,
    pub(crate) log: Log,
    /// Lap of each region's filling, and pages of its batches.
    pub(crate) fillings: Vec<(u64, u32)>,
    pub(crate) events: DeviceEvents,
    pub(crate) parked: HashMap<ObjectId, Parked>,
    /// Published files with parked pages to restore.
    pub(crate) arriving: Vec<ObjectId>,
    /// Files with a valid recorded identity, and files with pages but without one.
    pub(crate) recorded: HashMap<ObjectId, u64>,
    pub(crate) unrecorded: HashSet<ObjectId>,
    /// Pages read by clients, and the time for them, ns.
    clients_read: (u64, u64),
    /// Earlier hits of the target's number, for a previous target.
    hits_before: u64,
    read_before: (u64, u64),
    /// Hits of each slot since it was written.
    hits: Vec<u8>,
    /// Undestaged pages.
    pub undestaged: DestageIndex,
    dead: Vec<Record>,
    admit: Admit,
    budget: Budget,
    probes: Budget,
    benefit: Benefit,
    /// Time saved by a hit of a page in this batch, ns.
    saved_a_hit: i64,
    cost: ReadCost,
    /// Admitted pages that are not placed yet.
    pending: u32,
}

/// Notes the mean of several reads. Counters of clients are untrusted, and do not show whether the pages were
/// in memory before.
pub(super) fn note_mean(cost: &mut ReadCost, pages: u64, reads: u64, ns: u64) {
    let reads = reads.clamp(1, pages.max(1));
    let (pages, ns) = (pages / reads, ns / reads);
    let samples = if pages > 0 { reads.min(64) } else { 0 };
    (0..samples).for_each(|_| cost.note(pages, ns, true));
}

/// The last page of a tombstone of `count` pages from `first` on.
fn last_dead(first: u64, count: u32) -> u64 {
    if count == TO_THE_END { u64::MAX } else { first + u64::from(count) - 1 }
}

impl Device {
    /// The target before its scan.
    pub(crate) fn new(config: DeviceConfig, table: Arc<DeviceTable>) -> Device {
        let pages = (config.region_bytes / PAGE_SIZE as u64) as u32;
        let log = Log::new(config.regions, pages);
        Device {
            status: Status::Scanning,
            late: None,
            counted: false,
            fillings: vec![(0, 0); config.regions as usize],
            events: DeviceEvents::default(),
            parked: HashMap::new(),
            arriving: Vec::new(),
            recorded: HashMap::new(),
            unrecorded: HashSet::new(),
            clients_read: (0, 0),
            hits_before: 0,
            read_before: (0, 0),
            hits: vec![0; table.slots()],
            undestaged: DestageIndex::default(),
            dead: Vec::new(),
            admit: Admit::Reused,
            budget: Budget::new(config.write_budget, PAGE_SIZE as u64),
            probes: Budget::of_probes(),
            benefit: Benefit::new(log.capacity()),
            saved_a_hit: 0,
            pending: 0,
            cost: match (&config.access, config.read_ns) {
                (Access::Medium(_), Some(ns)) => ReadCost::of_request(ns),
                (_, Some(ns)) => ReadCost::measured(ns),
                _ => ReadCost::default(),
            },
            log,
            table,
            config,
        }
    }

    /// Memory for the pages on the device, apart from the index, bytes: checks, hits, parked pages,
    /// tombstones, identities.
    pub(super) fn bytes_of_pages(&self) -> u64 {
        let parked: usize = self.parked.values().map(|p| p.pages.capacity() * 8 + 64).sum();
        let records = self.dead.capacity() * size_of::<Record>() + self.recorded.capacity() * 24;
        (self.table.slots() * 3 + parked + records) as u64 + self.config.access.memory_bytes()
    }

    /// Sets the counters' start values: those of previous targets with the same number.
    pub(crate) fn begin_counts(&mut self, hits: u64, clients_read: (u64, u64)) {
        (self.hits_before, self.clients_read) = (hits, clients_read);
        self.read_before = clients_read;
    }
    /// For `terrace stat`. `hits` are counted on the paths.
    pub(crate) fn counts(&self, hits: u64) -> DeviceCounts {
        let e = self.events;
        let clients = (
            self.clients_read.0.saturating_sub(self.read_before.0),
            self.clients_read.1.saturating_sub(self.read_before.1),
        );
        DeviceCounts {
            pages: self.log.live(),
            bytes: self.fillings.iter().map(|(_, pages)| u64::from(*pages) * PAGE_SIZE as u64).sum(),
            capacity_bytes: u64::from(self.config.regions) * self.config.region_bytes,
            hits: hits.wrapping_sub(self.hits_before),
            read_ns: e.read_ns + clients.1,
            reads: e.reads + clients.0,
            demoted: e.demoted,
            moved_down: e.moved_down,
            promoted: e.promoted,
            reinserted: e.reinserted,
            dropped: e.dropped,
            content_bytes_written: e.demoted * PAGE_SIZE as u64,
            bytes_written: e.written_bytes,
            // The slots of copies are counted with the frames, 4 bytes each.
            dram_bytes: self.bytes_of_pages() + self.log.live() * INDEX_BYTES_16 / 16,
            state: match (&self.status, self.late.clone().or_else(|| self.config.access.trouble())) {
                (Status::Off(why), _) => format!("off: {why}"),
                (Status::Leaving, _) => REMOVING.to_owned(),
                (_, Some(why)) => format!("off: {why}"),
                (Status::Scanning, None) => SCANNING.to_owned(),
                (Status::Serving, None) => SERVING.to_owned(),
            },
        }
    }

    /// Whether there is room for pages beside the spare region for destaging.
    pub(crate) fn has_room_beside_undestaged(&self) -> bool {
        self.undestaged.is_empty() || self.log.has_spare()
    }

    // ---- admission ------------------------------------------------------------------------------------

    /// Begins a batch of pages that leave memory, `passed` ns after the last one.
    pub(super) fn begin_batch(&mut self, passed: u64, source: &ReadCost) {
        self.budget.pass(passed);
        self.probes.pass(passed);
        self.saved_a_hit =
            if self.config.always_faster { SOURCE_NS as i64 } else { saved_a_hit(source, &self.cost) };
    }
    /// Whether this tier takes a page that leaves memory or the tier above. `reused`: it was refaulted, or
    /// used again there. The caller must place an admitted page ([`Device::take_pending`]).
    pub(super) fn admits(&mut self, reused: bool) -> bool {
        let admitted = self.is_serving()
            && self.has_room_beside_undestaged()
            && self.admit.wants(reused, self.log.has_been_full())
            && self.budget.has(self.pending + 1)
            && match self.benefit.judge(self.saved_a_hit, WRITE_NS) {
                Worth::Pays => true,
                Worth::Probe => self.probes.spend(1),
                Worth::Nothing => false,
            };
        self.pending += u32::from(admitted);
        admitted
    }
    /// Number of pages that this target may take, when admitted pages are placed. None: no page.
    pub(super) fn take_pending(&mut self) -> Option<u64> {
        let pending = std::mem::take(&mut self.pending);
        let pays = self.benefit.pays(self.saved_a_hit, WRITE_NS);
        let room = self.budget.pages();
        (self.is_serving() && self.has_room_beside_undestaged() && (pays || pending > 0) && room > 0)
            .then_some(room)
    }
    /// Takes written pages from the budget.
    pub(super) fn spend(&mut self, pages: u32) {
        self.budget.spend(pages);
    }
    /// Whether a page of a reclaimed region may be written again. Takes it from the budget.
    pub(crate) fn admits_again(&mut self) -> bool {
        self.is_serving() && self.budget.spend(1)
    }
    pub(super) fn note_read(&mut self, pages: u64, ns: u64) {
        self.cost.note(pages, ns, true);
        self.events.reads += pages;
        self.events.read_ns += ns;
    }
    /// Notes the sums of clients' reads; their increase counts for the cost.
    pub(super) fn note_client_reads(&mut self, hits: u64, ns: u64) {
        let before = std::mem::replace(&mut self.clients_read, (hits, ns));
        let new = hits.saturating_sub(before.0);
        note_mean(&mut self.cost, new, new, ns.saturating_sub(before.1));
    }

    // ---- slots ----------------------------------------------------------------------------------------

    pub(crate) fn hits_of(&self, slot: DeviceSlot) -> u8 {
        self.table.index(slot).map_or(0, |i| self.hits[i])
    }
    /// Notes a read of a slot. True: it counts as a recent refault.
    pub(super) fn note_hit(&mut self, slot: DeviceSlot, source: &ReadCost) -> bool {
        self.benefit.hit();
        let Some(i) = self.table.index(slot) else { return false };
        self.hits[i] = self.hits[i].saturating_add(1);
        self.hits[i] > 1
            && second_hit_is_refault(device_ns(source, &self.cost), source.page_ns().unwrap_or(SOURCE_NS))
    }
    /// Fills a slot. Called before an entry names it.
    pub(crate) fn fill(&mut self, slot: DeviceSlot, crc: u32) {
        if let (Some(i), Some(check)) = (self.table.index(slot), self.table.check(slot)) {
            check.store(check_of(crc), Ordering::Relaxed);
            self.hits[i] = 0;
        }
        self.log.revive(self.in_log(slot));
        self.benefit.wrote();
    }
    /// Notes that no entry names the slot any more. During the scan nothing is counted yet.
    pub(crate) fn kill(&mut self, slot: DeviceSlot) {
        if self.counted {
            self.log.kill(self.in_log(slot));
        }
    }
    pub(crate) fn has(&self, slot: DeviceSlot) -> bool {
        self.table.index(slot).is_some()
    }
    fn in_log(&self, slot: DeviceSlot) -> LogPlace {
        LogPlace { region: slot.region() - self.table.first_region(), page: slot.page() }
    }
    // ---- invalidation ---------------------------------------------------------------------------------

    /// Invalidates the device's copies of the pages `first` to `last`: no restart may use them.
    pub(crate) fn queue_tombstone(&mut self, object: ObjectId, first: u64, last: u64) {
        if matches!(self.status, Status::Off(_) | Status::Leaving) {
            // Without further identities the page is not valid after a restart.
            return;
        }
        let count = last.saturating_sub(first).saturating_add(1);
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let joined = self.dead.last_mut().is_some_and(|dead| match dead {
            Record::Dead { object: o, first: f, count: c } if *o == object => {
                let adjacent = f.checked_add(u64::from(*c)) == Some(first) && *c != u32::MAX;
                let longer = c.checked_add(count).filter(|_| adjacent && count != u32::MAX);
                *c = longer.unwrap_or(*c);
                longer.is_some()
            }
            _ => false,
        });
        if !joined {
            self.dead.push(Record::Dead { object, first, count });
        }
        self.recorded.remove(&object);
        self.unrecorded.insert(object);
    }
    /// Takes up to `most` tombstones for a write.
    pub(crate) fn take_dead(&mut self, most: usize) -> Vec<Record> {
        let most = most.min(self.dead.len());
        let taken = self.dead.drain(..most).collect();
        if self.dead.is_empty() {
            self.dead = Vec::new();
        }
        taken
    }
    /// Returns tombstones that were not written.
    pub(crate) fn put_dead(&mut self, records: Vec<Record>) {
        let dead = records.into_iter().filter(|record| matches!(record, Record::Dead { .. }));
        self.dead.extend(dead);
    }
    pub(crate) fn dead(&self) -> &[Record] {
        &self.dead
    }
    pub(crate) fn has_queued_tombstone(&self, object: ObjectId, page: u64) -> bool {
        self.dead.iter().any(|dead| match *dead {
            Record::Dead { object: of, first, count } => {
                of == object && (first..=last_dead(first, count)).contains(&page)
            }
            _ => false,
        })
    }
    pub(crate) fn lap_of(&self, slot: DeviceSlot) -> u64 {
        self.fillings[self.in_log(slot).region as usize].0
    }
    /// Whether the slot's region is not reclaimed. The next batch invalidates the slots of reclaimed regions.
    pub(crate) fn counts_in_log(&self, slot: DeviceSlot) -> bool {
        let lap_of = |region: u32| self.fillings[region as usize].0;
        self.log.oldest().is_some_and(|oldest| self.lap_of(slot) >= lap_of(oldest))
    }
    pub(crate) fn parked_at(&self, object: ObjectId, page: u64) -> Option<DeviceSlot> {
        let parked = self.parked.get(&object)?;
        Some(parked.pages[parked.find(page)?].1)
    }
    pub(crate) fn repark(&mut self, object: ObjectId, page: u64, slot: DeviceSlot) {
        let parked = self.parked.get_mut(&object);
        let at = parked.as_ref().and_then(|parked| parked.find(page));
        if let (Some(parked), Some(at)) = (parked, at) {
            parked.pages[at].1 = slot;
        }
    }
    /// Parks one more page. False: pages with another identity are parked, or this page already is.
    pub(crate) fn park_one(&mut self, object: ObjectId, digest: u64, page: u64, slot: DeviceSlot) -> bool {
        let Ok(page) = u32::try_from(page) else { return false };
        let parked =
            self.parked.entry(object).or_insert_with(|| Parked { digest: Some(digest), pages: Vec::new() });
        let at = parked.pages.partition_point(|(other, _)| *other < page);
        if parked.digest != Some(digest) || parked.pages.get(at).is_some_and(|(other, _)| *other == page) {
            return false;
        }
        parked.pages.insert(at, (page, slot));
        if self.recorded.get(&object) != Some(&digest) {
            self.unrecorded.insert(object);
        }
        true
    }
    pub(crate) fn forget_parked(&mut self, object: ObjectId, page: u64) {
        let Some(parked) = self.parked.get_mut(&object) else { return };
        if let Some(at) = parked.find(page) {
            parked.pages.remove(at);
        }
        if parked.pages.is_empty() {
            self.parked.remove(&object);
        }
    }
    pub(crate) fn all_parked(&self) -> impl Iterator<Item = (DeviceSlot, ObjectId, u64)> {
        self.parked
            .iter()
            .flat_map(|(id, parked)| parked.pages.iter().map(|(page, slot)| (*slot, *id, u64::from(*page))))
    }
    pub(crate) fn install(&mut self, restored: Restored) {
        let Restored { log, fillings, parked, checks, damaged } = restored;
        for (slot, crc) in checks {
            if let Some(check) = self.table.check(slot) {
                check.store(check_of(crc), Ordering::Relaxed);
            }
        }
        self.recorded = parked.iter().filter_map(|(id, parked)| Some((*id, parked.digest?))).collect();
        let is_leaving = self.is_leaving();
        (self.log, self.fillings, self.parked, self.status) = (log, fillings, parked, Status::Serving);
        self.counted = true;
        // Changes since the start of terraced.
        for dead in std::mem::take(&mut self.dead) {
            if let Record::Dead { object, first, count } = dead {
                let last = last_dead(first, count);
                self.unpark(object, first, last);
                self.queue_tombstone(object, first, last);
            }
        }
        damaged.into_iter().for_each(|(object, page)| self.queue_tombstone(object, page, page));
        if is_leaving {
            self.leave();
        }
    }
    /// Parks the pages of a file that the kernel forgets.
    pub(crate) fn park(&mut self, id: ObjectId, digest: Option<u64>, mut pages: Vec<(u32, DeviceSlot)>) {
        if pages.is_empty() {
            return;
        }
        pages.sort_unstable_by_key(|(page, _)| *page);
        self.parked.insert(id, Parked { digest, pages });
        match digest {
            Some(digest) if self.recorded.get(&id) != Some(&digest) => drop(self.unrecorded.insert(id)),
            Some(_) => {}
            None => self.unpark(id, 0, u64::MAX),
        }
    }
    pub(crate) fn note_page_of(&mut self, id: ObjectId) {
        if !self.recorded.contains_key(&id) {
            self.unrecorded.insert(id);
        }
    }
    /// A recorded identity is void: the file's present one is to be recorded.
    pub(crate) fn void_recorded(&mut self, id: ObjectId) {
        if self.recorded.remove(&id).is_some() {
            self.unrecorded.insert(id);
        }
    }
    pub(crate) fn has_unrecorded_identities(&self) -> bool {
        self.is_on() && !self.unrecorded.is_empty()
    }
    /// Ends writes at the end of the instance. True: it was on until now.
    pub(crate) fn end(&mut self) -> bool {
        let served = self.is_on();
        if served {
            self.status = Status::Off("the instance ends".into());
        }
        served
    }
    pub(crate) fn is_counted(&self) -> bool {
        self.counted
    }
    pub(crate) fn is_scanning(&self) -> bool {
        self.status == Status::Scanning
    }
    /// Begins the removal: nothing more is written, and all regions are due.
    pub(crate) fn leave(&mut self) {
        self.status = Status::Leaving;
        self.dead = Vec::new();
        self.log.retire(0);
    }
    pub(crate) fn is_leaving(&self) -> bool {
        self.status == Status::Leaving
    }
    /// Changes the number of regions to that of `table`. Removed regions hold no pages.
    pub(crate) fn resize(&mut self, config: DeviceConfig, table: Arc<DeviceTable>) {
        self.log.resize(config.regions);
        self.fillings.resize(config.regions as usize, (0, 0));
        self.hits.resize(table.slots(), 0);
        (self.config, self.table) = (config, table);
    }
    /// Whether the target is in use for writes, perhaps not at the moment.
    pub(crate) fn is_on(&self) -> bool {
        self.status == Status::Serving
    }
    pub(crate) fn takes_undestaged(&self) -> bool {
        let room = self.undestaged.takes_one_more(self.log.region_pages());
        room && !self.undestaged.closed && self.config.access.takes_undestaged()
    }
    /// Whether `pages` undestaged pages may be written now. Takes them from the budget.
    pub(crate) fn affords(&mut self, pages: u32) -> bool {
        self.budget.spend(pages)
    }
    /// Whether the target takes writes at the moment.
    pub(crate) fn is_serving(&self) -> bool {
        self.is_on() && self.late.is_none() && self.config.access.is_ready()
    }
    /// Drops the parked pages `[first, last]` of a file, which are no longer its content.
    pub(crate) fn unpark(&mut self, object: ObjectId, first: u64, last: u64) {
        let Some(parked) = self.parked.get_mut(&object) else { return };
        let from = parked.pages.partition_point(|(page, _)| u64::from(*page) < first);
        let to = parked.pages.partition_point(|(page, _)| u64::from(*page) <= last);
        let gone: Vec<DeviceSlot> = parked.pages.drain(from..to).map(|(_, slot)| slot).collect();
        if parked.pages.is_empty() {
            self.parked.remove(&object);
        }
        self.lose_parked(object, first, last, &gone);
    }
    /// Drops all parked pages of a file. The tombstones leave out the pages `named`, which are not parked and
    /// keep their slots.
    pub(crate) fn unpark_between(&mut self, object: ObjectId, named: &[u64]) {
        let Some(parked) = self.parked.remove(&object) else { return };
        let (mut pages, mut first) = (&parked.pages[..], 0);
        for next in named.iter().copied().chain([u64::MAX]) {
            let (gone, others) = pages.split_at(pages.partition_point(|(page, _)| u64::from(*page) < next));
            let gone: Vec<DeviceSlot> = gone.iter().map(|(_, slot)| *slot).collect();
            self.lose_parked(object, first, next.saturating_sub(1), &gone);
            (pages, first) = (others, next.saturating_add(1));
        }
    }
    /// Kills the slots of parked pages within `[first, last]`.
    pub(super) fn lose_parked(&mut self, object: ObjectId, first: u64, last: u64, gone: &[DeviceSlot]) {
        if !gone.is_empty() {
            self.queue_tombstone(object, first, last);
            gone.iter().for_each(|slot| self.kill(*slot));
        }
    }
}
