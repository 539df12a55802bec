//! Placement engine `min-io-sum`: the fastest target until it is full, then the next.
//!
//! Minimises the sum of bytes / bandwidth over all targets, as Hermes' `MinimizeIoTime` does: a fractional
//! knapsack with a greedy optimum. The targets' queues do not change that sum. It is for comparison only,
//! because targets stay idle.

use super::target::{Placement, Share, Target, by_speed, deal};

#[derive(Debug)]
pub(crate) struct MinIoSum;

impl Placement for MinIoSum {
    fn place(&mut self, pieces: &[u64], targets: &[Target], out: &mut Vec<Share>) {
        let mut left: u64 = pieces.iter().sum();
        let mut quotas = vec![0; targets.len()];
        for target in by_speed(targets) {
            quotas[target] = left.min(targets[target].free);
            left -= quotas[target];
        }
        deal(pieces, quotas, out);
    }
}
