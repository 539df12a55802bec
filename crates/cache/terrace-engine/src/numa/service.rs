//! The NUMA thread of the daemon: each second it measures a period and decides. With `--numa auto` it then
//! moves threads and frames.

use super::act::{Affinity, Kernel, NotMoved, ThreadMover};
use super::chunks::{self, Chunks};
use super::observe::{self, Average, Clocks, Period, Spot};
use super::saved;
use super::threads::Threads;
use super::topology::Topology;
use crate::access_log::{Kind, Noted};
use crate::config::NumaConfig;
use crate::context::Context;
use crate::observe::trace::{Recorder, Recording};
use crate::preload_server::Clients;
use crate::rings::Rings;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use terrace_api::numa::{Numa, NumaMode, NumaMove, NumaNode, NumaThread};
use terrace_policy::numa::{Config, Decision, MoveReason, Placer, Rules, ThreadMove, What};
use terrace_shm::layout::HUGE;
use terrace_sync::{Mutex, Wakeup};

const PERIOD: Duration = Duration::from_secs(1);
/// Length of the recorded window in each period.
const WINDOW: Duration = Duration::from_millis(40);
/// Interval of samples within a window. Fast readers fill their lanes in this time; lost records are counted.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Approximate number of sampled spans in a window; of more, every second, third, ... one is taken.
const SAMPLES_MAX: u64 = 4096;
/// Window of a single report on request.
const REPORT_WINDOW: Duration = Duration::from_millis(500);
/// Minimum traffic per thread that shares a file, as a part of a node's bandwidth: 16 MB/s of 40 GB/s.
const SHARE_MIN: f64 = 0.0004;
/// Largest distance between windows that are averaged.
const AVERAGED_MAX: Duration = Duration::from_secs(3);
/// Largest number of threads in a report.
const SHOWN_MAX: usize = 256;

/// Measures, decides and moves.
#[derive(Debug)]
pub(crate) struct Service {
    cx: Arc<Context>,
    rings: Arc<Rings>,
    recording: Arc<Recording>,
    clients: Arc<Clients>,
    config: NumaConfig,
    topology: Topology,
    /// A window is under way and ends soon.
    observing: AtomicBool,
    pub(crate) wakeup: Wakeup,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    placer: Placer,
    mover: ThreadMover,
    clocks: Clocks,
    watched: Threads,
    chunks: Chunks,
    average: Average,
    last: Option<Instant>,
    report: Numa,
}

impl Service {
    pub(crate) fn new(
        cx: Arc<Context>,
        rings: Arc<Rings>,
        recording: Arc<Recording>,
        clients: Arc<Clients>,
    ) -> Service {
        let config = cx.config.numa.clone();
        let topology = Topology::read(&config.sys);
        let left = config.saved.as_deref().map(saved::read).unwrap_or_default();
        // Threads that no program has bound have the processors of this process.
        let own = Kernel.get(std::process::id()).unwrap_or_default();
        let mut mover = ThreadMover::new(Box::new(Kernel), own, left);
        if config.mode != NumaMode::Auto {
            mover.restore();
        }
        let report = Numa { mode: config.mode, nodes: idle(&topology), ..Numa::default() };
        let share_bytes_min = config.read_capacity * SHARE_MIN;
        let placer = Placer::new(Config { share_bytes_min, ..Config::new(Rules::ThreadsAndFrames) });
        let inner = Inner {
            placer,
            mover,
            clocks: Clocks::default(),
            watched: Threads::default(),
            chunks: Chunks::default(),
            average: Average::default(),
            last: None,
            report,
        };
        let (observing, inner) = (AtomicBool::new(false), Mutex::new(inner));
        let wakeup = Wakeup::default();
        Service { cx, rings, recording, clients, config, topology, observing, wakeup, inner }
    }

    /// Whether placement is on and the machine has several nodes.
    pub(crate) fn is_needed(&self) -> bool {
        self.config.mode != NumaMode::Off && self.topology.nodes.len() > 1
    }

    /// Whether a window is under way. It is a recording, and ends soon.
    pub(crate) fn is_observing(&self) -> bool {
        self.observing.load(Ordering::Acquire)
    }

    /// Body of the thread, until the engine stops.
    pub(crate) fn serve(&self) {
        while !self.cx.is_stopping() {
            self.look(WINDOW, self.config.mode == NumaMode::Auto);
            // The pause varies, because a program may have a period of a second, too.
            self.wakeup.wait(PERIOD - WINDOW + Duration::from_millis(self.cx.clock.now_ns() / 1000 % 50));
        }
        self.end();
    }

    pub(crate) fn end(&self) {
        let mut inner = self.inner.lock();
        inner.mover.restore();
        self.save(&mut inner.mover);
    }

    /// The last period. Without periodic measurement, measures one now.
    pub(crate) fn report(&self) -> Numa {
        if !self.is_needed() && self.topology.nodes.len() > 1 {
            self.look(REPORT_WINDOW, false);
        }
        self.inner.lock().report.clone()
    }

    fn look(&self, window: Duration, moves: bool) {
        let mut inner = self.inner.lock();
        let Some((mut samples, seconds)) = self.record(window) else {
            inner.report.stale = true;
            return;
        };
        self.cx.nodes.forget_threads();
        let inner = &mut *inner;
        let threads = self.threads(&mut samples, seconds, moves, inner);
        let passed = inner.last.replace(Instant::now()).map_or(0, |last| last.elapsed().as_nanos() as u64);
        if passed > AVERAGED_MAX.as_nanos() as u64 {
            inner.average.begin_anew();
        }
        let threads = inner.average.with(threads);
        let is_bound = |tid, began| inner.mover.may_move(tid, began).is_err();
        let looks = (&mut inner.clocks, &mut inner.watched);
        let (topology, config) = (&self.topology, &self.config);
        let mut period = observe::period(topology, config, threads, &inner.chunks, looks, passed, &is_bound);
        inner.average.forget(&period.gone);
        period.frame_bytes = inner.chunks.bytes(self.topology.nodes.len());
        let decision = inner.placer.decide(&period.view);
        let shown = self.act(&decision, &period, moves, inner);
        let done = shown.iter().filter(|m| m.done).count() as u64;
        let moved = inner.report.moved + done;
        let frames_moved = inner.report.frame_bytes_moved + self.move_frames(&decision, moves);
        inner.report = self.report_of(&period, &decision, shown, moved);
        inner.report.frame_bytes_moved = frames_moved;
        if moves {
            inner.mover.forget_ended();
            self.save(&mut inner.mover);
        }
    }

    /// Traffic of each thread, from samples of a window of `seconds`.
    fn threads(
        &self,
        samples: &mut [(Noted, f64)],
        seconds: f64,
        moves: bool,
        inner: &mut Inner,
    ) -> HashMap<u32, observe::Bytes> {
        let spots = observe::locate(&self.cx, samples);
        let chunk = |spot: &Spot| if let Spot::Chunk(chunk) = spot { Some(*chunk) } else { None };
        let used: Vec<u32> = spots.iter().filter_map(chunk).collect();
        inner.chunks.look(&self.cx, &self.topology, &used, moves);
        let source = self.source_node();
        let node_of = |spot| match spot {
            Spot::Chunk(chunk) => inner.chunks.node_of(chunk),
            Spot::Source => source,
            Spot::Nowhere => None,
        };
        observe::sum(samples, &spots, node_of, self.topology.nodes.len(), 1.0 / seconds)
    }

    /// Samples of the accesses in a window, and its length in seconds. None: another recording runs.
    fn record(&self, window: Duration) -> Option<(Vec<(Noted, f64)>, f64)> {
        self.observing.store(true, Ordering::Release);
        let begun = Instant::now();
        let recorder = Recorder::begin(self.cx.clone(), self.rings.clone(), self.recording.clone());
        let each = (SAMPLES_MAX * LOOK_EVERY.as_micros() as u64 / window.as_micros() as u64).max(16);
        let samples = recorder.map(|mut recorder| {
            let mut samples = Vec::new();
            while begun.elapsed() < window && !self.cx.is_stopping() {
                std::thread::sleep(LOOK_EVERY);
                recorder.sample(each, &mut samples);
            }
            samples
        });
        self.observing.store(false, Ordering::Release);
        let mut samples = samples?;
        // Thread IDs in a ring are untrusted.
        let mut known = HashMap::new();
        samples.retain(|(span, _)| {
            let is_claim = matches!(span.kind, Kind::PreloadHit | Kind::PreloadMiss);
            !is_claim || *known.entry(span.tid).or_insert_with(|| self.clients.is_client(span.tid))
        });
        Some((samples, begun.elapsed().as_secs_f64()))
    }

    fn source_node(&self) -> Option<usize> {
        let dev = self.cx.source_root.get()?.dev;
        let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
        self.topology.node_of_device(&self.config.sys, major, minor)
    }

    /// Moves threads if `moves`. Reports all recommended moves.
    fn act(&self, decision: &Decision, period: &Period, moves: bool, inner: &mut Inner) -> Vec<NumaMove> {
        let began: HashMap<u32, u64> = period.seen.iter().map(|seen| (seen.tid, seen.began)).collect();
        let prepared = decision.threads.iter().map(|m| {
            let tid = m.id as u32;
            let began = began.get(&tid).copied().filter(|_| moves);
            (m, began.map(|began| inner.mover.prepare(tid, began, &self.topology.nodes[m.to].cpus)))
        });
        let prepared: Vec<_> = prepared.collect();
        if prepared.iter().any(|(_, noted)| noted.is_some_and(|noted| noted.is_ok())) {
            self.save(&mut inner.mover);
        }
        let shown = prepared.into_iter().map(|(m, noted)| {
            let moved = noted.map(|noted| noted.and_then(|()| inner.mover.finish(m.id as u32)));
            if let Some(Err(_)) = moved {
                inner.placer.forget(m.id);
            }
            self.shown(m, moved)
        });
        shown.collect()
    }

    fn shown(&self, m: &ThreadMove, moved: Option<Result<(), NotMoved>>) -> NumaMove {
        let number = |place: usize| self.topology.nodes[place].number;
        let why = match m.why {
            MoveReason::Remote => "remote",
            MoveReason::Sharing => "sharing",
            MoveReason::Memory => "memory",
            MoveReason::Cpu => "cpu",
        };
        NumaMove {
            tid: m.id as u32,
            from: number(m.from),
            to: number(m.to),
            why: why.into(),
            done: moved == Some(Ok(())),
            refused: moved.and_then(Result::err).map(refusal_text),
        }
    }

    /// Moves chunks of frames if `moves`. Returns the bytes moved.
    fn move_frames(&self, decision: &Decision, moves: bool) -> u64 {
        let chunks = decision.frames.iter().filter(|m| m.what == What::MoveFrames && moves);
        let chunks = chunks.filter_map(|m| Some((observe::chunk_of_region(m.id)?, m.to)));
        let moved = chunks.filter(|&(chunk, node)| match chunks::move_to(&self.cx, chunk, node) {
            Ok(()) => true,
            Err(err) => {
                tracing::debug!("chunk {chunk} not moved: {err}");
                false
            }
        });
        moved.count() as u64 * HUGE as u64
    }

    fn save(&self, mover: &mut ThreadMover) {
        let Some(path) = self.config.saved.as_ref().filter(|_| mover.has_changed()) else { return };
        if let Err(err) = saved::write(path, mover.moved()) {
            tracing::warn!(
                "{}: affinity masks of threads cannot be saved ({err}); after a crash, moved threads keep their new masks",
                path.display()
            );
        }
    }

    fn report_of(&self, period: &Period, decision: &Decision, moves: Vec<NumaMove>, moved: u64) -> Numa {
        let mut nodes = idle(&self.topology);
        for (n, node) in nodes.iter_mut().enumerate() {
            node.cpus_busy = period.view.nodes[n].busy;
            node.frame_bytes = period.frame_bytes[n];
            node.load_bytes_s = decision.loads.get(n).copied().unwrap_or(0.0);
            node.predicted_bytes_s = decision.predicted.get(n).copied().unwrap_or(0.0);
        }
        let threads = period.view.threads.iter().zip(&period.seen).take(SHOWN_MAX);
        let thread = |(thread, seen): (&terrace_policy::numa::Thread, &observe::ThreadSeen)| NumaThread {
            tid: seen.tid,
            name: seen.name.clone(),
            node: self.topology.nodes[thread.node].number,
            cpu: thread.cpu,
            reads_bytes_s: thread.reads.clone(),
            reads_elsewhere_bytes_s: seen.elsewhere,
            writes_bytes_s: thread.writes,
            bound: seen.bound,
        };
        let threads = threads.map(thread).collect();
        let frame_bytes_to_move = (decision.frames.len() * HUGE) as u64;
        Numa { mode: self.config.mode, nodes, threads, moves, moved, frame_bytes_to_move, ..Numa::default() }
    }
}

fn idle(topology: &Topology) -> Vec<NumaNode> {
    let node = |node: &super::topology::NodeInfo| NumaNode {
        node: node.number,
        cpus: node.cpus.len() as u32,
        memory_bytes: node.memory_bytes,
        ..NumaNode::default()
    };
    topology.nodes.iter().map(node).collect()
}

fn refusal_text(kept: NotMoved) -> String {
    match kept {
        NotMoved::Bound => "its program has bound it to processors".into(),
        NotMoved::Gone => "it has ended".into(),
        NotMoved::Refused(err) => io::Error::from(err).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use crate::{AccessPath, Engine, EngineConfig, NumaConfig, SegmentHandles, SystemClock, set_caller};
    use std::os::fd::AsRawFd;
    use std::path::Path;
    use std::sync::Arc;
    use terrace_api::numa::NumaMode;
    use terrace_io::testing::NullIo;

    /// An engine on a simulated machine with these processors on its nodes.
    fn engine(mode: NumaMode, sys: &Path, nodes: &[&str]) -> Arc<Engine> {
        terrace_testkit::nodes::feign(sys, nodes);
        let config = EngineConfig {
            memory_bytes: 32 << 20,
            memory_max_bytes: Some(32 << 20),
            numa: NumaConfig {
                mode,
                sys: sys.into(),
                saved: Some(sys.join("affinity")),
                ..NumaConfig::default()
            },
            ..EngineConfig::default()
        };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        Engine::start(config, handles, Arc::new(SystemClock), Arc::new(NullIo)).unwrap()
    }

    #[test]
    fn one_node_is_not_watched() {
        let sys = tempfile::tempdir().unwrap();
        let engine = engine(NumaMode::Auto, sys.path(), &["0-63"]);
        let numa = engine.numa();
        assert_eq!((numa.nodes.len(), numa.threads.len(), numa.mode), (1, 0, NumaMode::Auto));
        assert!(engine.record().is_some(), "no window is under way");
    }

    #[test]
    fn threads_are_found_with_what_they_read() {
        let sys = tempfile::tempdir().unwrap();
        // The second node has no processors: no thread can move there.
        let engine = engine(NumaMode::Off, sys.path(), &["0-1023", ""]);
        let file = tempfile::tempfile().unwrap();
        let object = engine.object(7, file.as_raw_fd(), 1 << 20).unwrap();
        let (stop, reader) = (Arc::new(std::sync::atomic::AtomicBool::new(false)), engine.clone());
        let ends = stop.clone();
        let reads = std::thread::spawn(move || {
            set_caller(rustix::thread::gettid().as_raw_nonzero().get() as u32);
            let mut buf = vec![0; 64 << 10];
            while !ends.load(std::sync::atomic::Ordering::Relaxed) {
                reader.read(&object, 0, &mut buf, AccessPath::FuseDirect).unwrap();
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            rustix::thread::gettid().as_raw_nonzero().get() as u32
        });
        let numa = engine.numa();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let tid = reads.join().unwrap();
        let thread = numa.threads.iter().find(|thread| thread.tid == tid).expect("it has read");
        // A kernel without NUMA does not report the nodes of memory.
        let read = thread.reads_bytes_s.iter().sum::<f64>() + thread.reads_elsewhere_bytes_s;
        assert!(read > 0.0 && thread.writes_bytes_s == 0.0, "{thread:?}");
        assert!(numa.moves.is_empty() && !numa.stale);
    }

    #[test]
    fn observer_ends_with_its_engine() {
        let sys = tempfile::tempdir().unwrap();
        let engine = engine(NumaMode::Auto, sys.path(), &["0-1023", ""]);
        engine.serve().unwrap();
        // The recording waits for the end of a window, and the observer for that of the recording.
        let recorder = engine.record().expect("a window is soon over");
        drop(recorder);
        engine.halt();
        assert!(!sys.path().join("affinity").exists());
    }
}
