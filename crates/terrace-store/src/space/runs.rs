//! Runs of free pages: the smallest that fits is taken (best fit), neighbours become one.

use std::collections::{BTreeMap, BTreeSet};

/// Memory of a run: an entry of 16 bytes in each of two trees that are about two thirds full.
const RUN_BYTES: u64 = 64;

#[derive(Debug, Default)]
pub(super) struct Runs {
    /// First page and pages.
    by_start: BTreeMap<u64, u64>,
    /// Pages and first page.
    by_len: BTreeSet<(u64, u64)>,
    pages: u64,
}

impl Runs {
    /// The first of so many free pages, which are free no longer.
    pub(super) fn claim(&mut self, pages: u64) -> Option<u64> {
        self.take(pages, pages).map(|(start, _)| start)
    }

    /// At least `least` free pages and at most `most`, which are free no longer: the first, and how many.
    pub(super) fn take(&mut self, least: u64, most: u64) -> Option<(u64, u64)> {
        let &(len, start) = self.by_len.range((least, 0)..).next()?;
        Some(self.cut(start, len, most))
    }

    /// The longest run, but at most so many pages of it.
    pub(super) fn take_longest(&mut self, most: u64) -> Option<(u64, u64)> {
        let &(len, start) = self.by_len.last()?;
        Some(self.cut(start, len, most))
    }

    fn cut(&mut self, start: u64, len: u64, most: u64) -> (u64, u64) {
        self.remove(start, len);
        if len > most {
            self.insert(start + most, len - most);
        }
        (start, len.min(most))
    }

    /// These pages are free.
    pub(super) fn free(&mut self, mut start: u64, mut pages: u64) {
        if pages == 0 {
            return;
        }
        if let Some((&before, &len)) = self.by_start.range(..start).next_back() {
            assert!(before + len <= start, "pages from {start} are free twice");
            if before + len == start {
                self.remove(before, len);
                (start, pages) = (before, len + pages);
            }
        }
        if let Some((&after, &len)) = self.by_start.range(start..).next() {
            assert!(start + pages <= after, "pages from {after} are free twice");
            if start + pages == after {
                self.remove(after, len);
                pages += len;
            }
        }
        self.insert(start, pages);
    }

    fn insert(&mut self, start: u64, pages: u64) {
        self.by_start.insert(start, pages);
        self.by_len.insert((pages, start));
        self.pages += pages;
    }

    fn remove(&mut self, start: u64, pages: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(pages, start));
        self.pages -= pages;
    }

    /// Free pages.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Bytes of memory, about.
    pub(super) fn memory(&self) -> u64 {
        self.by_start.len() as u64 * RUN_BYTES
    }
}
