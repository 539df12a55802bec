//! A cell: the simulation of one policy in one pool over one trace. Many cells run at once.

use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use terrace_policy::Evict;

use crate::opt::Opt;
use crate::sim::{Mode, run_ids};
use crate::trace::Trace;
use crate::yardsticks::{build, canonical, names};
use terrace_output::Progress;

/// Belady's optimum, which exists in the simulator only.
pub const OPT: &str = "opt";

/// The engine's reclaim: the same batch, ahead of demand.
pub const SAMPLED: Mode = Mode::Sampled { batch: 64 };

/// Size of a pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// Share of the trace's different pages (1: all).
    Share(f64),
    /// Pages.
    Pages(usize),
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong = || format!("{text} is no size: pages (275) or a share of the trace's pages (0.1%)");
        let size = match text.trim().strip_suffix('%') {
            Some(percent) => Size::Share(percent.trim().parse::<f64>().map_err(|_| wrong())? / 100.0),
            None => Size::Pages(text.trim().parse().map_err(|_| wrong())?),
        };
        let sound = match size {
            Size::Share(share) => share > 0.0 && share <= 100.0,
            Size::Pages(pages) => pages > 0,
        };
        if sound {
            Ok(size)
        } else {
            Err(format!("{text}: a pool has at least one page, and at most 10000%"))
        }
    }
}

impl Size {
    /// The size in pages, for a trace of `of` pages; rounded down.
    pub fn pages(self, of: usize) -> usize {
        match self {
            // A size that rounding alone keeps below a whole page is that page.
            Size::Share(share) => (of as f64 * share + 1e-9) as usize,
            Size::Pages(pages) => pages,
        }
    }

    /// The size as a share of the trace's `of` pages.
    pub fn share(self, of: usize) -> f64 {
        match self {
            Size::Share(share) => share,
            Size::Pages(pages) => (pages as f64 / of as f64 * 1e6).round() / 1e6,
        }
    }
}

/// One result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The trace's name.
    pub trace: String,
    /// The policy's name.
    pub policy: String,
    /// Size of the pool as a share of the trace's pages.
    pub size_frac: f64,
    /// Size of the pool.
    pub cache_pages: usize,
    /// Requests in the trace.
    pub requests: u64,
    /// Requests that missed.
    pub misses: u64,
    /// Misses a request.
    pub miss_ratio: f64,
    /// Processor time of the simulation.
    pub(crate) seconds: f64,
}

/// One cell to be computed.
#[derive(Clone, Debug)]
pub struct Job {
    /// The policy's name, one of [`known`].
    pub policy: String,
    /// The pool.
    pub size: Size,
    /// How accesses are fed. `opt` always gets each of them.
    pub mode: Mode,
}

/// Names that can be simulated, the default policy first, `opt` last.
pub fn known() -> Vec<&'static str> {
    names().into_iter().chain([OPT]).collect()
}

/// The requested policies, each once, by their names in [`known`]; an unknown name is an error.
pub fn chosen(names: &[String]) -> Result<Vec<String>, String> {
    let mut chosen: Vec<String> = Vec::new();
    for name in names {
        let meant = if name == OPT { Some(OPT) } else { canonical(name) };
        let meant = meant.ok_or_else(|| format!("no policy {name}; there are {}", known().join(", ")))?;
        if !chosen.iter().any(|other| other == meant) {
            chosen.push(meant.to_owned());
        }
    }
    Ok(chosen)
}

/// Pages of a pool for this trace; less than one is an error.
pub fn pages(trace: &Trace, size: Size) -> Result<usize, String> {
    match size.pages(trace.pages) {
        0 => Err(format!(
            "{}: {}% of {} pages are less than one page; give a larger --size",
            trace.name,
            size.share(trace.pages) * 100.0,
            trace.pages
        )),
        pages => Ok(pages),
    }
}

/// Computes one cell. The policy must be known and the size at least a page.
pub(crate) fn compute(trace: &Trace, job: &Job) -> Cell {
    let pages = job.size.pages(trace.pages);
    // A pool with spare room for all pages evicts none, whatever its size.
    let pool = pages.min(2 * trace.pages + 64);
    let mut policy: Box<dyn Evict> = if job.policy == OPT {
        Box::new(Opt::new(pool, trace.next_uses.clone()))
    } else {
        build(&job.policy, pool, pool).expect("a known policy")
    };
    let mode = if job.policy == OPT { Mode::Exact } else { job.mode };
    let begun = cpu_seconds();
    let outcome = run_ids(policy.as_mut(), &trace.ids, trace.pages, pool, mode);
    Cell {
        trace: trace.name.clone(),
        policy: job.policy.clone(),
        size_frac: job.size.share(trace.pages),
        cache_pages: pages,
        requests: outcome.requests,
        misses: outcome.misses,
        miss_ratio: outcome.miss_ratio(),
        seconds: cpu_seconds() - begun,
    }
}

/// Processor time of the calling thread.
fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Computes all jobs on all cores; results in the jobs' order.
pub fn compute_all(trace: &Trace, jobs: &[Job], progress: &mut Progress) -> Vec<Cell> {
    each_on_all_cores(&trace.name, jobs, progress, |job| compute(trace, job))
}

/// Runs `compute` for all jobs of a trace on all cores; results in the jobs' order. ^C ends the process at
/// once: no file is being written.
pub fn each_on_all_cores<J: Sync, C: Send>(
    trace: &str,
    jobs: &[J],
    progress: &mut Progress,
    compute: impl Fn(&J) -> C + Sync,
) -> Vec<C> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    let mut cells: Vec<Option<C>> = jobs.iter().map(|_| None).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next, compute) = (sender.clone(), &next, &compute);
            scope.spawn(move || {
                let job = || Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, jobs.get(i)?)));
                while let Some((i, job)) = job() {
                    assert!(sender.send((i, compute(job))).is_ok(), "the receiver outlives the threads");
                }
            });
        }
        drop(sender);
        let mut done = 0;
        // Ends when all senders are dropped: after the last job, or if a policy panicked.
        while let Some(news) = next_of(&results, progress) {
            if let Some((i, cell)) = news {
                cells[i] = Some(cell);
                done += 1;
            }
            progress.tick(|| format!("{trace}: {done} of {} cells", jobs.len()));
        }
    });
    cells.into_iter().map(|cell| cell.expect("a thread that fails ends the scope")).collect()
}

/// The next result; `Some(None)` after a while without one; `None` after the last.
fn next_of<T>(results: &mpsc::Receiver<T>, progress: &Progress) -> Option<Option<T>> {
    match results.recv_timeout(progress.pause()) {
        Ok(result) => Some(Some(result)),
        Err(RecvTimeoutError::Timeout) => Some(None),
        Err(RecvTimeoutError::Disconnected) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!("0.1%".parse(), Ok(Size::Share(0.001)));
        assert_eq!("275".parse(), Ok(Size::Pages(275)));
        for wrong in ["0", "0%", "-1%", "nan%", "inf%", "x", "", "1.5", "20000%"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
        assert_eq!(Size::Share(0.29).pages(100), 29);
        assert_eq!(Size::Share(0.25).pages(275_171), 68_792);
        assert_eq!(Size::Pages(1).share(3), 0.333_333);
    }

    #[test]
    fn cells_come_in_the_order_of_their_jobs_and_opt_is_best() {
        let ids: Vec<u32> = (0..30_000u32).map(|i| i * 7919 % 1000 * (i % 13) % 997).collect();
        let trace = Trace::new("t".into(), ids, 1000, 0);
        let job = |policy: &str, mode| Job { policy: policy.into(), size: Size::Share(0.1), mode };
        let jobs: Vec<Job> = known().iter().flat_map(|p| [job(p, Mode::Exact), job(p, SAMPLED)]).collect();
        let cells = compute_all(&trace, &jobs, &mut Progress::default());
        assert_eq!(cells.len(), jobs.len());
        let best = cells.last().unwrap().misses;
        for (cell, job) in cells.iter().zip(&jobs) {
            assert_eq!((&cell.policy, cell.cache_pages, cell.requests), (&job.policy, 100, 30_000));
            assert!(cell.misses >= best);
        }
    }
}
