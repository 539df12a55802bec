//! The log assigns pages their places on a device, region by region. The oldest region is reclaimed first.
//! The log itself does no I/O.
//!
//! ```text
//!   append ─► open region ─full─► filled regions, oldest last ─► reclaim: each live page is dropped or appended again
//!                ▲                                                                      │
//!                └───────────── free regions ◄──────────────────────────────────────────┘
//! ```
//! First in, first out: writes go over the device front to back. A record that invalidates a page lies in a
//! later region, and can go with its own region. (The layout of CacheLib's BlockCache, Berg et al., OSDI
//! 2020.)

use std::collections::VecDeque;

/// Free regions kept ahead of the open one: the next is ready while the oldest is still being reclaimed.
pub(crate) const FREE_AHEAD: usize = 2;
/// Minimum number of regions of a log: the open one, the free ones, and one to reclaim.
pub const REGIONS_MIN: u32 = FREE_AHEAD as u32 + 2;
/// Maximum share of a reclaimed region to append again, in percent: as many pages from memory find room.
const REINSERTED_PERCENT_MAX: u32 = 50;

/// Place of a page: region, and page in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Region, from 0.
    pub region: u32,
    /// Page of content in the region, from 0.
    pub page: u32,
}

/// Adjacent places in one region, for one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Region, from 0.
    pub region: u32,
    /// First page of content. The caller's header is in front of it.
    pub first: u32,
    /// Pages of content.
    pub pages: u32,
    /// First write to this region since it was free.
    pub opens: bool,
}

/// State of all regions (free, open, filled), and the number of live pages in each.
#[derive(Clone, Debug)]
pub struct Log {
    pages: u32,
    live: Vec<u32>,
    filled: VecDeque<u32>,
    free: VecDeque<u32>,
    open: Option<Place>,
    appended: u64,
    /// Regions from this one on are being given up.
    retired: u32,
}

impl Log {
    /// An empty log of `regions` regions with room for `pages` pages of content each.
    ///
    /// # Panics
    /// With fewer than [`REGIONS_MIN`] regions, or no pages.
    pub fn new(regions: u32, pages: u32) -> Log {
        assert!(regions >= REGIONS_MIN && pages > 0, "{regions} regions of {pages} pages");
        let free = (0..regions).collect();
        Log {
            pages,
            live: vec![0; regions as usize],
            filled: VecDeque::new(),
            free,
            open: None,
            appended: 0,
            retired: regions,
        }
    }

    /// A log after a restart: `filled` regions, oldest first, none of their pages live yet (see
    /// [`Log::revive`]). The others are free.
    ///
    /// # Panics
    /// As [`Log::new`]; if a region is named twice, or does not exist.
    pub fn restored(regions: u32, pages: u32, filled: &[u32]) -> Log {
        let mut log = Log::new(regions, pages);
        for region in filled {
            let known = log.free.iter().position(|free| free == region);
            log.free.remove(known.expect("a region is filled once"));
            log.filled.push_back(*region);
        }
        log.appended = filled.len() as u64 * u64::from(pages);
        log
    }

    /// Appends a live page. None: a region must be reclaimed first.
    pub fn append(&mut self) -> Option<Place> {
        let Stretch { region, first, .. } = self.reserve(0, 1, 1)?;
        let place = Place { region, page: first };
        self.revive(place);
        Some(place)
    }

    /// Reserves adjacent places for one write: `head` header pages, then `least` to `want` pages of content
    /// (`want`, if less). A region with less room is closed. The caller revives the pages that arrive. None:
    /// a region must be reclaimed first.
    pub fn reserve(&mut self, head: u32, want: u32, least: u32) -> Option<Stretch> {
        let needed = head + least.min(want);
        debug_assert!(needed <= self.pages, "no region has {needed} pages");
        if let Some(full) = self.open.take_if(|open| self.pages - open.page < needed) {
            self.filled.push_back(full.region);
        }
        let opens = self.open.is_none();
        let open = match self.open {
            Some(open) => open,
            None => Place { region: self.free.pop_front()?, page: 0 },
        };
        let pages = want.min(self.pages - open.page - head);
        let next = Place { page: open.page + head + pages, ..open };
        self.open = (next.page < self.pages).then_some(next);
        if self.open.is_none() {
            self.filled.push_back(open.region);
        }
        self.appended += u64::from(pages);
        Some(Stretch { region: open.region, first: open.page + head, pages, opens })
    }

    /// Maximum length of the next stretch with its header: of the open region if it has `least`.
    pub fn room(&self, least: u32) -> u32 {
        let left = self.open.map_or(0, |open| self.pages - open.page);
        if left < least { self.pages } else { left }
    }

    /// The oldest filled region, or the open one.
    pub fn oldest(&self) -> Option<u32> {
        self.filled.front().copied().or(self.open.map(|open| open.region))
    }

    /// Whether a region would remain free after another was opened.
    pub fn has_spare(&self) -> bool {
        self.free.len() > 1
    }

    /// Live pages of a region.
    pub fn live_in(&self, region: u32) -> u32 {
        self.live[region as usize]
    }

    /// Marks the page at `place` as live.
    pub fn revive(&mut self, place: Place) {
        self.live[place.region as usize] += 1;
    }

    /// Marks the page at `place` as invalid.
    pub fn kill(&mut self, place: Place) {
        let live = &mut self.live[place.region as usize];
        *live = live.checked_sub(1).expect("a page dies once");
    }

    /// The region to reclaim next, if one is due.
    pub fn due(&self) -> Option<u32> {
        if self.free.len() >= FREE_AHEAD && self.is_retired() { None } else { self.filled.front().copied() }
    }

    /// Frees the region named by [`Log::due`], which has no live pages any more.
    ///
    /// # Panics
    /// If it has live pages, or is not the oldest.
    pub fn reclaimed(&mut self, region: u32) {
        assert_eq!(
            self.filled.pop_front(),
            Some(region),
            "regions are reclaimed in the order in which they were filled"
        );
        assert_eq!(self.live[region as usize], 0, "region {region}");
        if region < self.retired {
            self.free.push_back(region);
        }
    }

    /// Gives up the regions from `first` on: no more appends there. [`Log::due`] names regions, oldest first,
    /// until these are empty.
    pub fn retire(&mut self, first: u32) {
        self.retired = first;
        self.free.retain(|region| *region < first);
        if let Some(open) = self.open.take_if(|open| open.region >= first) {
            self.filled.push_back(open.region);
        }
    }

    /// Whether the regions given up are empty.
    pub fn is_retired(&self) -> bool {
        self.retired >= self.live.len() as u32 || self.filled.iter().all(|region| *region < self.retired)
    }

    /// Sets the number of regions. Added regions are free. Removed ones must have been given up and be empty
    /// ([`Log::retire`]).
    ///
    /// # Panics
    /// With fewer than [`REGIONS_MIN`] regions; if a removed region is in use.
    pub fn resize(&mut self, regions: u32) {
        assert!(regions >= REGIONS_MIN, "{regions} regions");
        let before = self.live.len() as u32;
        let is_used = |region: u32| {
            self.filled.contains(&region) || self.open.is_some_and(|open| open.region == region)
        };
        assert!(!(regions..before).any(is_used), "a region that goes is in use");
        // New regions are filled before any is reclaimed, as in a new log.
        self.appended = self.appended.min(self.capacity());
        self.live.resize(regions as usize, 0);
        self.free.retain(|region| *region < regions);
        self.free.extend(before..regions);
        self.retired = regions;
    }

    /// Maximum number of pages of a reclaimed region that may be appended again.
    pub fn reinserted_max(&self) -> u32 {
        self.pages * REINSERTED_PERCENT_MAX / 100
    }

    /// Pages of content in a region.
    pub fn region_pages(&self) -> u32 {
        self.pages
    }

    /// Live pages.
    pub fn live(&self) -> u64 {
        self.live.iter().map(|live| u64::from(*live)).sum()
    }

    #[cfg(test)]
    pub(crate) fn appended(&self) -> u64 {
        self.appended
    }

    /// Whether every region, except those kept free, was filled once.
    pub fn has_been_full(&self) -> bool {
        self.never_filled() == 0
    }

    /// Pages that can be appended until the log has been full.
    pub fn never_filled(&self) -> u64 {
        self.capacity().saturating_sub(self.appended + FREE_AHEAD as u64 * u64::from(self.pages))
    }

    /// Maximum number of pages of content.
    pub fn capacity(&self) -> u64 {
        self.live.len() as u64 * u64::from(self.pages)
    }
}

/// Minimum hits since its write with which the reclaim of its region appends a page again.
pub const REINSERT_AT: u8 = 2;
/// Minimum hits since its write that make a page's next fault after the reclaim worth a write at once. The
/// policy's shadow shows a reuse only after two more misses.
pub const REMEMBER_AT: u8 = 4;

/// Keeps the `most` pages with the most hits, in their order; of pages with equal hits the first.
pub fn most_read<T>(pages: &mut Vec<(u8, T)>, most: usize) {
    if pages.len() <= most {
        return;
    }
    let mut pages_with = [0usize; 1 << u8::BITS];
    pages.iter().for_each(|(hits, _)| pages_with[*hits as usize] += 1);
    let (mut room, mut left) = (most, [0usize; 1 << u8::BITS]);
    for hits in (0..left.len()).rev() {
        left[hits] = pages_with[hits].min(room);
        room -= left[hits];
    }
    pages.retain(|(hits, _)| {
        let stays = left[*hits as usize] > 0;
        left[*hits as usize] -= usize::from(stays);
        stays
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drop_all(log: &mut Log, live: &mut Vec<Place>) {
        while let Some(region) = log.due() {
            live.retain(|place| {
                if place.region == region {
                    log.kill(*place);
                }
                place.region != region
            });
            log.reclaimed(region);
        }
    }

    #[test]
    fn regions_are_filled_front_to_back_and_reclaimed_in_that_order() {
        let mut log = Log::new(4, 2);
        let places: Vec<_> = (0..4).map(|_| log.append().unwrap()).map(|p| (p.region, p.page)).collect();
        assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(log.due(), None, "two are free");
        log.append().unwrap();
        assert_eq!(log.due(), Some(0));
        log.kill(Place { region: 0, page: 0 });
        log.kill(Place { region: 0, page: 1 });
        log.reclaimed(0);
        assert_eq!((log.due(), log.live(), log.appended(), log.capacity()), (None, 3, 5, 8));
    }

    #[test]
    fn regions_given_up_are_due_until_they_hold_nothing() {
        let mut log = Log::new(8, 1);
        (0..6).for_each(|_| assert!(log.append().is_some()));
        assert_eq!(log.due(), None, "two are free");
        log.retire(5);
        assert!(!log.is_retired());
        let mut reclaimed = 0;
        while let Some(region) = log.due() {
            log.kill(Place { region, page: 0 });
            log.reclaimed(region);
            reclaimed += 1;
        }
        assert_eq!((reclaimed, log.is_retired()), (6, true), "in their order, the last of them too");
        log.resize(5);
        let regions: Vec<u32> = (0..5).map(|_| log.append().unwrap().region).collect();
        assert_eq!((regions, log.append()), (vec![0, 1, 2, 3, 4], None));
        log.resize(7);
        assert_eq!((log.append().map(|at| at.region), log.due(), log.capacity()), (Some(5), Some(0), 7));
        log.retire(0);
        (0..6).for_each(|region| {
            assert_eq!(log.due(), Some(region));
            log.kill(Place { region, page: 0 });
            log.reclaimed(region);
        });
        assert_eq!((log.due(), log.oldest(), log.append()), (None, None, None));
    }

    #[test]
    fn stretch_stays_in_one_region() {
        let mut log = Log::new(5, 10);
        let taken =
            |log: &mut Log, want| log.reserve(1, want, 3).map(|s| (s.region, s.first, s.pages, s.opens));
        assert_eq!(taken(&mut log, 4), Some((0, 1, 4, true)));
        assert_eq!(taken(&mut log, 8), Some((0, 6, 4, false)), "what is left of the region");
        assert_eq!(taken(&mut log, 7), Some((1, 1, 7, true)));
        assert_eq!(
            taken(&mut log, 3),
            Some((2, 1, 3, true)),
            "two pages were left, one of them for the head"
        );
        assert_eq!((log.live(), log.due()), (0, None));
        assert_eq!(taken(&mut log, 9), Some((2, 5, 5, false)));
        assert_eq!(taken(&mut log, 9), Some((3, 1, 9, true)));
        assert_eq!(log.due(), Some(0));
        log.reclaimed(0);
        assert_eq!(log.due(), None);
        taken(&mut log, 9).unwrap();
        assert_eq!(log.due(), Some(1), "oldest first");
    }

    #[test]
    fn restored_log_goes_on_behind_what_is_filled() {
        let mut log = Log::restored(5, 10, &[3, 1]);
        log.revive(Place { region: 3, page: 7 });
        assert_eq!((log.live(), log.due(), log.has_been_full()), (1, None, false));
        assert_eq!(log.append(), Some(Place { region: 0, page: 0 }));
        log.reserve(0, 10, 10).unwrap();
        assert_eq!(log.due(), Some(3));
    }

    #[test]
    fn log_without_free_regions_takes_nothing() {
        let mut log = Log::new(4, 1);
        let taken = std::iter::from_fn(|| log.append()).count();
        assert_eq!((taken, log.due()), (4, Some(0)));
    }

    #[test]
    fn most_read_pages_stay_in_their_order() {
        let mut pages = vec![(2, 'a'), (9, 'b'), (2, 'c'), (3, 'd'), (255, 'e')];
        most_read(&mut pages, 4);
        assert_eq!(pages, [(2, 'a'), (9, 'b'), (3, 'd'), (255, 'e')]);
        most_read(&mut pages, 2);
        assert_eq!(pages, [(9, 'b'), (255, 'e')]);
        most_read(&mut pages, 0);
        assert!(pages.is_empty());
    }

    #[test]
    #[should_panic = "a page dies once"]
    fn page_dies_once() {
        let mut log = Log::new(4, 2);
        let place = log.append().unwrap();
        log.kill(place);
        log.kill(place);
    }

    proptest! {
        /// No place is returned twice while live, and the counts agree with a plain list.
        #[test]
        fn live_places_are_distinct(regions in 4u32..9, pages in 1u32..6, ops in prop::collection::vec(any::<u8>(), 1..300)) {
            let mut log = Log::new(regions, pages);
            let mut live = Vec::new();
            for op in ops {
                drop_all(&mut log, &mut live);
                if op < 200 || live.is_empty() {
                    let place = log.append().unwrap();
                    prop_assert!(!live.contains(&place) && place.region < regions && place.page < pages);
                    live.push(place);
                } else {
                    log.kill(live.swap_remove(op as usize % live.len()));
                }
                prop_assert_eq!(log.live(), live.len() as u64);
            }
        }
    }
}
