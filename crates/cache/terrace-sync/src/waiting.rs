//! Bounded waiting: once a thread has waited 2 ms, later threads sleep 50 us before they lock.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Wait of a thread after which later threads sleep before they lock, ms.
const PATIENCE_MS: u16 = 2;
/// Length of that sleep: a thread on another processor wakes within this time.
const GIVE_WAY: Duration = Duration::from_micros(50);

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds since the first call, modulo 2^16.
fn now_ms() -> u16 {
    START.elapsed().as_millis() as u16
}

/// Threads that wait for a lock. Small, since each file has several locks.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    count: AtomicU16,
    /// Time of the last lock by a waiting thread, or else of the first wait, of [`now_ms`].
    since_ms: AtomicU16,
}

impl Waiting {
    pub(crate) const fn new() -> Waiting {
        Waiting { count: AtomicU16::new(0), since_ms: AtomicU16::new(0) }
    }

    /// Called before a thread locks: sleeps if another thread has waited too long.
    pub(crate) fn give_way(&self) {
        if self.count.load(Ordering::Relaxed) > 0 && self.is_long() {
            thread::sleep(GIVE_WAY);
        }
    }

    #[cold]
    fn is_long(&self) -> bool {
        now_ms().wrapping_sub(self.since_ms.load(Ordering::Relaxed)) >= PATIENCE_MS
    }

    /// Runs `lock`, which waits, and counts this thread as waiting.
    #[cold]
    pub(crate) fn wait<G>(&self, lock: impl FnOnce() -> G) -> G {
        if self.count.load(Ordering::Relaxed) == 0 {
            self.since_ms.store(now_ms(), Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let guard = lock();
        if self.count.fetch_sub(1, Ordering::Relaxed) > 1 {
            self.since_ms.store(now_ms(), Ordering::Relaxed);
        }
        guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn others_give_way_to_a_thread_that_has_waited() {
        let waiting = Waiting::new();
        let counts = || waiting.count.load(Ordering::Relaxed);
        let (admit, comes_in) = channel();
        thread::scope(|scope| {
            let (waiting, comes_in) = (&waiting, comes_in);
            let first = scope.spawn(move || waiting.wait(|| comes_in.recv()));
            while counts() == 0 {
                thread::sleep(GIVE_WAY);
            }
            thread::sleep(Duration::from_millis(u64::from(2 * PATIENCE_MS)));
            assert!(waiting.is_long());
            // A later thread that gets the lock restarts the time, although the first one still waits.
            let begun = now_ms();
            waiting.wait(|| assert!(waiting.is_long()));
            assert!(
                waiting.since_ms.load(Ordering::Relaxed).wrapping_sub(begun) < u16::MAX / 2,
                "one thread has locked"
            );
            admit.send(()).unwrap();
            first.join().unwrap().unwrap();
        });
        assert_eq!(counts(), 0);
    }
}
