//! Rule 3 (slides 10-36): a node that carries too much gives threads away.
//!
//! Too much: its load is over a threshold, and every other node carries less than half of it. Those that write most for what they read go
//! first (slides 21-29): their writes go with them, and few reads become remote. Ours: only threads whose writes weigh more than their
//! reads go, for another one would leave most of its load behind. They go to the node that carries least, and no more of them than to the average
//! (slides 30-36): as long as the node is above it, and the higher of the two loads becomes lower.
//!
//! Threads that share data go only if nobody else can, and then together.

use super::sharing::Unit;
use super::what_if::WhatIf;

/// Share of the load of the most loaded node that every other must be under.
const OTHERS_BELOW: f64 = 0.5;

/// The node that carries too much. `threshold_share`: of a node's write capacity.
pub fn contended(what_if: &WhatIf<'_>, threshold_share: f64) -> Option<usize> {
    let loads = what_if.loads();
    let most = what_if.most_loaded();
    let load = *loads.get(most)?;
    let others_are_low = (0..loads.len()).all(|n| n == most || loads[n] < load * OTHERS_BELOW);
    (what_if.is_above(most, threshold_share) && others_are_low && loads.len() > 1).then_some(most)
}

/// Moves units away from `node`, and says whether any could be.
pub fn relieve(what_if: &mut WhatIf<'_>, node: usize, units: &[&Unit]) -> bool {
    let moved = give_away(what_if, node, units.iter().copied().filter(|unit| !unit.shares()));
    moved || give_away(what_if, node, units.iter().copied().filter(|unit| unit.shares()))
}

fn give_away<'u>(what_if: &mut WhatIf<'_>, node: usize, units: impl Iterator<Item = &'u Unit>) -> bool {
    let view = what_if.view();
    let on_node = units.filter(|unit| unit.members.iter().all(|&t| what_if.target(t) == node));
    let weight = view.nodes[node].read_weight();
    let mut writers: Vec<(f64, f64, &Unit)> = on_node
        .map(|unit| (unit.reads(view).iter().sum::<f64>(), unit.writes(view), unit))
        .filter(|(reads, writes, _)| *writes > reads * weight)
        .map(|(reads, writes, unit)| (writes / (reads + writes), writes, unit))
        .collect();
    // A stable sort: equals stay in their order, and the same view gives the same moves.
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

/// The node that carries least of those where a unit may run.
fn least_loaded(what_if: &WhatIf<'_>, but: usize, unit: &Unit) -> Option<usize> {
    let view = what_if.view();
    let may = |&n: &usize| n != but && view.has_processors(n) && unit.may_run_on(view, n);
    (0..view.nodes.len()).filter(may).min_by(|&a, &b| what_if.loads()[a].total_cmp(&what_if.loads()[b]))
}
