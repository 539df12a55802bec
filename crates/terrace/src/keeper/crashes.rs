//! When to give up: crashes of its own that come too fast will not stop. A terraced killed by somebody else (SIGKILL: an
//! operator, the kernel short of memory) is always started again, since giving up loses data; but not in a tight loop.

use std::time::{Duration, Instant};

/// So many crashes ...
pub const CRASHES_MAX: usize = 5;
/// ... in such a time are one too many.
pub const CRASHES_WITHIN: Duration = Duration::from_secs(10);

/// The pause before a new terraced when its predecessors are killed fast.
const PAUSE: Duration = Duration::from_millis(200);

/// The recent ends.
#[derive(Debug, Default)]
pub struct Crashes {
    crashed: Vec<Instant>,
    killed: Vec<Instant>,
}

/// What to do after an end.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Start the next, after a pause.
    Start(Duration),
    /// It will not get better.
    GiveUp,
}

impl Crashes {
    /// Notes an end: `killed` from outside, or a crash.
    pub fn note(&mut self, killed: bool, now: Instant) -> Next {
        let ends = if killed { &mut self.killed } else { &mut self.crashed };
        ends.retain(|then| now.duration_since(*then) < CRASHES_WITHIN);
        ends.push(now);
        match ends.len() >= CRASHES_MAX {
            true if killed => Next::Start(PAUSE),
            true => Next::GiveUp,
            false => Next::Start(Duration::ZERO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Next = Next::Start(Duration::ZERO);

    #[test]
    fn five_in_ten_seconds_are_too_many() {
        let mut crashes = Crashes::default();
        let start = Instant::now();
        let seconds = |s| start + Duration::from_secs(s);
        assert!((0..4).all(|s| crashes.note(false, seconds(s)) == START));
        assert_eq!(crashes.note(false, seconds(4)), Next::GiveUp);
    }

    #[test]
    fn rare_ones_are_not() {
        let mut crashes = Crashes::default();
        let start = Instant::now();
        assert!((0..50).all(|n| crashes.note(false, start + Duration::from_secs(3 * n)) == START));
    }

    #[test]
    fn what_is_killed_is_always_started_again() {
        let mut crashes = Crashes::default();
        let now = Instant::now();
        assert!((0..4).all(|_| crashes.note(true, now) == START));
        assert!((0..100).all(|_| crashes.note(true, now) == Next::Start(PAUSE)));
        assert_eq!(crashes.note(false, now), START);
    }
}
