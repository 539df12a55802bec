//! Real traces: every policy against its reference, and how far above Belady's optimum it is.
//!
//! The traces are not part of the project. To run, name a directory that holds `NAME.u64.zst` (one little-endian
//! u64 page key a request) and `reference_miss_ratios.csv` (trace,policy,size_frac,cache_objects,miss_ratio; made with
//! libCacheSim 0.3.5): `TERRACE_TRACES=DIR cargo test --release -p terrace-policy --test traces -- --ignored --nocapture`

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use terrace_policy::evict::opt::{Opt, next_uses};
use terrace_policy::sim::{Ids, Mode, Outcome, run, run_ids};
use terrace_policy::{NAMES, build};

/// The policies that are published with a reference, by the names of both.
const REFERENCES: &[(&str, &str)] = &[
    ("lru", "lru"),
    ("clock", "clock"),
    ("fifo", "fifo"),
    ("2q", "twoq"),
    ("arc", "arc"),
    ("lirs", "lirs"),
    ("s3fifo", "s3fifo"),
    ("sieve", "sieve"),
    ("w-tinylfu", "wtinyLFU"),
];
/// How far a miss ratio may be from its reference.
const TOLERANCE: f64 = 0.02;
/// Half a unit of the references' last digit, and what floating point adds.
const ROUNDING: f64 = 0.000_050_1;
/// Smaller pools are left out.
const PAGES_MIN: usize = 10;

fn directory() -> Option<PathBuf> {
    let found = std::env::var_os("TERRACE_TRACES").map(PathBuf::from).filter(|dir| dir.is_dir());
    if found.is_none() {
        eprintln!("skipped: TERRACE_TRACES names no directory");
    }
    found
}

/// A trace with its keys numbered.
struct Trace {
    ids: Vec<u32>,
    ids_max: usize,
    next: Vec<u32>,
}

impl Trace {
    fn load(dir: &Path, name: &str) -> Trace {
        let keys = keys(dir, name);
        let mut numbers = Ids::default();
        let ids: Vec<u32> = keys.iter().map(|&key| numbers.id(key)).collect();
        Trace { next: next_uses(&ids), ids, ids_max: numbers.len() }
    }

    fn run(&self, name: &str, capacity: usize, mode: Mode) -> Outcome {
        let mut policy = build(name, capacity, capacity).unwrap();
        run_ids(policy.as_mut(), &self.ids, self.ids_max, capacity, mode)
    }

    fn optimum(&self, capacity: usize) -> Outcome {
        let mut opt = Opt::new(capacity, self.next.clone());
        run_ids(&mut opt, &self.ids, self.ids_max, capacity, Mode::Exact)
    }
}

fn keys(dir: &Path, name: &str) -> Vec<u64> {
    let file = dir.join(format!("{name}.u64.zst"));
    let bytes = Command::new("zstd").arg("-dc").arg(&file).output().expect("zstd is installed").stdout;
    bytes.chunks_exact(8).map(|key| u64::from_le_bytes(key.try_into().unwrap())).collect()
}

struct Cell {
    trace: String,
    share: f64,
    capacity: usize,
    /// Reference miss ratios by policy.
    reference: HashMap<String, f64>,
}

/// The cells that the reference lists, by trace and size.
fn cells(dir: &Path) -> Vec<Cell> {
    let mut cells: Vec<Cell> = Vec::new();
    let text = std::fs::read_to_string(dir.join("reference_miss_ratios.csv")).unwrap();
    for line in text.lines().skip(1) {
        let [trace, policy, share, capacity, ratio] = line.split(',').collect::<Vec<_>>()[..] else {
            continue;
        };
        let (share, capacity): (f64, usize) = (share.parse().unwrap(), capacity.parse().unwrap());
        let known = cells.iter().position(|cell| cell.trace == trace && cell.capacity == capacity);
        let at = known.unwrap_or_else(|| {
            cells.push(Cell { trace: trace.into(), share, capacity, reference: HashMap::new() });
            cells.len() - 1
        });
        cells[at].reference.insert(policy.into(), ratio.parse().unwrap());
    }
    cells.sort_by(|a, b| (&a.trace, a.capacity).cmp(&(&b.trace, b.capacity)));
    cells
}

/// Whether the policy's own documentation says why it differs here: where a hundredth of the pool is less than a page,
/// libCacheSim's W-TinyLFU has no window and admits nothing.
fn differs_by_definition(name: &str, reference: f64) -> bool {
    name == "w-tinylfu" && reference == 1.0
}

/// What is wrong with a result of the policy `name`.
fn objections(cell: &Cell, name: &str, ratio: f64) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut object = |what: &str, reference: f64| {
        let apart = (ratio / reference - 1.0) * 100.0;
        wrong.push(format!(
            "{name} on {} at {} pages: {ratio:.4}, {apart:+.2} % {what}",
            cell.trace, cell.capacity
        ));
    };
    if let Some((_, theirs)) = REFERENCES.iter().find(|(ours, _)| *ours == name)
        && let Some(&reference) = cell.reference.get(*theirs)
        && (ratio / reference - 1.0).abs() > TOLERANCE
        && !differs_by_definition(name, reference)
    {
        object("off the reference", reference);
    }
    let lru = cell.reference["lru"];
    if name == "strata" && cell.share >= 0.01 && ratio > lru * 1.1 {
        object("over lru", lru);
    }
    wrong
}

#[test]
#[ignore = "needs real traces, see the head of this file"]
fn share_above_belady() {
    let Some(dir) = directory() else { return };
    let cells: Vec<Cell> = cells(&dir).into_iter().filter(|cell| cell.capacity >= PAGES_MIN).collect();
    let mut traces: HashMap<String, Trace> = HashMap::new();
    let mut above = vec![0.0; NAMES.len()];
    let mut wrong = Vec::new();
    println!("{:20}{:>7}{:>8}{:>9} {}", "trace", "share", "pages", "belady", NAMES.join("   "));
    for cell in &cells {
        let trace = traces.entry(cell.trace.clone()).or_insert_with(|| Trace::load(&dir, &cell.trace));
        let (optimum, best) = (trace.optimum(cell.capacity), cell.reference["belady"]);
        let mut line = format!("{:20}{:7}{:8}{best:9.4}", cell.trace, cell.share, cell.capacity);
        if (optimum.miss_ratio() - best).abs() > ROUNDING {
            wrong.push(format!("opt is {:.5}: {line}", optimum.miss_ratio()));
        }
        for (name, above) in NAMES.iter().zip(&mut above) {
            let outcome = trace.run(name, cell.capacity, Mode::Exact);
            assert!(outcome.misses >= optimum.misses, "{name} beats the optimum: {line}");
            wrong.extend(objections(cell, name, outcome.miss_ratio()));
            *above += (outcome.miss_ratio() / best - 1.0) / cells.len() as f64;
            line += &format!("{:9.4}", outcome.miss_ratio());
        }
        println!("{line}");
    }
    for (name, above) in NAMES.iter().zip(&above) {
        println!("{name:10}{:6.2} % above Belady on average of {} cells", above * 100.0, cells.len());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(above[0] < 0.245, "strata is {:.2} % above Belady", above[0] * 100.0);
}

#[test]
#[ignore = "needs real traces, see the head of this file; a measurement: run it alone"]
fn requests_a_second() {
    let Some(dir) = directory() else { return };
    let keys = keys(&dir, "w106");
    let trace = Trace::load(&dir, "w106");
    let million =
        |outcome: Outcome, start: Instant| outcome.requests as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!("million requests a second on w106, {} requests, {} pages", keys.len(), trace.ids_max);
    println!("{:12}{:>10}{:>12}{:>12}{:>12}", "policy", "pages", "exact", "sampled", "and ids");
    for name in NAMES.iter().copied().chain(["opt"]) {
        for capacity in [trace.ids_max / 100, trace.ids_max / 10] {
            let start = Instant::now();
            if name == "opt" {
                println!("{name:12}{capacity:10}{:12.1}", million(trace.optimum(capacity), start));
                continue;
            }
            let exact = million(trace.run(name, capacity, Mode::Exact), start);
            let start = Instant::now();
            let sampled = million(trace.run(name, capacity, Mode::Sampled { batch: 64 }), start);
            let (start, mut policy) = (Instant::now(), build(name, capacity, capacity).unwrap());
            let streamed = million(run(policy.as_mut(), keys.iter().copied(), capacity, Mode::Exact), start);
            println!("{name:12}{capacity:10}{exact:12.1}{sampled:12.1}{streamed:12.1}");
        }
    }
}
