//! Small views of nodes and threads, for tests of thread placement; rates in GB a second.

use super::sharing::{Unit, units};
use super::view::{ANYWHERE, Node, Region, Thread, User, View};

/// Nodes of persistent memory that read 3 GB and write 1 GB a second: a write costs three reads.
pub(crate) fn optane(nodes: usize) -> Vec<Node> {
    vec![Node { read_capacity: 3.0, write_capacity: 1.0, processors: 10, busy: 0.0 }; nodes]
}

/// A thread on `node` that may run anywhere.
pub(crate) fn thread(id: u64, node: usize, reads: &[f64], writes: f64) -> Thread {
    Thread { id, node, reads: reads.to_vec(), writes, cpu: 0.0, allowed: ANYWHERE }
}

/// Movable frames on `node`, with the threads that read them.
pub(crate) fn region(node: usize, readers: &[(usize, f64)]) -> Region {
    let users = readers.iter().map(|&(thread, reads)| User { thread, reads, writes: 0.0 }).collect();
    Region { id: 0, node, copies: 0, bytes: 0.1, movable: true, is_shared: true, read_only: true, users }
}

pub(crate) fn unit_of(view: &View, thread: usize) -> Unit {
    let of = units(view, f64::INFINITY).into_iter().find(|unit| unit.members.contains(&thread));
    of.expect("every thread is in a unit")
}
