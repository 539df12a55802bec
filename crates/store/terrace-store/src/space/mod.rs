//! The allocator of the heap.
//!
//! A blob up to 2 KiB gets a slot in a page of its class (`slabs`), a larger blob pages (`runs`). The room of
//! an overwritten blob becomes free in two steps. It is *retired* with the number of the replacing record,
//! and *released* when that record is durable. Until then a power cut may bring the old blob back, so the
//! room must keep its bytes. The room of a blob that no sync has covered is free at once
//! ([`crate::log::Logged`]).

mod extent;
mod pages;
mod runs;
mod slabs;

use runs::Runs;
use slabs::{Slabs, Slot};
use std::collections::VecDeque;

pub(crate) use extent::{Extent, PAGE, PAGE_UNITS, UNIT};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub extent: Extent,
    /// The extent is the first slot of an empty page. The page is written whole, then its other slots are
    /// offered ([`Space::offer`]).
    pub fresh: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Space {
    runs: Runs,
    /// Free pages that may lack blocks on the disk: blocks must be reserved before use.
    holes: Runs,
    slabs: Slabs,
    retired: VecDeque<(u64, Extent)>,
    /// Like `retired`, for extents that no sync has covered. They are released once the kernel has the
    /// record.
    replaced: VecDeque<(u64, Extent)>,
    retired_bytes: u64,
    /// Pages of the heap's file.
    pages: u64,
}

impl Space {
    /// Claims room for `bytes`. None: the heap must grow first.
    pub(crate) fn claim(&mut self, bytes: u64) -> Option<Claim> {
        if bytes == 0 {
            return Some(Claim { extent: Extent::NONE, fresh: false });
        }
        let Some(class) = slabs::class_of(bytes) else {
            let pages = bytes.div_ceil(PAGE);
            let start = self.runs.claim(pages)? * PAGE_UNITS;
            return Some(Claim {
                extent: Extent { start, units: (pages * PAGE_UNITS) as u32 },
                fresh: false,
            });
        };
        if let Some(Slot { page, index }) = self.slabs.claim(class) {
            return Some(Claim { extent: slabs::extent(class, page, index), fresh: false });
        }
        let page = self.runs.claim(1)?;
        self.slabs.add_page(class, page);
        Some(Claim { extent: slabs::extent(class, page, 0), fresh: true })
    }

    /// Like [`Space::claim`], for a heap that cannot grow: also takes slots of mostly used pages.
    pub(crate) fn claim_last(&mut self, bytes: u64) -> Option<Claim> {
        let class = slabs::class_of(bytes)?;
        self.slabs.gather(class);
        self.claim(bytes)
    }

    /// Offers the other slots of a fresh page, after its first slot was written.
    pub(crate) fn offer(&mut self, extent: Extent) {
        self.slabs.offer(extent.page());
    }

    /// Frees an extent that no record names, not even one that a power cut could bring back.
    pub(crate) fn free(&mut self, extent: Extent) {
        if extent.units == 0 {
            return;
        }
        if extent.is_pages() {
            self.runs.free(extent.page(), u64::from(extent.units) / PAGE_UNITS);
        } else if let Some(page) = self.slabs.free(extent) {
            self.runs.free(page, 1);
        }
    }

    /// Retires an extent that the record with this number has replaced.
    pub(crate) fn retire(&mut self, number: u64, extent: Extent) {
        if extent.units > 0 {
            self.retired_bytes += extent.bytes();
            self.retired.push_back((number, extent));
        }
    }

    /// Retires an extent that no sync has covered, and the record with this number has replaced.
    pub(crate) fn replace(&mut self, number: u64, extent: Extent) {
        if extent.units > 0 {
            self.retired_bytes += extent.bytes();
            self.replaced.push_back((number, extent));
        }
    }

    /// Releases extents retired by records up to this number, which are durable. Returns the bytes released.
    pub(crate) fn release(&mut self, upto: u64) -> u64 {
        let before = self.retired_bytes;
        let mut retired = std::mem::take(&mut self.retired);
        self.release_from(&mut retired, upto);
        self.retired = retired;
        before - self.retired_bytes
    }

    /// Releases extents replaced by records up to this number, which the kernel has.
    pub(crate) fn release_replaced(&mut self, upto: u64) {
        let mut replaced = std::mem::take(&mut self.replaced);
        self.release_from(&mut replaced, upto);
        self.replaced = replaced;
    }

    fn release_from(&mut self, extents: &mut VecDeque<(u64, Extent)>, upto: u64) {
        // Threads retire slightly out of order, so an extent may wait for a later record.
        while let Some(&(number, extent)) = extents.front()
            && number <= upto
        {
            extents.pop_front();
            self.retired_bytes -= extent.bytes();
            self.free(extent);
        }
        if extents.len() < extents.capacity() / 8 {
            extents.shrink_to(2 * extents.len());
        }
    }

    pub(crate) fn retired_bytes(&self) -> u64 {
        self.retired_bytes
    }

    pub(crate) fn retired_len(&self) -> usize {
        self.retired.len()
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        (self.runs.pages() + self.holes.pages()) * PAGE
    }

    /// Takes at most `most` free pages to give their blocks back: the first page and the number.
    pub(crate) fn take_free(&mut self, most: u64) -> Option<(u64, u64)> {
        self.runs.take_longest(most)
    }
    /// Takes free pages that will get blocks: at least `least` adjacent pages, at most `most`.
    pub(crate) fn take_holes(&mut self, least: u64, most: u64) -> Option<(u64, u64)> {
        self.holes.take(least, most)
    }
    /// Adds free pages with blocks.
    pub(crate) fn add_free(&mut self, (page, pages): (u64, u64)) {
        self.runs.free(page, pages);
    }
    /// Adds free pages without blocks.
    pub(crate) fn add_holes(&mut self, (page, pages): (u64, u64)) {
        self.holes.free(page, pages);
    }
    /// Treats all free pages as pages without blocks.
    pub(crate) fn forget_blocks(&mut self) {
        while let Some(run) = self.runs.take_longest(u64::MAX) {
            self.add_holes(run);
        }
    }

    /// Size of the heap file, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.pages * PAGE
    }

    /// Notes the new size of the heap file in pages.
    pub(crate) fn grow(&mut self, pages: u64) {
        if pages > self.pages {
            self.runs.free(self.pages, pages - self.pages);
            self.pages = pages;
        }
    }

    /// Rebuilds the allocator of a heap of `pages` with these extents in use. Fails with an extent that
    /// overlaps another, or lies beyond the end.
    pub(crate) fn rebuild(pages: u64, extents: impl Iterator<Item = Extent>) -> Result<Space, Extent> {
        let mut space = Space { pages, ..Space::default() };
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for extent in extents.filter(|extent| extent.units > 0) {
            if extent.start + u64::from(extent.units) > pages * PAGE_UNITS {
                return Err(extent);
            }
            if extent.is_pages() {
                runs.push((extent.page(), u64::from(extent.units) / PAGE_UNITS));
            } else if !space.slabs.occupy(extent) {
                return Err(extent);
            }
        }
        runs.extend(space.slabs.pages().map(|page| (page, 1)));
        runs.sort_unstable();
        let mut next = 0;
        for (page, len) in runs {
            if page < next {
                return Err(Extent { start: page * PAGE_UNITS, units: (len * PAGE_UNITS) as u32 });
            }
            space.runs.free(next, page - next);
            next = page + len;
        }
        space.runs.free(next, pages - next);
        space.slabs.offer_all();
        Ok(space)
    }

    /// Memory of the allocator, bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.runs.memory()
            + self.holes.memory()
            + self.slabs.memory()
            + ((self.retired.capacity() + self.replaced.capacity()) * size_of::<(u64, Extent)>()) as u64
    }
}

#[cfg(test)]
mod tests;
