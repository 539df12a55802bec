//! Threads that read pages of one file by a pattern for a given time: the load for comparing caches of
//! different kinds. Warm-up and measurement are one process, because the cache may be in it (`bench/foyer`
//! uses parts of this file around its own reads).
//!
//! Each read is timed and its page number checked; a sample is checked in full after the timed part. Hits are
//! reads that the source's device did not answer.

use crate::cgroup::Group;
use crate::content::Content;
use crate::meters::{Counted, Meters, difference};
use crate::pages::{self, DATA_SEED, MIB, PAGE};
use crate::pattern::{Pages, Pattern};
use crate::reader::{Common, Reader};
use clap::Args;
use fastrand::Rng;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Options of the load.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The file to read.
    #[arg(long)]
    pub file: PathBuf,
    /// random, zipf:THETA, normal:DEV.
    #[arg(long)]
    pub pattern: Pattern,
    /// Concurrent reads.
    #[arg(long, default_value_t = 1)]
    pub threads: u64,
    /// Seconds of warm-up.
    #[arg(long, default_value_t = 0)]
    pub ramp_s: u64,
    /// Seconds measured.
    #[arg(long)]
    pub seconds: u64,
    /// Seed of the pages; the warm-up has a different one.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Content of the file's pages.
    #[arg(long, default_value = "incompressible")]
    pub content: Content,
    /// 1: open with O_DIRECT.
    #[arg(long, default_value_t = 0)]
    pub direct: u8,
}

/// Pages checked in full at the end.
pub const CHECKED: u64 = 1024;

impl Options {
    /// The page numbers for a file of `bytes`.
    pub fn pages(&self, bytes: u64) -> Pages {
        Pages::new(self.pattern, bytes / PAGE as u64)
    }

    /// The generator of one thread in a phase.
    pub fn draws(&self, thread: u64, phase: Phase) -> Rng {
        let phase = u64::from(phase == Phase::Measured);
        Rng::with_seed(pages::mix(self.seed ^ (2 * thread + phase + 1) << 32))
    }

    /// Checks one page in full.
    ///
    /// # Errors
    /// Wrong data.
    pub fn check(&self, page: u64, data: &[u8]) -> io::Result<()> {
        let wrong = |e| io::Error::other(format!("WRONG DATA: {e}"));
        self.content.check(DATA_SEED, page, data).map_err(wrong)
    }
}

/// Phase of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Warm-up: reads are not counted.
    Warm,
    /// Measurement: reads are counted.
    Measured,
    /// End: no more reads.
    Over,
}

/// The phases' times, common to all threads.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    warm_until: Instant,
    until: Instant,
}

/// Differences of the meters over the warm-up and over the measurement.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    warm: Counted,
    measured: Counted,
    cpu_ns: Option<u64>,
    seconds: f64,
}

impl Clock {
    /// Starts the clock.
    pub fn start(options: &Options) -> Clock {
        let warm_until = Instant::now() + Duration::from_secs(options.ramp_s);
        Clock { warm_until, until: warm_until + Duration::from_secs(options.seconds) }
    }

    /// The phase at a time.
    #[inline]
    pub fn phase(&self, at: Instant) -> Phase {
        match () {
            () if at < self.warm_until => Phase::Warm,
            () if at < self.until => Phase::Measured,
            () => Phase::Over,
        }
    }

    /// Reads the meters at the start, at the end of the warm-up, and at the end.
    pub fn watch(&self) -> Watched {
        let meters = Meters::of_step();
        let group = Group::of_step();
        let cpu = || group.as_ref().and_then(Group::cpu_ns);
        let sleep_until = |at: Instant| std::thread::sleep(at.saturating_duration_since(Instant::now()));
        let first = meters.read();
        sleep_until(self.warm_until);
        let (start, second, cpu_before) = (Instant::now(), meters.read(), cpu());
        sleep_until(self.until);
        let cpu_ns = cpu().zip(cpu_before).map(|(after, before)| after.saturating_sub(before));
        let seconds = start.elapsed().as_secs_f64();
        Watched { measured: meters.since(&second), warm: difference(&second, &first), cpu_ns, seconds }
    }
}

/// Counters of one thread.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Reads in the warm-up.
    pub warm: u64,
    /// Reads in the measurement.
    pub ops: u64,
    /// Reads of a wrong page.
    pub wrong: u64,
    times: Vec<u64>,
}

/// Histogram buckets for each power of two.
const STEPS: u32 = 16;

impl Default for Tally {
    fn default() -> Tally {
        Tally { warm: 0, ops: 0, wrong: 0, times: vec![0; (64 * STEPS) as usize] }
    }
}

impl Tally {
    /// Counts a read of `page`.
    #[inline]
    pub fn add(&mut self, phase: Phase, page: u64, data: &[u8], took: Duration) {
        self.wrong += u64::from(!pages::looks_right(page, data));
        if phase == Phase::Warm {
            self.warm += 1;
            return;
        }
        self.ops += 1;
        self.times[step_of(took.as_nanos() as u64)] += 1;
    }

    /// Adds another thread's counters.
    pub fn join(mut self, other: &Tally) -> Tally {
        self.warm += other.warm;
        self.ops += other.ops;
        self.wrong += other.wrong;
        self.times.iter_mut().zip(&other.times).for_each(|(sum, n)| *sum += n);
        self
    }

    /// The latency below which this share of the reads was; exact to 6 %.
    fn percentile_us(&self, share: f64) -> f64 {
        let wanted = (self.ops as f64 * share).max(1.0) as u64;
        let mut seen = 0;
        let at = self.times.iter().position(|n| {
            seen += n;
            seen >= wanted
        });
        at.map_or(0.0, |step| ns_of(step) / 1000.0)
    }

    /// The metrics of the load after all threads have ended, in the matrix's format.
    ///
    /// # Errors
    /// Wrong data; no read at all.
    pub fn numbers(&self, watched: &Watched) -> io::Result<BTreeMap<String, f64>> {
        if self.wrong > 0 {
            return Err(io::Error::other(format!("WRONG DATA in {} reads", self.wrong)));
        }
        if self.ops == 0 {
            return Err(io::Error::other("no read completed"));
        }
        let ops = self.ops as f64;
        let mut numbers: BTreeMap<String, f64> = watched.measured.clone();
        let mut put = |name: &str, n: f64| {
            numbers.insert(name.into(), n);
        };
        put("ops", ops);
        put("reads_per_s", ops / watched.seconds);
        put("p50_us", self.percentile_us(0.5));
        put("p99_us", self.percentile_us(0.99));
        put("bytes", (self.ops + self.warm + CHECKED) as f64 * PAGE as f64);
        if let Some(ns) = watched.cpu_ns {
            put("cpu_ns_per_read", ns as f64 / ops);
        }
        if let Some(mib) = watched.measured.get("source_read_mib") {
            let misses = (mib * MIB as f64 / PAGE as f64).min(ops);
            put("miss_ratio", misses / ops);
            put("hit_ratio", 1.0 - misses / ops);
            put("hits_per_s", (ops - misses) / watched.seconds);
        }
        if let Some(mib) = watched.warm.get("tier_write_mib") {
            put("tier_write_warm_mib", *mib);
        }
        Ok(numbers)
    }
}

fn step_of(ns: u64) -> usize {
    let log = 63 - (ns | 1).leading_zeros();
    // Below sixteen each value has its own bucket.
    let step = if log < 4 { ns } else { (ns >> (log - 4)) & 15 };
    (log * STEPS) as usize + step as usize
}

/// The middle of a bucket.
fn ns_of(step: usize) -> f64 {
    let (log, step) = (step as u32 / STEPS, step as u32 % STEPS);
    if log < 4 { f64::from(step) } else { (16.5 + f64::from(step)) * 2f64.powi(log as i32 - 4) }
}

/// Runs the load on a file.
///
/// # Errors
/// Wrong data; a read that failed.
pub fn run(options: &Options) -> io::Result<BTreeMap<String, f64>> {
    let file = Reader::open(&options.file, options.direct != 0)?;
    file.expect_random();
    let pages = options.pages(file.size);
    let clock = Clock::start(options);
    let (watched, tally) = std::thread::scope(|scope| {
        let watching = scope.spawn(|| clock.watch());
        let thread = |t| {
            let (file, pages) = (&file, &pages);
            scope.spawn(move || read(options, file, pages, clock, t))
        };
        let threads: Vec<_> = (0..options.threads).map(thread).collect();
        let mut joined = threads.into_iter().map(|t| t.join().expect("the reading thread does not panic"));
        let tally = joined.try_fold(Tally::default(), |sum, tally| Ok::<_, io::Error>(sum.join(&tally?)));
        (watching.join().expect("the watching thread does not panic"), tally)
    });
    let numbers = tally?.numbers(&watched)?;
    let common = Common::of(options.seed, options.content);
    let mut rng = options.draws(options.threads, Phase::Measured);
    file.check_pages(&common, (0..CHECKED).map(|_| pages.draw(&mut rng)))?;
    Ok(numbers)
}

fn read(options: &Options, file: &Reader, pages: &Pages, clock: Clock, thread: u64) -> io::Result<Tally> {
    let mut buf = crate::buffer::Buffer::new(PAGE);
    let mut tally = Tally::default();
    let mut begun = Instant::now();
    for phase in [Phase::Warm, Phase::Measured] {
        let mut rng = options.draws(thread, phase);
        while clock.phase(begun) == phase {
            let page = pages.draw(&mut rng);
            file.read(&mut buf[..PAGE], page * PAGE as u64)?;
            let ended = Instant::now();
            tally.add(phase, page, &buf, ended - begun);
            begun = ended;
        }
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_step() {
        let mut tally = Tally::default();
        let page = 0u64.to_le_bytes();
        for us in 1..=1000 {
            tally.add(Phase::Measured, 0, &page, Duration::from_micros(us));
        }
        for share in [0.01, 0.5, 0.99] {
            let (found, wanted) = (tally.percentile_us(share), share * 1000.0);
            assert!((found / wanted - 1.0).abs() < 0.06, "{found} instead of {wanted}");
        }
        for ns in [0, 1, 15, 16, 17, 31, 32, 1000, u64::MAX] {
            let (step, middle) = (step_of(ns), ns_of(step_of(ns)));
            assert!((middle - ns as f64).abs() <= ns as f64 / 16.0, "{ns}: step {step} is {middle}");
        }
    }

    #[test]
    fn a_wrong_page_fails_the_load() {
        let mut tally = Tally::default();
        tally.add(Phase::Warm, 1, &2u64.to_le_bytes(), Duration::ZERO);
        tally.add(Phase::Measured, 1, &1u64.to_le_bytes(), Duration::ZERO);
        assert_eq!((tally.warm, tally.ops, tally.wrong), (1, 1, 1));
        assert!(tally.numbers(&Watched::default()).unwrap_err().to_string().contains("WRONG DATA"));
    }

    #[test]
    fn hits_are_what_the_source_did_not_answer() {
        let tally = Tally { ops: 1024, ..Tally::default() };
        let measured = [("source_read_mib".to_string(), 1.0), ("tier_write_mib".to_string(), 3.0)].into();
        let watched = Watched { measured, seconds: 2.0, ..Watched::default() };
        let numbers = tally.numbers(&watched).unwrap();
        assert_eq!((numbers["miss_ratio"], numbers["hit_ratio"], numbers["hits_per_s"]), (0.25, 0.75, 384.0));
        assert_eq!(numbers["tier_write_mib"], 3.0);
    }

    #[test]
    fn a_file_is_read_by_the_pattern_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        Content::Incompressible.make_file(&file, 1 << 20, DATA_SEED).unwrap();
        let pattern = Pattern::Zipf(0.8);
        let (content, direct) = (Content::Incompressible, 0);
        let options = Options {
            file: file.clone(),
            pattern,
            threads: 2,
            ramp_s: 1,
            seconds: 1,
            seed: 5,
            content,
            direct,
        };
        let numbers = run(&options).unwrap();
        assert!(numbers["reads_per_s"] > 100.0 && numbers["bytes"] > numbers["ops"] * 4096.0, "{numbers:?}");
        Content::Incompressible.make_file(&file, 1 << 20, DATA_SEED + 1).unwrap();
        assert!(run(&options).unwrap_err().to_string().contains("WRONG DATA"));
    }
}
