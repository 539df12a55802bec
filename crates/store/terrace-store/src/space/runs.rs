//! Runs of free pages. A claim takes the smallest run that fits (best fit); adjacent runs are merged.

use std::collections::{BTreeMap, BTreeSet};

/// Memory of a run: an entry of 16 bytes in each of two trees that are about two thirds full.
const RUN_BYTES: u64 = 64;

#[derive(Debug, Default)]
pub(super) struct Runs {
    /// Length by first page.
    by_start: BTreeMap<u64, u64>,
    /// Length and first page.
    by_len: BTreeSet<(u64, u64)>,
    pages: u64,
}

impl Runs {
    /// Takes `pages` free pages. Returns the first.
    pub(super) fn claim(&mut self, pages: u64) -> Option<u64> {
        self.take(pages, pages).map(|(start, _)| start)
    }

    /// Takes at least `least` free pages and at most `most`. Returns the first, and how many.
    pub(super) fn take(&mut self, least: u64, most: u64) -> Option<(u64, u64)> {
        let &(len, start) = self.by_len.range((least, 0)..).next()?;
        Some(self.cut(start, len, most))
    }

    /// Takes the longest run, at most `most` pages of it.
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

    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Memory, about, bytes.
    pub(super) fn memory(&self) -> u64 {
        self.by_start.len() as u64 * RUN_BYTES
    }
}
