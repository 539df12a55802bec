//! Rule 5 of thread placement (NThread, slides 42-46): threads that touch the same pages run on one node.
//! They share processor caches, and writes are local to all.
//!
//! Ours: sharing needs a minimum of bytes a second from each of two threads. Otherwise one log or
//! configuration file would tie all threads of a program to one node. A group for more processors than any
//! node has is split.

use super::view::View;

/// Threads that move together: a single one, or several that share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// Indices in [`View::threads`], ascending.
    pub(crate) members: Vec<usize>,
    /// The node with most of its threads, the lowest of equals.
    pub(crate) node: usize,
}

impl Unit {
    fn new(view: &View, members: Vec<usize>) -> Unit {
        let mut on = vec![0.0; view.nodes.len().max(1)];
        for &member in &members {
            if let Some(count) = on.get_mut(view.threads[member].node) {
                *count += 1.0;
            }
        }
        Unit { node: super::what_if::highest(&on), members }
    }

    pub(crate) fn shares(&self) -> bool {
        self.members.len() > 1
    }

    /// Bytes a second read from each node.
    pub(crate) fn reads(&self, view: &View) -> Vec<f64> {
        let from = |node| self.members.iter().map(|&t| view.threads[t].reads_from(node)).sum();
        (0..view.nodes.len()).map(from).collect()
    }

    /// Bytes a second written.
    pub(crate) fn writes(&self, view: &View) -> f64 {
        self.members.iter().map(|&t| view.threads[t].writes).sum()
    }

    /// Processors kept busy.
    pub(crate) fn cpu(&self, view: &View) -> f64 {
        self.members.iter().map(|&t| view.threads[t].cpu).sum()
    }

    pub(crate) fn may_run_on(&self, view: &View, node: usize) -> bool {
        self.members.iter().all(|&t| view.threads[t].may_run_on(node))
    }
}

/// The units of a view, by their first thread. `bytes_min`: minimum bytes a second of each of two threads
/// that share a region.
pub(crate) fn units(view: &View, bytes_min: f64) -> Vec<Unit> {
    let mut leader: Vec<usize> = (0..view.threads.len()).collect();
    for region in view.regions.iter().filter(|region| region.is_shared) {
        let mut users = region.users.iter().filter(|user| user.reads + user.writes >= bytes_min);
        let Some(first) = users.next() else { continue };
        for user in users {
            let (a, b) = (find(&mut leader, first.thread), find(&mut leader, user.thread));
            leader[a.max(b)] = a.min(b);
        }
    }
    let mut members = vec![Vec::new(); view.threads.len()];
    for thread in 0..view.threads.len() {
        members[find(&mut leader, thread)].push(thread);
    }
    let room = view.nodes.iter().map(|n| f64::from(n.processors)).fold(0.0, f64::max);
    let mut units = Vec::new();
    for members in members.into_iter().filter(|m| !m.is_empty()) {
        let unit = Unit::new(view, members);
        if unit.shares() && unit.cpu(view) > room {
            units.extend(unit.members.iter().map(|&t| Unit::new(view, vec![t])));
        } else {
            units.push(unit);
        }
    }
    units
}

/// The first thread of a group; halves the path on the way.
fn find(leader: &mut [usize], mut thread: usize) -> usize {
    while leader[thread] != thread {
        leader[thread] = leader[leader[thread]];
        thread = leader[thread];
    }
    thread
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numa::testing::{optane, region, thread};

    fn view(regions: Vec<super::super::view::Region>) -> View {
        let threads = (0..4).map(|id| thread(id, id as usize % 2, &[0.5, 0.0], 0.5)).collect();
        View { nodes: optane(2), threads, regions }
    }

    fn members(view: &View) -> Vec<Vec<usize>> {
        units(view, 0.1).into_iter().map(|unit| unit.members).collect()
    }

    #[test]
    fn threads_of_one_file_are_one_unit() {
        let shared = view(vec![region(0, &[(0, 0.5), (2, 0.4)]), region(0, &[(2, 0.4), (3, 0.3)])]);
        assert_eq!(members(&shared), [vec![0, 2, 3], vec![1]]);
        assert_eq!(units(&shared, 0.1)[0].node, 0, "where most of them are");
    }

    #[test]
    fn a_common_log_ties_nobody() {
        let log = view(vec![region(0, &[(0, 0.05), (1, 0.05), (2, 0.05), (3, 0.05)])]);
        assert_eq!(members(&log).len(), 4);
        let one = view(vec![region(0, &[(0, 0.9), (1, 0.05)])]);
        assert_eq!(members(&one).len(), 4, "both must use it");
    }

    #[test]
    fn memory_of_many_files_ties_nobody() {
        let mut chunk = region(0, &[(0, 0.5), (1, 0.5)]);
        assert_eq!(members(&view(vec![chunk.clone()])).len(), 3);
        chunk.is_shared = false;
        assert_eq!(members(&view(vec![chunk])).len(), 4);
    }

    #[test]
    fn a_group_that_fits_no_node_is_none() {
        let mut wide = view(vec![region(0, &[(0, 1.0), (1, 1.0), (2, 1.0)])]);
        wide.threads.iter_mut().for_each(|t| t.cpu = 1.0);
        wide.nodes.iter_mut().for_each(|n| n.processors = 2);
        assert_eq!(members(&wide).len(), 4);
    }
}
