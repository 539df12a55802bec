//! All rules of thread placement, in order (NThread, slides 47-57): view, initial and final targets, one
//! migration a thread.
//!
//! ```text
//!  1 remote access     initial target of each unit of threads (5 sharing makes the units, and gathers those without a target)
//!  2 what-if           node loads as if all were there
//!  3 memory            a node that carries too much gives writers away
//!  4 CPU               only if there was no 3: a node with busy processors gives threads away
//!  6 apply             threads with another target than their node; then frames that are still read from afar
//! ```
//! Moved threads rest for some periods, because a move changes the rates that what-if uses. Ours: a thread
//! given away does not return while its node would be overloaded with it. Otherwise it would move back and
//! forth every few periods. With estimated gains no thread moves to its data if the target becomes overloaded
//! and the most loaded node.

use std::collections::{HashMap, HashSet};

use super::gain::{self, REMOTE_READ, Uses, What};
use super::sharing::{self, Unit};
use super::view::View;
use super::what_if::WhatIf;
use super::{contention, cpu, gather, remote};

/// Which rules are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// The rule of remote access alone.
    Remote,
    /// All rules about threads, as published.
    Threads,
    /// As above, without moves that would overload a node; and frames are moved or copied where that pays.
    ThreadsAndFrames,
}

/// The thresholds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Which rules are in force.
    pub rules: Rules,
    /// Excess of reads over every other node that attracts a thread, as a share of the node's read capacity.
    pub margin_share: f64,
    /// Minimum load of an overloaded node, as a share of its write capacity.
    pub threshold_share: f64,
    /// Periods that a thread rests after a move.
    pub rest_periods: u64,
    /// Minimum bytes a second of each of two threads that share a region.
    pub share_bytes_min: f64,
    /// Maximum bytes of frames moved or copied in a period.
    pub frame_bytes_max: f64,
}

impl Config {
    /// The defaults, under these rules.
    pub fn new(rules: Rules) -> Config {
        Config {
            rules,
            margin_share: 0.005,
            threshold_share: 0.5,
            rest_periods: 3,
            share_bytes_min: 16e6,
            frame_bytes_max: 256e6,
        }
    }
}

/// Why a thread moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveReason {
    /// The thread reads most from the target.
    Remote,
    /// Threads that share its data run on the target.
    Sharing,
    /// Its node's memory was overloaded.
    Memory,
    /// Its node's processors were busy.
    Cpu,
}

/// A thread that should move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThreadMove {
    /// Its number.
    pub id: u64,
    /// Where it is.
    pub from: usize,
    /// Where it should be.
    pub to: usize,
    /// The rule.
    pub why: MoveReason,
}

/// Frames that should move or be copied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrameMove {
    /// Number of the region.
    pub id: u64,
    /// Where they lie.
    pub from: usize,
    /// Their target node, for a move or a copy.
    pub to: usize,
    /// Move or copy.
    pub what: What,
    /// Memory time saved, seconds a second.
    pub(crate) saves: f64,
}

/// The moves of a period.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// At most one move a thread.
    pub threads: Vec<ThreadMove>,
    /// At most one move a region.
    pub frames: Vec<FrameMove>,
    /// Current load of each node, bytes a second.
    pub loads: Vec<f64>,
    /// Predicted load after the moves of threads.
    pub predicted: Vec<f64>,
    /// The node overloaded with threads at their initial targets.
    pub contended: Option<usize>,
}

/// Decides the moves of each period.
#[derive(Clone, Debug)]
pub struct Placer {
    config: Config,
    period: u64,
    moved: HashMap<u64, u64>,
    /// Threads given away, each with the node that gave it.
    given_away: HashMap<u64, usize>,
}

impl Placer {
    /// A placer without a history.
    pub fn new(config: Config) -> Placer {
        Placer { config, period: 0, moved: HashMap::new(), given_away: HashMap::new() }
    }

    /// Decides after a period. Equal views give equal decisions.
    pub fn decide(&mut self, view: &View) -> Decision {
        self.period += 1;
        let (period, rest) = (self.period, self.config.rest_periods);
        self.moved.retain(|_, at| *at + rest >= period);
        if view.nodes.len() < 2 {
            return Decision::default();
        }
        let units = sharing::units(view, self.config.share_bytes_min);
        let rests = |unit: &Unit| unit.members.iter().any(|&t| self.moved.contains_key(&view.threads[t].id));
        let free: Vec<&Unit> = units.iter().filter(|unit| !rests(unit)).collect();
        let mut what_if = WhatIf::new(view);
        let mut decision = Decision { loads: what_if.loads().to_vec(), ..Decision::default() };
        let mut why = vec![MoveReason::Remote; view.threads.len()];
        self.initial_targets(&mut what_if, &free, &mut why);
        if self.config.rules != Rules::Remote {
            self.keep_away(&mut what_if, &free);
            decision.contended = self.final_targets(&mut what_if, &free, &mut why);
        }
        if self.config.rules == Rules::ThreadsAndFrames {
            decision.frames = self.frames(&what_if);
        }
        decision.predicted = what_if.loads().to_vec();
        let moves = view.threads.iter().enumerate().map(|(t, thread)| ThreadMove {
            id: thread.id,
            from: thread.node,
            to: what_if.target(t),
            why: why[t],
        });
        decision.threads = moves.filter(|m| m.from != m.to).collect();
        self.note(view, &decision, period);
        decision
    }

    fn note(&mut self, view: &View, decision: &Decision, period: u64) {
        let known: HashSet<u64> = view.threads.iter().map(|thread| thread.id).collect();
        self.given_away.retain(|id, _| known.contains(id));
        for m in &decision.threads {
            self.moved.insert(m.id, period);
            match m.why {
                MoveReason::Remote | MoveReason::Sharing => self.given_away.remove(&m.id),
                MoveReason::Memory | MoveReason::Cpu => self.given_away.insert(m.id, m.from),
            };
        }
    }

    /// Ends the rest of a thread that could not be moved.
    pub fn forget(&mut self, id: u64) {
        self.moved.remove(&id);
    }

    /// Threads that share may run apart: their data bring them together, otherwise their majority.
    fn initial_targets(&self, what_if: &mut WhatIf<'_>, free: &[&Unit], why: &mut [MoveReason]) {
        let mut others = Vec::new();
        for unit in free {
            match remote::target(what_if.view(), unit, self.config.margin_share) {
                Some(to) => unit.members.iter().for_each(|&t| what_if.place(t, to)),
                None if self.config.rules != Rules::Remote => others.push(unit),
                None => {}
            }
        }
        for unit in others {
            if gather::gather(what_if, unit, self.config.threshold_share) {
                unit.members.iter().for_each(|&t| why[t] = MoveReason::Sharing);
            }
        }
    }

    /// Keeps units in place that would overload their initial target: units that the target gave away before.
    /// With estimated gains all, those with most writes first.
    fn keep_away(&self, what_if: &mut WhatIf<'_>, free: &[&Unit]) {
        let view = what_if.view();
        let was_given = |unit: &Unit, node: usize| {
            unit.members.iter().any(|&t| self.given_away.get(&view.threads[t].id) == Some(&node))
        };
        let all = self.config.rules == Rules::ThreadsAndFrames;
        let mut going: Vec<(f64, &Unit, usize)> = free
            .iter()
            .map(|unit| (unit.writes(view), *unit, what_if.target(unit.members[0])))
            .filter(|(_, unit, to)| *to != unit.node && (all || was_given(unit, *to)))
            .collect();
        going.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (writes, unit, to) in going {
            // Remote reads weigh more, so the move of a reader reduces its target's load. Its present node
            // may carry even more.
            let saved = unit.reads(view)[to] * view.nodes[to].read_weight() * (REMOTE_READ - 1.0);
            let is_worse = writes > saved && what_if.loads()[to] > what_if.loads()[unit.node] + writes;
            if is_worse && what_if.is_above(to, self.config.threshold_share) {
                unit.members.iter().for_each(|&t| what_if.place(t, view.threads[t].node));
            }
        }
    }

    /// Final targets. Returns the overloaded node, if there was one.
    fn final_targets(
        &self,
        what_if: &mut WhatIf<'_>,
        free: &[&Unit],
        why: &mut [MoveReason],
    ) -> Option<usize> {
        let before: Vec<usize> = (0..why.len()).map(|t| what_if.target(t)).collect();
        let contended = contention::contended(what_if, self.config.threshold_share);
        if let Some(node) = contended {
            contention::relieve(what_if, node, free);
        } else if let Some(node) = cpu::contended(what_if) {
            cpu::relieve(what_if, node, free);
        }
        let rule = if contended.is_some() { MoveReason::Memory } else { MoveReason::Cpu };
        for (t, why) in why.iter_mut().enumerate() {
            if what_if.target(t) != before[t] {
                *why = rule;
            }
        }
        contended
    }

    /// Frames worth a move with the threads at their targets, the largest savings a byte first.
    fn frames(&self, what_if: &WhatIf<'_>) -> Vec<FrameMove> {
        let view = what_if.view();
        let mut uses = Uses::new(what_if);
        let each = |saves: f64, bytes: f64| saves / bytes.max(1.0);
        let worth =
            |(r, region)| gain::best(what_if, &uses, region).map(|found| (each(found.2, region.bytes), r));
        let mut order: Vec<(f64, usize)> = view.regions.iter().enumerate().filter_map(worth).collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0));
        let (mut room, mut moves) = (self.config.frame_bytes_max, Vec::new());
        for (_, r) in order {
            let region = &view.regions[r];
            if region.bytes > room {
                continue;
            }
            // Repeated: earlier moves have changed the nodes' uses.
            if let Some((what, to, saves, after)) = gain::best(what_if, &uses, region) {
                moves.push(FrameMove { id: region.id, from: region.node, to, what, saves });
                (uses, room) = (after, room - region.bytes);
            }
        }
        moves
    }
}
