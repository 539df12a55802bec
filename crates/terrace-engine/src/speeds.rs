//! How fast the source and a target take the pages of bursts, for the choice between them (`path/spread.rs`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a speed counts as known.
const KNOWN_FOR: Duration = Duration::from_secs(10);

/// What was measured of late, ns; 0: nothing.
#[derive(Debug, Default)]
pub(crate) struct Speeds {
    /// A page by the source, and by the target.
    source_page: AtomicU64,
    target_page: AtomicU64,
    /// An fsync of the source without pages of ours.
    commit: AtomicU64,
    /// When the source was last measured (engine clock).
    at: AtomicU64,
}

impl Speeds {
    fn note(of: &AtomicU64, ns: u64) {
        let before = of.load(Ordering::Relaxed);
        of.store(if before == 0 { ns.max(1) } else { (3 * before + ns).div_ceil(4) }, Ordering::Relaxed);
    }
    /// An fsync of the source without pages has taken so long (ns).
    pub(crate) fn note_commit(&self, ns: u64) {
        Speeds::note(&self.commit, ns);
    }
    pub(crate) fn note_source(&self, pages: usize, ns: u64, now: u64) {
        Speeds::note(&self.source_page, ns / pages as u64);
        self.at.store(now, Ordering::Relaxed);
    }
    pub(crate) fn note_target(&self, pages: usize, ns: u64) {
        Speeds::note(&self.target_page, ns / pages as u64);
    }
    pub(crate) fn is_known(&self, now: u64) -> bool {
        let [source, target, commit, at] = [&self.source_page, &self.target_page, &self.commit, &self.at]
            .map(|of| of.load(Ordering::Relaxed));
        source > 0 && target > 0 && commit > 0 && now.saturating_sub(at) < KNOWN_FOR.as_nanos() as u64
    }
    /// Whether two ways save more than the fsync of the source that they cost, or it is not known; `is_due`: it is needed anyway.
    pub(crate) fn is_worth(&self, pages: usize, is_due: bool, now: u64) -> bool {
        if !self.is_known(now) {
            return true;
        }
        let [source, target, commit] =
            [&self.source_page, &self.target_page, &self.commit].map(|of| of.load(Ordering::Relaxed) as f64);
        let saves = pages as f64 * target * target / (target + source);
        saves > if is_due { 0.0 } else { 2.0 * commit }
    }
    /// Whether the source writes so many pages before the target writes all that are left.
    pub(crate) fn is_in_time(&self, piece: usize, left: usize) -> bool {
        let ns = |of: &AtomicU64, pages: usize| of.load(Ordering::Relaxed) * pages as u64;
        ns(&self.source_page, piece) <= ns(&self.target_page, left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Target 2 us a page, source 4 us, a commit of 1 ms.
    fn speeds() -> Speeds {
        let speeds = Speeds::default();
        speeds.note_target(10, 20_000);
        speeds.note_commit(1_000_000);
        speeds.note_source(10, 40_000, 5);
        speeds
    }

    #[test]
    fn unknown_speeds_are_worth_a_trial() {
        let now = 5 + KNOWN_FOR.as_nanos() as u64;
        assert!(Speeds::default().is_worth(1, false, 0) && speeds().is_worth(1, false, now));
        assert!(!speeds().is_worth(1, false, now - 1));
    }

    #[test]
    fn two_ways_are_worth_twice_the_commit_that_they_cost() {
        // 12 us for 6 pages become 8: two thirds of a microsecond a page are saved.
        let speeds = speeds();
        assert!(!speeds.is_worth(2_990, false, 5) && speeds.is_worth(3_010, false, 5));
        assert!(speeds.is_worth(1, true, 5), "it is due anyway");
    }

    #[test]
    fn source_leaves_a_piece_that_it_would_end_last() {
        let speeds = speeds();
        assert!(speeds.is_in_time(100, 200) && !speeds.is_in_time(100, 199));
    }

    #[test]
    fn speeds_follow_what_is_measured() {
        let speeds = speeds();
        for _ in 0..40 {
            speeds.note_source(1, 100_000, 5);
        }
        assert!(!speeds.is_in_time(1, 49) && speeds.is_in_time(1, 50));
    }
}
