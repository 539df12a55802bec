//! Busy polling: a thread with one client polls for up to 50 us before it sleeps (epoll_wait with timeout 0).
//! It does so while requests follow closely. Linux does the same for network cards (`net.core.busy_poll`).
//!
//! A client that waits for each reply runs in turn with its server, on two processors that are otherwise
//! idle. The wake-up of an idle processor takes longer than the request: 35 to 65 us in a virtual machine.
//! Polling saves one of two wake-ups. Polling takes processor time from other programs, so it needs two
//! processors per client ([`crate::Config::busy_poll_clients`]). Polling ends when requests come less often.

use std::io;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

/// Maximum duration of polling before a thread sleeps.
const POLL_MAX: Duration = Duration::from_micros(50);
/// After a wait this short, including the wake-up, the next request probably comes within [`POLL_MAX`].
const SHORT: Duration = Duration::from_micros(100);
/// Maximum number of waits between two attempts. The number doubles after each failed attempt.
const SKIPPED_MAX: u32 = 1 << 10;

/// Decides from earlier waits which waits begin with polling.
#[derive(Debug, Default)]
pub(super) struct BusyPoll {
    /// The last wait that slept was short.
    was_short: bool,
    /// Number of waits without polling before the next attempt.
    skip: u32,
    /// Value of `skip` after the next failed attempt.
    skip_next: u32,
}

impl BusyPoll {
    /// Waits for events.
    ///
    /// # Errors
    /// Errors of epoll.
    pub(super) fn wait(&mut self, poll: &mut Poll, events: &mut Events) -> io::Result<()> {
        let from = Instant::now();
        if self.attempts() {
            if poll_for(POLL_MAX, poll, events)? {
                self.skip_next = 0;
                return Ok(());
            }
            self.missed();
        }
        poll.poll(events, None)?;
        self.was_short = from.elapsed() <= SHORT;
        Ok(())
    }

    /// Whether the next wait begins with polling.
    fn attempts(&mut self) -> bool {
        let is_skipped = self.skip > 0;
        self.skip = self.skip.saturating_sub(1);
        self.was_short && !is_skipped
    }

    /// Counts a failed attempt.
    fn missed(&mut self) {
        self.skip = self.skip_next;
        self.skip_next = (2 * self.skip_next).clamp(1, SKIPPED_MAX);
    }
}

/// Polls for at most `time`. Returns whether there are events.
fn poll_for(time: Duration, poll: &mut Poll, events: &mut Events) -> io::Result<bool> {
    let from = Instant::now();
    loop {
        poll.poll(events, Some(Duration::ZERO))?;
        if !events.is_empty() {
            return Ok(true);
        }
        if from.elapsed() >= time {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Token, Waker};

    fn stage() -> (Poll, Events, Waker) {
        let poll = Poll::new().unwrap();
        let waker = Waker::new(poll.registry(), Token(7)).unwrap();
        (poll, Events::with_capacity(8), waker)
    }

    fn tokens(events: &Events) -> Vec<Token> {
        events.iter().map(mio::event::Event::token).collect()
    }

    #[test]
    fn waits_begin_with_polling_after_short_ones() {
        let (mut poll, mut events, waker) = stage();
        let mut busy = BusyPoll::default();
        assert!(!busy.attempts(), "nothing is known of the client");
        let mut wait = |busy: &mut BusyPoll| {
            waker.wake().unwrap();
            busy.wait(&mut poll, &mut events).unwrap();
            assert_eq!(tokens(&events), [Token(7)]);
        };
        // The event is pending already, but on a busy machine some of these waits are long.
        assert!((0..1000).any(|_| {
            wait(&mut busy);
            busy.was_short
        }));
        for _ in 0..3 {
            assert!(busy.attempts());
            wait(&mut busy);
        }
        busy.was_short = false;
        assert!(!busy.attempts());
    }

    /// A client with requests that always come slightly too late.
    #[test]
    fn failed_attempts_become_rare() {
        let mut busy = BusyPoll { was_short: true, ..BusyPoll::default() };
        let mut attempt = || {
            let attempts = busy.attempts();
            if attempts {
                busy.missed();
            }
            attempts
        };
        let attempts = (0..100_000).filter(|_| attempt()).count();
        assert!((90..120).contains(&attempts), "{attempts}");
    }

    #[test]
    fn event_ends_polling_and_time_does() {
        let (mut poll, mut events, waker) = stage();
        assert!(!poll_for(Duration::from_millis(1), &mut poll, &mut events).unwrap());
        waker.wake().unwrap();
        assert!(poll_for(Duration::ZERO, &mut poll, &mut events).unwrap());
        assert_eq!(tokens(&events), [Token(7)]);
    }

    #[test]
    fn event_that_comes_late_is_waited_for() {
        let (mut poll, mut events, waker) = stage();
        let mut busy = BusyPoll { was_short: true, ..BusyPoll::default() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                waker.wake().unwrap();
            });
            busy.wait(&mut poll, &mut events).unwrap();
        });
        assert_eq!(tokens(&events), [Token(7)]);
    }
}
