//! Gain of a move or copy of page frames between memory nodes: memory time saved, in seconds a second.
//!
//! Ours, beyond the paper: clean frames in DRAM can move, unlike its data. A moved thread costs microseconds,
//! but takes its writes along and cannot be on two nodes. Moved frames cost a read and a write of each byte,
//! and must earn that back within [`HORIZON_S`].
//!
//! The model: a node's memory is busy for `use` seconds a second. Up to 1 there is no wait; above, accesses
//! take `use` times as long: cost(use) = use x max(1, use). Remote reads keep it busy for longer than local
//! ones.

use super::view::{Region, View};
use super::what_if::{WhatIf, highest};

/// Seconds within which moved frames must earn their cost.
pub(crate) const HORIZON_S: f64 = 60.0;
/// Time of a remote read relative to a local one (Optane memory; specification of the simulator).
pub(crate) const REMOTE_READ: f64 = 1.1;
/// A move must earn this many times its cost: one period differs from the next.
const EARNED_MIN: f64 = 1.25;

/// Remedies for reads from another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Move the frames to the readers' node.
    MoveFrames,
    /// Copy read-only frames to the readers' node.
    Replicate,
}

/// The load of each node's memory, with threads at their targets.
#[derive(Clone, Debug)]
pub(crate) struct Uses {
    busy: Vec<f64>,
}

impl Uses {
    /// Uses with the targets in `what_if`.
    pub(crate) fn new(what_if: &WhatIf<'_>) -> Uses {
        let view = what_if.view();
        let mut busy = vec![0.0; view.nodes.len()];
        for (t, thread) in view.threads.iter().enumerate() {
            let on = what_if.target(t);
            for (n, node) in view.nodes.iter().enumerate() {
                busy[n] += thread.reads_from(n) * factor(n, on) / node.read_capacity;
            }
            if let Some(node) = view.nodes.get(on) {
                busy[on] += thread.writes / node.write_capacity;
            }
        }
        Uses { busy }
    }

    pub(crate) fn cost(&self) -> f64 {
        self.busy.iter().map(|&busy| cost(busy)).sum()
    }

    /// Redirects reads of `bytes` by threads on `reader` from node `from` to `to`.
    fn shift(&mut self, view: &View, bytes: f64, reader: usize, from: usize, to: usize) {
        self.busy[from] -= bytes * factor(from, reader) / view.nodes[from].read_capacity;
        self.busy[to] += bytes * factor(to, reader) / view.nodes[to].read_capacity;
    }
}

fn cost(busy: f64) -> f64 {
    busy * busy.max(1.0)
}

fn factor(node: usize, reader: usize) -> f64 {
    if node == reader { 1.0 } else { REMOTE_READ }
}

/// The best remedy for a region: the kind, the target node, the net saving a second, and the resulting uses.
/// None: leave the frames.
pub(crate) fn best(what_if: &WhatIf<'_>, uses: &Uses, region: &Region) -> Option<(What, usize, f64, Uses)> {
    let view = what_if.view();
    if !region.movable || region.node >= view.nodes.len() {
        return None;
    }
    let mut by_node = vec![0.0; view.nodes.len()];
    for user in &region.users {
        by_node[what_if.target(user.thread)] += user.reads;
    }
    let to = highest(&by_node);
    if region.lies_on(to) || by_node[to] == 0.0 {
        return None;
    }
    let price = region.bytes / HORIZON_S;
    let price = price / view.nodes[region.node].read_capacity + price / view.nodes[to].write_capacity;
    let saved = |what: What| {
        let mut after = uses.clone();
        for (reader, &bytes) in by_node.iter().enumerate() {
            let goes = what == What::MoveFrames || reader == to;
            if goes && (reader == to || !region.lies_on(reader) || reader == region.node) {
                after.shift(view, bytes, reader, region.node, to);
            }
        }
        (what, to, uses.cost() - after.cost(), after)
    };
    let options = [Some(What::MoveFrames), region.read_only.then_some(What::Replicate)];
    let best = options.into_iter().flatten().map(saved).max_by(|a, b| a.2.total_cmp(&b.2))?;
    (best.2 > price * EARNED_MIN).then_some((best.0, best.1, best.2 - price, best.3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numa::testing::{optane, region, thread};

    /// Two threads that read one region on node 0: one from node 0, one from node 1, in GB a second.
    fn found(reads: [f64; 2], read_only: bool, bytes: f64) -> Option<(What, usize)> {
        let threads = (0..2).map(|n| thread(n as u64, n, &[reads[n], 0.0], 0.0)).collect();
        let shared = Region { read_only, bytes, ..region(0, &[(0, reads[0]), (1, reads[1])]) };
        let view = View { nodes: optane(2), threads, regions: vec![shared] };
        let what_if = WhatIf::new(&view);
        best(&what_if, &Uses::new(&what_if), &view.regions[0]).map(|(what, to, ..)| (what, to))
    }

    #[test]
    fn frames_go_to_those_that_read_them_most() {
        assert_eq!(found([0.1, 1.5], false, 0.1), Some((What::MoveFrames, 1)));
        assert_eq!(found([1.5, 0.1], false, 0.1), None, "they are there");
    }

    #[test]
    fn frames_that_cost_more_than_they_save_stay() {
        assert_eq!(found([0.1, 1.5], false, 100.0), None);
        assert_eq!(found([0.0, 0.01], false, 1.0), None);
    }

    #[test]
    fn frames_read_from_two_nodes_are_copied() {
        assert_eq!(found([1.4, 1.5], true, 0.1), Some((What::Replicate, 1)));
        assert_ne!(found([1.4, 1.5], false, 0.1), Some((What::Replicate, 1)), "they were written");
    }
}
