//! Measured speeds of source and target for pages of bursts. By them `burst/spread.rs` divides a burst.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Pages that the source takes once to measure its unknown speed.
pub(crate) const TRIAL: usize = 64;
const KNOWN_FOR: Duration = Duration::from_secs(10);
/// Maximum number of pages that wait for a commit, in recent commits. A device with a cache is fast only
/// until the cache is full.
const IN_FLIGHT_COMMITS_MAX: u64 = 8;

/// Recent measurements; 0: none.
#[derive(Debug, Default)]
pub(crate) struct Speeds {
    /// Time per page, ns: the source's, then the target's beside it.
    source_page: AtomicU64,
    target_page: AtomicU64,
    /// Additional time of a commit per page that the source had taken before, ns.
    commit_page: AtomicU64,
    /// Time of a commit without pages, ns.
    commit: AtomicU64,
    /// Pages taken by the source since the last commit, and their limit.
    waiting: AtomicU64,
    most: AtomicU64,
    /// Time of the last measurement or failure of the source (ns, engine clock).
    at: AtomicU64,
}

fn get(of: &AtomicU64) -> u64 {
    of.load(Ordering::Relaxed)
}

fn set(of: &AtomicU64, value: u64) {
    of.store(value, Ordering::Relaxed);
}

/// Moving mean; the newest value has a weight of a quarter.
fn blend(of: &AtomicU64, newest: u64) {
    set(of, if get(of) == 0 { newest } else { (3 * get(of) + newest).div_ceil(4) });
}

impl Speeds {
    /// Notes `pages` written to the source in `ns`.
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
    /// After a failed write the source gets no pages for a while.
    pub(crate) fn note_failure(&self, now: u64) {
        set(&self.most, 0);
        set(&self.source_page, 1);
        set(&self.at, now);
    }
    pub(crate) fn note_target(&self, pages: usize, ns: u64) {
        blend(&self.target_page, (ns / pages as u64).max(1));
    }
    /// Notes an fsync of the source without pages of its own.
    pub(crate) fn note_commit(&self, ns: u64) {
        let waiting = self.waiting.swap(0, Ordering::Relaxed);
        if waiting == 0 {
            blend(&self.commit, ns.max(1));
            return;
        }
        // The time of a commit varies by as much as its mean.
        blend(&self.commit_page, ns.saturating_sub(2 * get(&self.commit)) / waiting);
        self.most.fetch_max(waiting * IN_FLIGHT_COMMITS_MAX, Ordering::Relaxed);
    }
    /// Whether the source was measured, or has failed, recently.
    pub(crate) fn is_known(&self, now: u64) -> bool {
        get(&self.source_page) > 0 && now.saturating_sub(get(&self.at)) < KNOWN_FOR.as_nanos() as u64
    }
    /// Whether the source makes `piece` pages durable before the target has written all `left` pages.
    pub(crate) fn is_in_time(&self, piece: usize, left: usize) -> bool {
        let source = (get(&self.source_page) + get(&self.commit_page)) * piece as u64;
        let is_room = get(&self.waiting) + piece as u64 <= get(&self.most);
        is_room && source <= get(&self.target_page) * left as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Target 2 us a page, source 4 us, a commit 1 ms; 1,000 pages may wait for a commit.
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

    /// Pages in a device's cache are not durable.
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
