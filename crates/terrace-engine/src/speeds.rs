//! How fast the source and a target take the pages of bursts, for the choice between them (`path/spread.rs`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Pages that the source takes once while its speed is not known.
pub(crate) const TRIAL: usize = 64;
/// How long its speed counts as known.
const KNOWN_FOR: Duration = Duration::from_secs(10);
/// So many times as many pages may wait for a commit as a commit has lately made durable: a device that takes pages into a cache of its own is fast until then.
const MORE: u64 = 8;

/// What was measured of late; 0: nothing.
#[derive(Debug, Default)]
pub(crate) struct Speeds {
    /// ns a page: by the source, and by the target beside it.
    source_page: AtomicU64,
    target_page: AtomicU64,
    /// What a commit of the source took longer, ns for each page that the source had taken before.
    commit_page: AtomicU64,
    /// A commit without any, ns.
    commit: AtomicU64,
    /// Pages that the source has taken since the last commit, and most that it may.
    waiting: AtomicU64,
    most: AtomicU64,
    /// When the source was last measured, or has failed (ns, engine clock).
    at: AtomicU64,
}

fn get(of: &AtomicU64) -> u64 {
    of.load(Ordering::Relaxed)
}

fn set(of: &AtomicU64, value: u64) {
    of.store(value, Ordering::Relaxed);
}

/// A mean of which the newest is a fourth.
fn blend(of: &AtomicU64, newest: u64) {
    set(of, if get(of) == 0 { newest } else { (3 * get(of) + newest).div_ceil(4) });
}

impl Speeds {
    /// The source has taken pages in `ns`.
    pub(crate) fn note_source(&self, pages: usize, ns: u64, now: u64) {
        if !self.is_known(now) {
            set(&self.source_page, 0);
            set(&self.commit_page, 0);
            set(&self.most, TRIAL as u64);
        }
        blend(&self.source_page, (ns / pages as u64).max(1));
        self.waiting.fetch_add(pages as u64, Ordering::Relaxed);
        set(&self.at, now);
    }
    /// It has not taken them: it gets none for a while.
    pub(crate) fn note_failure(&self, now: u64) {
        set(&self.most, 0);
        set(&self.source_page, 1);
        set(&self.at, now);
    }
    pub(crate) fn note_target(&self, pages: usize, ns: u64) {
        blend(&self.target_page, (ns / pages as u64).max(1));
    }
    /// An fsync of the source without pages of its own has taken `ns`.
    pub(crate) fn note_commit(&self, ns: u64) {
        let waiting = self.waiting.swap(0, Ordering::Relaxed);
        if waiting == 0 {
            blend(&self.commit, ns.max(1));
            return;
        }
        // Commits differ by as much as one takes.
        blend(&self.commit_page, ns.saturating_sub(2 * get(&self.commit)) / waiting);
        self.most.fetch_max(waiting * MORE, Ordering::Relaxed);
    }
    /// Whether the source was measured, or has failed, a short time ago.
    pub(crate) fn is_known(&self, now: u64) -> bool {
        get(&self.source_page) > 0 && now.saturating_sub(get(&self.at)) < KNOWN_FOR.as_nanos() as u64
    }
    /// Whether the source makes so many pages durable before the target has written all that are `left`.
    pub(crate) fn is_in_time(&self, piece: usize, left: usize) -> bool {
        let source = (get(&self.source_page) + get(&self.commit_page)) * piece as u64;
        let is_room = get(&self.waiting) + piece as u64 <= get(&self.most);
        is_room && source <= get(&self.target_page) * left as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Target 2 us a page, source 4 us, a commit of 1 ms; 1,000 pages may wait for a commit.
    fn speeds() -> Speeds {
        let speeds = Speeds::default();
        speeds.note_target(10, 20_000);
        speeds.note_commit(1_000_000);
        speeds.note_source(125, 500_000, 5);
        speeds.note_commit(1_500_000);
        speeds
    }

    #[test]
    fn source_leaves_a_piece_that_it_would_end_last() {
        let speeds = speeds();
        assert!(speeds.is_in_time(100, 200) && !speeds.is_in_time(100, 199));
    }

    #[test]
    fn what_a_commit_takes_longer_is_the_pages() {
        let speeds = speeds();
        speeds.note_source(500, 2_000_000, 6);
        // 2 ms more than twice a commit: 4 us a page.
        speeds.note_commit(4_000_000);
        assert!(speeds.is_in_time(100, 400) && !speeds.is_in_time(100, 399));
        speeds.note_commit(1_000_000);
        assert!(!speeds.is_in_time(100, 399), "nothing was waiting for this one");
    }

    /// What a device has taken into its cache is not durable.
    #[test]
    fn pages_that_wait_for_a_commit_grow_by_steps() {
        let speeds = speeds();
        assert!(speeds.is_in_time(1_000, 9_999) && !speeds.is_in_time(1_001, 9_999));
        speeds.note_source(800, 3_200_000, 6);
        assert!(speeds.is_in_time(200, 9_999) && !speeds.is_in_time(201, 9_999));
        speeds.note_commit(1_000_000);
        assert!(speeds.is_in_time(6_400, 99_999) && !speeds.is_in_time(6_401, 99_999));
    }

    #[test]
    fn speed_that_is_old_is_not_blended_with_a_new_one() {
        let speeds = speeds();
        let late = 5 + KNOWN_FOR.as_nanos() as u64;
        assert!(speeds.is_known(late - 1) && !speeds.is_known(late) && !Speeds::default().is_known(0));
        speeds.note_source(TRIAL, TRIAL as u64 * 100_000, late);
        speeds.note_commit(1_000_000);
        assert!(speeds.is_in_time(1, 50) && !speeds.is_in_time(1, 49));
    }

    #[test]
    fn source_that_fails_gets_none_for_a_while() {
        let speeds = speeds();
        speeds.note_failure(7);
        assert!(speeds.is_known(8) && !speeds.is_in_time(1, 9_999));
    }
}
