//! Rule 5 of thread placement, second half (NThread, slides 42-46): sharing threads without a target gather.
//! Their node is the one with most of them.
//!
//! Ours: not if that node's load would exceed the threshold, or its processors would be busy. Threads with
//! writes to one file above the threshold stay apart: other rules would separate them again.

use super::cpu::BUSY;
use super::sharing::Unit;
use super::what_if::WhatIf;

/// Brings the threads of a unit together. True if it did. `threshold_share`: of a node's write capacity.
pub(crate) fn gather(what_if: &mut WhatIf<'_>, unit: &Unit, threshold_share: f64) -> bool {
    let view = what_if.view();
    let before: Vec<usize> = unit.members.iter().map(|&t| what_if.target(t)).collect();
    let is_split = before.iter().any(|&node| node != unit.node);
    if !is_split || !view.has_processors(unit.node) || !unit.may_run_on(view, unit.node) {
        return false;
    }
    unit.members.iter().for_each(|&t| what_if.place(t, unit.node));
    let fits = !what_if.is_above(unit.node, threshold_share) && what_if.use_of(unit.node) <= BUSY;
    if !fits {
        unit.members.iter().zip(before).for_each(|(&t, node)| what_if.place(t, node));
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numa::sharing::units;
    use crate::numa::testing::{optane, region, thread};
    use crate::numa::view::View;

    #[test]
    fn threads_that_run_apart_are_gathered_where_they_fit() {
        let threads = (0..2).map(|id| thread(id, id as usize, &[0.5, 0.0], 0.05)).collect();
        let regions = vec![region(0, &[(0, 0.2), (1, 0.2)])];
        let mut split = View { nodes: optane(2), threads, regions };
        let gathers = |view: &View| {
            let mut what_if = WhatIf::new(view);
            let did = gather(&mut what_if, &units(view, 0.1)[0], 0.5);
            (did, [0, 1].map(|t| what_if.target(t)))
        };
        assert_eq!(gathers(&split), (true, [0, 0]));
        let capacity = split.nodes[0].write_capacity;
        split.threads.iter_mut().for_each(|t| t.writes = capacity * 0.3);
        assert_eq!(gathers(&split), (false, [0, 1]), "together they would overload one node");
        split.threads.iter_mut().for_each(|t| t.writes = 0.0);
        split.nodes[0].busy = 0.95 * f64::from(split.nodes[0].processors);
        assert_eq!(gathers(&split), (false, [0, 1]), "its processors are busy");
    }
}
