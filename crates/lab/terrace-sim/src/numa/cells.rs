//! Loads under policies: means over many layouts of files, and each policy's gain over the baseline.

use serde::Serialize;
use terrace_output::Progress;

use super::load::{Kind, Layout, Preset, machine};
use super::run::{Baseline, Outcome, Policy, Setup, run};
use crate::cells::each_on_all_cores;

/// One load under one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// The load's operations.
    pub kind: &'static str,
    /// Share of reads, percent.
    pub(crate) reads_percent: u32,
    /// The policy.
    pub policy: &'static str,
    /// Throughput of all threads, mean over layouts, MB a second.
    pub mb_s: f64,
    /// Gain over the baseline, percent.
    pub gain_percent: f64,
    /// The smallest gain of one layout, percent.
    pub gain_percent_min: f64,
    /// The greatest gain of one layout, percent.
    pub gain_percent_max: f64,
    /// Share of bytes read from another node.
    pub remote_reads: f64,
    /// Moves of threads, a run.
    pub thread_moves: f64,
    /// Moves in the second half of the run.
    pub late_moves: f64,
    /// MB of frames moved or copied, a run.
    pub frame_mb: f64,
}

/// All cells of a load on one machine against one baseline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Placement of writes without a policy.
    pub baseline: &'static str,
    /// Number of layouts averaged.
    pub layouts: usize,
    /// Gain of the rule of remote access alone at 40 % reads, percent.
    pub gain_remote_at_40: f64,
    /// Mean gain of all rules over the kinds of operations, percent.
    pub gain_full_mean: f64,
    /// Mean gain with moves of frames, percent.
    pub gain_threads_frames_mean: f64,
    /// Kinds by policies.
    pub cells: Vec<Cell>,
}

/// Runs all kinds of a load under all policies.
pub fn report(preset: Preset, nodes: usize, baseline: Baseline, progress: &mut Progress) -> Report {
    let at_40 = Kind { name: "40 % reads", reads_percent: 40 };
    let kinds: Vec<Kind> = preset.kinds().iter().copied().chain([at_40]).collect();
    let layouts = preset.layouts(machine(nodes).1, nodes);
    let jobs: Vec<(Setup, &Layout)> = kinds
        .iter()
        .flat_map(|kind| Policy::ALL.map(|policy| (kind.reads_percent, policy)))
        .map(|(reads_percent, policy)| Setup { reads_percent, nodes, baseline, policy })
        .flat_map(|setup| layouts.iter().map(move |layout| (setup, layout)))
        .collect();
    let outcomes = each_on_all_cores(baseline.name(), &jobs, progress, |(setup, layout)| run(*setup, layout));
    let mut all = outcomes.chunks(layouts.len() * Policy::ALL.len());
    let mut cells: Vec<Cell> =
        kinds.iter().flat_map(|kind| of_kind(*kind, all.next().unwrap_or_default(), &layouts)).collect();
    // The last kind serves one number only.
    let remote = cells.split_off(cells.len() - Policy::ALL.len());
    let mean = |policy: Policy| {
        let of = || cells.iter().filter(|cell| cell.policy == policy.name());
        of().map(|cell| cell.gain_percent).sum::<f64>() / of().count().max(1) as f64
    };
    Report {
        baseline: baseline.name(),
        layouts: layouts.len(),
        gain_remote_at_40: remote[1].gain_percent,
        gain_full_mean: mean(Policy::Full),
        gain_threads_frames_mean: mean(Policy::ThreadsAndFrames),
        cells,
    }
}

/// The cells of one kind under all policies, in their order.
fn of_kind(kind: Kind, outcomes: &[Outcome], layouts: &[Layout]) -> Vec<Cell> {
    let base = &outcomes[..layouts.len()];
    let mean = |all: &[Outcome], of: fn(&Outcome) -> f64| {
        all.iter().zip(layouts).map(|(outcome, layout)| of(outcome) * layout.weight).sum::<f64>()
    };
    let gain = |of: f64, to: f64| (of / to - 1.0) * 100.0;
    let cell = |(policy, all): (Policy, &[Outcome])| {
        let gains = || all.iter().zip(base).map(|(o, b)| gain(o.mb_s, b.mb_s));
        let mb_s = mean(all, |o| o.mb_s);
        Cell {
            kind: kind.name,
            reads_percent: kind.reads_percent,
            policy: policy.name(),
            mb_s,
            gain_percent: gain(mb_s, mean(base, |o| o.mb_s)),
            gain_percent_min: gains().fold(f64::INFINITY, f64::min),
            gain_percent_max: gains().fold(f64::NEG_INFINITY, f64::max),
            remote_reads: mean(all, |o| o.remote_reads),
            thread_moves: mean(all, |o| o.thread_moves as f64),
            late_moves: mean(all, |o| o.late_moves as f64),
            frame_mb: mean(all, |o| o.frame_mb),
        }
    };
    Policy::ALL.into_iter().zip(outcomes.chunks(layouts.len())).map(cell).collect()
}
