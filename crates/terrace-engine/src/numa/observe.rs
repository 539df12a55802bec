//! Input of a decision: which threads read and write how much, from which node, and how busy processors are.
//!
//! Bytes come from a recording (`observe/trace.rs`) that is under way for a short window of each period: clients then leave word of each
//! read with the number of their thread, and the mount path knows the thread of each request. Between windows a hit costs nothing more
//! than without all this. The node of a read is that of the frame which holds its first page; a miss is read from the source's device.
//!
//! Numbers from clients are claims: threads that belong to no client are passed over.

use crate::access_log::{Kind, Noted};
use crate::context::Context;
use crate::file::object::ObjectId;
use crate::numa::proc;
use crate::numa::topology::Topology;
use std::collections::HashMap;
use terrace_policy::numa::{ANYWHERE, Node, Region, Thread, User, View};
use terrace_shm::PAGE_SIZE;

/// Spans of a window of which the node is looked up; of more, every second, third, ... one.
const LOOKED_UP_MAX: usize = 4096;
/// Spans that are looked up under one lock.
const LOCKED_MAX: usize = 128;
/// Threads of a period at the most: those that move most bytes.
const THREADS_MAX: usize = 1024;
/// Bandwidth of a node of DRAM, bytes a second: an order of magnitude is enough. With it the margin of the rule
/// of remote access is the published one, 200 MB/s.
const READ_CAPACITY: f64 = 40e9;
const WRITE_CAPACITY: f64 = 20e9;

/// Bytes of a thread in a window.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Bytes {
    /// Read, by node.
    pub reads: Vec<f64>,
    /// Read from no node that is known.
    pub elsewhere: f64,
    /// Written.
    pub writes: f64,
    /// By file: read, written.
    pub files: HashMap<ObjectId, (f64, f64)>,
}

/// A thread of a period.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ThreadSeen {
    pub tid: u32,
    pub name: String,
    pub elsewhere: f64,
    pub bound: bool,
}

/// A period.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Period {
    pub view: View,
    /// Facts about the view's threads that the view itself does not hold, in the order of its threads.
    pub seen: Vec<ThreadSeen>,
    /// Bytes of frames on each node.
    pub frame_bytes: Vec<u64>,
}

/// Sums spans by thread. `node_of`: the nodes of the frames of spans, in their order; `factor`: by which bytes of the window become bytes a
/// second.
pub(super) fn sum(
    spans: &[Noted],
    nodes: &[Option<usize>],
    count: usize,
    factor: f64,
) -> HashMap<u32, Bytes> {
    let mut threads: HashMap<u32, Bytes> = HashMap::new();
    for (span, node) in spans.iter().zip(nodes).filter(|(span, _)| span.tid != 0) {
        let bytes = (span.pages * PAGE_SIZE as u64) as f64 * factor;
        let thread = threads.entry(span.tid).or_default();
        thread.reads.resize(count, 0.0);
        let file = thread.files.entry(span.object).or_default();
        match (span.kind, node) {
            (Kind::Write, _) => (thread.writes, file.1) = (thread.writes + bytes, file.1 + bytes),
            (_, Some(node)) => (thread.reads[*node], file.0) = (thread.reads[*node] + bytes, file.0 + bytes),
            (_, None) => (thread.elsewhere, file.0) = (thread.elsewhere + bytes, file.0 + bytes),
        }
    }
    threads
}

/// The node of each span: by `chunks`, the nodes of chunks of frames; of a miss, `source`.
pub(super) fn locate(
    cx: &Context,
    spans: &[Noted],
    chunks: &[u8],
    source: Option<usize>,
) -> Vec<Option<usize>> {
    let mut nodes = Vec::with_capacity(spans.len());
    for part in spans.chunks(LOCKED_MAX) {
        let state = cx.state.lock();
        nodes.extend(part.iter().map(|span| {
            if matches!(span.kind, Kind::MainMiss | Kind::FastMiss) {
                return source;
            }
            let object = state.objects.get(&span.object)?;
            let frame = state.pages.frame_of(object, span.page)?;
            super::chunks::node_of(chunks, frame)
        }));
    }
    nodes
}

/// Fewer spans, evenly chosen, and how many each stands for.
pub(super) fn thinned(spans: Vec<Noted>) -> (Vec<Noted>, f64) {
    let every = spans.len().div_ceil(LOOKED_UP_MAX).max(1);
    let all = spans.len().max(1) as f64;
    let kept: Vec<Noted> = spans.into_iter().step_by(every).collect();
    let each = all / kept.len().max(1) as f64;
    (kept, each)
}

/// Of a thread before: nanoseconds that it had run.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    ran_ns: HashMap<u32, u64>,
    ticks: Vec<(usize, u64, u64)>,
}

impl Clocks {
    /// Processors busy on each node since the last call.
    pub(super) fn busy(&mut self, topology: &Topology) -> Vec<f64> {
        let (now, before) = (proc::cpu_ticks(), std::mem::take(&mut self.ticks));
        let before: HashMap<usize, (u64, u64)> =
            before.into_iter().map(|(cpu, b, a)| (cpu, (b, a))).collect();
        let mut busy = vec![0.0; topology.nodes.len()];
        for &(cpu, used, all) in &now {
            let (used_before, all_before) = before.get(&cpu).copied().unwrap_or((used, all));
            let (used, all) = (used.saturating_sub(used_before), all.saturating_sub(all_before));
            if let Some(node) = topology.node_of_cpu(cpu).filter(|_| all > 0) {
                busy[node] += used as f64 / all as f64;
            }
        }
        self.ticks = now;
        busy
    }

    /// Processors that a thread kept busy in the `period_ns` since the last call.
    fn cpu(&mut self, tid: u32, period_ns: u64) -> f64 {
        let Some(now) = proc::run_ns(tid) else { return 0.0 };
        let before = self.ran_ns.insert(tid, now).unwrap_or(now);
        (now.saturating_sub(before) as f64 / period_ns.max(1) as f64).min(1.0)
    }

    fn forget_but(&mut self, threads: &HashMap<u32, Bytes>) {
        self.ran_ns.retain(|tid, _| threads.contains_key(tid));
    }
}

/// Puts a period together. `is_bound`: whether a program has bound a thread itself.
pub(super) fn period(
    topology: &Topology,
    threads: HashMap<u32, Bytes>,
    clocks: &mut Clocks,
    period_ns: u64,
    is_bound: &dyn Fn(u32) -> bool,
) -> Period {
    let busy = clocks.busy(topology);
    clocks.forget_but(&threads);
    let mut all: Vec<(u32, Bytes)> = threads.into_iter().collect();
    let moved = |bytes: &Bytes| bytes.reads.iter().sum::<f64>() + bytes.elsewhere + bytes.writes;
    all.sort_by(|a, b| moved(&b.1).total_cmp(&moved(&a.1)).then(a.0.cmp(&b.0)));
    all.truncate(THREADS_MAX);
    let mut period = Period::default();
    period.view.nodes = topology
        .nodes
        .iter()
        .zip(busy)
        .map(|(node, busy)| Node {
            read_capacity: READ_CAPACITY,
            write_capacity: WRITE_CAPACITY,
            processors: node.cpus.len() as u32,
            busy,
        })
        .collect();
    let mut files: HashMap<ObjectId, Vec<User>> = HashMap::new();
    for (tid, bytes) in all {
        let Some(stat) = proc::stat(tid) else { continue };
        let Some(node) = topology.node_of_cpu(stat.cpu) else { continue };
        let bound = is_bound(tid);
        let thread = period.view.threads.len();
        for (object, (reads, writes)) in bytes.files {
            files.entry(object).or_default().push(User { thread, reads, writes });
        }
        period.view.threads.push(Thread {
            id: tid.into(),
            node,
            reads: bytes.reads,
            writes: bytes.writes,
            cpu: clocks.cpu(tid, period_ns),
            allowed: if bound { 0 } else { ANYWHERE },
        });
        period.seen.push(ThreadSeen { tid, name: stat.name, elsewhere: bytes.elsewhere, bound });
    }
    period.view.regions = shared(files);
    period
}

/// Files that more than one thread used. Their frames stay where they are: which node a file's frames lie on is not known here.
fn shared(files: HashMap<ObjectId, Vec<User>>) -> Vec<Region> {
    let mut regions: Vec<Region> = files
        .into_iter()
        .filter(|(_, users)| users.len() > 1)
        .map(|(id, users)| Region {
            id,
            node: 0,
            copies: 0,
            bytes: 0.0,
            movable: false,
            read_only: false,
            users,
        })
        .collect();
    regions.sort_by_key(|region| region.id);
    regions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(tid: u32, object: u64, pages: u64, kind: Kind) -> Noted {
        Noted { object, page: 0, pages, at_ns: 0, kind, tid }
    }

    #[test]
    fn bytes_are_summed_by_thread_and_node() {
        let spans = [
            span(1, 7, 2, Kind::FastHit),
            span(1, 8, 1, Kind::MainMiss),
            span(2, 7, 4, Kind::Write),
            span(0, 7, 9, Kind::Write),
            span(1, 7, 1, Kind::FastHit),
        ];
        let threads = sum(&spans, &[Some(1), None, Some(0), None, Some(0)], 2, 10.0);
        assert_eq!(threads.len(), 2, "writeback carries no thread");
        let (one, two) = (&threads[&1], &threads[&2]);
        assert_eq!((one.reads.clone(), one.elsewhere, one.writes), (vec![40960.0, 81920.0], 40960.0, 0.0));
        assert_eq!((two.reads.clone(), two.writes), (vec![0.0, 0.0], 163_840.0));
        assert_eq!(one.files[&7], (122_880.0, 0.0));
    }

    #[test]
    fn many_spans_are_thinned_to_a_bound() {
        let spans = |n: u64| (0..n).map(|_| span(1, 7, 1, Kind::FastHit)).collect::<Vec<_>>();
        assert_eq!((thinned(spans(10)).0.len(), thinned(spans(10)).1), (10, 1.0));
        let (kept, each) = thinned(spans(100_000));
        assert!(kept.len() <= LOOKED_UP_MAX && (kept.len() as f64 * each - 100_000.0).abs() < 1.0);
    }

    #[test]
    fn period_holds_threads_that_live() {
        let topology = Topology::read(std::path::Path::new("/sys"));
        let count = topology.nodes.len();
        let own = std::process::id();
        let bytes = |reads| Bytes { reads: vec![reads; count], ..Bytes::default() };
        let threads = HashMap::from([(own, bytes(5.0)), (u32::MAX - 1, bytes(9.0))]);
        let period = period(&topology, threads, &mut Clocks::default(), 1_000_000_000, &|_| true);
        assert_eq!(period.seen.iter().map(|seen| seen.tid).collect::<Vec<_>>(), [own]);
        assert_eq!((period.view.threads[0].allowed, period.view.nodes.len()), (0, count));
    }
}
