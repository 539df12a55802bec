//! Miss-ratio curve of `terrace stat --mrc`: hit ratios at other sizes of memory, from a sample.
//!
//! Estimators: [`terrace_policy::minisim::Miniature`] simulates the policy in force at other sizes, and
//! [`terrace_policy::mrc::Shards`] gives the LRU curve. Both have two inputs, and counters of the accesses
//! outside the sample:
//!
//! ```text
//!   state lock: a page enters ── sampled? ──► event: used          (misses, writes)
//!                                    └──────► its frame is watched
//!   this thread, at most 50 times a second: touch counts of watched frames ──► used since the last look   (hits of both paths)
//!                                        hits + misses counted on both paths ──► accesses that passed unsampled
//! ```
//! *Touch counts belong to the policy*. The sample returns to it the counts taken from watched frames
//! (`state/sampler.rs`). So the policy's decisions do not depend on the sample. A hit has no extra cost, a
//! miss costs one hash.
//!
//! Limits: of several uses between two looks one is fed, and the others count as hits at any size. The order
//! of such uses is unknown. Dropped page fills are missing. Writes count as uses.

use crate::context::Context;
use crate::state::sampler::Sampled;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use terrace_api::mrc::{Mrc, MrcPoint, Schema};
use terrace_policy::minisim::Miniature;
use terrace_policy::mrc::{SAMPLES, Shards};
use terrace_shm::PAGE_SIZE;
use terrace_shm::layout::CHUNK_FRAMES;
use terrace_sync::{Mutex, Wakeup};

/// Interval between two looks: minimum, value while idle, maximum.
const LOOK_MIN: Duration = Duration::from_millis(20);
const LOOK_IDLE: Duration = Duration::from_millis(500);
const LOOK_MAX: Duration = Duration::from_secs(5);
/// Largest share of processor time for looks: 1/150.
const COST_DIVISOR: u32 = 150;
/// Observations count half after this long.
const HALF_LIFE: Duration = Duration::from_secs(300);
/// Interval at which the weights are reduced.
const FADE_EVERY: Duration = Duration::from_secs(1);
/// Minimum memory for each sampled key, so that the sample stays small beside a small cache.
const BYTES_PER_SAMPLE: usize = 16 << 10;
const SAMPLES_MIN: usize = 1024;
/// Minimum slots of the miniature at the present size, and minimum memory for each slot.
const SLOTS_MIN: usize = 128;
const SLOTS_MAX: usize = 1024;
const BYTES_PER_SLOT: usize = 64 << 10;

/// Pause after a look that took `took`.
fn next_pause(last: Duration, busy: bool, took: Duration) -> Duration {
    // After a suspend of the machine a look seems to take hours.
    let least = (took.min(LOOK_IDLE) * COST_DIVISOR).clamp(LOOK_MIN, LOOK_MAX);
    if busy { least } else { (last * 2).min(LOOK_IDLE).max(least) }
}

/// Accesses counted on both paths since the start.
#[derive(Debug, Default, Clone, Copy)]
struct Counted {
    hits: u64,
    misses: u64,
    /// Misses that the sample can cover.
    known_misses: u64,
    written: u64,
}

/// The estimate and its input counters, behind its own lock.
#[derive(Debug)]
pub(crate) struct Estimate {
    shards: Shards,
    /// Miniatures of the policy in force, at these sizes in pages.
    mini: Miniature,
    sizes: Vec<usize>,
    policy: String,
    counted: Counted,
    /// Uses fed, but not in the counters yet.
    ahead: u64,
    /// Hits of reads, reads, all accesses, and the seconds covered; faded like the estimate.
    hits: f64,
    reads: f64,
    accesses: f64,
    seconds: f64,
    looked_ns: u64,
    faded_ns: u64,
}

impl Estimate {
    pub(crate) fn new(policy: &str, frames: usize, now_ns: u64) -> Estimate {
        let samples = (frames * PAGE_SIZE / BYTES_PER_SAMPLE).clamp(SAMPLES_MIN, SAMPLES);
        let (sizes, mini) = miniature(policy, frames);
        Estimate {
            shards: Shards::new(samples),
            mini,
            sizes,
            policy: policy.to_owned(),
            counted: Counted::default(),
            ahead: 0,
            hits: 0.0,
            reads: 0.0,
            accesses: 0.0,
            seconds: 0.0,
            looked_ns: now_ns,
            faded_ns: now_ns,
        }
    }

    /// Restarts the miniatures if the size of the cache has changed. The LRU curve covers all sizes.
    fn fit(&mut self, frames: usize) {
        if frames.abs_diff(self.sizes[NOW]) > self.sizes[NOW] / 8 {
            (self.sizes, self.mini) = miniature(&self.policy, frames);
            (self.hits, self.reads, self.accesses, self.seconds) = (0.0, 0.0, 0.0, 0.0);
        }
    }

    /// Hash below which keys are sampled.
    fn threshold(&self) -> u64 {
        self.shards.threshold().max(self.mini.threshold())
    }

    /// Adds the uses of a sample, which covers the share `kept` of the entered pages, and the counters of
    /// both paths. True: there were accesses.
    fn feed(&mut self, used: &[u64], kept: f64, now: Counted, now_ns: u64) -> bool {
        for &key in used {
            self.shards.feed(key);
            self.mini.feed(key);
        }
        let since = |now: u64, then: u64| now.saturating_sub(then);
        let then = std::mem::replace(&mut self.counted, now);
        let (hits, misses) = (since(now.hits, then.hits), since(now.misses, then.misses));
        let written = since(now.written, then.written);
        let entered = since(now.known_misses, then.known_misses) + written;
        let seen = hits + (entered as f64 * kept) as u64;
        let fed = used.len() as u64 + self.ahead;
        self.shards.passed(seen.saturating_sub(fed));
        self.mini.passed(seen.saturating_sub(fed));
        self.ahead = fed.saturating_sub(seen);
        self.hits += hits as f64;
        self.reads += (hits + misses) as f64;
        self.accesses += (hits + misses + written) as f64;
        self.seconds += now_ns.saturating_sub(self.looked_ns) as f64 / 1e9;
        self.looked_ns = now_ns;
        self.fade(now_ns);
        hits + misses + written > 0
    }

    fn fade(&mut self, now_ns: u64) {
        let passed = Duration::from_nanos(now_ns.saturating_sub(self.faded_ns));
        if passed < FADE_EVERY {
            return;
        }
        self.faded_ns = now_ns;
        let share = (-passed.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2();
        self.shards.fade(share);
        self.mini.fade(share);
        for sum in [&mut self.hits, &mut self.reads, &mut self.accesses, &mut self.seconds] {
            *sum *= share;
        }
    }
}

/// Miniatures of `policy` around a cache of `frames` frames, and their sizes.
fn miniature(policy: &str, frames: usize) -> (Vec<usize>, Miniature) {
    let slots = (frames * PAGE_SIZE / BYTES_PER_SLOT).clamp(SLOTS_MIN, SLOTS_MAX);
    let mut sizes = FACTORS.map(|factor| (frames as f64 * factor) as usize).to_vec();
    let largest = sizes[FACTORS.len() - 1];
    sizes.extend(Some(frames + GIB_PAGES).filter(|&pages| pages <= largest));
    let slots_max = slots * largest / frames.max(1);
    let mini = Miniature::new(policy, &sizes, slots_max).expect("the engine runs this policy");
    (sizes, mini)
}

/// Sizes in the output, as factors of the present size.
const FACTORS: [f64; 4] = [0.5, 1.0, 2.0, 4.0];
const NOW: usize = 1;
/// Number of accesses below which the curve has no meaning.
const ACCESSES_MIN: f64 = 1000.0;
const GIB_PAGES: usize = (1 << 30) / PAGE_SIZE;

/// Estimate of a live instance, and the thread that feeds it.
#[derive(Debug)]
pub(crate) struct Sampling {
    cx: Arc<Context>,
    estimate: Mutex<Estimate>,
    pub(crate) wakeup: Wakeup,
    bytes: Arc<AtomicU64>,
}

impl Sampling {
    /// Starts the estimate at the present size of the pool.
    pub(crate) fn new(cx: Arc<Context>) -> Sampling {
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = bytes.clone();
        cx.count_memory(move || counted.load(Ordering::Relaxed));
        let frames = cx.pool_frames() as usize;
        let estimate = Mutex::new(Estimate::new(&cx.config.policy, frames, cx.clock.now_ns()));
        Sampling { cx, estimate, wakeup: Wakeup::default(), bytes }
    }

    pub(crate) fn sample_loop(&self) {
        let mut pause = LOOK_MIN;
        while !self.cx.is_stopping() {
            self.wakeup.wait(pause);
            let begin = std::time::Instant::now();
            let busy = self.sample();
            pause = next_pause(pause, busy, begin.elapsed());
        }
    }

    /// Reads the sample once. True: there were accesses.
    pub(crate) fn sample(&self) -> bool {
        let Sampled { watch, events: mut used, dropped, written } = self.cx.state.lock().sampler.take();
        // The estimate gets only this share of the entered pages.
        let entered = used.len() as u64;
        let kept = if dropped > 0 { entered as f64 / (entered + dropped) as f64 } else { 1.0 };
        let mut from = Some(0);
        while let Some(at) = from {
            from = watch.look(at, &mut used);
        }
        // Read after the sample: the counters then cover the fed uses, except for recent ones.
        let now = self.counted(written);
        let mut estimate = self.estimate.lock();
        estimate.fit(self.cx.pool_frames() as usize);
        let busy = estimate.feed(&used, kept, now, self.cx.clock.now_ns());
        watch.narrow(estimate.threshold());
        let bytes = estimate.shards.bytes() + estimate.mini.bytes() + watch.bytes();
        self.bytes.store(bytes as u64, Ordering::Relaxed);
        busy
    }

    /// Share of accesses that an LRU cache of `frames` frames loses with a chunk: mean of its last eighth.
    pub(crate) fn chunk_saves(&self, frames: usize) -> f64 {
        let curve = self.estimate.lock().shards.curve();
        let part = (frames / 8).max(CHUNK_FRAMES).min(frames);
        if curve.accesses < ACCESSES_MIN || part == 0 {
            return 0.0;
        }
        let saved = curve.miss_ratio((frames - part) as f64) - curve.miss_ratio(frames as f64);
        saved.max(0.0) * CHUNK_FRAMES as f64 / part as f64
    }

    fn counted(&self, written: u64) -> Counted {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let (c, clients) = (&self.cx.counters, self.cx.read_totals());
        let (main_misses, filled) = (get(&c.miss_pages), get(&c.fills_taken) + get(&c.fills_read));
        // Memory of this size without a compressed tier would miss the reads of compressed pages. Promoted
        // pages have entered.
        let below = self.cx.compressed_hits(&clients);
        let promoted = self.cx.state.lock().compressed.as_ref().map_or(0, |c| c.counts.promoted);
        Counted {
            hits: (get(&c.hit_pages) + clients.hits).saturating_sub(below),
            misses: main_misses + clients.misses + below,
            known_misses: main_misses + filled + promoted,
            written,
        }
    }

    /// Estimated hit ratios at other sizes of memory, as of now.
    pub(crate) fn mrc(&self) -> Mrc {
        self.sample();
        let policy = self.cx.state.lock().lru.policy.name().to_owned();
        let estimate = self.estimate.lock();
        let (curve, ratios) = (estimate.shards.curve(), estimate.mini.hit_ratios().collect::<Vec<f64>>());
        let any = estimate.accesses >= 1.0;
        let point = |i: usize| MrcPoint {
            factor: FACTORS[i],
            bytes: (estimate.sizes[i] * PAGE_SIZE) as u64,
            hit_ratio: ratios[i],
            lru_hit_ratio: 1.0 - curve.miss_ratio(estimate.sizes[i] as f64),
        };
        let per_second = if estimate.seconds > 0.0 { estimate.accesses / estimate.seconds } else { 0.0 };
        // The miniatures end at four times the memory: beyond it the LRU curve is used.
        let frames = estimate.sizes[NOW] as f64;
        let on_curve = || curve.miss_ratio(frames) - curve.miss_ratio(frames + GIB_PAGES as f64);
        let saved = ratios.get(FACTORS.len()).map_or_else(on_curve, |more| more - ratios[NOW]);
        Mrc {
            schema: Schema::V1,
            policy,
            seconds: estimate.seconds,
            accesses: estimate.accesses,
            accesses_per_second: per_second,
            pages_used: curve.pages,
            sample_rate: estimate.shards.rate(),
            measured_hit_ratio: (estimate.reads >= 1.0).then(|| estimate.hits / estimate.reads),
            estimates: if any { (0..FACTORS.len()).map(point).collect() } else { Vec::new() },
            gib_saves_per_second: any.then(|| saved.max(0.0) * per_second),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;
    use crate::clock::ManualClock;
    use crate::state::sampler::EVENTS_MAX;
    use crate::testing::started;
    use crate::{AccessPath, EngineConfig, ObjectRef};
    use std::os::fd::AsRawFd;
    use terrace_io::testing::NullIo;
    use terrace_testkit::rng::Rng;

    #[test]
    fn costly_looks_are_rare() {
        let ms = Duration::from_millis;
        assert_eq!(next_pause(ms(500), true, ms(0)), LOOK_MIN);
        assert_eq!(next_pause(ms(20), true, ms(1)), ms(150));
        assert_eq!(next_pause(ms(40), false, ms(0)), ms(80));
        assert_eq!(next_pause(ms(400), false, ms(0)), LOOK_IDLE);
        assert_eq!(next_pause(ms(400), false, ms(7)), ms(1050));
        assert_eq!(next_pause(ms(20), true, Duration::from_secs(7 * 3600)), LOOK_MAX);
    }

    struct Fixture {
        engine: Arc<Engine>,
        clock: Arc<ManualClock>,
        o: ObjectRef,
        _file: std::fs::File,
    }

    const PAGES: u64 = 24_000;

    fn stage(policy: &str, mib: u64) -> Fixture {
        let config = EngineConfig {
            memory_bytes: mib << 20,
            memory_max_bytes: Some(64 << 20),
            readahead_max_bytes: 0,
            huge_pages: false,
            policy: policy.into(),
            ..EngineConfig::default()
        };
        let clock = Arc::new(ManualClock::default());
        let engine = started(config, clock.clone(), NullIo);
        let file = tempfile::tempfile().unwrap();
        let o = engine.object(7, file.as_raw_fd(), PAGES * 4096).unwrap();
        Fixture { engine, clock, o, _file: file }
    }

    impl Fixture {
        fn read(&self, pages: impl Iterator<Item = u64>) {
            let mut buf = [0; 512];
            for (i, page) in pages.enumerate() {
                // The middle of a page, where no readahead starts.
                self.engine.read(&self.o, page * 4096 + 1024, &mut buf, AccessPath::FuseDirect).unwrap();
                if i % 250 == 0 {
                    self.clock.advance(LOOK_MIN);
                    self.engine.sampling.sample();
                }
            }
        }
        fn forget_the_past(&self) {
            let mut e = self.engine.sampling.estimate.lock();
            e.shards.fade(0.0);
            e.mini.fade(0.0);
            (e.hits, e.reads, e.accesses, e.seconds) = (0.0, 0.0, 0.0, 0.0);
        }
        fn curve(&self) -> Curve {
            let mrc = self.engine.mrc();
            let of = |factor: f64| *mrc.estimates.iter().find(|p| p.factor == factor).unwrap();
            Curve { same: of(1.0), twice: of(2.0), measured: mrc.measured_hit_ratio.unwrap() }
        }
    }

    /// Estimates for the same memory and for twice as much, and the measured ratio.
    #[derive(Debug)]
    struct Curve {
        same: MrcPoint,
        twice: MrcPoint,
        measured: f64,
    }

    fn zipf(seed: u64, theta: f64) -> impl FnMut() -> u64 {
        let mut sum = 0.0;
        let cdf: Vec<f64> = (1..=PAGES)
            .map(|rank| {
                sum += (rank as f64).powf(-theta);
                sum
            })
            .collect();
        let mut rng = Rng::new(seed);
        move || {
            let at = rng.unit() * sum;
            let rank = cdf.partition_point(|&c| c < at) as u64;
            // Spreads the ranks over the file.
            rank * 7919 % PAGES
        }
    }

    fn curve(policy: &str, mib: u64, mut page: impl FnMut() -> u64) -> Curve {
        let s = stage(policy, mib);
        s.read(std::iter::repeat_with(&mut page).take(60_000));
        s.forget_the_past();
        s.read(std::iter::repeat_with(&mut page).take(120_000));
        assert_eq!(s.engine.check(), Vec::<String>::new());
        s.curve()
    }

    #[track_caller]
    fn near(what: &str, estimated: f64, measured: f64) {
        assert!(
            (estimated - measured).abs() < 0.06,
            "{what}: estimated {estimated:.3}, measured {measured:.3}"
        );
    }

    /// The estimate for twice the memory agrees with such a cache: 30 MiB hold twice the frames of 16 MiB.
    #[test]
    fn twice_the_memory_does_what_was_predicted() {
        for policy in ["lru", "strata"] {
            let (half, whole) = (curve(policy, 16, zipf(11, 0.9)), curve(policy, 30, zipf(11, 0.9)));
            println!("{policy}: {half:?} {whole:?}");
            assert_eq!(half.twice.bytes, whole.same.bytes);
            near(policy, half.same.hit_ratio, half.measured);
            near(policy, whole.same.hit_ratio, whole.measured);
            near(policy, half.twice.hit_ratio, whole.measured);
            assert!(whole.measured > half.measured + 0.05, "the test tells nothing: {half:?} {whole:?}");
            if policy == "lru" {
                near("curve", half.same.lru_hit_ratio, half.measured);
                near("curve", half.twice.lru_hit_ratio, whole.measured);
            }
        }
    }

    /// In a loop over more pages than the cache holds, LRU has no hits, and strata has some.
    #[test]
    fn the_policy_in_force_is_the_one_that_is_estimated() {
        let round = |pages: u64| {
            let mut at = 0;
            move || {
                at += 1;
                at * 7919 % pages
            }
        };
        let (half, whole) = (curve("strata", 16, round(9000)), curve("strata", 30, round(9000)));
        println!("{half:?} {whole:?}");
        near("loop", half.same.hit_ratio, half.measured);
        near("loop", half.twice.hit_ratio, whole.measured);
        assert!(half.same.lru_hit_ratio < 0.05 && half.measured > 0.2, "{half:?}");
    }

    /// More sampled pages enter between two looks than the list holds. No count includes the surplus.
    #[test]
    fn a_flood_of_misses_is_no_flood_of_hits() {
        let s = stage("lru", 16);
        let mut buf = [0; 512];
        for page in (0..PAGES).chain(0..PAGES) {
            s.engine.read(&s.o, page * 7919 % PAGES * 4096 + 1024, &mut buf, AccessPath::FuseDirect).unwrap();
        }
        assert!(s.engine.cx.state.lock().sampler.dropped > EVENTS_MAX as u64);
        let curve = s.curve();
        assert!(curve.measured < 0.01 && curve.same.hit_ratio < 0.05, "{curve:?}");
    }

    #[test]
    fn another_size_of_memory_is_estimated_anew() {
        let s = stage("strata", 16);
        s.read(0..2000);
        let before = s.engine.mrc();
        s.engine.resize(48 << 20).unwrap();
        s.engine.sampling.sample();
        let after = s.engine.mrc();
        assert!(before.estimates.len() == 4 && after.estimates.is_empty(), "{before:?} {after:?}");
        s.read(0..2000);
        assert!(s.engine.mrc().estimates[NOW].bytes > 2 * before.estimates[NOW].bytes);
    }
}
