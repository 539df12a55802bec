//! Gates: conditions on the policies' results of recorded traces, and the cells that decide them.

use serde::Serialize;
use terrace_policy::NAMES;

use crate::cells::{Cell, Job, OPT, SAMPLED, Size, compute_all, known};
use crate::ranking::{Bounds, percent, ranking};
use crate::sim::Mode;
use crate::trace::Trace;
use crate::yardsticks::names;
use terrace_output::Progress;

/// Maximum mean share of the default policy above the optimum.
const ABOVE_MAX: f64 = 0.255;
/// Maximum share of its misses above those of `lru` in a cell, from this pool size on (next constant, share
/// of pages).
const OVER_LRU_MAX: f64 = 0.10;
const OVER_LRU_FROM: f64 = 0.01;

/// The cells of some traces, with each policy fed in both ways.
#[derive(Debug, Default, Serialize)]
pub struct Group {
    /// Cells with each access reported.
    pub exact: Vec<Cell>,
    /// Cells with the engine's batches.
    pub sampled: Vec<Cell>,
}

impl Group {
    /// Computes the cells of a trace at these sizes (pages, share of the trace's pages).
    pub fn run(&mut self, trace: &Trace, sizes: &[(usize, f64)], progress: &mut Progress) {
        let jobs = |names: &[&str], mode| -> Vec<Job> {
            let at = |(pages, _): &(usize, f64)| {
                let size = Size::Pages(*pages);
                names.iter().map(move |name| Job { policy: (*name).into(), size, mode }).collect::<Vec<_>>()
            };
            sizes.iter().flat_map(at).collect()
        };
        let with_shares = |mut cells: Vec<Cell>| {
            let share = |pages| sizes.iter().find(|size| size.0 == pages).map_or(0.0, |size| size.1);
            cells.iter_mut().for_each(|cell| cell.size_frac = share(cell.cache_pages));
            cells
        };
        self.exact.extend(with_shares(compute_all(trace, &jobs(&known(), Mode::Exact), progress)));
        self.sampled.extend(with_shares(compute_all(trace, &jobs(&names(), SAMPLED), progress)));
    }

    /// The misses of the optimum.
    pub fn bounds(&self) -> Bounds {
        Bounds::of(&self.exact)
    }

    fn all(&self) -> impl Iterator<Item = &Cell> {
        self.exact.iter().chain(&self.sampled)
    }

    /// Mean over the cells of a policy's misses with batched hits, divided by those with each access
    /// reported, less 1.
    pub(crate) fn cost_of_batches(&self, policy: &str) -> f64 {
        let of = |cells: &[Cell]| {
            cells.iter().filter(|cell| cell.policy == policy).map(|cell| cell.miss_ratio).collect()
        };
        let (exact, sampled): (Vec<f64>, Vec<f64>) = (of(&self.exact), of(&self.sampled));
        exact.iter().zip(&sampled).map(|(exact, sampled)| sampled / exact - 1.0).sum::<f64>()
            / exact.len() as f64
    }

    /// Number of cells of each policy.
    pub fn cells(&self) -> usize {
        self.exact.iter().filter(|cell| cell.policy == OPT).count()
    }
}

/// One gate.
#[derive(Debug, Serialize)]
pub struct Gate {
    /// The condition.
    pub gate: String,
    /// Whether it holds.
    pub passed: bool,
    /// The cells that violate it, one a line; or the measured value.
    pub found: Vec<String>,
}

impl Gate {
    /// A gate that passes if `against` is empty.
    pub(crate) fn none(gate: impl Into<String>, against: Vec<String>) -> Gate {
        Gate { gate: gate.into(), passed: against.is_empty(), found: against }
    }
}

/// The gates of the default policy.
pub fn of_default(gated: &Group) -> [Gate; 2] {
    let default = NAMES[0];
    let gate = format!(
        "{default} misses at most {:.0} % more than lru in cells of 1 % or more",
        OVER_LRU_MAX * 100.0
    );
    [default_is_near_opt(default, gated), Gate::none(gate, over_lru(default, gated))]
}

/// The gate of the optimum.
pub fn of_optimum<'a>(groups: impl IntoIterator<Item = &'a Group>) -> Gate {
    Gate::none("no policy misses less than opt", groups.into_iter().flat_map(below_opt).collect())
}

fn default_is_near_opt(default: &str, gated: &Group) -> Gate {
    let ranks = ranking(&gated.exact, &gated.bounds());
    let above = ranks.iter().find(|rank| rank.policy == default).map_or(f64::NAN, |rank| rank.above_opt_mean);
    Gate {
        gate: format!("{default} at most {:.1} % above opt on average", ABOVE_MAX * 100.0),
        passed: above <= ABOVE_MAX,
        found: vec![format!("{:.2} % on {} cells", above * 100.0, gated.cells())],
    }
}

/// A cell's miss ratio beside another.
fn beside(cell: &Cell, called: &str, other: f64) -> String {
    let apart = (cell.miss_ratio / other - 1.0) * 100.0;
    let Cell { trace, policy, size_frac, miss_ratio, .. } = cell;
    format!(
        "{policy} on {trace} at {}: {miss_ratio:.4}, {called} {other:.4} ({apart:+.2} %)",
        percent(*size_frac)
    )
}

fn over_lru(default: &str, gated: &Group) -> Vec<String> {
    let lru = |of: &Cell| {
        let same = |cell: &&Cell| {
            cell.policy == "lru" && (&cell.trace, cell.cache_pages) == (&of.trace, of.cache_pages)
        };
        gated.exact.iter().find(same).map_or(f64::NAN, |cell| cell.miss_ratio)
    };
    let large = gated.exact.iter().filter(|cell| cell.policy == default && cell.size_frac >= OVER_LRU_FROM);
    against(large.map(|cell| (cell, lru(cell))), "lru", |ours, lru| ours <= lru * (1.0 + OVER_LRU_MAX))
}

/// The pairs of a cell and another miss ratio that violate a condition; an unknown ratio (NaN) always does.
pub(crate) fn against<'a>(
    pairs: impl Iterator<Item = (&'a Cell, f64)>,
    called: &str,
    good: impl Fn(f64, f64) -> bool,
) -> Vec<String> {
    pairs
        .filter(|(cell, other)| !good(cell.miss_ratio, *other))
        .map(|(cell, other)| beside(cell, called, other))
        .collect()
}

fn below_opt(group: &Group) -> Vec<String> {
    let bounds = group.bounds();
    let pairs = group.all().map(|cell| (cell, bounds.at(cell).unwrap_or(f64::NAN)));
    against(pairs, "opt", |ours, opt| ours >= opt)
}
