//! A thread waits for the next request of its only client awake, for a moment, where requests follow one another quickly (busy polling, as `net.core.busy_poll`
//! of Linux does it for network cards).
//!
//! A client that waits for each answer and its server work in turn, each on its own processor, which is idle meanwhile. To wake it takes longer than the
//! request does, 35 to 65 us in a virtual machine: a server that is awake saves one of two wake-ups. It takes time of a processor that
//! others may need, so it is for clients that are few beside the processors, and ends when requests come less often.

use std::io;
use std::time::{Duration, Instant};

use mio::{Events, Poll};

/// How long a thread looks for a request before it sleeps.
const POLL_MAX: Duration = Duration::from_micros(50);
/// A thread that has slept so long, with the time that it took to wake it, would have seen the request within [`POLL_MAX`].
const SHORT: Duration = Duration::from_micros(100);
/// After a request that did not come in time so many waits go by before the next attempt, and twice as many after each further one, up to this.
const SKIPPED_MAX: u32 = 1 << 10;

/// Which waits are spent awake, from those before.
#[derive(Debug, Default)]
pub struct BusyPoll {
    /// The last wait was short.
    is_quick: bool,
    /// Waits that go by before the next attempt.
    skip: u32,
    /// Waits that go by after the next request that does not come in time.
    skip_next: u32,
}

impl BusyPoll {
    /// Clients in a server that may be waited for so, with so many processors: each takes one of its own beside that of its server's thread.
    pub fn clients_max(processors: usize) -> usize {
        processors / 2
    }

    /// Waits for events.
    ///
    /// # Errors
    /// Those of epoll.
    pub fn wait(&mut self, poll: &mut Poll, events: &mut Events) -> io::Result<()> {
        let from = Instant::now();
        if self.stays_awake() {
            loop {
                poll.poll(events, Some(Duration::ZERO))?;
                if !events.is_empty() {
                    self.seen();
                    return Ok(());
                }
                if from.elapsed() >= POLL_MAX {
                    break;
                }
            }
            self.missed();
        }
        poll.poll(events, None)?;
        self.is_quick = from.elapsed() <= SHORT;
        Ok(())
    }

    /// Whether the next wait is spent awake.
    fn stays_awake(&mut self) -> bool {
        let skipped = self.skip > 0;
        self.skip = self.skip.saturating_sub(1);
        self.is_quick && !skipped
    }

    fn seen(&mut self) {
        self.skip_next = 0;
    }

    fn missed(&mut self) {
        self.skip = self.skip_next;
        self.skip_next = (2 * self.skip_next).clamp(1, SKIPPED_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Token, Waker};

    #[test]
    fn waits_are_spent_awake_after_short_ones() {
        let mut busy = BusyPoll::default();
        assert!(!busy.stays_awake(), "nothing is known of the client");
        busy.is_quick = true;
        for _ in 0..3 {
            assert!(busy.stays_awake());
            busy.seen();
        }
        busy.is_quick = false;
        assert!(!busy.stays_awake());
    }

    /// A client whose requests come a little too late for it each time.
    #[test]
    fn attempts_in_vain_become_rare() {
        let mut busy = BusyPoll { is_quick: true, ..BusyPoll::default() };
        let mut attempt = || {
            let awake = busy.stays_awake();
            if awake {
                busy.missed();
            }
            awake
        };
        let attempts = (0..100_000).filter(|_| attempt()).count();
        assert!((90..120).contains(&attempts), "{attempts}");
        busy.skip = 0;
        assert!(busy.stays_awake());
        busy.seen();
        busy.missed();
        assert!(busy.stays_awake(), "a request that came in time ends the pauses");
    }

    #[test]
    fn event_that_comes_late_is_waited_for_asleep() {
        let mut poll = Poll::new().unwrap();
        let mut events = Events::with_capacity(8);
        let waker = Waker::new(poll.registry(), Token(7)).unwrap();
        let mut busy = BusyPoll { is_quick: true, ..BusyPoll::default() };
        waker.wake().unwrap();
        busy.wait(&mut poll, &mut events).unwrap();
        assert_eq!(events.iter().map(|event| event.token()).collect::<Vec<_>>(), [Token(7)]);
        assert!(busy.is_quick, "it was there already");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                waker.wake().unwrap();
            });
            busy.wait(&mut poll, &mut events).unwrap();
        });
        assert_eq!(events.iter().map(|event| event.token()).collect::<Vec<_>>(), [Token(7)]);
        assert!(!busy.is_quick && busy.skip_next == 1, "{busy:?}");
    }
}
