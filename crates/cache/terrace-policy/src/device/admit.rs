//! Admission to the device: decides which evicted pages are worth a write.
//!
//! Three tests can refuse a page. It must have been used again ([`Admit::Reused`]). The write budget must
//! have room ([`Budget`], a token bucket). The tier's hits must save more than its writes cost ([`Benefit`]):
//! a tier as slow as the source switches itself off.

/// Pages that may be written. A log that has never been full takes all: empty room is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Pages used again while they were in memory, or refaulted soon after their eviction.
    Reused,
    /// All evicted pages.
    All,
}

impl Admit {
    /// Whether a page may be written. `reused`: used again in memory. `has_been_full`: state of the log.
    pub fn wants(self, reused: bool, has_been_full: bool) -> bool {
        reused || !has_been_full || self == Admit::All
    }
}

/// Whether a page's second hit since its write counts as a recent refault. Arguments: read costs a page, ns.
///
/// A page on the device has no shadow, so the policy takes a returning page for new. On a fast device that is
/// right: a protected page would be in memory and on the device at once. If a device read takes more than
/// half of a source read, a hit in memory is worth more.
pub fn second_hit_is_refault(device_read: u64, source_read: u64) -> bool {
    2 * device_read > source_read
}

/// A token bucket: a rate of pages a second. Unspent tokens of [`Budget::SAVED_S`] seconds are kept.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Pages a second; infinite: no limit.
    rate: f64,
    saved: f64,
    room: f64,
}

impl Budget {
    /// Seconds' worth of unspent writes that a burst may spend.
    const SAVED_S: f64 = 60.0;
    /// A thousandth of a processor.
    const PROBES_A_SECOND: f64 = 256.0;

    /// A budget of `bytes_a_day`, in pages of `page_bytes`. None: no limit.
    pub fn new(bytes_a_day: Option<u64>, page_bytes: u64) -> Budget {
        let rate = bytes_a_day.map_or(f64::INFINITY, |bytes| bytes as f64 / page_bytes as f64 / 86_400.0);
        // At least one page, or nothing would ever be written.
        let room = (rate * Budget::SAVED_S).max(1.0);
        Budget { rate, saved: room, room }
    }

    /// The budget of probes: writes that test whether conditions have changed. At a hundred thousand
    /// evictions a second, one in [`Benefit::PROBE`] would be a tenth of all work.
    pub fn of_probes() -> Budget {
        let room = 4.0 * f64::from(Benefit::PROBES_AT_ONCE);
        Budget { rate: Budget::PROBES_A_SECOND, saved: room, room }
    }

    /// Adds the tokens of `ns`.
    pub fn pass(&mut self, ns: u64) {
        if self.rate.is_finite() {
            self.saved = (self.saved + self.rate * ns as f64 / 1e9).min(self.room);
        }
    }

    /// Level of the bucket, 0 to 1.
    #[cfg(test)]
    pub(crate) fn fullness(&self) -> f64 {
        if self.rate.is_finite() { (self.saved / self.room).max(0.0) } else { 1.0 }
    }

    /// Whole pages that can be spent now.
    pub fn pages(&self) -> u64 {
        // Saturates where there is no limit.
        self.saved as u64
    }

    /// Whether `pages` can be spent.
    pub fn has(&self, pages: u32) -> bool {
        self.saved >= f64::from(pages)
    }

    /// Takes `pages`. False if there are too few; then nothing is taken.
    pub fn spend(&mut self, pages: u32) -> bool {
        let enough = self.has(pages);
        if enough && self.rate.is_finite() {
            self.saved -= f64::from(pages);
        }
        enough
    }
}

/// The verdict on another write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worth {
    /// The write pays.
    Pays,
    /// The write does not pay by the current numbers; it is made as a probe.
    Probe,
    /// No write.
    Nothing,
}

/// Compares the savings of hits with the cost of writes, over a sliding past.
#[derive(Clone, Copy, Debug)]
pub struct Benefit {
    hits: f64,
    writes: f64,
    /// Writes until the first judgement: a tier cannot have hits while it fills.
    to_fill: f64,
    refused: u32,
}

impl Benefit {
    /// Writes after which the past counts half.
    const HALF: f64 = 65_536.0;
    /// While the tier does not pay, one page in so many is written as a probe.
    const PROBE: u32 = 64;
    /// The rate of probes if a hit saves less than a write costs. Only the read times can change that, and
    /// reads measure them without probes.
    const PROBE_OF_SLOW: u32 = 1024;
    /// Length of a run of probes, which is one write. Single probes would wait for each other, and lie
    /// scattered in a scan.
    const PROBES_AT_ONCE: u32 = 128;

    /// For a tier with room for `pages` pages.
    pub fn new(pages: u64) -> Benefit {
        Benefit { hits: 0.0, writes: 0.0, to_fill: pages as f64, refused: 0 }
    }

    /// Counts a hit of the tier.
    pub fn hit(&mut self) {
        self.hits += 1.0;
    }

    /// Judges another write. `saved_a_hit`: a read of the source less one of the device, ns; times the hits
    /// so far. It is compared with the writes so far at a cost of `write` ns each.
    pub fn judge(&mut self, saved_a_hit: i64, write: u64) -> Worth {
        if self.pays(saved_a_hit, write) {
            return Worth::Pays;
        }
        let is_fast = saved_a_hit > write as i64;
        let every = Benefit::PROBES_AT_ONCE * if is_fast { Benefit::PROBE } else { Benefit::PROBE_OF_SLOW };
        self.refused = self.refused.wrapping_add(1);
        let is_probe = self.refused % every >= every - Benefit::PROBES_AT_ONCE;
        if is_probe { Worth::Probe } else { Worth::Nothing }
    }

    /// Whether another write pays by the current numbers; arguments as for [`Benefit::judge`].
    pub fn pays(&self, saved_a_hit: i64, write: u64) -> bool {
        let earned = self.hits * saved_a_hit as f64;
        let is_fast = saved_a_hit > write as i64;
        saved_a_hit > 0 && (is_fast && self.to_fill > 0.0 || earned > self.writes * write as f64)
    }

    /// Counts a write of a page, the first or a repeated one.
    pub fn wrote(&mut self) {
        self.to_fill -= 1.0;
        self.writes += 1.0;
        if self.writes >= 2.0 * Benefit::HALF {
            (self.hits, self.writes) = (self.hits / 2.0, self.writes / 2.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(benefit: &mut Benefit, offers: u32, (saved, write): (i64, u64)) -> usize {
        let mut offer = || {
            let is_made = benefit.judge(saved, write) != Worth::Nothing;
            is_made.then(|| benefit.wrote())
        };
        (0..offers).filter_map(|_| offer()).count()
    }

    #[test]
    fn second_hit_is_a_refault_on_a_slow_device_only() {
        let refaults = [90, 249, 251, 480, 600].map(|device| second_hit_is_refault(device, 500));
        assert_eq!(refaults, [false, false, true, true, true]);
    }

    #[test]
    fn offers_that_the_budget_refuses_are_no_writes() {
        let mut benefit = Benefit::new(10);
        assert!((0..1000).all(|_| benefit.judge(90_000, 10_000) == Worth::Pays));
    }

    #[test]
    fn smallest_budget_writes_now_and_then() {
        let mut budget = Budget::new(Some(4096), 4096);
        assert!(budget.spend(1) && !budget.spend(1));
        budget.pass(86_400_000_000_000);
        assert!(budget.spend(1));
    }

    #[test]
    fn budget_is_kept_over_any_time() {
        let mut budget = Budget::new(Some(86_400 * 4096 * 100), 4096);
        let mut written = 0u64;
        for _ in 0..1000 {
            budget.pass(1_000_000_000);
            while budget.spend(7) {
                written += 7;
            }
        }
        // 100 a second, and the saved tokens of the start.
        assert!((100_000..=106_000).contains(&written), "{written}");
        assert!(budget.fullness() < 0.01);
    }

    #[test]
    fn probes_are_bounded_however_many_pages_leave() {
        let (mut benefit, mut probes, mut written) = (Benefit::new(0), Budget::of_probes(), 0);
        for _ in 0..10 {
            probes.pass(1_000_000_000);
            let offers = (0..500_000).map(|_| benefit.judge(11, 10));
            written += offers.filter(|worth| *worth == Worth::Probe && probes.spend(1)).count();
        }
        assert_eq!(written, 512 + 9 * 256);
    }

    #[test]
    fn no_budget_has_no_limit() {
        let mut budget = Budget::new(None, 4096);
        assert!((0..1_000_000).all(|_| budget.spend(255)) && budget.fullness() == 1.0);
    }

    #[test]
    fn device_as_fast_as_the_source_is_only_probed() {
        for saved in [-50, 0, 9] {
            let mut benefit = Benefit::new(1000);
            assert_eq!(written(&mut benefit, 130_943, (saved, 10)), 0, "a hit saves {saved}");
            assert_eq!(written(&mut benefit, 128, (saved, 10)), 128, "all at once");
            assert_eq!(written(&mut benefit, 3 * 131_072, (saved, 10)), 3 * 128);
        }
    }

    #[test]
    fn writes_that_bring_no_hits_end_once_the_tier_is_full() {
        let mut benefit = Benefit::new(1000);
        let written = written(&mut benefit, 65_000, (90_000, 10_000));
        assert!((1000..2100).contains(&written), "{written}");
        for _ in 0..written {
            benefit.hit();
        }
        assert!(benefit.judge(90_000, 10_000) == Worth::Pays);
    }
}
