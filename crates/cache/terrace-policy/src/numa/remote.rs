//! Rule 1 of thread placement (NThread, slides 5-8): a thread goes to the node with most of its reads.
//!
//! That node must exceed every other by a margin. Otherwise a thread with equal parts of data on two nodes
//! would move back and forth. The paper's margin is 200 MB/s. Ours: a share of the node's read bandwidth,
//! which also suits many threads on one module of persistent memory.

use super::sharing::Unit;
use super::view::View;

/// The node where a unit should run by its reads; None: no node stands out.
pub(crate) fn target(view: &View, unit: &Unit, margin_share: f64) -> Option<usize> {
    let reads = unit.reads(view);
    let most = super::what_if::highest(&reads);
    let node = view.nodes.get(most)?;
    let margin = node.read_capacity * margin_share;
    let beats_all = (0..reads.len()).all(|n| n == most || reads[most] >= reads[n] + margin);
    let may = view.has_processors(most) && unit.may_run_on(view, most);
    (beats_all && may && reads[most] > 0.0).then_some(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numa::testing::{optane, thread, unit_of};

    fn goes(reads: &[f64], margin: f64) -> Option<usize> {
        let view =
            View { nodes: optane(reads.len()), threads: vec![thread(0, 0, reads, 0.1)], ..View::default() };
        target(&view, &unit_of(&view, 0), margin / 3.0)
    }

    #[test]
    fn thread_goes_to_the_node_it_reads_most() {
        assert_eq!(goes(&[0.1, 0.5], 0.2), Some(1));
        assert_eq!(goes(&[0.1, 0.2, 0.9, 0.3], 0.2), Some(2));
    }

    #[test]
    fn thread_stays_within_the_margin() {
        assert_eq!(goes(&[0.4, 0.5], 0.2), None);
        assert_eq!(goes(&[0.0, 0.9, 0.8], 0.2), None, "it must beat every other node, not only its own");
        assert_eq!(goes(&[0.0, 0.0], 0.0), None, "a thread without reads stays");
    }

    #[test]
    fn thread_stays_where_it_may_not_run_elsewhere() {
        let mut view =
            View { nodes: optane(2), threads: vec![thread(0, 0, &[0.0, 1.0], 0.0)], ..View::default() };
        view.threads[0].allowed = 1;
        assert_eq!(target(&view, &unit_of(&view, 0), 0.1), None);
        view.threads[0].allowed = super::super::view::ANYWHERE;
        view.nodes[1].processors = 0;
        assert_eq!(target(&view, &unit_of(&view, 0), 0.1), None, "memory without processors");
    }
}
