//! Clocks of the engine: the kernel's clocks, the clock of its file times, and a manual clock for tests.

use rustix::fs::{MemfdFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, fstat, futimens, memfd_create};
use std::os::fd::OwnedFd;
#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(test)]
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

/// The kernel's clocks. The wall time is the stamp that the kernel gives to a file now.
///
/// Since Linux 6.13 (multigrain timestamps) file stamps run ahead of CLOCK_REALTIME_COARSE. A query of a
/// file's times gives its next change a fine stamp. No later stamp of any file, memory files included, is
/// older. Older kernels stamp files by CLOCK_REALTIME_COARSE, which costs no system call.
#[derive(Debug)]
pub struct StampClock(Option<OwnedFd>);

impl Default for StampClock {
    fn default() -> Self {
        let file = memfd_create(c"terrace-clock", MemfdFlags::CLOEXEC).ok();
        StampClock(file.filter(|file| is_ahead(|| stamp(file))))
    }
}

/// Whether stamps run ahead of CLOCK_REALTIME_COARSE. It tries several times: a tick may pass between the
/// stamp and the reading of the clock.
fn is_ahead(stamp: impl Fn() -> Option<i64>) -> bool {
    const TRIES: usize = 32;
    (0..TRIES).any(|_| stamp().is_some_and(|stamp| stamp > SystemClock.wall_ns()))
}

fn stamp(file: &OwnedFd) -> Option<i64> {
    let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let now = Timestamps { last_access: time(UTIME_OMIT), last_modification: time(UTIME_NOW) };
    Some(mtime_ns(&futimens(file, &now).and_then(|()| fstat(file)).ok()?))
}

impl Clock for StampClock {
    fn now_ns(&self) -> u64 {
        SystemClock.now_ns()
    }
    fn wall_ns(&self) -> i64 {
        self.0.as_ref().and_then(stamp).unwrap_or_else(|| SystemClock.wall_ns())
    }
}

fn mtime_ns(stat: &rustix::fs::Stat) -> i64 {
    stat.st_mtime * 1_000_000_000 + stat.st_mtime_nsec as i64
}

/// A clock for tests, moved by hand.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct ManualClock(AtomicU64);

#[cfg(test)]
impl ManualClock {
    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
}

#[cfg(test)]
impl Clock for ManualClock {
    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
    fn wall_ns(&self) -> i64 {
        1_700_000_000_000_000_000 + self.now_ns() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn stamps_are_in_the_order_of_those_of_files() {
        let (clock, file) = (StampClock::default(), tempfile::tempfile_in("/var/tmp").unwrap());
        let mut last = 0;
        for round in 0..10_000 {
            let now = match round % 2 {
                0 => {
                    file.write_all_at(b"x", 0).unwrap();
                    mtime_ns(&fstat(&file).unwrap())
                }
                _ => clock.wall_ns(),
            };
            assert!(now >= last, "round {round}: {} ns back", last - now);
            last = now;
        }
    }

    #[test]
    fn coarse_stamps_cost_no_calls() {
        assert!(!is_ahead(|| Some(SystemClock.wall_ns())) && !is_ahead(|| None));
        assert!(is_ahead(|| Some(ns(rustix::time::ClockId::Realtime))));
        let name = rustix::system::uname();
        let mut version =
            name.release().to_str().unwrap().split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        if (version.next(), version.next()) >= (Some(6), Some(13)) {
            assert!(StampClock::default().0.is_some(), "{name:?}");
        }
    }
}
