//! When to give up: crashes that come too fast will not stop.

use std::time::{Duration, Instant};

/// So many crashes ...
pub const CRASHES_MAX: usize = 5;
/// ... in such a time are one too many.
pub const CRASHES_WITHIN: Duration = Duration::from_secs(10);

/// The recent crashes.
#[derive(Debug, Default)]
pub struct Crashes {
    recent: Vec<Instant>,
}

impl Crashes {
    /// Notes a crash; true when it is the one too many.
    pub fn one_too_many(&mut self, now: Instant) -> bool {
        self.recent.retain(|then| now.duration_since(*then) < CRASHES_WITHIN);
        self.recent.push(now);
        self.recent.len() >= CRASHES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_in_ten_seconds_are_too_many() {
        let mut crashes = Crashes::default();
        let start = Instant::now();
        let seconds = |s| start + Duration::from_secs(s);
        assert!((0..4).all(|s| !crashes.one_too_many(seconds(s))));
        assert!(crashes.one_too_many(seconds(4)));
    }

    #[test]
    fn rare_ones_are_not() {
        let mut crashes = Crashes::default();
        let start = Instant::now();
        assert!((0..50).all(|n| !crashes.one_too_many(start + Duration::from_secs(3 * n))));
    }
}
