//! Real traces: how far above Belady's optimum each policy is.
//!
//! The traces are not part of the project. To run, name a directory that holds `NAME.u64.zst` (one little-endian
//! u64 page key a request) and `reference_miss_ratios.csv` (trace,policy,size_frac,cache_objects,miss_ratio):
//! `TERRACE_TRACES=DIR cargo test --release -p terrace-policy --test traces -- --ignored --nocapture`

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use terrace_policy::sim::{Mode, run};
use terrace_policy::{NAMES, build};

const GATE: [&str; 6] = ["w106", "arc-P3", "arc-OLTP", "cloudphysics-small", "lirs-sprite", "lirs-multi3"];
/// Cells of fewer pages are left out.
const PAGES_MIN: usize = 10;

fn directory() -> Option<PathBuf> {
    let found = std::env::var_os("TERRACE_TRACES").map(PathBuf::from).filter(|dir| dir.is_dir());
    if found.is_none() {
        eprintln!("skipped: TERRACE_TRACES names no directory");
    }
    found
}

fn load(dir: &Path, name: &str) -> Vec<u64> {
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

fn cells(dir: &Path) -> Vec<Cell> {
    let mut cells: Vec<Cell> = Vec::new();
    let text = std::fs::read_to_string(dir.join("reference_miss_ratios.csv")).unwrap();
    for line in text.lines().skip(1) {
        let [trace, policy, share, capacity, ratio] = line.split(',').collect::<Vec<_>>()[..] else {
            continue;
        };
        let (share, capacity): (f64, usize) = (share.parse().unwrap(), capacity.parse().unwrap());
        if !GATE.contains(&trace) || capacity < PAGES_MIN {
            continue;
        }
        let known = cells.iter_mut().find(|cell| cell.trace == trace && cell.capacity == capacity);
        let ratio: f64 = ratio.parse().unwrap();
        match known {
            Some(cell) => {
                cell.reference.insert(policy.into(), ratio);
            }
            None => {
                let reference = HashMap::from([(policy.to_string(), ratio)]);
                cells.push(Cell { trace: trace.into(), share, capacity, reference });
            }
        }
    }
    cells.sort_by(|a, b| (&a.trace, a.capacity).cmp(&(&b.trace, b.capacity)));
    cells
}

#[test]
#[ignore = "needs real traces, see the head of this file"]
fn share_above_belady() {
    let Some(dir) = directory() else { return };
    let cells = cells(&dir);
    let mut traces: HashMap<String, Vec<u64>> = HashMap::new();
    let mut above = vec![0.0; NAMES.len()];
    println!("{:20}{:>7}{:>8}{:>9} {}", "trace", "share", "pages", "belady", NAMES.join("   "));
    for cell in &cells {
        let trace = traces.entry(cell.trace.clone()).or_insert_with(|| load(&dir, &cell.trace));
        let best = cell.reference["belady"];
        let mut line = format!("{:20}{:7}{:8}{best:9.4}", cell.trace, cell.share, cell.capacity);
        for (name, above) in NAMES.iter().zip(&mut above) {
            let mut policy = build(name, cell.capacity, cell.capacity).unwrap();
            let ratio = run(policy.as_mut(), trace.iter().copied(), cell.capacity, Mode::Exact).miss_ratio();
            assert!(ratio > best - 0.00006, "{name} beats the optimum: {line}");
            if *name == "lru" {
                assert!((ratio - cell.reference["lru"]).abs() < 0.00006, "lru is {ratio:.4}: {line}");
            }
            if *name == "clock" {
                assert!((ratio / cell.reference["clock"] - 1.0).abs() < 0.02, "clock is {ratio:.4}: {line}");
            }
            if *name == "strata" && cell.share >= 0.01 {
                let lru = cell.reference["lru"];
                assert!(
                    ratio <= lru * 1.1,
                    "strata is {:.1} % over lru: {line}",
                    (ratio / lru - 1.0) * 100.0
                );
            }
            *above += (ratio / best - 1.0) / cells.len() as f64;
            line += &format!("{ratio:9.4}");
        }
        println!("{line}");
    }
    for (name, above) in NAMES.iter().zip(&above) {
        println!("{name:8}{:6.2} % above Belady on average of {} cells", above * 100.0, cells.len());
    }
    assert!(above[0] < 0.255, "strata is {:.2} % above Belady", above[0] * 100.0);
}
