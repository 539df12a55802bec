//! The age of the page at the end of a FIFO queue, without a time stamp a page.
//!
//! ```text
//!   entries into the queue, counted    0 ···· 32 ···· 64 ···· 96 ·· 110
//!   marks (count, time)                │      │       │       │
//!   80 pages in it: its end is         │      └ entry 30, which came before the mark of 32
//! ```
//! A mark records count and time at regular numbers of entries. The page at the end is as many entries old as
//! the queue is long. It gets the time of the next mark, which is younger, so fewer pages are admitted.
//! *Tried:* the mark before. It can be very old, and a loop over more than the pool then loses its kept
//! pages. Pages that leave out of turn also make the end look younger, until the queue has turned over.

use std::collections::VecDeque;

/// Maximum number of marks; and marks in a queue as long as the `span` given to `enter`.
const MARKS_MAX: usize = 64;
const MARKS_A_SPAN: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct QueueAge {
    entries: u64,
    /// Entries before the mark, and its time; oldest first.
    marks: VecDeque<(u64, u64)>,
}

impl QueueAge {
    /// Adds a page to a queue of about `span` pages at time `now`. Any unit; times must not decrease.
    pub(crate) fn enter(&mut self, now: u64, span: usize) {
        let step = (span / MARKS_A_SPAN).max(1) as u64;
        if self.marks.back().is_none_or(|&(entries, _)| self.entries >= entries + step) {
            if self.marks.len() == MARKS_MAX {
                self.marks.pop_front();
            }
            self.marks.push_back((self.entries, now));
        }
        self.entries += 1;
    }

    /// Entry time of the page at the end of a queue of `len` pages, dated to the next mark. Answers never
    /// decrease, so earlier marks are dropped.
    pub(crate) fn entered(&mut self, len: usize) -> u64 {
        let left = self.entries.saturating_sub(len as u64);
        while self.marks.len() > 1 && self.marks[0].0 < left {
            self.marks.pop_front();
        }
        self.marks.front().map_or(0, |&(_, time)| time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_queue_is_dated_to_a_mark() {
        let mut age = QueueAge::default();
        assert_eq!(age.entered(0), 0);
        for i in 0..110 {
            age.enter(1000 + i, 32 * MARKS_A_SPAN);
        }
        assert_eq!(age.entered(500), 1000);
        assert_eq!(age.entered(80), 1032, "entry 30");
        assert_eq!(age.entered(78), 1032, "entry 32");
        assert_eq!(age.entered(1), 1096, "the last mark");
        age.enter(2000, 1);
        assert_eq!(age.entered(1), 2000);
    }

    #[test]
    fn marks_are_bounded_and_a_shorter_span_marks_more_often() {
        let mut age = QueueAge::default();
        for i in 0..10_000 {
            age.enter(i, if i < 5000 { 3200 } else { 320 });
        }
        assert_eq!(age.marks.len(), MARKS_MAX);
        assert_eq!(age.entered(9000), 9360, "before the oldest mark");
        assert_eq!(age.entered(200), 9800);
    }
}
