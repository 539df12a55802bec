//! The input of a placement decision: nodes, threads and their data, with the traffic and busy processors of
//! one period.

/// Maximum number of nodes: sets of nodes are bits of a `u64`.
pub const NODES_MAX: usize = 64;

/// All nodes, as a set.
pub const ANYWHERE: u64 = u64::MAX;

/// A memory node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// Read bandwidth of its memory, bytes a second.
    pub read_capacity: f64,
    /// Write bandwidth of its memory, bytes a second.
    pub write_capacity: f64,
    /// Processors of the node; 0: memory only, no threads.
    pub processors: u32,
    /// Mean number of busy processors, whatever the program.
    pub busy: f64,
}

impl Node {
    /// The weight of a byte read in the node's load; a byte written weighs 1. A third on persistent memory, 1 on most DRAM.
    pub(crate) fn read_weight(&self) -> f64 {
        if self.read_capacity > 0.0 { self.write_capacity / self.read_capacity } else { 1.0 }
    }
}

/// A thread.
#[derive(Clone, Debug, PartialEq)]
pub struct Thread {
    /// Its number; not reused while a [`super::Placer`] knows it.
    pub id: u64,
    /// The node that it runs on.
    pub node: usize,
    /// Bytes a second read from each node; missing nodes: none.
    pub reads: Vec<f64>,
    /// Bytes a second written, to the node that the thread runs on.
    pub writes: f64,
    /// Processors that it keeps busy, 0 to 1.
    pub cpu: f64,
    /// Nodes that its own affinity allows, as bits.
    pub allowed: u64,
}

impl Thread {
    /// Bytes a second read from `node`.
    pub(crate) fn reads_from(&self, node: usize) -> f64 {
        self.reads.get(node).copied().unwrap_or(0.0)
    }

    /// Whether its affinity allows `node`.
    pub fn may_run_on(&self, node: usize) -> bool {
        node < NODES_MAX && self.allowed & (1 << node) != 0
    }
}

/// A part of a file with pages on one node: a whole file, or a range of a large one.
#[derive(Clone, Debug, PartialEq)]
pub struct Region {
    /// Its number.
    pub id: u64,
    /// Where its frames lie.
    pub node: usize,
    /// Nodes with a copy, as bits; `node` counts always.
    pub copies: u64,
    /// Bytes in its frames.
    pub bytes: f64,
    /// Its frames are clean DRAM frames, which can be copied.
    pub movable: bool,
    /// Threads that touch it share its data. False: its pages are of many files.
    pub is_shared: bool,
    /// No writes in the period: several copies of it can exist.
    pub read_only: bool,
    /// Threads that touched it.
    pub users: Vec<User>,
}

/// A thread's traffic with a region, bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct User {
    /// Index in [`View::threads`].
    pub thread: usize,
    /// Read.
    pub reads: f64,
    /// Written.
    pub writes: f64,
}

impl Region {
    pub(crate) fn lies_on(&self, node: usize) -> bool {
        node == self.node || (node < NODES_MAX && self.copies & (1 << node) != 0)
    }
}

/// One period of a machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// Nodes, by number.
    pub nodes: Vec<Node>,
    /// Threads.
    pub threads: Vec<Thread>,
    /// The regions touched; may be empty, then no threads share and no frames move.
    pub regions: Vec<Region>,
}

impl View {
    /// Whether threads can run on `node`.
    pub fn has_processors(&self, node: usize) -> bool {
        self.nodes.get(node).is_some_and(|n| n.processors > 0)
    }
}
