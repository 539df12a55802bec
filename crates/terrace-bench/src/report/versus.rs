//! The test of `compare` on two groups of runs in each cell: systems against the baseline, or now against then.

use super::dataset::{CONFIDENCE, Cell, Dataset};
use super::metric::Metric;
use crate::compare::{self, Outcome, Verdict};
use crate::stats;
use terrace_output::plot::text::{number, signed};

/// One metric of one cell, one group of runs against another.
#[derive(Clone, Debug)]
pub struct Row {
    /// Where.
    pub cell: Cell,
    /// The candidate; against an old report both sides are this system.
    pub system: String,
    /// Mean and number of the baseline's runs.
    pub baseline: (Option<f64>, usize),
    /// The candidate's.
    pub candidate: (Option<f64>, usize),
    /// The test.
    pub outcome: Outcome,
    /// In a word.
    pub verdict: Verdict,
}

impl Row {
    /// "+12.3 %", or the difference in units where the baseline is zero; empty without a test.
    pub fn short(&self) -> String {
        let (difference, percent) = match self.outcome {
            Outcome::Tested { difference, percent, .. } => (difference.mean, percent.map(|p| p.mean)),
            Outcome::Constant { difference, percent } => (difference, percent),
            Outcome::TooFew => return String::new(),
        };
        percent.map_or_else(|| signed(difference), |p| format!("{p:+.1}\u{a0}%"))
    }

    /// How large the difference is, for an order.
    pub fn size(&self) -> f64 {
        match self.outcome {
            Outcome::Tested { difference, percent, .. } => percent.unwrap_or(difference).mean.abs(),
            Outcome::Constant { difference, percent } => percent.unwrap_or(difference).abs(),
            Outcome::TooFew => 0.0,
        }
    }

    /// For a table: difference, interval in per cent, interval in units, p.
    pub fn numbers(&self) -> [String; 4] {
        let Outcome::Tested { difference: d, percent, p, .. } = self.outcome else {
            return [self.short(), String::new(), String::new(), String::new()];
        };
        [
            self.short(),
            percent.map_or_else(
                || "the baseline is 0".into(),
                |p| format!("[{:.2}, {:.2}]\u{a0}%", p.low, p.high),
            ),
            format!("[{}, {}]", number(d.low), number(d.high)),
            if p < 1e-4 { "<\u{a0}0.0001".into() } else { format!("{p:.4}") },
        ]
    }
}

/// All candidates against the baseline, by cell.
pub fn systems(dataset: &Dataset, metric: &Metric) -> Vec<Row> {
    let mut rows = Vec::new();
    for cell in &dataset.cells {
        let base = dataset.values(dataset.baseline(), cell, &metric.key);
        for system in &dataset.systems[1..] {
            let values = dataset.values(system, cell, &metric.key);
            let outcome = match dataset.paired() {
                true => compare::paired(&dataset.pairs(system, cell, &metric.key), CONFIDENCE),
                false => compare::outcome(&base, &values, CONFIDENCE),
            };
            rows.push(row(cell, system, metric, (&base, &values), outcome));
        }
    }
    rows
}

/// The runs of now against those of the old report, by system and cell; what only one of both has is left out.
pub fn times(dataset: &Dataset, metric: &Metric) -> Vec<Row> {
    let Some(old) = &dataset.old else { return Vec::new() };
    let mut rows = Vec::new();
    for system in &dataset.systems {
        for cell in &dataset.cells {
            let (before, now) =
                (old.values(system, cell, &metric.key), dataset.values(system, cell, &metric.key));
            if !before.is_empty() && !now.is_empty() {
                let outcome = compare::outcome(&before, &now, CONFIDENCE);
                rows.push(row(cell, system, metric, (&before, &now), outcome));
            }
        }
    }
    rows
}

fn row(
    cell: &Cell,
    system: &str,
    metric: &Metric,
    (base, candidate): (&[f64], &[f64]),
    outcome: Outcome,
) -> Row {
    Row {
        cell: cell.clone(),
        system: system.into(),
        baseline: (stats::mean(base), base.len()),
        candidate: (stats::mean(candidate), candidate.len()),
        outcome,
        verdict: Verdict::of(&outcome, metric.better),
    }
}
