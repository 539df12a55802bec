//! A load under a policy, second by second: the machine reaches its equilibrium, the policy gets the daemon's
//! view of it, and its moves take effect in the next second.

use std::collections::HashMap;

use terrace_policy::numa::gain::What;
use terrace_policy::numa::{ANYWHERE, Config, Decision, Node, Placer, Region, Rules, Thread, User, View};

use super::load::{Layout, machine};
use super::machine::{Machine, Operation, Placed, Second, capacity};

/// Seconds of a run; the last [`MEASURED_S`] count.
pub(crate) const RUN_S: usize = 60;
/// See [`RUN_S`].
pub(crate) const MEASURED_S: usize = 30;
/// Parts of a file, each of which lies on one node.
const PARTS: usize = 16;
/// Bytes of a part.
const PART_BYTES: f64 = 32e6;

/// Placement of writes by a file system without a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    /// Writes go to the writing thread's node.
    LocalWrites,
    /// Writes go to the file's node.
    HomeNode,
}

/// The policy that moves threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// No moves: the baseline.
    None,
    /// Moves threads, by the rule of remote access alone.
    Remote,
    /// Moves threads, by all rules.
    Full,
    /// Moves threads by all rules, and frames.
    ThreadsAndFrames,
}

impl Policy {
    /// All.
    pub const ALL: [Policy; 4] = [Policy::None, Policy::Remote, Policy::Full, Policy::ThreadsAndFrames];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Policy::None => "none",
            Policy::Remote => "remote",
            Policy::Full => "full",
            Policy::ThreadsAndFrames => "threads+frames",
        }
    }

    fn rules(self) -> Option<Rules> {
        match self {
            Policy::None => None,
            Policy::Remote => Some(Rules::Remote),
            Policy::Full => Some(Rules::Threads),
            Policy::ThreadsAndFrames => Some(Rules::ThreadsAndFrames),
        }
    }
}

impl Baseline {
    /// Both.
    pub const ALL: [Baseline; 2] = [Baseline::HomeNode, Baseline::LocalWrites];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Baseline::LocalWrites => "local-writes",
            Baseline::HomeNode => "home-node",
        }
    }
}

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Share of reads, percent.
    pub(crate) reads_percent: u32,
    /// Nodes of the machine.
    pub(crate) nodes: usize,
    /// Placement of writes without a policy.
    pub(crate) baseline: Baseline,
    /// The policy that moves threads.
    pub(crate) policy: Policy,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Throughput of all threads, MB a second.
    pub(crate) mb_s: f64,
    /// Share of bytes read from another node than the thread's.
    pub(crate) remote_reads: f64,
    /// Moves of threads in the whole run.
    pub(crate) thread_moves: u64,
    /// Moves in the second half of the run.
    pub(crate) late_moves: u64,
    /// MB of frames moved or copied in the whole run.
    pub(crate) frame_mb: f64,
}

/// A part of a thread's file.
#[derive(Clone, Copy, Debug)]
struct Part {
    node: usize,
    /// Nodes with a copy, as bits.
    copies: u64,
}

impl Part {
    fn serves(self, node: usize) -> usize {
        if self.copies & (1 << node) != 0 { node } else { self.node }
    }
}

struct Run {
    setup: Setup,
    machine: Machine,
    operation: Operation,
    homes: Vec<usize>,
    nodes: Vec<usize>,
    parts: Vec<[Part; PARTS]>,
}

/// Runs the load with files placed by `layout`.
pub fn run(setup: Setup, layout: &Layout) -> Outcome {
    let (machine, threads) = machine(setup.nodes);
    let homes = layout.homes.clone();
    let mut run = Run {
        setup,
        machine,
        operation: Operation {
            block: 4096.0,
            reads: f64::from(setup.reads_percent) / 100.0,
            sw_s: 4e-6,
            write_amplification: 1.5,
        },
        parts: homes.iter().map(|&node| [Part { node, copies: 0 }; PARTS]).collect(),
        nodes: (0..threads).map(|t| t % setup.nodes).collect(),
        homes,
    };
    let mut placer = setup.policy.rules().map(|rules| Placer::new(Config::new(rules)));
    let mut outcome = Outcome::default();
    let mut moving = vec![0.0; setup.nodes];
    for second in 0..RUN_S {
        let placed = run.placed();
        let settled = run.machine.settle(&run.operation, &placed, &moving);
        let late = second >= RUN_S - MEASURED_S;
        if late {
            run.measure(&placed, &settled, &mut outcome);
        }
        if let Some(placer) = &mut placer {
            let decision = placer.decide(&run.view(&placed, &settled));
            outcome.thread_moves += decision.threads.len() as u64;
            outcome.late_moves += if late { decision.threads.len() as u64 } else { 0 };
            outcome.frame_mb += decision.frames.len() as f64 * PART_BYTES / 1e6;
            moving = run.apply(&decision);
        }
    }
    outcome
}

impl Run {
    fn placed(&self) -> Vec<Placed> {
        let home_writes = (self.setup.policy, self.setup.baseline) == (Policy::None, Baseline::HomeNode);
        let placed = |(t, &node): (usize, &usize)| {
            let mut read_from = vec![0.0; self.machine.nodes];
            self.parts[t].iter().for_each(|part| read_from[part.serves(node)] += 1.0 / PARTS as f64);
            Placed { node, read_from, write_to: if home_writes { self.homes[t] } else { node } }
        };
        self.nodes.iter().enumerate().map(placed).collect()
    }

    fn measure(&self, placed: &[Placed], settled: &Second, outcome: &mut Outcome) {
        let bytes: f64 = settled.rates.iter().sum::<f64>() * self.operation.block;
        let remote = |(thread, rate): (&Placed, &f64)| rate * (1.0 - thread.read_from[thread.node]);
        let remote: f64 = placed.iter().zip(&settled.rates).map(remote).sum();
        outcome.mb_s += bytes / 1e6 / MEASURED_S as f64;
        outcome.remote_reads += remote * self.operation.block / bytes / MEASURED_S as f64;
    }

    /// The view that the daemon's observer would have.
    fn view(&self, placed: &[Placed], settled: &Second) -> View {
        let (read_capacity, write_capacity) = (capacity(4.0).0, capacity(1.0).1);
        let on = |node: usize| self.nodes.iter().filter(|&&n| n == node).count() as f64;
        let cpu = |node: usize| (f64::from(self.machine.processors) / on(node)).min(1.0);
        let node = |n: usize| Node {
            read_capacity,
            write_capacity,
            processors: self.machine.processors,
            busy: on(n) * if on(n) > 0.0 { cpu(n) } else { 0.0 },
        };
        let bytes = |t: usize| settled.rates[t] * self.operation.block;
        let (read, written) = (self.operation.reads, 1.0 - self.operation.reads);
        let thread = |(t, placed): (usize, &Placed)| Thread {
            id: t as u64,
            node: placed.node,
            reads: placed.read_from.iter().map(|share| share * bytes(t) * read).collect(),
            writes: bytes(t) * written,
            cpu: cpu(placed.node),
            allowed: ANYWHERE,
        };
        let region = |t: usize, n: usize, part: &Part| Region {
            id: (t * PARTS + n) as u64,
            node: part.node,
            copies: part.copies,
            bytes: PART_BYTES,
            movable: true,
            is_shared: true,
            read_only: written == 0.0,
            users: vec![User {
                thread: t,
                reads: bytes(t) * read / PARTS as f64,
                writes: bytes(t) * written / PARTS as f64,
            }],
        };
        let of_thread = |(t, parts): (usize, &[Part; PARTS])| {
            parts.iter().enumerate().map(|(n, part)| region(t, n, part)).collect::<Vec<_>>()
        };
        View {
            nodes: (0..self.machine.nodes).map(node).collect(),
            threads: placed.iter().enumerate().map(thread).collect(),
            regions: self.parts.iter().enumerate().flat_map(of_thread).collect(),
        }
    }

    /// Carries out a decision. Returns the share of each node's next second spent on copying.
    fn apply(&mut self, decision: &Decision) -> Vec<f64> {
        let targets: HashMap<u64, usize> = decision.threads.iter().map(|m| (m.id, m.to)).collect();
        for (t, node) in self.nodes.iter_mut().enumerate() {
            *node = targets.get(&(t as u64)).copied().unwrap_or(*node);
        }
        let mut moving = vec![0.0; self.machine.nodes];
        for frames in &decision.frames {
            let part = &mut self.parts[frames.id as usize / PARTS][frames.id as usize % PARTS];
            match frames.what {
                What::MoveFrames => *part = Part { node: frames.to, copies: 0 },
                What::Replicate => part.copies |= 1 << frames.to,
            }
            moving[frames.from] += PART_BYTES / capacity(4.0).0;
            moving[frames.to] += PART_BYTES / capacity(1.0).1;
        }
        moving
    }
}
