//! A thread with one client polls for the next request (epoll_wait with a timeout of 0) for up to 50 us before it sleeps, where requests follow one another
//! quickly: busy polling, as `net.core.busy_poll` of Linux does it for network cards.
//!
//! A client that waits for each answer and its server work in turn, each on a processor that is idle meanwhile. To wake an idle processor takes longer than the
//! request does, 35 to 65 us in a virtual machine: a server that polls saves one of two wake-ups. Polling takes time of a processor that others may
//! need, so there may be at most half as many clients as processors ([`crate::Config::busy_poll_clients`]), and it ends when requests come less often.

use std::io;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

/// How long a thread polls before it sleeps.
const POLL_MAX: Duration = Duration::from_micros(50);
/// After a wait of so long, asleep and with the time of the wake-up, the next request will probably come within [`POLL_MAX`].
const SHORT: Duration = Duration::from_micros(100);
/// Waits between two attempts, at the most. Their number doubles after each attempt in vain.
const SKIPPED_MAX: u32 = 1 << 10;

/// Which waits begin with polling, from those before.
#[derive(Debug, Default)]
pub struct BusyPoll {
    /// The last wait that slept was short.
    was_short: bool,
    /// Waits that sleep at once before the next attempt.
    skip: u32,
    /// The same after the next attempt in vain.
    skip_next: u32,
}

impl BusyPoll {
    /// Waits for events.
    ///
    /// # Errors
    /// Those of epoll.
    pub fn wait(&mut self, poll: &mut Poll, events: &mut Events) -> io::Result<()> {
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

    /// An attempt was in vain.
    fn missed(&mut self) {
        self.skip = self.skip_next;
        self.skip_next = (2 * self.skip_next).clamp(1, SKIPPED_MAX);
    }
}

/// Polls until there are events; false: there were none for so long.
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
        // The event is there already: on a busy machine some of these waits are long all the same.
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

    /// A client whose requests come a little too late for it each time.
    #[test]
    fn attempts_in_vain_become_rare() {
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
