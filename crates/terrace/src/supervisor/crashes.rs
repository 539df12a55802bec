//! The restart policy of the supervisor. It gives up if terraced crashes by itself too often. It always
//! restarts a killed terraced, since giving up loses data, but not in a tight loop. The killer (SIGKILL) is
//! an operator, or the kernel for lack of memory. If the next terraced is likely to be killed as well, the
//! pause doubles each time.

use std::time::{Duration, Instant};

/// The supervisor gives up at this many crashes within [`CRASHES_WITHIN`].
pub(crate) const CRASHES_MAX: usize = 5;
pub(crate) const CRASHES_WITHIN: Duration = Duration::from_secs(10);

/// Pause before the next terraced after several kills in a short time.
const PAUSE: Duration = Duration::from_millis(200);
/// Longest pause, during which programs wait.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Recent ends of terraced.
#[derive(Debug, Default)]
pub(crate) struct Crashes {
    crashed: Vec<Instant>,
    killed: Vec<Instant>,
    /// Repeated kills in a row, the last of them, and the pause after it.
    futile: u32,
    futile_at: Option<Instant>,
    pause: Duration,
}

/// How a terraced ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Crashed,
    /// Killed from outside.
    Killed,
    /// Killed before it served, or by the kernel for lack of memory: the next one will likely be killed too.
    KilledInVain,
}

/// Action after an end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Restart after a pause.
    Start(Duration),
    GiveUp,
}

impl Crashes {
    pub(crate) fn note(&mut self, end: End, now: Instant) -> Next {
        let ends = if end == End::Crashed { &mut self.crashed } else { &mut self.killed };
        ends.retain(|then| now.duration_since(*then) < CRASHES_WITHIN);
        ends.push(now);
        let many = ends.len() >= CRASHES_MAX;
        if many && end == End::Crashed {
            return Next::GiveUp;
        }
        let usual = if many { PAUSE } else { Duration::ZERO };
        self.pause = self.count_futile(end, now).max(usual);
        Next::Start(self.pause)
    }

    /// Exponential back-off for repeated kills. It resets once a daemon has run for 10 s.
    fn count_futile(&mut self, end: End, now: Instant) -> Duration {
        if end != End::KilledInVain {
            self.futile = 0;
            return Duration::ZERO;
        }
        let row = self.futile_at.is_some_and(|last| now.duration_since(last) < CRASHES_WITHIN + self.pause);
        self.futile = if row { self.futile + 1 } else { 1 };
        self.futile_at = Some(now);
        match self.futile.checked_sub(2) {
            None => Duration::ZERO,
            Some(doublings) => PAUSE.saturating_mul(1 << doublings.min(16)).min(PAUSE_MAX),
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
        assert!((0..4).all(|s| crashes.note(End::Crashed, seconds(s)) == START));
        assert_eq!(crashes.note(End::Crashed, seconds(4)), Next::GiveUp);
    }

    #[test]
    fn rare_ones_are_not() {
        let mut crashes = Crashes::default();
        let start = Instant::now();
        assert!((0..50).all(|n| crashes.note(End::Crashed, start + Duration::from_secs(3 * n)) == START));
    }

    #[test]
    fn killed_daemon_is_always_started_again() {
        let mut crashes = Crashes::default();
        let now = Instant::now();
        assert!((0..4).all(|_| crashes.note(End::Killed, now) == START));
        assert!((0..100).all(|_| crashes.note(End::Killed, now) == Next::Start(PAUSE)));
        assert_eq!(crashes.note(End::Crashed, now), START);
    }

    #[test]
    fn pause_grows_while_kills_come_in_vain() {
        let (mut crashes, start) = (Crashes::default(), Instant::now());
        let mut now = start;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let Next::Start(pause) = crashes.note(End::KilledInVain, now) else { panic!("it gives up") };
            pauses.push(pause.as_millis());
            now += pause + Duration::from_millis(300);
        }
        assert_eq!(pauses, [0, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        // Once a daemon has served for a while, a kill now and then causes no pause.
        now += CRASHES_WITHIN + PAUSE_MAX;
        assert_eq!(crashes.note(End::KilledInVain, now), START);
        assert_eq!(crashes.note(End::Killed, now + Duration::from_secs(1)), START);
        assert_eq!(crashes.note(End::KilledInVain, now + Duration::from_secs(2)), START);
    }
}
