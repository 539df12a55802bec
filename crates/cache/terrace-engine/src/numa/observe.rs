//! Input of placement decisions: bytes of each thread on each node, and the load of processors.
//!
//! Bytes come from a recording (`observe/trace.rs`) during a short window of each period. Clients then record
//! each read with its thread ID, and the mount path knows the thread of each request. Between windows a hit
//! has no extra cost. The frame of a read's first page gives its node; for a miss, the source's device does.
//!
//! Thread IDs from clients are untrusted: threads that belong to no client are skipped.

use crate::access_log::{Kind, Noted};
use crate::config::NumaConfig;
use crate::context::Context;
use crate::file::object::ObjectId;
use crate::numa::chunks::{Chunks, chunk_of};
use crate::numa::threads::{ThreadSample, Threads};
use crate::numa::topology::Topology;
use std::collections::HashMap;
use terrace_policy::numa::{ANYWHERE, Node, Region, Thread, User, View};
use terrace_shm::PAGE_SIZE;
use terrace_shm::layout::HUGE;
use terrace_system::proc::{self, Ticks};

/// Spans looked up under one lock.
const LOCKED_MAX: usize = 128;
/// Region numbers from here on mean chunks of frames.
const CHUNK_IDS: u64 = 1 << 63;
/// Largest number of threads in a period: those with most bytes.
const THREADS_MAX: usize = 1024;

/// Traffic of a thread in a window, bytes per second.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Bytes {
    pub(crate) reads: Vec<f64>,
    /// Reads from an unknown node.
    pub(crate) elsewhere: f64,
    pub(crate) writes: f64,
    pub(crate) files: HashMap<ObjectId, (f64, f64)>,
    pub(crate) chunks: HashMap<u32, f64>,
}

impl Bytes {
    fn all(&self) -> f64 {
        self.reads.iter().sum::<f64>() + self.elsewhere + self.writes
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct ThreadSeen {
    pub(crate) tid: u32,
    pub(crate) began: u64,
    pub(crate) name: String,
    pub(crate) elsewhere: f64,
    pub(crate) bound: bool,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Period {
    pub(crate) view: View,
    /// Further facts on the view's threads, in the same order.
    pub(crate) seen: Vec<ThreadSeen>,
    pub(crate) gone: Vec<u32>,
    pub(crate) frame_bytes: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spot {
    Chunk(u32),
    Source,
    Nowhere,
}

/// Sums samples by thread. Each sample is a span with its weight. `spots`: the spans' origins; `node_of`:
/// node of an origin; `factor`: converts bytes of the window into bytes per second.
pub(super) fn sum(
    samples: &[(Noted, f64)],
    spots: &[Spot],
    node_of: impl Fn(Spot) -> Option<usize>,
    count: usize,
    factor: f64,
) -> HashMap<u32, Bytes> {
    let mut threads: HashMap<u32, Bytes> = HashMap::new();
    for ((span, weight), &spot) in samples.iter().zip(spots).filter(|((span, _), _)| span.tid != 0) {
        let bytes = (span.pages * PAGE_SIZE as u64) as f64 * weight * factor;
        let thread = threads.entry(span.tid).or_default();
        thread.reads.resize(count, 0.0);
        let file = thread.files.entry(span.object).or_default();
        if let (Spot::Chunk(chunk), true) = (spot, span.kind != Kind::Write) {
            *thread.chunks.entry(chunk).or_default() += bytes;
        }
        match (span.kind, node_of(spot)) {
            (Kind::Write, _) => (thread.writes, file.1) = (thread.writes + bytes, file.1 + bytes),
            (_, Some(node)) => (thread.reads[node], file.0) = (thread.reads[node] + bytes, file.0 + bytes),
            (_, None) => (thread.elsewhere, file.0) = (thread.elsewhere + bytes, file.0 + bytes),
        }
    }
    threads
}

/// Origins of the spans. Clients' spans are cut to pages of files that exist.
pub(super) fn locate(cx: &Context, samples: &mut [(Noted, f64)]) -> Vec<Spot> {
    let mut spots = Vec::with_capacity(samples.len());
    for part in samples.chunks_mut(LOCKED_MAX) {
        let state = cx.state.lock();
        spots.extend(part.iter_mut().map(|(span, _)| {
            let Some(object) = state.objects.get(&span.object) else {
                span.pages = 0;
                return Spot::Nowhere;
            };
            if matches!(span.kind, Kind::PreloadHit | Kind::PreloadMiss) {
                let end = object.size().div_ceil(PAGE_SIZE as u64);
                span.pages = end.saturating_sub(span.page).min(span.pages);
            }
            if matches!(span.kind, Kind::MountMiss | Kind::PreloadMiss) {
                return Spot::Source;
            }
            let frame = state.pages.frame_of(object, span.page);
            frame.map_or(Spot::Nowhere, |frame| Spot::Chunk(chunk_of(frame)))
        }));
    }
    spots
}

/// Processor ticks at the last call.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    ticks: HashMap<usize, Ticks>,
}

impl Clocks {
    /// Busy processors on each node since the last call.
    pub(super) fn busy(&mut self, topology: &Topology) -> Vec<f64> {
        let mut busy = vec![0.0; topology.nodes.len()];
        for (cpu, now) in proc::ticks() {
            let Some(cpu) = cpu else { continue };
            let before = self.ticks.insert(cpu, now).unwrap_or(now);
            // Stolen time counts as busy.
            let all = (now.all + now.stolen).saturating_sub(before.all + before.stolen);
            let idle = now.idle.saturating_sub(before.idle);
            if let Some(node) = topology.node_of_cpu(cpu).filter(|_| all > 0) {
                busy[node] += all.saturating_sub(idle) as f64 / all as f64;
            }
        }
        busy
    }
}

/// Exponential average over windows; each counts half as much as the next. A slow reader has few accesses in
/// one short window.
#[derive(Debug, Default)]
pub(super) struct Average(HashMap<u32, Bytes>);

impl Average {
    pub(super) fn with(&mut self, window: HashMap<u32, Bytes>) -> HashMap<u32, Bytes> {
        let mut before = std::mem::take(&mut self.0);
        for (tid, now) in window {
            match before.remove(&tid) {
                Some(old) => self.0.insert(tid, mean(old, &now)),
                None => self.0.insert(tid, now),
            };
        }
        // Threads without an access in this window.
        let faded = before.into_iter().map(|(tid, old)| (tid, mean(old, &Bytes::default())));
        self.0.extend(faded.filter(|(_, bytes)| bytes.all() >= PAGE_SIZE as f64));
        self.0.clone()
    }

    /// Drops ended threads: their IDs may be reused soon.
    pub(super) fn forget(&mut self, gone: &[u32]) {
        gone.iter().for_each(|tid| drop(self.0.remove(tid)));
    }

    pub(super) fn begin_anew(&mut self) {
        self.0.clear();
    }
}

fn mean(old: Bytes, now: &Bytes) -> Bytes {
    let half = |old: f64, now: f64| (old + now) / 2.0;
    let count = old.reads.len().max(now.reads.len());
    let read = |bytes: &Bytes, node: usize| bytes.reads.get(node).copied().unwrap_or(0.0);
    let mut files: HashMap<ObjectId, (f64, f64)> = HashMap::new();
    for (object, (reads, writes)) in old.files.iter().chain(&now.files) {
        let file = files.entry(*object).or_default();
        *file = (file.0 + reads / 2.0, file.1 + writes / 2.0);
    }
    let mut chunks: HashMap<u32, f64> = HashMap::new();
    for (chunk, reads) in old.chunks.iter().chain(&now.chunks) {
        *chunks.entry(*chunk).or_default() += reads / 2.0;
    }
    Bytes {
        chunks,
        reads: (0..count).map(|node| half(read(&old, node), read(now, node))).collect(),
        elsewhere: half(old.elsewhere, now.elsewhere),
        writes: half(old.writes, now.writes),
        files,
    }
}

/// Assembles a period of `period_ns`. `is_bound`, by thread ID and start time: its program has bound it.
pub(super) fn period(
    topology: &Topology,
    config: &NumaConfig,
    threads: HashMap<u32, Bytes>,
    chunks: &Chunks,
    (clocks, watched): (&mut Clocks, &mut Threads),
    period_ns: u64,
    is_bound: &dyn Fn(u32, u64) -> bool,
) -> Period {
    let busy = clocks.busy(topology);
    let mut all: Vec<(u32, Bytes)> = threads.into_iter().collect();
    all.sort_by(|a, b| b.1.all().total_cmp(&a.1.all()).then(a.0.cmp(&b.0)));
    all.truncate(THREADS_MAX);
    watched.forget_but(&all.iter().map(|(tid, _)| *tid).collect());
    let mut period = Period::default();
    period.view.nodes = topology
        .nodes
        .iter()
        .zip(busy)
        .map(|(node, busy)| Node {
            read_capacity: config.read_capacity,
            write_capacity: config.write_capacity,
            processors: node.cpus.len() as u32,
            busy,
        })
        .collect();
    let mut files: HashMap<ObjectId, Vec<User>> = HashMap::new();
    let mut read_chunks: HashMap<u32, Vec<User>> = HashMap::new();
    for (tid, bytes) in all {
        let Some(ThreadSample { stat, cpu }) = watched.look(tid, period_ns) else {
            period.gone.push(tid);
            continue;
        };
        let Some(node) = topology.node_of_cpu(stat.cpu) else { continue };
        let bound = is_bound(tid, stat.began);
        let thread = period.view.threads.len();
        for (object, (reads, writes)) in bytes.files {
            files.entry(object).or_default().push(User { thread, reads, writes });
        }
        for (chunk, reads) in bytes.chunks {
            read_chunks.entry(chunk).or_default().push(User { thread, reads, writes: 0.0 });
        }
        period.view.threads.push(Thread {
            id: tid.into(),
            node,
            reads: bytes.reads,
            writes: bytes.writes,
            cpu,
            allowed: if bound { 0 } else { ANYWHERE },
        });
        let (began, elsewhere) = (stat.began, bytes.elsewhere);
        period.seen.push(ThreadSeen { tid, began, name: stat.name, elsewhere, bound });
    }
    period.view.regions = shared(files);
    period.view.regions.extend(chunk_regions(read_chunks, chunks));
    period
}

/// Chunks of frames, which move as a whole. Their numbers differ from those of files. `read_only` stays false
/// to rule out copies: an entry names one frame, so readers would not find a copy.
fn chunk_regions(users: HashMap<u32, Vec<User>>, chunks: &Chunks) -> Vec<Region> {
    let region = |(chunk, users): (u32, Vec<User>)| {
        let node = chunks.node_of(chunk)?;
        Some(Region {
            id: CHUNK_IDS + u64::from(chunk),
            node,
            copies: 0,
            bytes: HUGE as f64,
            movable: true,
            is_shared: false,
            read_only: false,
            users,
        })
    };
    let mut regions: Vec<Region> = users.into_iter().filter_map(region).collect();
    regions.sort_by_key(|region| region.id);
    regions
}

/// The chunk of a region; None: the region is a file.
pub(super) fn chunk_of_region(id: u64) -> Option<u32> {
    u32::try_from(id.checked_sub(CHUNK_IDS)?).ok()
}

/// Files used by more than one thread. Their frames move by chunks.
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
            is_shared: true,
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
            span(1, 7, 2, Kind::PreloadHit),
            span(1, 8, 1, Kind::MountMiss),
            span(2, 7, 4, Kind::Write),
            span(0, 7, 9, Kind::Write),
            span(1, 7, 1, Kind::PreloadHit),
        ];
        let samples = spans.map(|span| (span, 2.0));
        let spots = [Spot::Chunk(1), Spot::Source, Spot::Chunk(0), Spot::Nowhere, Spot::Chunk(0)];
        let node_of = |spot| if let Spot::Chunk(chunk) = spot { Some(chunk as usize) } else { None };
        let threads = sum(&samples, &spots, node_of, 2, 5.0);
        assert_eq!(threads.len(), 2, "writeback carries no thread");
        let (one, two) = (&threads[&1], &threads[&2]);
        assert_eq!((one.reads.clone(), one.elsewhere, one.writes), (vec![40960.0, 81920.0], 40960.0, 0.0));
        assert_eq!((two.reads.clone(), two.writes), (vec![0.0, 0.0], 163_840.0));
        assert_eq!(one.files[&7], (122_880.0, 0.0));
        assert_eq!((one.chunks.len(), one.chunks[&1], two.chunks.len()), (2, 81920.0, 0), "writes stay");
    }

    #[test]
    fn window_counts_half_as_much_as_the_next() {
        let own = std::process::id();
        let window = |reads: f64| {
            let files = HashMap::from([(7, (reads, 0.0))]);
            HashMap::from([(own, Bytes { reads: vec![reads, 0.0], files, ..Bytes::default() })])
        };
        let mut average = Average::default();
        assert_eq!(average.with(window(8e6))[&own].reads, [8e6, 0.0]);
        assert_eq!(average.with(window(0.0))[&own].reads, [4e6, 0.0]);
        let faded = average.with(HashMap::new());
        assert_eq!((faded[&own].reads[0], faded[&own].files[&7].0), (2e6, 2e6));
        average.begin_anew();
        assert!(average.with(HashMap::new()).is_empty());
        average.with(HashMap::from([(7, Bytes { writes: 1e9, ..Bytes::default() })]));
        average.forget(&[7]);
        assert!(average.with(HashMap::new()).is_empty(), "the thread is gone");
    }

    #[test]
    fn chunks_move_and_are_never_copied() {
        use terrace_policy::numa::{Config, Placer, Rules, What};
        let mut chunks = Chunks::default();
        chunks.set(0, 0);
        let node = Node { read_capacity: 4e9, write_capacity: 4e9, processors: 2, busy: 0.0 };
        let thread = |id, on: usize, reads| Thread {
            id,
            node: on,
            reads: vec![reads, 0.0],
            writes: 0.0,
            cpu: 0.1,
            allowed: 1 << on,
        };
        let user = |thread, reads| User { thread, reads, writes: 0.0 };
        for (near, far, moves) in
            [(0.0, 3e9, vec![What::MoveFrames]), (2e9, 2.5e9, vec![What::MoveFrames]), (3e9, 0.0, vec![])]
        {
            let users = HashMap::from([(0, vec![user(0, near), user(1, far)])]);
            let regions = chunk_regions(users, &chunks);
            let threads = vec![thread(1, 0, near), thread(2, 1, far)];
            let view = View { nodes: vec![node; 2], threads, regions };
            let decision = Placer::new(Config::new(Rules::ThreadsAndFrames)).decide(&view);
            assert_eq!(decision.frames.iter().map(|m| m.what).collect::<Vec<_>>(), moves, "{near} {far}");
        }
    }

    #[test]
    fn period_holds_threads_that_live() {
        let topology = Topology::read(std::path::Path::new("/sys"));
        let count = topology.nodes.len();
        let own = std::process::id();
        let bytes = |reads| Bytes { reads: vec![reads; count], ..Bytes::default() };
        let threads = HashMap::from([(own, bytes(5.0)), (u32::MAX - 1, bytes(9.0))]);
        let config = NumaConfig::default();
        let (mut clocks, mut watched) = (Clocks::default(), Threads::default());
        let looks = (&mut clocks, &mut watched);
        let period =
            period(&topology, &config, threads, &Chunks::default(), looks, 1_000_000_000, &|_, _| true);
        assert_eq!(period.seen.iter().map(|seen| seen.tid).collect::<Vec<_>>(), [own]);
        assert_eq!(period.gone, [u32::MAX - 1]);
        assert_eq!((period.view.threads[0].allowed, period.view.nodes.len()), (0, count));
    }
}
