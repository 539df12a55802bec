//! fio reads pages of one file of twice the memory: at random, and with two kinds of hot spots. Each side is brought up once and stays warm from one
//! pattern to the next, as a cache in use does. Before each measurement it is warmed until it rests: for terrace, until the number of compressed
//! pages changes little; for the page cache, until the memory of the group does.

use super::options::{Demo, MIB, places, work_dir};
use super::show::{self, Cell, Measured};
use crate::content::Content;
use crate::fio::{self, Job, random_options};
use crate::matrix::cleanup::{Cleanup, tool};
use crate::matrix::spec::distribution;
use crate::pages::DATA_SEED;
use crate::steps::{Outcome, Step};
use crate::system::{Places, RunningSystem, System};
use std::io;
use std::process::Command;
use std::time::{Duration, Instant};
use terrace_api::stats::StatReport;
use terrace_output::Progress;

/// In the order in which they are shown: the last is the most favourable to any cache.
const PATTERNS: [&str; 3] = ["random", "zipf:0.8", "normal:40"];
const LIMIT_MIB: u64 = 512;
/// Memory of programs, daemon and kernel beside terrace's: as matrices of such loads measured it.
const BESIDE_MIB: u64 = 72;
const JOBS: u32 = 2;
const FILE: &str = "real";
/// A piece of the warm-up, after which is looked whether it rests.
const PIECE_S: u64 = 3;
/// Change of a resting cache in such a time.
const RESTS_BELOW: f64 = 0.02;
/// A warm-up is not shorter than this, seconds.
const WARM_MIN_S: u64 = 6;
/// A tier into which nothing has gone by then stays empty: the content cannot be compressed, or it does not pay.
const EMPTY_S: u64 = 20;
/// Part of the longest warm-up that patterns after the first get: the cache is full already.
const LATER: u64 = 2;
/// All of it takes no longer, seconds.
const WITHIN_S: u64 = 235;

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    PageCache,
    Terrace,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::PageCache => "page cache",
            Side::Terrace => "terrace",
        }
    }
}

/// Settings that both sides share.
struct Setting<'a> {
    options: &'a Demo,
    places: Places,
    limit_mib: u64,
    began: Instant,
    progress: Progress,
}

pub fn run(options: &Demo, cleanup: &mut Cleanup) -> io::Result<()> {
    tool("fio", &["--version"])?;
    let limit_mib = options.limit_mib.unwrap_or(LIMIT_MIB);
    if limit_mib < 2 * BESIDE_MIB {
        return Err(io::Error::other(format!(
            "--limit-mib {limit_mib} is too small: give {} or more",
            2 * BESIDE_MIB
        )));
    }
    let work = work_dir(options, cleanup)?;
    let data = work.join("data");
    std::fs::create_dir(&data)?;
    terrace_output::print_line!(
        "{} MiB of this machine's texts, programs and logs, read by fio in {limit_mib} MiB of memory",
        2 * limit_mib
    )?;
    let mut setting = Setting {
        options,
        places: places(options, &data, work.join("scratch"))?,
        limit_mib,
        began: Instant::now(),
        progress: Progress::default(),
    };
    setting.progress.now(|| "making the files ...".to_owned());
    Content::Real.make_file(&data.join(FILE), 2 * limit_mib * MIB, DATA_SEED)?;
    setting.progress.clear();
    let plain = setting.side(Side::PageCache)?;
    let ours = setting.side(Side::Terrace)?;
    let cells = PATTERNS.iter().zip(plain.into_iter().zip(ours));
    let cells: Vec<Cell> =
        cells.map(|(pattern, (plain, ours))| Cell { pattern: (*pattern).to_owned(), plain, ours }).collect();
    terrace_output::print(&show::bars(&cells))?;
    terrace_output::write_whole(&options.out, &show::page(&cells, limit_mib, 2 * limit_mib))?;
    terrace_output::print_line!("\n{}: the same as a page", options.out.display())
}

impl Setting<'_> {
    /// All patterns on one side.
    fn side(&mut self, side: Side) -> io::Result<Vec<Measured>> {
        self.all_patterns(side).map_err(|why| io::Error::other(format!("{}: {why}", side.name())))
    }

    fn all_patterns(&mut self, side: Side) -> Result<Vec<Measured>, String> {
        let memory = self.options.memory_mib.unwrap_or(self.limit_mib - BESIDE_MIB) * MIB;
        let system = match side {
            Side::PageCache => System::Kernel,
            Side::Terrace => System::Terrace { memory: Some(memory), preload: true },
        };
        let mut running = RunningSystem::bring_up(&self.places, &system, Some(self.limit_mib * MIB))?;
        let mut measured = Vec::new();
        for (n, pattern) in PATTERNS.iter().enumerate() {
            let seconds = self.warm(&mut running, side, n)?;
            let (what, took) = (format!("{}, {pattern}", side.name()), self.options.measure_s);
            let left = self.left(side, n, 0);
            self.progress.now(|| show::progress(&what, &format!("measuring {took} s"), left));
            let outcome = running.step(&self.fio("measure", pattern, took, 1_000 + n as u64))?;
            self.progress.clear();
            let found = measured_of(&outcome)?;
            terrace_output::print_line!("{what:<24} {seconds:>3} s warmed, {:>9.0} reads/s", found.iops)
                .map_err(|e| e.to_string())?;
            measured.push(found);
        }
        running.take_down().map(|_| measured)
    }

    /// Reads until the cache rests; the seconds that it took.
    fn warm(&mut self, running: &mut RunningSystem, side: Side, n: usize) -> Result<u64, String> {
        let (start, longest) = (Instant::now(), self.longest(side, n));
        let mut before = None;
        for piece in 0.. {
            let took = start.elapsed().as_secs();
            if took + PIECE_S > longest.max(PIECE_S) {
                break;
            }
            let (what, left) = (format!("{}, {}", side.name(), PATTERNS[n]), self.left(side, n, took));
            let held = before.map_or(String::new(), |held: u64| format!(", {} MiB", held / MIB));
            self.progress.now(|| show::progress(&what, &format!("warming{held}"), left));
            let step = self.fio("warm", PATTERNS[n], PIECE_S, 100 * n as u64 + piece);
            let outcome = running.step(&step)?;
            let now = self.held(side, &outcome);
            let took = start.elapsed().as_secs();
            if took >= WARM_MIN_S && rests(before, now, took) {
                break;
            }
            before = now;
        }
        Ok(start.elapsed().as_secs())
    }

    /// Bytes that the side keeps beyond page frames: what is compressed. For the page cache, all that the group has.
    fn held(&self, side: Side, outcome: &Outcome) -> Option<u64> {
        if side == Side::PageCache {
            return outcome.memory.map(|memory| memory.usage);
        }
        let told = Command::new(&self.places.terrace)
            .arg("stat")
            .arg(&self.places.data)
            .arg("--json")
            .output()
            .ok()?;
        let stat: StatReport = serde_json::from_slice(&told.stdout).ok()?;
        stat.cache.compressed.map(|tier| tier.pages * crate::pages::PAGE as u64)
    }

    /// The longest warm-up of a pattern: within the time that is left for all. The page cache fills at the speed of the device, and rests then.
    fn longest(&self, side: Side, n: usize) -> u64 {
        let wanted = wanted(self.options.warm_s, side, n);
        let after: u64 = (n + 1..PATTERNS.len()).map(|n| wanted_min(self.options.warm_s, side, n)).sum();
        let measuring = self.options.measure_s * (PATTERNS.len() - n) as u64;
        let spent = self.began.elapsed().as_secs();
        let bounded = self.options.warm_s <= 60 && self.options.measure_s <= 8;
        if bounded { wanted.min(WITHIN_S.saturating_sub(spent + after + measuring)) } else { wanted }
    }

    /// How long all the rest may take.
    fn left(&self, side: Side, n: usize, warmed: u64) -> Duration {
        let of = |side: Side, from: usize| -> u64 {
            (from..PATTERNS.len())
                .map(|n| wanted(self.options.warm_s, side, n) + self.options.measure_s)
                .sum()
        };
        let other = if side == Side::PageCache { of(Side::Terrace, 0) } else { 0 };
        Duration::from_secs((of(side, n) + other).saturating_sub(warmed))
    }

    fn fio(&self, name: &str, pattern: &str, seconds: u64, seed: u64) -> Step {
        let distribution = distribution(pattern).expect("patterns of this file");
        let mut more = random_options(&distribution, JOBS, seed);
        more.push("--percentile_list=50:99".into());
        let size = 2 * self.limit_mib * MIB;
        let job = Job { engine: "psync", rw: "randread", bs: "4k", file: FILE, size, seconds, more };
        Step::new(name, job.argv())
    }
}

/// The longest warm-up, without regard to what is spent.
fn wanted(warm_s: u64, side: Side, n: usize) -> u64 {
    let first = if side == Side::PageCache { warm_s / 3 } else { warm_s };
    if n == 0 { first } else { first / LATER }
}

fn wanted_min(warm_s: u64, side: Side, n: usize) -> u64 {
    wanted(warm_s, side, n).min(WARM_MIN_S + PIECE_S)
}

/// Whether a cache that held `before` and holds `now`, after so many seconds, has come to rest.
fn rests(before: Option<u64>, now: Option<u64>, seconds: u64) -> bool {
    match (before, now) {
        (_, None | Some(0)) => seconds >= EMPTY_S,
        (Some(before), Some(now)) => now.abs_diff(before) as f64 <= RESTS_BELOW * now as f64,
        (None, Some(_)) => false,
    }
}

fn measured_of(outcome: &Outcome) -> Result<Measured, String> {
    let report = fio::report(&outcome.output, "read")?;
    Ok(Measured {
        iops: report.iops,
        p99_us: report.percentile_us(99.0),
        cpu_us: outcome.cpu_ns.map(|ns| ns as f64 / 1000.0 / report.ios.max(1.0)),
        device_mib: outcome.read_bytes.map(|bytes| bytes as f64 / MIB as f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_rests_when_it_changes_by_less_than_two_per_cent() {
        assert!(rests(Some(100_000), Some(101_000), 6) && !rests(Some(100_000), Some(110_000), 6));
        assert!(!rests(None, Some(1), 60), "nothing to compare with");
        assert!(!rests(Some(0), Some(0), 9) && rests(Some(0), Some(0), EMPTY_S), "a tier that stays empty");
        assert!(!rests(Some(0), Some(5), 60));
    }

    #[test]
    fn all_of_it_ends_within_four_minutes() {
        let sides = [Side::PageCache, Side::Terrace];
        let all: u64 = sides.iter().flat_map(|side| (0..3).map(|n| wanted(60, *side, n) + 8)).sum();
        assert!(all <= WITHIN_S, "{all}");
    }
}
