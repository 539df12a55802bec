//! Waiting for a condition: a test is as fast as what it waits for, and as patient as a busy machine needs.

use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(2);
/// No longer than this may anything take that is waited for, on the busiest machine. An instance alone tries for ten seconds to
/// write what is refused; and where mounts are private, each mount namespace that another test makes keeps ours until it ends.
const LONG: Duration = Duration::from_secs(120);

/// Waits until `condition` holds.
///
/// # Panics
/// After two minutes, with `what`.
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(LONG, condition), "waited {} s in vain: {what}", LONG.as_secs());
}

/// Whether `condition` holds before `limit` is over.
pub fn holds_within(limit: Duration, condition: impl FnMut() -> bool) -> bool {
    asking_every(PAUSE, limit, condition)
}

/// The same with a pause of one's own between two looks.
pub fn asking_every(pause: Duration, limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_condition_or_the_limit() {
        let mut looks = 0;
        wait_until("the third look", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(looks, 3);
        assert!(!holds_within(Duration::ZERO, || false) && holds_within(Duration::ZERO, || true));
    }
}
