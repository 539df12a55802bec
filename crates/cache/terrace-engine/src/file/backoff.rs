//! Backoff of compression for one file: after 16 more failures than successes, one page in 64 is tried.

use std::sync::atomic::{AtomicU16, Ordering};

/// Failed attempts, less successful ones, from which most attempts are skipped.
const TRIES: u16 = 16;
/// Of this many attempts then, one is made.
const REPROBE: u16 = 64;

/// Balance of the last attempts with pages of one file.
#[derive(Debug, Default)]
pub(crate) struct Backoff(AtomicU16);

impl Backoff {
    /// Whether to skip the next attempt. It counts skipped attempts, too, so that one in 64 is made. (On
    /// overflow of the two bytes attempts begin again.)
    pub(crate) fn should_skip(&self) -> bool {
        let failed = self.0.load(Ordering::Relaxed);
        if failed < TRIES {
            return false;
        }
        self.0.fetch_add(1, Ordering::Relaxed);
        !(failed - TRIES).is_multiple_of(REPROBE)
    }

    /// Records the result of an attempt. A success cancels `outweighs` failures.
    pub(crate) fn note(&self, worked: bool, outweighs: u16) {
        if worked {
            let failed = self.0.load(Ordering::Relaxed).min(TRIES);
            self.0.store(failed.saturating_sub(outweighs), Ordering::Relaxed);
        } else {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_tries_are_spared_until_one_works() {
        let backoff = Backoff::default();
        (0..TRIES).for_each(|_| {
            assert!(!backoff.should_skip());
            backoff.note(false, TRIES);
        });
        let tried = (0..10 * REPROBE).filter(|_| !backoff.should_skip()).count();
        assert_eq!(tried, 10);
        backoff.note(true, TRIES);
        (0..TRIES).for_each(|_| {
            assert!(!backoff.should_skip());
            backoff.note(false, TRIES);
        });
        assert!(!backoff.should_skip() && backoff.should_skip(), "the first is a probe");
    }

    #[test]
    fn rare_success_does_not_end_the_backoff() {
        // One in `one_in` of 1000 pages would compress.
        let tried = |one_in: u32| {
            let backoff = Backoff::default();
            (1..=1000)
                .filter(|i| {
                    !backoff.should_skip() && {
                        backoff.note(i % one_in == 0, 4);
                        true
                    }
                })
                .count()
        };
        assert_eq!(tried(4), 1000);
        assert!(tried(10) < 200, "{}", tried(10));
    }
}
