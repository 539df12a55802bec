//! The moving boundary between DRAM and the compressed tier inside one memory budget.
//!
//! It compares two sums, window by window:
//!
//! - The *saving* of more pages in memory: refaults. Each saves a device read, less a decompression, and less
//!   a compression of a page that must leave for it. (No memory saves first uses.) If the tier refuses most
//!   offered pages, only DRAM can save their misses.
//! - The *cost* of the tier: decompressions at hits, and moves of pages between tier and DRAM. (Each miss
//!   compresses one page that leaves DRAM. A larger tier has fewer misses, so these compressions are no cost
//!   of its size.)
//!
//! Neither sum is marginal, that is, of one page more. But a larger tier has less saving and more cost, so
//! the boundary settles where they balance. A dead band keeps it there. For uniform, zipf and normal access
//! the time is within a tenth of that with the best fixed boundary. *Tried:* marginal benefit. It compares
//! faults soon after their eviction with the hits of an average page of the tier. It settles too low: the
//! coldest pages of DRAM are new, with fewer reads than the tier's average page.
//!
//! On a busy machine a device read counts less, for two reasons:
//!
//! 1. A blocked reader frees its processor: where no processor is idle, waiting costs no program time.
//! 2. After the device's answer a reader waits for a processor, for a growing part of its time.
//!
//! Compression then takes its time from the programs.
//!
//! The same windows decide whether compression pays at all. Its gain is the hits beyond those of DRAM in the
//! same memory. With n pages to a page of memory these are at most 1 - 1/n of all hits. Its price is all
//! compressions and all decompressions. A tier that does not pay *bypasses* itself and probes now and then; a
//! tier with a minimum share never does.
//!
//! A growing tier has no judgement, because pages leave a small one before their hits. On a busy machine the
//! judgement comes soon, because filling takes time from programs. It assumes the maximum size, hits in
//! proportion, and one compression less for each refault saved. Filling a tier costs many compressions once.
//! They count only after the tier was full and at rest. A tier that fills repeatedly pays for them.

use std::ops::RangeInclusive;

/// Events of one window, and the state at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// Reads of the source of pages that were in memory before.
    pub refaults: u64,
    /// Reads answered by the tier.
    pub tier_hits: u64,
    /// Pages moved from the tier to DRAM.
    pub promoted: u64,
    /// Pages compressed and stored.
    pub stored: u64,
    /// Pages compressed but not stored: the result was too long.
    pub refused: u64,
    /// Pages compressed only because the tier was not full.
    pub filling: u64,
    /// Pages not compressed, because other pages of their file were refused.
    pub untried: u64,
    /// Pages in the tier.
    pub tier_pages: u64,
    /// Pages that the tier's memory would hold uncompressed.
    pub tier_frames: u64,
    /// The tier has filled its memory.
    pub full: bool,
    /// The tier has not filled its memory since its last step, and its fill rate is limited.
    pub fill_limited: bool,
}

/// Costs, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Share of a missing page in a device read: the reader's waiting time.
    pub read: u64,
    /// Processor time of a miss: share of the read's start and end, listing, another page's eviction.
    pub work: u64,
    /// Compression of a page.
    pub compress: u64,
    /// Decompression of a page.
    pub decompress: u64,
}

impl Costs {
    /// Cost of a miss for the waiting reader.
    pub fn miss(&self) -> u64 {
        self.read + self.work
    }
    /// Cost of a hit of the tier beyond a hit in DRAM.
    fn unpacking(&self) -> u64 {
        self.decompress.saturating_sub(HIT)
    }
}

/// A hit in DRAM, ns.
const HIT: u64 = 500;
/// Minimum number of events of a judged window.
const EVENTS_MIN: u64 = 64;
/// One side must be worth this many times the other before the boundary moves.
const DEAD_BAND: f64 = 1.5;
/// Pages of the tier to a page of its memory, until measured: LZ4 on common data.
const DENSITY: f64 = 1.6;
/// Minimum share of compressible pages among the offered ones for the full gain: they can fill a larger tier.
/// (Incompressible pages stay in DRAM, miss most, and are offered most.)
const TAKEN_ENOUGH: f64 = 0.5;
/// Offered pages that weigh as much as all earlier windows; then windows without offers after which the share
/// is forgotten. A tier without compressible pages must not regain memory just because pages are no longer
/// offered.
const OFFERED_HALF: f64 = 64.0;
const FORGOTTEN_IN: f64 = 8.0;
/// Minimum number of pages in the tier for measuring its density.
const DENSITY_PAGES: u64 = 1024;
/// Step of the boundary: this part of all chunks, at least one.
const STEP_DIVISOR: u32 = 64;
/// Minimum number of compressions of a judgement: in all, and for each chunk (half of a filling). A tier that
/// stops growing has been filled once already.
const COMPRESSIONS_MIN: u64 = 4096;
const COMPRESSIONS_A_CHUNK: u64 = 512;
/// The minimum for a tier that grows while the machine is busy.
const COMPRESSIONS_BUSY: u64 = 8192;
/// Compressions that fill a chunk at one page to a page of memory, with every third refused.
const FILLING_A_CHUNK: f64 = 768.0;
/// Minimum share of idle processors for the full weight of a wait; below, the weight falls with the share's
/// square. With two fio jobs a processor 35 to 45 per cent are idle, and each saved wait raises the
/// throughput.
pub const IDLE_ENOUGH: f64 = 1.0 / 3.0;
/// Share of idle processors below which compression takes its time from programs.
const IDLE_BUSY: f64 = 0.25;
/// Pages that a bypassed tier skips for each failed probe, so that probes cost less than a tenth.
const PASSED_A_TRY: u64 = 12;

/// Sums of a judgement of the bypass. Each window has its own costs: a moment without idle processors must
/// not decide for a minute.
#[derive(Debug, Default)]
struct Sums {
    compressed: u64,
    refaults: u64,
    /// Price of compressions, ns.
    paid: f64,
    /// Gain of the hits, less their cost, ns.
    earned: f64,
    /// Further gain with the tier's maximum size, and hits in proportion.
    may_earn: f64,
    /// Misses saved by these further hits.
    may_save: f64,
    /// The tier has grown.
    grown: bool,
}

impl Sums {
    /// Whether the tier is worth its price.
    fn pays(&self) -> bool {
        if !self.grown {
            return self.earned >= self.paid;
        }
        let (refaults, compressed) = (self.refaults as f64, self.compressed.max(1) as f64);
        // At most all refaults can be saved.
        let real = (refaults / self.may_save.max(1.0)).min(1.0);
        // A saved refault evicts no page from DRAM, so there is one compression less.
        let saved = (self.may_save / refaults.max(1.0)).min(1.0) * (refaults / compressed).min(1.0);
        self.earned + self.may_earn * real >= self.paid * (1.0 - saved)
    }
}

/// Chooses the number of chunks of the compressed tier.
#[derive(Debug)]
pub struct TierBalancer {
    /// The costs, as measured so far.
    pub costs: Costs,
    /// Share of idle processors, 0 to 1. 1 until it is measured.
    pub idle: f64,
    /// Share of the time in which the hypervisor runs the processors, 0 to 1. Reads are timed by the clock,
    /// everything else by the processor.
    pub cpu_share: f64,
    /// Range of the tier's chunks; the next field counts all chunks.
    chunks_may: RangeInclusive<u32>,
    chunks_all: u32,
    chunks: u32,
    /// Recent share of compressible pages among those offered to the tier.
    compressible_share: f64,
    /// Sums since the last judgement of the bypass.
    sums: Sums,
    /// Compressions since then, including those while growing.
    tried: u64,
    /// The tier was never full and at rest since its start or its last bypass.
    settling: bool,
    /// Pages compressed to fill it meanwhile.
    filled: u64,
    /// Pages to skip before the next probe; 0: not bypassed.
    passing: u64,
}

impl TierBalancer {
    /// A balancer of a tier that may have no memory yet.
    pub fn new(costs: Costs) -> TierBalancer {
        TierBalancer {
            costs,
            idle: 1.0,
            cpu_share: 1.0,
            chunks_may: 0..=0,
            chunks_all: 0,
            chunks: 0,
            compressible_share: 1.0,
            sums: Sums::default(),
            tried: 0,
            settling: true,
            filled: 0,
            passing: 0,
        }
    }

    /// Sets new limits: the range of the tier's chunks, of `chunks_all` in total.
    pub fn set_limits(&mut self, chunks_may: RangeInclusive<u32>, chunks_all: u32) {
        (self.chunks_may, self.chunks_all) = (chunks_may, chunks_all);
        self.set(self.chunks);
    }
    fn set(&mut self, chunks: u32) {
        self.chunks = chunks.clamp(*self.chunks_may.start(), *self.chunks_may.end());
    }

    fn step(&self) -> u32 {
        (self.chunks_all / STEP_DIVISOR).max(1)
    }

    /// The tier's chunks before its last step: the chunks that a just grown tier can have filled.
    pub fn chunks_before(&self) -> u32 {
        self.chunks.saturating_sub(self.step())
    }

    /// Whether the tier is at its minimum.
    pub fn is_least(&self) -> bool {
        self.chunks <= *self.chunks_may.start()
    }

    /// Current number of chunks of the tier.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Whether pages should be compressed at all.
    pub fn compresses(&self) -> bool {
        self.passing == 0
    }

    /// Counts an evicted page that a bypassed tier did not compress.
    pub fn passed(&mut self) {
        self.passing = self.passing.saturating_sub(1);
    }

    /// Judges a window, and moves the boundary by at most a step. False: too few events.
    pub fn rebalance(&mut self, window: Window) -> bool {
        if window.refaults + window.tier_hits + window.stored + window.refused + window.untried < EVENTS_MIN {
            return false;
        }
        let (more, less) = (self.chunks + self.step(), self.chunks_before());
        let density = density(window);
        self.learn_compressible_share(window);
        let (saved, spent) = self.weigh(window, density);
        let before = self.chunks;
        if !self.compresses() || window.fill_limited || spent > saved * DEAD_BAND {
            self.set(less);
        } else if window.full && saved > spent * DEAD_BAND {
            self.set(more);
        }
        self.judge_bypass(window, density, self.chunks > before);
        true
    }

    /// Whether compression takes its time from programs.
    pub fn is_busy(&self) -> bool {
        self.idle < IDLE_BUSY
    }

    /// Cost of a miss for the whole machine, ns.
    fn miss(&self) -> f64 {
        let waits = (self.idle / IDLE_ENOUGH).min(1.0).powi(2);
        self.costs.read as f64 * self.cpu_share * waits + self.costs.work as f64
    }

    /// Updates the share of compressible pages. Without offers it approaches 1.
    fn learn_compressible_share(&mut self, w: Window) {
        let offered = (w.stored + w.refused + w.untried) as f64;
        self.compressible_share += match offered > 0.0 {
            true => {
                (w.stored as f64 / offered - self.compressible_share) * offered / (offered + OFFERED_HALF)
            }
            false => (1.0 - self.compressible_share) / FORGOTTEN_IN,
        };
    }

    /// Saving and cost of a larger tier, ns.
    fn weigh(&self, w: Window, density: f64) -> (f64, f64) {
        // Further pages of a page of memory in the tier, normalised: 1 if enough are compressible.
        let gain =
            (density * (self.compressible_share / TAKEN_ENOUGH).min(1.0) - 1.0) / (density - 1.0).max(0.1);
        let Costs { compress, decompress, .. } = self.costs;
        let miss = self.miss();
        let saved = w.refaults as f64 * gain.max(0.0);
        // Some refaults push no page into the tier.
        let pushed = (w.refaults.min(w.stored + w.refused) * compress) as f64 * gain.max(0.0);
        let lost = w.refaults as f64 * (-gain).max(0.0) * miss;
        let spent = (w.tier_hits * self.costs.unpacking() + w.promoted * (compress + decompress)) as f64;
        // Future decompressions are a cost: no growth where one is hardly cheaper than a miss.
        (saved * miss + pushed, saved * decompress as f64 + lost + spent)
    }

    /// Judges the bypass. A growing tier is judged only on a busy machine: while small it has few hits for
    /// its traffic. A tier with a minimum share is never judged: its memory has no other use.
    fn judge_bypass(&mut self, window: Window, density: f64, grows: bool) {
        if *self.chunks_may.start() > 0 {
            return;
        }
        let compressed = window.stored + window.refused;
        self.settling = grows || (self.settling && !window.full);
        let allowed = if self.settling { self.filling_left(density) } else { 0 };
        // Pages without a place in the pool are neither stored nor refused.
        let free = window.filling.min(compressed).min(allowed);
        self.filled += window.filling;
        self.tried += compressed;
        if grows && !self.is_busy() {
            self.sums = Sums::default();
            return;
        }
        self.add(window, density, compressed - free);
        self.sums.grown |= grows;
        let enough = match self.sums.grown {
            true => COMPRESSIONS_BUSY,
            false => COMPRESSIONS_MIN + u64::from(self.chunks) * COMPRESSIONS_A_CHUNK,
        };
        if self.sums.compressed < enough {
            return;
        }
        let pays = self.sums.pays();
        if !pays {
            self.passing = self.tried.max(self.filled) * PASSED_A_TRY;
            self.settling = true;
        }
        if !pays || !(self.sums.grown || self.settling) {
            self.filled = 0;
        }
        self.tried = 0;
        self.sums = Sums::default();
    }
    /// Adds a window with `priced` compressions that count.
    fn add(&mut self, w: Window, density: f64, priced: u64) {
        let (gain, more) = (1.0 - density.recip(), (self.growth_left() - 1.0).max(0.0));
        let earned = w.tier_hits as f64 * (gain * self.miss() - self.costs.unpacking() as f64);
        let sums = &mut self.sums;
        sums.compressed += w.stored + w.refused;
        sums.refaults += w.refaults;
        sums.paid += (priced * self.costs.compress) as f64;
        sums.earned += earned;
        sums.may_earn += earned * more;
        sums.may_save += w.tier_hits as f64 * gain * more;
    }

    /// Remaining compressions that may fill the tier without a price.
    fn filling_left(&self, density: f64) -> u64 {
        let once = f64::from(*self.chunks_may.end()) * FILLING_A_CHUNK * density;
        (once as u64).saturating_sub(self.filled)
    }

    /// Factor by which the tier may still grow.
    fn growth_left(&self) -> f64 {
        f64::from(*self.chunks_may.end()) / f64::from(self.chunks.max(1))
    }
}

/// Pages of the tier to a page of its memory.
fn density(w: Window) -> f64 {
    match w.tier_pages {
        0..DENSITY_PAGES => DENSITY,
        pages => (pages as f64 / w.tier_frames.max(1) as f64).max(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { read: 50_000, work: 10_000, compress: 10_000, decompress: 3_000 };

    /// A tier of twice its memory's pages.
    fn window(refaults: u64, tier_hits: u64, promoted: u64) -> Window {
        Window {
            refaults,
            tier_hits,
            promoted,
            stored: refaults,
            tier_pages: 20_000,
            tier_frames: 10_000,
            full: true,
            ..Window::default()
        }
    }

    fn balancer() -> TierBalancer {
        let mut balancer = TierBalancer::new(COSTS);
        balancer.set_limits(0..=100, 256);
        balancer.chunks = 10;
        balancer
    }

    #[test]
    fn misses_that_a_larger_tier_would_have_saved_enlarge_it() {
        let mut balancer = balancer();
        balancer.set_limits(10..=100, 256);
        assert_eq!(balancer.chunks(), 10, "what it has in any case");
        assert!(!balancer.rebalance(window(10, 0, 0)), "too little to tell");
        for _ in 0..1000 {
            assert!(balancer.rebalance(window(1000, 1000, 10)));
        }
        assert_eq!(balancer.chunks(), 100);
        // A miss is 67 us, a decompression 2.5 beyond a hit, a promotion 13.
        for spent in [window(100, 2680, 0), window(100, 0, 515), window(100, 1340, 257)] {
            balancer.rebalance(spent);
            assert_eq!(balancer.chunks(), 100, "in balance");
        }
        balancer.rebalance(window(100, 2680, 300));
        assert_eq!(balancer.chunks(), 96);
        balancer.rebalance(Window { full: false, ..window(1000, 0, 0) });
        assert_eq!(balancer.chunks(), 96, "it has room left");
        balancer.rebalance(Window { tier_pages: 10_000, ..window(1000, 100, 0) });
        assert_eq!(balancer.chunks(), 92, "what does not get smaller saves nothing");
        balancer.rebalance(Window { stored: 10, untried: 1000, ..window(1000, 0, 0) });
        assert_eq!(balancer.chunks(), 88, "what is not taken is saved by DRAM alone");
        // Cheaper to read than to decompress, and nothing is compressed for it; then a little dearer.
        for read in [1_000, 3_500] {
            balancer.costs = Costs { read, work: 500, ..COSTS };
            balancer.rebalance(Window { stored: 0, ..window(1000, 0, 0) });
            assert_eq!(balancer.chunks(), 84, "a loop of {read} ns a page");
        }
        balancer.set_limits(0..=50, 128);
        assert_eq!(balancer.chunks(), 50);
    }

    #[test]
    fn a_tier_that_grows_has_time_to_earn_hits() {
        let mut balancer = balancer();
        let rush = Window { stored: 5000, ..window(1000, 10, 0) };
        while balancer.chunks() < 100 {
            balancer.rebalance(rush);
            assert!(balancer.compresses(), "at {} chunks", balancer.chunks());
        }
        for _ in 0..100 {
            balancer.rebalance(rush);
        }
        assert!(!balancer.compresses(), "it cannot grow any more, and has no hits");
    }

    /// Judges a full tier with two pages a frame: hits for 1000 compressions, share of idle processors.
    fn pays(hits: u64, idle: f64) -> bool {
        let mut balancer = TierBalancer::new(COSTS);
        balancer.set_limits(0..=10, 256);
        (balancer.chunks, balancer.idle) = (10, idle);
        (0..100).for_each(|_| _ = balancer.rebalance(Window { stored: 1000, ..window(1000, hits, 0) }));
        balancer.compresses()
    }

    #[test]
    fn hit_saves_half_a_miss_and_on_busy_machine_only_its_work() {
        // Compressing takes 10 us, a hit 2.5; half of the hits save 60 us, or 10 of a busy processor, or 22.5.
        assert!(pays(370, 1.0) && !pays(360, 1.0));
        assert!(pays(370, 0.34));
        assert!(pays(4010, 0.0) && !pays(3990, 0.0));
        assert!(pays(1150, 1.0 / 6.0) && !pays(1140, 1.0 / 6.0));
    }

    #[test]
    fn stolen_time_does_not_raise_read_costs() {
        let mut balancer = balancer();
        let loops = Window { stored: 0, ..window(1000, 0, 0) };
        balancer.costs = Costs { read: 9_000, work: 500, ..COSTS };
        balancer.rebalance(loops);
        assert_eq!(balancer.chunks(), 14);
        balancer.cpu_share = 0.4;
        balancer.rebalance(loops);
        assert_eq!(balancer.chunks(), 14, "4.1 us against the 3 of a hit: within the band");
    }

    #[test]
    fn busy_machine_judges_a_growing_tier_soon() {
        // A hit saves 5 us and takes 2.5, a compression 10. For 9000 compressions the tier had on average a
        // quarter of its maximum size.
        let pays = |refaults: u64, hits: u64| {
            let mut balancer = balancer();
            balancer.idle = 0.0;
            (0..9).for_each(|_| _ = balancer.rebalance(Window { stored: 1000, ..window(refaults, hits, 0) }));
            (balancer.compresses(), balancer.chunks())
        };
        assert_eq!(pays(1_000_000, 900), (false, 46));
        assert_eq!(pays(1_000_000, 1100), (true, 46));
        // If three times as many hits save a tenth of the refaults, a tenth of the compressions is saved; if
        // half, half.
        assert_eq!((pays(10_000, 860), pays(10_000, 980)), ((false, 46), (true, 46)));
        assert_eq!((pays(1500, 490), pays(1500, 540)), ((false, 46), (true, 46)));
    }

    #[test]
    fn one_busy_moment_does_not_end_a_tier_that_pays() {
        let pays = |busy_windows: usize| {
            let mut balancer = TierBalancer::new(COSTS);
            balancer.set_limits(0..=10, 256);
            balancer.chunks = 10;
            // Judged after 10 windows, the last of which is busy.
            for i in 0..100 {
                balancer.idle = if i % 10 < 10 - busy_windows { 1.0 } else { 0.0 };
                balancer.rebalance(Window { stored: 1000, ..window(1000, 1000, 0) });
            }
            balancer.compresses()
        };
        assert!(pays(0) && pays(1) && !pays(9));
    }

    #[test]
    fn half_of_offered_pages_suffices_to_grow_and_is_forgotten() {
        let mut balancer = balancer();
        let offered = |stored: u64, refused: u64| Window { stored, refused, ..window(1000, 1000, 0) };
        (0..50).for_each(|_| _ = balancer.rebalance(offered(500, 500)));
        assert_eq!(balancer.chunks(), 100, "as much as it may have");
        (0..10).for_each(|_| _ = balancer.rebalance(offered(10, 1000)));
        assert_eq!(balancer.chunks(), 60, "hardly anything can be compressed");
        balancer.rebalance(offered(0, 0));
        assert_eq!(balancer.chunks(), 56, "none is offered, since it has given memory up");
        (0..8).for_each(|_| _ = balancer.rebalance(offered(0, 0)));
        assert!(balancer.chunks() > 56, "{}: long ago", balancer.chunks());
    }

    #[test]
    fn filling_of_the_tier_counts_once() {
        let mut balancer = balancer();
        balancer.idle = 0.0;
        let filling = Window { stored: 1000, filling: 1000, ..window(10_000, 100, 0) };
        balancer.rebalance(Window { filling: 2000, ..filling });
        assert_eq!(balancer.sums.paid, 0.0, "some found no place");
        let mut filled = 2000;
        while balancer.compresses() && filled < 1 << 20 {
            // The boundary never rests.
            balancer.chunks = 50;
            balancer.rebalance(filling);
            filled += filling.filling;
        }
        let once = (100.0 * FILLING_A_CHUNK * 2.0) as u64;
        assert!((once..once + 2 * COMPRESSIONS_BUSY + 2000).contains(&filled), "{filled}, once: {once}");
        assert_eq!(balancer.filled, 0, "the next probe may fill it again");
    }

    #[test]
    fn a_tier_at_rest_pays_for_what_fills_it_anew() {
        let mut balancer = balancer();
        balancer.rebalance(window(1000, 0, 0));
        balancer.rebalance(window(0, 100, 0));
        let refilled = Window { stored: 1000, filling: 1000, full: false, ..window(0, 70, 0) };
        (0..100).for_each(|_| _ = balancer.rebalance(refilled));
        assert!(!balancer.compresses(), "its pages leave again and again before they are hit");
    }

    #[test]
    fn a_tier_that_may_not_fill_gives_memory_back() {
        let mut balancer = balancer();
        (0..50).for_each(|_| _ = balancer.rebalance(window(1000, 1000, 0)));
        assert_eq!(balancer.chunks(), 100);
        (0..50).for_each(|_| {
            _ = balancer.rebalance(Window { fill_limited: true, full: false, ..window(1000, 0, 0) })
        });
        assert_eq!(balancer.chunks(), 0);
    }

    #[test]
    fn a_tier_without_hits_bypasses_itself_and_probes() {
        let mut balancer = balancer();
        let (mut windows, mut tried) = (0, 0);
        let vain = Window { stored: 1000, ..window(1000, 100, 0) };
        while balancer.compresses() {
            balancer.rebalance(vain);
            windows += 1;
            tried += vain.stored;
        }
        assert!(windows > 20, "{windows}: it had time to fill");
        let chunks = balancer.chunks();
        balancer.rebalance(vain);
        assert!(balancer.chunks() < chunks, "its memory goes back to DRAM");
        (0..tried * PASSED_A_TRY).for_each(|_| balancer.passed());
        assert!(balancer.compresses());
        balancer.set_limits(10..=100, 256);
        (0..2 * windows).for_each(|_| _ = balancer.rebalance(vain));
        assert!(balancer.compresses(), "not with memory that it has in any case");
    }
}
