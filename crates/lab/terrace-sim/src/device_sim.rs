//! Simulated device tier, with the engine's log and admission.
//!
//! A page may be in DRAM and on the device at once (inclusive copies): it is then evicted from DRAM without a write.

use serde::Serialize;
use terrace_policy::device::admit::{Admit, Benefit, Budget, Worth, second_hit_is_refault};
use terrace_policy::device::log::{Log, Place, REGIONS_MIN, REINSERT_AT, REMEMBER_AT, most_read};

/// Pages of content in a region of 16 MiB: 16 batches of 1 MiB, each with one page of keys.
pub(crate) const REGION_PAGES: u32 = 16 * BATCH_PAGES;
/// Pages of the smallest region: one of them may be written again.
const REGION_PAGES_MIN: u64 = 8;
/// Number of regions of a tier of normal size.
const REGIONS_USUAL: u64 = 256;
/// Pages of content in a full batch.
pub(crate) const BATCH_PAGES: u32 = 255;
/// Bytes of a page, and of a page of keys.
const PAGE_BYTES: u64 = 4096;

/// Parameters of a device tier, and the decisions under comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceSetup {
    /// Pages of content.
    pub pages: u64,
    /// Read time of a page, ns.
    pub read: u64,
    /// Write time of a page, as part of a batch, ns.
    pub write: u64,
    /// Pages that are written.
    pub admit: Admit,
    /// Maximum bytes written a day; None: no limit.
    pub budget: Option<u64>,
    /// Hits since its write from which on a page is written again when its region is reclaimed; 0: never.
    pub reinsert_at: u8,
    /// Hits since its write from which on a page is remembered when its region is reclaimed; 0: never.
    pub remember_at: u8,
    /// Hits that promote a page to DRAM.
    pub promote_at: u8,
    /// A page on the device keeps the policy's shadow, like an absent one.
    pub shadows: bool,
}

impl DeviceSetup {
    /// A virtual or consumer NVMe disk with room for `pages`.
    pub fn new(pages: u64) -> DeviceSetup {
        DeviceSetup {
            pages,
            read: 90_000,
            write: 4_000,
            admit: Admit::Reused,
            budget: None,
            reinsert_at: REINSERT_AT,
            remember_at: REMEMBER_AT,
            promote_at: 1,
            shadows: false,
        }
    }
}

/// Counters of a device tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceOutcome {
    /// Requests answered by the device.
    #[serde(rename = "device_hits")]
    pub hits: u64,
    /// Pages evicted from DRAM and written.
    pub demoted: u64,
    /// Pages evicted from DRAM with a valid copy on the device: no write.
    pub kept: u64,
    /// Pages not worth a write.
    pub refused: u64,
    /// Pages written again when their region was reclaimed.
    pub reinserted: u64,
    /// Pages lost when their region was reclaimed.
    pub dropped: u64,
}

impl DeviceOutcome {
    /// Bytes written, including pages of keys.
    pub fn bytes_written(&self) -> u64 {
        let pages = self.demoted + self.reinserted;
        (pages + pages.div_ceil(u64::from(BATCH_PAGES))) * PAGE_BYTES
    }
    /// Bytes written for each byte evicted from DRAM.
    pub fn write_amplification(&self) -> f64 {
        self.bytes_written() as f64 / (self.demoted.max(1) * PAGE_BYTES) as f64
    }
}

/// The pages of the tier.
#[derive(Debug)]
pub(crate) struct DeviceTier {
    setup: DeviceSetup,
    log: Log,
    /// Place of each page.
    places: Vec<Option<Place>>,
    /// Page at each place, and its hits since the write.
    written: Vec<(u32, u8)>,
    /// Pages that were read often before their region was reclaimed.
    was_read: Vec<bool>,
    budget: Budget,
    benefit: Benefit,
    outcome: DeviceOutcome,
}

impl DeviceTier {
    /// An empty tier for pages below `ids_max`.
    pub(crate) fn new(setup: DeviceSetup, ids_max: usize) -> DeviceTier {
        // A small tier has small regions: the log's free regions should be a small part of it.
        let region_pages =
            (setup.pages / REGIONS_USUAL).clamp(REGION_PAGES_MIN, u64::from(REGION_PAGES)) as u32;
        let regions = (setup.pages / u64::from(region_pages)) as u32;
        let log = Log::new(regions.max(REGIONS_MIN), region_pages);
        DeviceTier {
            places: vec![None; ids_max],
            was_read: vec![false; ids_max],
            written: vec![(0, 0); log.capacity() as usize],
            budget: Budget::new(setup.budget, PAGE_BYTES),
            benefit: Benefit::new(log.capacity()),
            log,
            setup,
            outcome: DeviceOutcome::default(),
        }
    }

    /// The counters up to now.
    pub(crate) fn outcome(&self) -> DeviceOutcome {
        self.outcome
    }

    /// The tier's parameters.
    pub(crate) fn setup(&self) -> &DeviceSetup {
        &self.setup
    }

    /// Whether the page is on the device.
    pub(crate) fn holds(&self, id: u32) -> bool {
        self.places[id as usize].is_some()
    }

    /// Whether the page was read often on the device before its region was reclaimed.
    pub(crate) fn was_read(&self, id: u32) -> bool {
        self.was_read[id as usize]
    }

    /// Counts a read of a page; true if the page is now worth a frame.
    pub(crate) fn hit(&mut self, id: u32) -> bool {
        let place = self.places[id as usize].expect("a hit is of a page that is there");
        let at = self.index(place);
        let touches = &mut self.written[at].1;
        *touches = touches.saturating_add(1);
        self.outcome.hits += 1;
        self.benefit.hit();
        *touches >= self.setup.promote_at
    }

    /// Whether a page read from the tier counts as a recent refault. `source`: a read of the source, ns.
    pub(crate) fn came_back(&self, id: u32, source: u64) -> bool {
        let hits = self.places[id as usize].map_or(0, |place| self.written[self.index(place)].1);
        second_hit_is_refault(self.setup.read, source) && hits > 1
    }

    /// Advances the clock by `ns`.
    pub(crate) fn pass(&mut self, ns: u64) {
        self.budget.pass(ns);
    }

    /// Offers a page evicted from memory. `reused`: it was used again there, or refaulted soon. `source`: a
    /// read of the source, ns. True if the device has it now.
    pub(crate) fn demote(&mut self, id: u32, reused: bool, source: u64) -> bool {
        if self.holds(id) {
            self.outcome.kept += 1;
            return true;
        }
        let saved = source as i64 - self.setup.read as i64;
        let wanted = self.setup.admit.wants(reused, self.log.has_been_full());
        if !wanted || self.benefit.judge(saved, self.setup.write) == Worth::Nothing || !self.budget.spend(1) {
            self.outcome.refused += 1;
            return false;
        }
        self.outcome.demoted += 1;
        self.benefit.wrote();
        self.append(id);
        while let Some(region) = self.log.due() {
            self.reclaim(region);
        }
        true
    }

    fn index(&self, place: Place) -> usize {
        (place.region * self.log.region_pages() + place.page) as usize
    }

    fn append(&mut self, id: u32) {
        let place = self.log.append().expect("regions are kept free");
        let at = self.index(place);
        self.written[at] = (id, 0);
        self.places[id as usize] = Some(place);
    }

    fn reclaim(&mut self, region: u32) {
        let (mut live, mut worth) = (0, Vec::new());
        for page in 0..self.log.region_pages() {
            let place = Place { region, page };
            let (id, touches) = self.written[self.index(place)];
            if self.places[id as usize] != Some(place) {
                continue;
            }
            self.places[id as usize] = None;
            self.log.kill(place);
            live += 1;
            self.was_read[id as usize] = self.setup.remember_at > 0 && touches >= self.setup.remember_at;
            if self.setup.reinsert_at > 0 && touches >= self.setup.reinsert_at {
                worth.push((touches, id));
            }
        }
        most_read(&mut worth, self.log.reinserted_max() as usize);
        worth.retain(|_| self.budget.spend(1));
        let again: Vec<u32> = worth.into_iter().map(|(_, id)| id).collect();
        self.outcome.dropped += live - again.len() as u64;
        self.log.reclaimed(region);
        self.outcome.reinserted += again.len() as u64;
        again.iter().for_each(|_| self.benefit.wrote());
        again.into_iter().for_each(|id| self.append(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(reinsert_at: u8) -> DeviceTier {
        DeviceTier::new(DeviceSetup { reinsert_at, admit: Admit::All, ..DeviceSetup::new(1024) }, 10_000)
    }

    #[test]
    fn oldest_pages_are_dropped_first() {
        let mut tier = tier(0);
        for id in 0..1600 {
            assert!(tier.demote(id, false, 1_000_000));
            tier.hit(id);
        }
        let held: Vec<u32> = (0..1600).filter(|id| tier.holds(*id)).collect();
        assert!((1000..=1024).contains(&held.len()) && held.last() == Some(&1599), "{}", held.len());
        assert!(held.windows(2).all(|pair| pair[1] == pair[0] + 1), "{held:?}");
    }

    #[test]
    fn page_that_is_hit_stays() {
        let mut tier = tier(1);
        for id in 0..5000 {
            assert!(tier.demote(id, false, 1_000_000));
            tier.hit(0);
        }
        let outcome = tier.outcome();
        assert!(tier.holds(0) && (4..=5).contains(&outcome.reinserted), "{outcome:?}");
        assert!(!tier.holds(1) && outcome.demoted == 5000, "{outcome:?}");
    }

    #[test]
    fn page_that_was_read_often_is_remembered_when_it_is_dropped() {
        let mut tier = tier(0);
        for id in 0..1600 {
            assert!(tier.demote(id, false, 1_000_000));
            (0..id % 8).for_each(|_| _ = tier.hit(id));
        }
        let dropped = (0..500).all(|id| !tier.holds(id) && tier.was_read(id) == (id % 8 >= 4));
        assert!(dropped, "{:?}", tier.outcome());
    }

    #[test]
    fn copy_on_the_device_is_not_written_twice() {
        let mut tier = tier(0);
        assert!(tier.demote(7, false, 1_000_000) && tier.demote(7, false, 1_000_000));
        let outcome = tier.outcome();
        assert_eq!((outcome.demoted, outcome.kept, outcome.bytes_written()), (1, 1, 2 * PAGE_BYTES));
    }

    #[test]
    fn pages_that_nobody_used_again_only_fill_the_tier() {
        let mut tier = DeviceTier::new(DeviceSetup::new(1024), 10_000);
        for id in 0..1008 {
            assert!(tier.demote(id, false, 1_000_000));
            tier.hit(id);
        }
        assert!(!tier.demote(2000, false, 1_000_000) && tier.demote(2000, true, 1_000_000));
    }
}
