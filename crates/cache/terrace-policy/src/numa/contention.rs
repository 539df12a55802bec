//! Rule 3 of thread placement (NThread, slides 10-36): a node with overloaded memory gives threads away.
//!
//! A node is overloaded if its load is above a threshold, and every other node has less than half of it.
//! Threads with the most writes for their reads go first (slides 21-29), so that few reads become remote.
//! Ours: a thread goes only if its writes weigh more than its reads, because its reads stay behind. Threads
//! go to the least loaded node while their node is above the average, and the higher load falls (slides
//! 30-36).
//!
//! Threads that share data go only if no single thread can, and then together.

use super::sharing::Unit;
use super::what_if::WhatIf;

/// Every other node must be below this share of the highest load.
const OTHERS_BELOW: f64 = 0.5;

/// The overloaded node. `threshold_share`: of a node's write capacity.
pub fn contended(what_if: &WhatIf<'_>, threshold_share: f64) -> Option<usize> {
    let loads = what_if.loads();
    let most = what_if.most_loaded();
    let load = *loads.get(most)?;
    let others_are_low = (0..loads.len()).all(|n| n == most || loads[n] < load * OTHERS_BELOW);
    (what_if.is_above(most, threshold_share) && others_are_low && loads.len() > 1).then_some(most)
}

/// Moves units away from `node`. True if any moved.
pub(crate) fn relieve(what_if: &mut WhatIf<'_>, node: usize, units: &[&Unit]) -> bool {
    let moved = move_away(what_if, node, units.iter().copied().filter(|unit| !unit.shares()));
    moved || move_away(what_if, node, units.iter().copied().filter(|unit| unit.shares()))
}

fn move_away<'u>(what_if: &mut WhatIf<'_>, node: usize, units: impl Iterator<Item = &'u Unit>) -> bool {
    let view = what_if.view();
    let on_node = units.filter(|unit| unit.members.iter().all(|&t| what_if.target(t) == node));
    let weight = view.nodes[node].read_weight();
    let mut writers: Vec<(f64, f64, &Unit)> = on_node
        .map(|unit| (unit.reads(view).iter().sum::<f64>(), unit.writes(view), unit))
        .filter(|(reads, writes, _)| *writes > reads * weight)
        .map(|(reads, writes, unit)| (writes / (reads + writes), writes, unit))
        .collect();
    // The sort is stable: equals keep their order, so equal views give equal moves.
    writers.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1)));
    let mut moved = false;
    for (_, writes, unit) in writers {
        if !what_if.is_above_average(node) {
            break;
        }
        let Some(to) = least_loaded(what_if, node, unit) else { continue };
        if what_if.evens_out(writes, node, to) {
            unit.members.iter().for_each(|&t| what_if.place(t, to));
            moved = true;
        }
    }
    moved
}

fn least_loaded(what_if: &WhatIf<'_>, but: usize, unit: &Unit) -> Option<usize> {
    let view = what_if.view();
    let may = |&n: &usize| n != but && view.has_processors(n) && unit.may_run_on(view, n);
    (0..view.nodes.len()).filter(may).min_by(|&a, &b| what_if.loads()[a].total_cmp(&what_if.loads()[b]))
}
