//! Storms: work on a mount that judges itself, while the test does to the instance what must not show. The roles of the program
//! `storm`; the tests are in `tests/storm.rs`.
//!
//! Their part beside the other tests: `names` is several workers at once with names and data, each against an exact model of a tree
//! of its own; `acked` writes until the mount dies, in each of the ways that acknowledge something, and looks for it in the source;
//! `full` writes more than the source takes.

pub mod acked;
pub mod full;
pub mod model;
pub mod names;
mod sys;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The result of a worker: the first violation that it found.
pub type Done = Result<(), String>;

/// Runs these workers at once, each with its number, until the time is over or one of them finds something wrong.
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
