//! Time, as the engine sees it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A monotonic and a wall clock.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Nanoseconds since some fixed moment, never going back.
    fn now_ns(&self) -> u64;
    /// Wall time, nanoseconds since 1970, at the granularity of file times.
    fn wall_ns(&self) -> i64;
}

/// Processor time of the calling thread so far, ns.
pub(crate) fn thread_cpu_ns() -> u64 {
    ns(rustix::time::ClockId::ThreadCPUTime).unsigned_abs()
}

/// The kernel's clocks.
#[derive(Debug, Default)]
pub struct SystemClock;

fn ns(id: rustix::time::ClockId) -> i64 {
    let t = rustix::time::clock_gettime(id);
    t.tv_sec * 1_000_000_000 + t.tv_nsec
}

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        ns(rustix::time::ClockId::Monotonic) as u64
    }
    fn wall_ns(&self) -> i64 {
        // Coarse, as the kernel stamps files: successive writes within a tick get the same time.
        ns(rustix::time::ClockId::RealtimeCoarse)
    }
}

/// A clock for tests: it moves only when a test moves it.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Moves time forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn wall_ns(&self) -> i64 {
        1_700_000_000_000_000_000 + self.now_ns() as i64
    }
}
