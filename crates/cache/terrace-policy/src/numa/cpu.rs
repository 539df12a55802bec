//! Rule 4 of thread placement (NThread, slides 37-40): a node with busy processors gives threads away. It
//! applies only if rule 3 finds no overloaded node.
//!
//! Too busy means over 90 %, and twice as busy as every other node. A thread goes only to a node that stays
//! below 90 %. Ours: threads with the fewest reads from the node go first, because these become remote.

use super::sharing::Unit;
use super::what_if::WhatIf;

/// Share of its processors above which a node is too busy.
pub(crate) const BUSY: f64 = 0.9;
/// A node is too busy only if it is this many times as busy as every other node.
const TIMES: f64 = 2.0;

/// The node with too busy processors.
pub fn contended(what_if: &WhatIf<'_>) -> Option<usize> {
    let nodes = || (0..what_if.view().nodes.len()).filter(|&n| what_if.view().has_processors(n));
    let most = nodes().max_by(|&a, &b| what_if.use_of(a).total_cmp(&what_if.use_of(b)))?;
    let busy = what_if.use_of(most);
    let others_are_low = nodes().all(|n| n == most || what_if.use_of(n) * TIMES <= busy);
    (busy > BUSY && others_are_low && nodes().count() > 1).then_some(most)
}

/// Moves units away from `node` until it is no longer too busy.
pub(crate) fn relieve(what_if: &mut WhatIf<'_>, node: usize, units: &[&Unit]) {
    let view = what_if.view();
    let on_node = units.iter().copied().filter(|u| u.members.iter().all(|&t| what_if.target(t) == node));
    let mut order: Vec<(bool, f64, &Unit)> = on_node
        .filter(|u| u.cpu(view) > 0.0)
        .map(|unit| (unit.shares(), unit.reads(view)[node], unit))
        .collect();
    order.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    for (_, _, unit) in order {
        if what_if.use_of(node) <= BUSY {
            break;
        }
        let cpu = unit.cpu(view);
        let after = |n: usize| what_if.use_of(n) + cpu / f64::from(view.nodes[n].processors);
        let may =
            |&n: &usize| n != node && view.has_processors(n) && unit.may_run_on(view, n) && after(n) < BUSY;
        let least = (0..view.nodes.len()).filter(may).min_by(|&a, &b| after(a).total_cmp(&after(b)));
        if let Some(to) = least {
            unit.members.iter().for_each(|&t| what_if.place(t, to));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numa::sharing::units;
    use crate::numa::testing::{optane, thread};
    use crate::numa::view::View;

    /// Threads without memory traffic on node 0, on nodes of four processors.
    fn view(threads: u64, other_busy: f64) -> View {
        let mut nodes = optane(2);
        nodes.iter_mut().for_each(|n| n.processors = 4);
        (nodes[0].busy, nodes[1].busy) = (threads as f64, other_busy);
        let busy = |id| super::super::view::Thread { cpu: 1.0, ..thread(id, 0, &[0.1, 0.0], 0.0) };
        View { nodes, threads: (0..threads).map(busy).collect(), regions: Vec::new() }
    }

    fn moved(view: &View) -> usize {
        let mut what_if = WhatIf::new(view);
        let units = units(view, 1.0);
        if let Some(node) = contended(&what_if) {
            relieve(&mut what_if, node, &units.iter().collect::<Vec<_>>());
        }
        assert!(what_if.use_of(1) < BUSY || what_if.use_of(1) <= view.nodes[1].busy / 4.0);
        (0..view.threads.len()).filter(|&t| what_if.target(t) == 1).count()
    }

    #[test]
    fn busy_node_gives_threads_away_until_it_is_not() {
        assert_eq!(moved(&view(4, 0.0)), 1);
        assert_eq!(moved(&view(6, 0.0)), 3, "the target stays under nine tenths of four processors");
    }

    #[test]
    fn busy_node_keeps_threads_while_others_are_busy_too() {
        assert_eq!(moved(&view(4, 2.5)), 0);
        assert_eq!(moved(&view(3, 0.0)), 0, "three of four processors are not too many");
    }
}
