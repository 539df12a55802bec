//! Read cost of a page of a source or a device: estimated until it is measured.

/// Mean read cost of a page: time by pages of recent reads. A short read that had to wait for a processor
/// weighs only its few pages.
///
/// A tier can save only reads of pages that were in memory before. Before the first such read all reads
/// count, so that a first pass over the data measures the source.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadCost {
    /// Mean time of a read; the next field is its mean number of pages.
    read_ns: f64,
    pages: f64,
    samples: u32,
    /// Only reads of pages that were in memory before are included.
    of_known: bool,
    /// Time of a request of any length, before the first read.
    request_ns: Option<u64>,
}

impl ReadCost {
    /// Length of the moving average, in reads.
    const SAMPLES: u32 = 64;
    /// Bounds of the accepted time, ns a page.
    const NS: (f64, f64) = (1e2, 1e9);

    /// A known cost, ns a page.
    pub fn measured(page_ns: u64) -> ReadCost {
        ReadCost {
            read_ns: page_ns as f64,
            pages: 1.0,
            samples: ReadCost::SAMPLES,
            of_known: true,
            request_ns: None,
        }
    }

    /// A remote place with a measured request time, ns: long reads cost as much as short ones.
    pub fn of_request(ns: u64) -> ReadCost {
        ReadCost { request_ns: Some(ns), ..ReadCost::default() }
    }

    /// Counts a read of `pages` pages that took `ns`; `known`: most of them had been in memory before.
    pub fn note(&mut self, pages: u64, ns: u64, known: bool) {
        if self.of_known && !known {
            return;
        }
        if known && !self.of_known {
            *self = ReadCost { of_known: true, ..ReadCost::default() };
        }
        let pages = pages.max(1) as f64;
        let read_ns = (ns as f64).clamp(ReadCost::NS.0 * pages, ReadCost::NS.1 * pages);
        self.samples = (self.samples + 1).min(ReadCost::SAMPLES);
        let weight = 1.0 / f64::from(self.samples);
        self.read_ns += (read_ns - self.read_ns) * weight;
        self.pages += (pages - self.pages) * weight;
    }

    /// Nanoseconds a page; None before the first read.
    pub fn page_ns(&self) -> Option<u64> {
        (self.samples > 0).then(|| (self.read_ns / self.pages) as u64)
    }

    /// Mean pages of a read, 1 before the first: long reads cost less a page.
    pub(crate) fn pages(&self) -> f64 {
        self.pages.max(1.0)
    }
}

/// Saving of a hit on the device, ns a page; negative if the device is hardly faster. Uses the measured
/// costs. Before the first read of the device, it assumes a usual SSD and reads as long as those of the
/// source.
///
/// A fifth of the source's cost is left out. Waits for processors make equally fast places differ by as much.
/// A hit also cuts a long read of the source in two.
pub fn saved_a_hit(source: &ReadCost, device: &ReadCost) -> i64 {
    let source_ns = source.page_ns().unwrap_or(SOURCE_NS);
    (source_ns - source_ns / 5) as i64 - device_ns(source, device) as i64
}

/// Read cost of the device, ns a page; before the first read as for [`saved_a_hit`].
pub fn device_ns(source: &ReadCost, device: &ReadCost) -> u64 {
    let request_ns = device.request_ns.map_or(DEVICE_NS, |ns| ns as f64);
    device.page_ns().unwrap_or((request_ns / source.pages() + DEVICE_PAGE_NS) as u64)
}

/// Assumed read cost of an unmeasured source, ns a page.
pub const SOURCE_NS: u64 = 500_000;
/// Assumed cost of a read of an SSD, and of each page of it (2 GB/s).
const DEVICE_NS: f64 = 90_000.0;
const DEVICE_PAGE_NS: f64 = 2_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(reads: &[(u64, u64, bool)]) -> ReadCost {
        let mut cost = ReadCost::default();
        reads.iter().for_each(|(pages, ns, known)| cost.note(*pages, *ns, *known));
        cost
    }

    #[test]
    fn first_read_counts_at_once_and_later_ones_by_and_by() {
        assert_eq!(ReadCost::default().page_ns(), None);
        assert_eq!(read(&[(1, 8_000_000, false)]).page_ns(), Some(8_000_000));
        assert_eq!(read(&[(1, 10_000, false), (1, 30_000, false)]).page_ns(), Some(20_000));
        let mut cost = ReadCost::measured(90_000);
        cost.note(1, 90_000 + 64_000, true);
        assert_eq!(cost.page_ns(), Some(91_000));
        (0..1000).for_each(|_| cost.note(1, 10_000, true));
        assert!((10_000..10_100).contains(&cost.page_ns().unwrap()));
    }

    #[test]
    fn what_comes_again_is_what_counts() {
        let cost = read(&[(64, 64 * 5_000, false), (1, 500_000, true), (64, 64 * 5_000, false)]);
        assert_eq!((cost.page_ns(), cost.pages()), (Some(500_000), 1.0));
    }

    #[test]
    fn short_read_that_waited_does_not_make_long_ones_dear() {
        let mut cost = ReadCost::default();
        (0..63).for_each(|_| cost.note(100, 100_000, true));
        cost.note(1, 4_000_000, true);
        assert!((1_600..1_700).contains(&cost.page_ns().unwrap()), "{cost:?}");
    }

    #[test]
    fn absurd_times_are_not_believed() {
        assert_eq!(read(&[(1, u64::MAX, true)]).page_ns(), Some(1_000_000_000));
        assert_eq!(read(&[(0, 0, true)]).page_ns(), Some(100));
    }

    #[test]
    fn device_that_was_not_read_is_guessed_for_reads_as_long() {
        let guess = ReadCost::default();
        assert_eq!(device_ns(&guess, &guess), 92_000);
        assert_eq!(device_ns(&read(&[(128, 128 * 40_000, false)]), &guess), 2_703);
        assert_eq!(device_ns(&read(&[(128, 128 * 40_000, false)]), &ReadCost::measured(1_000)), 1_000);
        let mut far = ReadCost::of_request(1_280_000);
        assert_eq!(device_ns(&read(&[(128, 128 * 40_000, false)]), &far), 12_000);
        far.note(1, 2_000_000, true);
        assert_eq!(device_ns(&guess, &far), 2_000_000);
    }

    #[test]
    fn device_has_to_be_faster_by_a_fifth() {
        let saved = |source, device| saved_a_hit(&ReadCost::measured(source), &ReadCost::measured(device));
        // Equal but for the noise: nothing; a random read of a disk; a file read at 100 MB/s.
        assert!(saved(7_000, 6_000) < 0 && saved(5_000, 5_000) < 0);
        assert_eq!(saved(500_000, 92_000), 308_000);
        assert_eq!(saved(40_000, 2_703), 29_297);
    }
}
