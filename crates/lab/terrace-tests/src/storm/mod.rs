//! Storms: self-checking workloads on a mount, while the test disturbs the instance in ways that must stay
//! invisible. The roles of the program `storm`; the tests are in `tests/storm.rs`.
//!
//! Roles: `names` has several workers on names and data, each with an exact model of its own tree. `acked`
//! writes until the mount dies, with every kind of acknowledgement, and checks the source. `full` writes more
//! than the source has room for.

pub mod acked;
pub mod full;
pub mod model;
pub mod names;
mod sys;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Result of a worker: its first violation.
pub(crate) type Done = Result<(), String>;

/// Runs these workers at once, each with its number, until the time is over or one of them finds a violation.
pub(crate) fn together<W: Send>(
    workers: &mut [W],
    lasts: Duration,
    work: impl Fn(&mut W, &dyn Fn() -> bool) -> Done + Sync,
) -> Done {
    let (end, failed) = (Instant::now() + lasts, AtomicBool::new(false));
    let goes_on = || !failed.load(Relaxed) && Instant::now() < end;
    let results: Vec<Done> = std::thread::scope(|scope| {
        let start = |worker| {
            scope.spawn(|| {
                let done = work(worker, &goes_on);
                failed.fetch_or(done.is_err(), Relaxed);
                done
            })
        };
        let threads: Vec<_> = workers.iter_mut().map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a worker panicked".into()))).collect()
    });
    results.into_iter().collect()
}
