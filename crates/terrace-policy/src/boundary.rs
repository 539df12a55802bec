//! The moving boundary between DRAM and the compressed tier inside one memory budget.
//!
//! A chunk more for the compressed tier saves the misses on pages that left it a short while ago, each a read of the device. It
//! costs that the coldest chunk of DRAM is compressed: its hits become decompressions, and pages go to and fro. So two sums are
//! weighed, window by window: *near misses* (faults on pages that were given up a short while ago, as the policy has it) by what a
//! miss costs, and what the tier takes of the processor: hits in it and compressions by what they cost. Neither is that of
//! just one chunk, but the first shrinks and the second grows as the tier grows, so that the boundary comes to rest where they
//! balance; a dead band keeps it there. (The rule of marginal benefit, with rates in place of curves.)
//!
//! The same windows say whether compressing pays at all: hits per compression under c / (Td - d) mean that the processor is paid
//! for nothing. The tier then *bypasses* itself, and probes now and then whether times have changed.

use std::ops::RangeInclusive;

/// What happened in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Faults on pages that were given up within the last pool of evictions.
    pub near_misses: u64,
    /// Reads that the tier answered.
    pub tier_hits: u64,
    /// Pages compressed and stored.
    pub stored: u64,
    /// Pages that were compressed in vain: the result was too long.
    pub refused: u64,
    /// The tier has filled the memory that it has.
    pub full: bool,
}

/// What things cost, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A read of the device.
    pub miss: u64,
    /// To compress a page.
    pub compress: u64,
    /// To decompress one.
    pub decompress: u64,
}

/// Events that make a window worth judging.
const EVENTS_MIN: u64 = 64;
/// A side must be worth this many times the other before the boundary moves, in halves: 3 = one and a half times.
const DEAD_BAND_HALVES: u64 = 3;
/// Steps of the boundary: this share of all chunks each, at least one.
const STEP_DIVISOR: u32 = 64;
/// Compressions that are judged together, at the least: so many, and so many for each chunk. The tier must have been filled twice,
/// or its pages have had no time to be hit.
const COMPRESSIONS_MIN: u64 = 4096;
const COMPRESSIONS_A_CHUNK: u64 = 2048;
/// Pages not compressed before a bypassed tier probes again.
const PROBE_AFTER: u64 = 65536;

/// How many chunks the compressed tier should have.
#[derive(Debug)]
pub struct Boundary {
    /// What is known of the costs by now.
    pub costs: Costs,
    /// Chunks that the tier may have, of how many in all.
    chunks_may: RangeInclusive<u32>,
    chunks_all: u32,
    chunks: u32,
    /// Since the last judgement of the bypass.
    compressed: u64,
    hits: u64,
    /// Pages that may pass by before the next probe; 0: not bypassed.
    passing: u64,
}

impl Boundary {
    /// A tier that may have no memory yet.
    pub fn new(costs: Costs) -> Boundary {
        Boundary { costs, chunks_may: 0..=0, chunks_all: 0, chunks: 0, compressed: 0, hits: 0, passing: 0 }
    }

    /// The budget is another: from now on the tier has so many chunks of `chunks_all`.
    pub fn set_limits(&mut self, chunks_may: RangeInclusive<u32>, chunks_all: u32) {
        (self.chunks_may, self.chunks_all) = (chunks_may, chunks_all);
        self.set(self.chunks);
    }
    fn set(&mut self, chunks: u32) {
        self.chunks = chunks.clamp(*self.chunks_may.start(), *self.chunks_may.end());
    }

    /// Chunks for the tier now.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Whether pages should be compressed at all.
    pub fn compresses(&self) -> bool {
        self.passing == 0
    }

    /// A page was given up that a bypassed tier might have taken.
    pub fn passed(&mut self) {
        self.passing = self.passing.saturating_sub(1);
    }

    /// Judges a window; the chunks for the tier from now on. False: too little happened to tell, so the window should go on.
    pub fn judge(&mut self, window: Window) -> bool {
        if window.near_misses + window.tier_hits + window.stored + window.refused < EVENTS_MIN {
            return false;
        }
        self.judge_bypass(window);
        let step = (self.chunks_all / STEP_DIVISOR).max(1);
        let saved = window.near_misses * self.costs.miss;
        let spent =
            window.tier_hits * self.costs.decompress + (window.stored + window.refused) * self.costs.compress;
        let (more, less) = (self.chunks + step, self.chunks.saturating_sub(step));
        if !self.compresses() || spent * 2 > saved * DEAD_BAND_HALVES {
            self.set(less);
        } else if window.full && saved * 2 > spent * DEAD_BAND_HALVES {
            self.set(more);
        }
        true
    }

    fn judge_bypass(&mut self, window: Window) {
        self.compressed += window.stored + window.refused;
        self.hits += window.tier_hits;
        if self.compressed < COMPRESSIONS_MIN + u64::from(self.chunks) * COMPRESSIONS_A_CHUNK {
            return;
        }
        let gain = self.hits * self.costs.miss.saturating_sub(self.costs.decompress);
        if gain < self.compressed * self.costs.compress {
            self.passing = PROBE_AFTER;
        }
        (self.compressed, self.hits) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { miss: 60_000, compress: 8_000, decompress: 3_000 };

    fn window(near_misses: u64, tier_hits: u64, stored: u64) -> Window {
        Window { near_misses, tier_hits, stored, refused: 0, full: true }
    }

    fn boundary() -> Boundary {
        let mut boundary = Boundary::new(COSTS);
        boundary.set_limits(10..=100, 256);
        boundary
    }

    #[test]
    fn misses_that_a_larger_tier_would_have_saved_enlarge_it() {
        let mut boundary = boundary();
        assert_eq!(boundary.chunks(), 10, "what it has in any case");
        assert!(!boundary.judge(window(10, 0, 0)), "too little to tell");
        for _ in 0..1000 {
            assert!(boundary.judge(window(1000, 1000, 1000)));
        }
        assert_eq!(boundary.chunks(), 100);
        // A miss is 20 decompressions, or 7.5 compressions.
        for spent in [window(100, 2000, 0), window(100, 0, 750), window(100, 1000, 375)] {
            boundary.judge(spent);
            assert_eq!(boundary.chunks(), 100, "in balance");
        }
        boundary.judge(window(100, 1600, 600));
        assert_eq!(boundary.chunks(), 96);
        boundary.judge(Window { full: false, ..window(1000, 0, 0) });
        assert_eq!(boundary.chunks(), 96, "it has room left");
        boundary.set_limits(0..=50, 128);
        assert_eq!(boundary.chunks(), 50);
    }

    #[test]
    fn a_tier_without_hits_bypasses_itself_and_probes() {
        let mut boundary = boundary();
        let mut windows = 0;
        while boundary.compresses() {
            boundary.judge(window(1000, 100, 1000));
            windows += 1;
        }
        assert!(windows > 20, "{windows}: it had time to fill");
        let chunks = boundary.chunks();
        boundary.judge(window(1000, 100, 1000));
        assert!(boundary.chunks() < chunks, "its memory goes back to DRAM");
        (0..PROBE_AFTER).for_each(|_| boundary.passed());
        assert!(boundary.compresses());
    }
}
