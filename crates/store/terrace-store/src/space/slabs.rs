//! Slots for small blobs: a page is divided into equal slots of one class (Bonwick: The slab allocator,
//! 1994).
//!
//! A page takes blobs again once half of its slots are free; the latest such page is used first. A page that
//! is all free goes back to the runs. Pages with fewer free slots wait: filling a slot of a page outside memory
//! costs a read of the page.

use super::extent::{Extent, PAGE_UNITS, UNIT};
use super::pages::{Class, Page, Pages};

/// Slots of a page, by class: each number that gives another slot size.
const SLOTS: [u8; 14] = [64, 32, 21, 16, 12, 10, 9, 8, 7, 6, 5, 4, 3, 2];

fn slots_of(class: Class) -> u8 {
    SLOTS[usize::from(class)]
}

pub(super) fn units_of(class: Class) -> u32 {
    PAGE_UNITS as u32 / u32::from(slots_of(class))
}

/// The class for blobs of `bytes`. None: larger blobs have pages of their own.
pub(super) fn class_of(bytes: u64) -> Option<Class> {
    let units = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
    (units <= 32).then(|| (0..SLOTS.len() as Class).find(|class| units_of(*class) >= units))?
}

/// The class with slots of `units` units.
fn class_with(units: u32) -> Option<Class> {
    (0..SLOTS.len() as Class).find(|class| units_of(*class) == units)
}

pub(super) struct Slot {
    pub page: u64,
    pub index: u8,
}

pub(super) fn extent(class: Class, page: u64, index: u8) -> Extent {
    let units = units_of(class);
    Extent { start: page * PAGE_UNITS + u64::from(units) * u64::from(index), units }
}

fn new_page(class: Class) -> Page {
    Page { free: all(class), class, listed: false }
}

fn all(class: Class) -> u64 {
    u64::MAX >> (64 - slots_of(class))
}

#[derive(Debug, Default)]
pub(super) struct Slabs {
    pages: Pages,
    /// Offered pages, by class. Pages given back since are skipped.
    listed: [Vec<u64>; SLOTS.len()],
}

impl Slabs {
    /// Takes a free slot of an offered page.
    pub(super) fn claim(&mut self, class: Class) -> Option<Slot> {
        let list = &mut self.listed[usize::from(class)];
        while let Some(&page) = list.last() {
            if let Some(mut slab) = self.pages.get(page)
                && slab.class == class
                && slab.listed
                && slab.free != 0
            {
                let index = slab.free.trailing_zeros() as u8;
                slab.free &= !(1 << index);
                if slab.free == 0 {
                    slab.listed = false;
                    list.pop();
                }
                self.pages.set(page, slab);
                return Some(Slot { page, index });
            }
            list.pop();
        }
        None
    }

    /// Adds a page. Its first slot is in use, the others are not offered yet.
    pub(super) fn add_page(&mut self, class: Class, page: u64) {
        let mut slab = new_page(class);
        slab.free &= !1;
        self.pages.set(page, slab);
    }

    /// Offers the free slots of a page, if it has any.
    pub(super) fn offer(&mut self, page: u64) {
        let Some(mut slab) = self.pages.get(page) else { return };
        if slab.free != 0 && !slab.listed {
            slab.listed = true;
            self.listed[usize::from(slab.class)].push(page);
            self.pages.set(page, slab);
        }
    }

    /// Offers all pages with enough free slots.
    pub(super) fn offer_all(&mut self) {
        self.offer_where(|slab| slab.free.count_ones() * 2 >= u32::from(slots_of(slab.class)));
    }

    /// Offers all pages of a class with a free slot.
    pub(super) fn gather(&mut self, class: Class) {
        self.offer_where(|slab| slab.class == class && slab.free != 0);
    }

    fn offer_where(&mut self, is_offered: impl Fn(&Page) -> bool) {
        let offered = self.pages.iter().filter(|(_, slab)| is_offered(slab));
        let offered: Vec<u64> = offered.map(|(page, _)| page).collect();
        offered.into_iter().for_each(|page| self.offer(page));
    }

    /// Frees a slot. If that leaves the page all free, takes the page out and returns it.
    pub(super) fn free(&mut self, extent: Extent) -> Option<u64> {
        let page = extent.page();
        let mut slab = self.pages.get(page).expect("a slot of a page of slots");
        let bit = 1 << (extent.start % PAGE_UNITS / u64::from(units_of(slab.class)));
        assert!(slab.free & bit == 0, "slot {extent:?} is free twice");
        slab.free |= bit;
        if slab.free == all(slab.class) {
            // Its entry in the list, if any, is skipped later.
            self.pages.remove(page);
            return Some(page);
        }
        self.pages.set(page, slab);
        if slab.free.count_ones() * 2 >= u32::from(slots_of(slab.class)) {
            self.offer(page);
        }
        None
    }

    /// Marks a slot as in use. Returns false if it is in use already, or its page has another class.
    pub(super) fn occupy(&mut self, extent: Extent) -> bool {
        let Some(class) = class_with(extent.units) else { return false };
        let within = extent.start % PAGE_UNITS;
        let index = within / u64::from(extent.units);
        if !within.is_multiple_of(u64::from(extent.units)) || index >= u64::from(slots_of(class)) {
            return false;
        }
        let mut slab = self.pages.get(extent.page()).unwrap_or(new_page(class));
        let is_free = slab.class == class && slab.free & 1 << index != 0;
        slab.free &= !(1 << index);
        self.pages.set(extent.page(), slab);
        is_free
    }

    pub(super) fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.iter().map(|(page, _)| page)
    }

    /// Memory, bytes.
    pub(super) fn memory(&self) -> u64 {
        let lists: usize = self.listed.iter().map(|list| list.capacity() * 8).sum();
        (self.pages.memory() + lists) as u64
    }
}
