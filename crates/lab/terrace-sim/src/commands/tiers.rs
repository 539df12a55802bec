//! Cells with tiers below memory: the common part of `sim --compress` and `sim --device`.

use std::fmt::Write;

use serde::Serialize;
use terrace_output::Progress;
use terrace_sim::cells::{Job, each_on_all_cores};
use terrace_sim::compressed_sim::{CompressedOutcome, CompressedSim, Content, Setup};
use terrace_sim::ranking::percent;
use terrace_sim::trace::Trace;
use terrace_sim::yardsticks::build;

/// One result; `C`: its further columns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Cell<C> {
    trace: String,
    policy: String,
    /// Memory as a share of the trace's pages; the next field is in pages.
    size_frac: f64,
    cache_pages: usize,
    /// Compressed pages that fit into the memory of one; 1: no compressed tier.
    pub ratio: f64,
    /// Mean time of a request, us.
    pub request_us: f64,
    /// `request_us` by that of the same policy and memory without the tier.
    pub time_ratio: f64,
    #[serde(skip)]
    pub outcome: CompressedOutcome,
    #[serde(flatten)]
    pub more: C,
}

impl<C> Cell<C> {
    /// Runs a trace. `setup` is given the memory in pages, `more` the simulation at its end.
    pub(super) fn of(
        trace: &Trace,
        job: &Job,
        setup: impl FnOnce(usize) -> Setup,
        content: &dyn Fn(u32) -> Content,
        more: impl FnOnce(&CompressedSim<'_>) -> C,
    ) -> Cell<C> {
        let cache_pages = job.size.pages(trace.pages);
        // A pool with spare room for all pages evicts none, whatever its size.
        let budget = cache_pages.min(2 * trace.pages + 64).max(2);
        let mut policy = build(&job.policy, budget, budget).expect("a known policy");
        let setup = setup(budget);
        let (ratio, prices) = (setup.ratio, setup.prices);
        let mut sim = CompressedSim::new(policy.as_mut(), setup, trace.pages, content);
        trace.ids.iter().for_each(|&id| sim.request(id));
        Cell {
            trace: trace.name.clone(),
            policy: job.policy.clone(),
            size_frac: job.size.share(trace.pages),
            cache_pages,
            ratio,
            request_us: sim.outcome().request_ns(&prices) / 1000.0,
            time_ratio: 1.0,
            outcome: sim.outcome(),
            more: more(&sim),
        }
    }

    /// A count for each request.
    pub(super) fn of_requests(&self, n: u64) -> f64 {
        n as f64 / self.outcome.requests.max(1) as f64
    }
}

/// Each job with each of `tiers`. The first of these is no tier: times are relative to its time.
pub(super) fn compute_all<T: Copy + Sync, C: Send>(
    trace: &Trace,
    jobs: &[Job],
    tiers: &[T],
    progress: &mut Progress,
    compute: impl Fn(&Job, T) -> Cell<C> + Sync,
) -> Vec<Cell<C>> {
    let all: Vec<(&Job, T)> =
        jobs.iter().flat_map(|job| tiers.iter().map(move |&tier| (job, tier))).collect();
    let mut cells = each_on_all_cores(&trace.name, &all, progress, |&(job, tier)| compute(job, tier));
    for cells in cells.chunks_mut(tiers.len()) {
        let without = cells[0].request_us;
        cells.iter_mut().for_each(|cell| cell.time_ratio = cell.request_us / without);
    }
    cells
}

/// One block a trace. `head`: the columns after policy and memory with their widths; `row`: their values.
pub(super) fn table<C>(
    cells: &[Cell<C>],
    head: &[(&str, usize)],
    row: impl Fn(&Cell<C>) -> String,
) -> String {
    let mut out = String::new();
    for cells in cells.chunk_by(|a, b| a.trace == b.trace) {
        let _ = write!(out, "{}, {} requests\n{:>30}", cells[0].trace, cells[0].outcome.requests, "memory");
        head.iter().for_each(|(word, width)| _ = write!(out, "{word:>width$}"));
        out.push('\n');
        for cell in cells {
            let memory = format!("{} = {}", percent(cell.size_frac), cell.cache_pages);
            let _ = writeln!(out, "{:12}{memory:>18}{}", cell.policy, row(cell));
        }
        out.push('\n');
    }
    out
}
