//! The kernel's policies against the kernel: miss ratios of a real page cache, and of models of its rules.
//!
//! The traces are not part of the project. To run, name a directory that holds `NAME.u64.zst` (one little-endian u64 page
//! key a request), `reference_miss_ratios.csv` (trace,policy,size_frac,cache_objects,miss_ratio) and
//! `reference_linux_6.1.csv` (trace,cap_pages,engine,mode,actual_file_pages,miss_ratio: read by read(2) or a mapping in a
//! memory cgroup of Linux 6.1.192, with MGLRU (lru_gen=y) and without):
//! `TERRACE_TRACES=DIR cargo test --release -p terrace-policy --test linux -- --ignored --nocapture`

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use terrace_policy::build;
use terrace_policy::sim::{Ids, Mode, run_ids};

/// How far a miss ratio may be from the kernel's.
const TOLERANCE: f64 = 0.05;
/// Share of the pool to either side within which a chaotic row must be met, how closely, and steps to get there.
const AROUND: f64 = 0.015;
const TOLERANCE_AROUND: f64 = 0.06;
const STEPS: i32 = 4;
/// The kernel's policies, and how far above Belady's optimum models of their rules were, where there were any.
const POLICIES: &[(&str, Option<f64>)] =
    &[("mglru-fg", None), ("mglru-7.1", None), ("mglru-6.1", Some(0.373)), ("classic", Some(0.349))];

/// The directory of traces that the environment names, if it does.
fn directory() -> Option<PathBuf> {
    let found = std::env::var_os("TERRACE_TRACES").map(PathBuf::from).filter(|dir| dir.is_dir());
    if found.is_none() {
        eprintln!("skipped: TERRACE_TRACES names no directory");
    }
    found
}

/// The page keys of the trace `name`, one a request.
fn keys(dir: &Path, name: &str) -> Vec<u64> {
    let file = dir.join(format!("{name}.u64.zst"));
    let bytes = Command::new("zstd").arg("-dc").arg(&file).output().expect("zstd is installed").stdout;
    bytes.chunks_exact(8).map(|key| u64::from_le_bytes(key.try_into().unwrap())).collect()
}

/// Traces read and numbered once.
#[derive(Default)]
struct Library(HashMap<String, (Vec<u32>, usize)>);

impl Library {
    fn miss_ratio(&mut self, dir: &Path, trace: &str, policy: &str, capacity: usize, mode: Mode) -> f64 {
        let (ids, ids_max) = self.0.entry(trace.into()).or_insert_with(|| {
            let mut numbers = Ids::default();
            let ids = keys(dir, trace).iter().map(|&key| numbers.id(key)).collect();
            (ids, numbers.len())
        });
        let mut policy = build(policy, capacity, capacity).unwrap();
        run_ids(policy.as_mut(), ids, *ids_max, capacity, mode).miss_ratio()
    }
}

/// Where the controller of MGLRU tips over at the slightest difference: pools a page larger or smaller come to miss ratios up to a
/// tenth apart, so one run of a kernel is one draw.
fn is_chaotic(policy: &str, trace: &str) -> bool {
    policy == "mglru-6.1" && trace == "lirs-sprite"
}

#[test]
#[ignore = "needs real traces, see the head of this file"]
fn the_kernel_is_reproduced() {
    let Some(dir) = directory() else { return };
    let mut library = Library::default();
    let mut wrong = Vec::new();
    let text = std::fs::read_to_string(dir.join("reference_linux_6.1.csv")).unwrap();
    println!("{:20}{:>7} {:10}{:>8}{:>8}{:>8}", "trace", "pages", "policy", "kernel", "ours", "off %");
    for line in text.lines().skip(1) {
        let [trace, _, engine, mode, pages, ratio] = line.split(',').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        if mode != "read" {
            continue; // mapped pages are another matter: the kernel sees their accessed bits
        }
        let policy = if engine.ends_with("lru_gen=y") { "mglru-6.1" } else { "classic" };
        let (pages, kernel): (usize, f64) = (pages.parse().unwrap(), ratio.parse().unwrap());
        let off = |library: &mut Library, pages| {
            library.miss_ratio(&dir, trace, policy, pages, Mode::Exact) / kernel - 1.0
        };
        let mut here = off(&mut library, pages);
        println!(
            "{trace:20}{pages:7} {policy:10}{kernel:8.4}{:8.4}{:+8.1}",
            kernel * (1.0 + here),
            here * 100.0
        );
        let mut tolerance = TOLERANCE;
        if is_chaotic(policy, trace) {
            tolerance = TOLERANCE_AROUND;
            let near =
                |step: i32| (pages as f64 * (1.0 + AROUND * f64::from(step) / f64::from(STEPS))) as usize;
            let around: Vec<f64> = (-STEPS..=STEPS).map(|step| off(&mut library, near(step))).collect();
            println!(
                "  around that size: {:.1?} %",
                around.iter().map(|off| off * 100.0).collect::<Vec<_>>()
            );
            here = around.into_iter().min_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap();
        }
        if here.abs() > tolerance {
            wrong.push(format!("{policy} on {trace} at {pages} pages: {:+.1} % off", here * 100.0));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
#[ignore = "needs real traces, see the head of this file"]
fn models_are_met_and_batches_cost_what_is_said() {
    let Some(dir) = directory() else { return };
    let mut library = Library::default();
    let text = std::fs::read_to_string(dir.join("reference_miss_ratios.csv")).unwrap();
    let rows = text.lines().filter_map(|line| line.split(',').collect::<Vec<_>>().try_into().ok());
    let best = rows.filter(|[_, policy, _, pages, _]: &[&str; 5]| {
        *policy == "belady" && pages.parse::<usize>().is_ok_and(|pages| pages >= 10)
    });
    let cells: Vec<(&str, usize, f64)> = best
        .map(|[trace, _, _, pages, ratio]| (trace, pages.parse().unwrap(), ratio.parse().unwrap()))
        .collect();
    for &(policy, model) in POLICIES {
        let (mut above, mut apart, mut worst) = (0.0, 0.0, (0.0f64, "", 0));
        for &(trace, pages, best) in &cells {
            let exact = library.miss_ratio(&dir, trace, policy, pages, Mode::Exact);
            let batches =
                library.miss_ratio(&dir, trace, policy, pages, Mode::Sampled { batch: 64 }) / exact - 1.0;
            above += (exact / best - 1.0) / cells.len() as f64;
            apart += batches / cells.len() as f64;
            if batches.abs() > worst.0.abs() {
                worst = (batches, trace, pages);
            }
        }
        let (off, trace, pages) = worst;
        println!(
            "{policy:10}{:6.2} % above Belady on average of {} cells; in batches {:+.2} % misses, {:+.1} % at most ({trace}, {pages} pages)",
            above * 100.0,
            cells.len(),
            apart * 100.0,
            off * 100.0
        );
        assert!(model.is_none_or(|model| (above - model).abs() < 0.02), "{policy}: the model is {model:?}");
        assert!(apart < 0.03, "{policy}: batches cost more than its documentation says");
    }
}
