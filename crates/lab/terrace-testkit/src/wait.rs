//! Waiting for a condition: returns as soon as it holds, with a limit long enough for a busy machine.

use std::time::{Duration, Instant};

/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(2);
/// Maximum duration of any awaited event, on the busiest machine. An instance alone retries refused writes
/// for ten seconds. And with private mounts, each mount namespace made by another test keeps this test's
/// mount until it ends.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// Waits until `condition` holds.
///
/// # Panics
/// After two minutes, with `what`.
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(WAIT_MAX, condition), "timeout after {} s: {what}", WAIT_MAX.as_secs());
}

/// Whether `condition` becomes true within `limit`.
pub fn holds_within(limit: Duration, condition: impl FnMut() -> bool) -> bool {
    asking_every(PAUSE, limit, condition)
}

/// [`holds_within`] with a given pause between two checks.
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
