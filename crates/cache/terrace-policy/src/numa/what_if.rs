//! Rule 2 of thread placement (NThread, slides 47-57): predicts the nodes' loads with threads at their
//! targets. Rules change targets here any number of times; each thread then migrates at most once.
//!
//! Writes move with the thread, reads stay with the data. A byte read weighs less than a byte written (slides
//! 10-20: load = read/3 + write, since an Optane write costs three reads). Ours: each node has its own
//! weight, from its measured capacities.

use super::view::View;

/// Loads that differ by less than this share are equal: sums of floats are inexact.
const EQUAL: f64 = 1e-9;
/// Minimum reduction of the higher of two loads by a move, as a share.
const LOWERED_MIN: f64 = 0.05;

/// Nodes under threads at their targets.
#[derive(Clone, Debug)]
pub struct WhatIf<'a> {
    view: &'a View,
    targets: Vec<usize>,
    load: Vec<f64>,
    busy: Vec<f64>,
}

impl<'a> WhatIf<'a> {
    /// Every thread on its current node.
    pub fn new(view: &'a View) -> WhatIf<'a> {
        let weigh = |n: usize| {
            view.threads.iter().map(|t| t.reads_from(n)).sum::<f64>() * view.nodes[n].read_weight()
        };
        let load = (0..view.nodes.len()).map(weigh).collect();
        let busy = view.nodes.iter().map(|n| n.busy).collect();
        let targets = view.threads.iter().map(|t| t.node).collect();
        let mut what_if = WhatIf { view, targets, load, busy };
        for thread in &view.threads {
            if let Some(load) = what_if.load.get_mut(thread.node) {
                *load += thread.writes;
            }
        }
        what_if
    }

    pub(crate) fn view(&self) -> &'a View {
        self.view
    }

    pub(crate) fn target(&self, thread: usize) -> usize {
        self.targets[thread]
    }

    pub(crate) fn place(&mut self, thread: usize, node: usize) {
        let from = std::mem::replace(&mut self.targets[thread], node);
        let moved = &self.view.threads[thread];
        for (on, sign) in [(from, -1.0), (node, 1.0)] {
            if on < self.load.len() {
                self.load[on] += sign * moved.writes;
                self.busy[on] += sign * moved.cpu;
            }
        }
    }

    /// Load of each node: bytes written a second, plus weighted reads.
    pub fn loads(&self) -> &[f64] {
        &self.load
    }

    pub(crate) fn average(&self) -> f64 {
        self.load.iter().sum::<f64>() / self.load.len().max(1) as f64
    }

    /// The node with the highest load, the first of equals.
    pub(crate) fn most_loaded(&self) -> usize {
        highest(&self.load)
    }

    /// Busy share of a node's processors; 0 without processors.
    pub(crate) fn use_of(&self, node: usize) -> f64 {
        let processors = f64::from(self.view.nodes[node].processors);
        if processors > 0.0 { (self.busy[node] / processors).max(0.0) } else { 0.0 }
    }

    /// Whether moving writes of `bytes` between two nodes reduces the higher of their loads noticeably.
    pub(crate) fn evens_out(&self, bytes: f64, from: usize, to: usize) -> bool {
        let (before, after) = (self.load[from], (self.load[from] - bytes).max(self.load[to] + bytes));
        after < before * (1.0 - LOWERED_MIN)
    }

    /// Whether a node's load exceeds a share of its write capacity.
    pub(crate) fn is_above(&self, node: usize, share: f64) -> bool {
        self.load[node] > self.view.nodes[node].write_capacity * share
    }

    pub(crate) fn is_above_average(&self, node: usize) -> bool {
        self.load[node] > self.average() * (1.0 + EQUAL)
    }
}

/// Index of the maximum, the first of equals.
pub(crate) fn highest(values: &[f64]) -> usize {
    (0..values.len()).fold(0, |best, n| if values[n] > values[best] { n } else { best })
}
