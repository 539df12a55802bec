//! How far a sequential reader past the kernel's page cache is read ahead.

use terrace_shm::BLOCK_PAGES;

/// Sequential reads that miss: where the last one ended, and how far it read ahead.
///
/// Pages that were read ahead are hits, so the next miss of a sequential reader comes exactly at `next`; the
/// window then doubles, as in the kernel's mm/readahead.c.
#[derive(Debug, Default)]
pub(crate) struct Readahead {
    next: u64,
    window: u64,
}

impl Readahead {
    /// Pages to read beyond a miss of `[first, first + pages)`.
    pub(crate) fn beyond(&mut self, first: u64, pages: u64, window_max: u64) -> u64 {
        let sequential = first == self.next && first > 0;
        let window = match (sequential, self.window) {
            (false, _) if first == 0 => BLOCK_PAGES as u64,
            (false, _) => 0,
            (true, 0) => BLOCK_PAGES as u64,
            (true, w) => w * 2,
        };
        self.window = window.min(window_max);
        self.next = first + pages + self.window;
        self.window
    }
}
