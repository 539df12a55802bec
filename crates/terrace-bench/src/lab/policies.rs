//! `terrace-bench policies`: every policy on a directory of traces, and the gates that they must pass.
//!
//! The reference (`reference_miss_ratios.csv`, made with libCacheSim 0.3.5) names the cells of the first group, on
//! which gates are; all other traces of the directory are the second group. Beside it
//! may lie what a real kernel missed ([`kernel`]).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use terrace_policy::NAMES;
use terrace_policy::sim::Mode;
use terrace_trace::Options;

use super::board::{Bounds, Rank, percent, ranking, ranking_table, table};
use super::cells::{Cell, Job, OPT, SAMPLED, Size, compute_all, known};
use super::progress::Progress;
use super::trace::{self, Trace};
use super::{kernel, print};

const REFERENCE: &str = "reference_miss_ratios.csv";
const TRACES: [&str; 2] = [".u64.zst", ".u64"];
/// Shares of a trace's pages, for traces that the reference does not name.
const SHARES: [f64; 4] = [0.001, 0.01, 0.1, 0.25];
/// Smaller pools are left out.
const PAGES_MIN: usize = 10;

/// Share above the optimum that the default policy may have on average of the first group.
const ABOVE_MAX: f64 = 0.255;
/// How much more than `lru` it may miss in a cell, from this share of the pages on.
const OVER_LRU_MAX: f64 = 0.10;
const OVER_LRU_FROM: f64 = 0.01;
/// How far a published policy's miss ratio may be from its reference's.
const TOLERANCE: f64 = 0.02;
/// Half a unit of the reference's last digit, and what floating point adds.
const ROUNDING: f64 = 0.000_050_1;
/// Published policies, by our names and by the reference's.
const PUBLISHED: [(&str, &str); 9] = [
    ("lru", "lru"),
    ("clock", "clock"),
    ("fifo", "fifo"),
    ("2q", "twoq"),
    ("arc", "arc"),
    ("s3fifo", "s3fifo"),
    ("sieve", "sieve"),
    ("w-tinylfu", "wtinyLFU"),
    ("lirs", "lirs"),
];

/// Options of `policies`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example:
  terrace-bench policies --traces ../shared/traces
Exit code: 0 all gates passed, 1 one did not, 2 error.")]
pub struct Policies {
    /// Directory of NAME.u64 or NAME.u64.zst and reference_miss_ratios.csv (trace,policy,size_frac,cache_objects,miss_ratio).
    #[arg(long, env = "TERRACE_TRACES", value_name = "DIR")]
    traces: PathBuf,
    /// Results as JSON on stdout, instead of tables.
    #[arg(long)]
    json: bool,
}

/// What the reference says.
#[derive(Debug, Default)]
struct Reference {
    /// Pools by trace: pages and share.
    sizes: BTreeMap<String, Vec<(usize, f64)>>,
    /// Miss ratio by trace, pages, policy.
    ratios: BTreeMap<(String, usize, String), f64>,
}

impl Reference {
    fn read(dir: &Path) -> io::Result<Reference> {
        let path = dir.join(REFERENCE);
        let text = std::fs::read_to_string(&path).map_err(|e| {
            io::Error::other(format!(
                "{}: {e} (name the directory of traces with --traces or TERRACE_TRACES)",
                path.display()
            ))
        })?;
        let mut reference = Reference::default();
        for (i, line) in text.lines().enumerate().skip(1).filter(|(_, line)| !line.is_empty()) {
            let wrong =
                || io::Error::other(format!("{}: line {}: not a reference: {line}", path.display(), i + 1));
            reference.add(line).ok_or_else(wrong)?;
        }
        Ok(reference)
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let [trace, policy, share, pages, ratio] = line.split(',').collect::<Vec<_>>().try_into().ok()?;
        let (share, pages, ratio) = (share.parse().ok()?, pages.parse().ok()?, ratio.parse().ok()?);
        if pages >= PAGES_MIN {
            let sizes = self.sizes.entry(trace.to_owned()).or_default();
            if !sizes.iter().any(|size| size.0 == pages) {
                sizes.push((pages, share));
                sizes.sort_by_key(|size| size.0);
            }
            self.ratios.insert((trace.to_owned(), pages, policy.to_owned()), ratio);
        }
        Some(())
    }

    fn ratio(&self, cell: &Cell, policy: &str) -> Option<f64> {
        self.ratios.get(&(cell.trace.clone(), cell.cache_pages, policy.to_owned())).copied()
    }
}

/// Cells of a group, told each access, and as the engine feeds them.
#[derive(Debug, Default, Serialize)]
pub struct Group {
    exact: Vec<Cell>,
    sampled: Vec<Cell>,
}

impl Group {
    fn run(&mut self, trace: &Trace, sizes: &[(usize, f64)], progress: &mut Progress) {
        let jobs = |names: &[&str], mode| -> Vec<Job> {
            let at = |(pages, _): &(usize, f64)| {
                let size = Size::Pages(*pages);
                names.iter().map(move |name| Job { policy: (*name).into(), size, mode }).collect::<Vec<_>>()
            };
            sizes.iter().flat_map(at).collect()
        };
        let with_shares = |mut cells: Vec<Cell>| {
            let share = |pages| sizes.iter().find(|size| size.0 == pages).map_or(0.0, |size| size.1);
            cells.iter_mut().for_each(|cell| cell.size_frac = share(cell.cache_pages));
            cells
        };
        self.exact.extend(with_shares(compute_all(trace, &jobs(&known(), Mode::Exact), progress)));
        self.sampled.extend(with_shares(compute_all(trace, &jobs(NAMES, SAMPLED), progress)));
    }

    fn bounds(&self) -> Bounds {
        Bounds::of(&self.exact)
    }

    fn all(&self) -> impl Iterator<Item = &Cell> {
        self.exact.iter().chain(&self.sampled)
    }

    /// Mean over the cells of what a policy misses when hits come in batches, by what it misses told each, less 1.
    pub fn cost_of_batches(&self, policy: &str) -> f64 {
        let of = |cells: &[Cell]| {
            cells.iter().filter(|cell| cell.policy == policy).map(|cell| cell.miss_ratio).collect()
        };
        let (exact, sampled): (Vec<f64>, Vec<f64>) = (of(&self.exact), of(&self.sampled));
        exact.iter().zip(&sampled).map(|(exact, sampled)| sampled / exact - 1.0).sum::<f64>()
            / exact.len() as f64
    }

    fn cells(&self) -> usize {
        self.exact.iter().filter(|cell| cell.policy == OPT).count()
    }
}

/// One gate.
#[derive(Debug, Serialize)]
pub struct Gate {
    /// What is asked.
    pub gate: String,
    /// Whether it holds.
    pub passed: bool,
    /// What speaks against it, one cell a line; or what was measured.
    pub found: Vec<String>,
}

impl Gate {
    fn none(gate: impl Into<String>, against: Vec<String>) -> Gate {
        Gate { gate: gate.into(), passed: against.is_empty(), found: against }
    }
}

/// Runs all policies on all traces and judges them.
pub fn run(options: &Policies) -> io::Result<i32> {
    let mut progress = Progress::default();
    let reference = Reference::read(&options.traces)?;
    let mut kernel = kernel::rows(&options.traces)?;
    let (mut gated, mut others) = (Group::default(), Group::default());
    for path in traces(&options.traces)? {
        let trace = Trace::load(&path, &Options::default(), &mut progress)?;
        kernel::run(&mut kernel, &trace, &mut progress);
        match reference.sizes.get(&trace.name) {
            Some(sizes) => gated.run(&trace, sizes, &mut progress),
            None => others.run(&trace, &sizes(&trace), &mut progress),
        }
    }
    progress.clear();
    let absent = reference.sizes.keys().find(|name| !gated.exact.iter().any(|cell| cell.trace == **name));
    if let Some(name) = absent {
        return Err(io::Error::other(format!(
            "{}: no {name}{}, which the reference names",
            options.traces.display(),
            TRACES[0]
        )));
    }
    let mut gates = gates(&reference, &gated, &others);
    let ranks = ranking(&gated.exact, &gated.bounds());
    let above = |policy: &str| {
        ranks.iter().find(|rank| rank.policy == policy).map_or(f64::NAN, |rank| rank.above_opt_mean)
    };
    gates.extend(kernel::gates(&kernel, &gated, above));
    print(&if options.json { json(&gated, &others, &gates)? } else { text(&gated, &others, &gates) })?;
    Ok(i32::from(gates.iter().any(|gate| !gate.passed)))
}

fn traces(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", dir.display()));
    let mut traces = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(named)? {
        let path = entry.map_err(named)?.path();
        if TRACES.iter().any(|ending| path.to_string_lossy().ends_with(ending)) {
            traces.push(path);
        }
    }
    traces.sort_by_key(|path| trace::name(path));
    Ok(traces)
}

fn sizes(trace: &Trace) -> Vec<(usize, f64)> {
    let sizes = SHARES.map(|share| (Size::Share(share).pages(trace.pages), share));
    sizes.into_iter().filter(|size| size.0 >= PAGES_MIN).collect()
}

fn gates(reference: &Reference, gated: &Group, others: &Group) -> Vec<Gate> {
    let default = NAMES[0];
    vec![
        default_is_near_opt(default, gated),
        Gate::none(
            format!(
                "{default} misses at most {:.0} % more than lru in cells of 1 % or more",
                OVER_LRU_MAX * 100.0
            ),
            over_lru(default, gated),
        ),
        published_are_as_published(reference, gated),
        Gate::none("opt is the reference's Belady to 4 digits", off_belady(reference, gated)),
        Gate::none(
            "no policy misses less than opt",
            [gated, others].into_iter().flat_map(below_opt).collect(),
        ),
    ]
}

fn default_is_near_opt(default: &str, gated: &Group) -> Gate {
    let ranks = ranking(&gated.exact, &gated.bounds());
    let above = ranks.iter().find(|rank| rank.policy == default).map_or(f64::NAN, |rank| rank.above_opt_mean);
    Gate {
        gate: format!("{default} at most {:.1} % above opt on average", ABOVE_MAX * 100.0),
        passed: above <= ABOVE_MAX,
        found: vec![format!("{:.2} % on {} cells", above * 100.0, gated.cells())],
    }
}

/// A cell and a miss ratio beside another.
fn beside(cell: &Cell, called: &str, other: f64) -> String {
    let apart = (cell.miss_ratio / other - 1.0) * 100.0;
    let Cell { trace, policy, size_frac, miss_ratio, .. } = cell;
    format!(
        "{policy} on {trace} at {}: {miss_ratio:.4}, {called} {other:.4} ({apart:+.2} %)",
        percent(*size_frac)
    )
}

fn over_lru(default: &str, gated: &Group) -> Vec<String> {
    let lru = |of: &Cell| {
        let same = |cell: &&Cell| {
            cell.policy == "lru" && (&cell.trace, cell.cache_pages) == (&of.trace, of.cache_pages)
        };
        gated.exact.iter().find(same).map_or(f64::NAN, |cell| cell.miss_ratio)
    };
    let large = gated.exact.iter().filter(|cell| cell.policy == default && cell.size_frac >= OVER_LRU_FROM);
    against(large.map(|cell| (cell, lru(cell))), "lru", |ours, lru| ours <= lru * (1.0 + OVER_LRU_MAX))
}

/// The pairs of a cell and another miss ratio that are not as they should be; one that is not known (NaN) never is.
fn against<'a>(
    pairs: impl Iterator<Item = (&'a Cell, f64)>,
    called: &str,
    good: impl Fn(f64, f64) -> bool,
) -> Vec<String> {
    pairs
        .filter(|(cell, other)| !good(cell.miss_ratio, *other))
        .map(|(cell, other)| beside(cell, called, other))
        .collect()
}

/// Whether a policy's own documentation says why it differs here: where a hundredth of the pool is less than a page,
/// libCacheSim's W-TinyLFU has no window and admits nothing.
fn differs_by_definition(policy: &str, reference: f64) -> bool {
    policy == "w-tinylfu" && reference == 1.0
}

/// Every cell of every published policy has to be compared; what differs by definition is told, and passes.
fn published_are_as_published(reference: &Reference, gated: &Group) -> Gate {
    let missing = PUBLISHED.iter().filter(|(ours, _)| !NAMES.contains(ours));
    let mut off: Vec<String> = missing.map(|(ours, _)| format!("{ours}: not simulated")).collect();
    let theirs =
        |cell: &Cell| PUBLISHED.iter().find(|(ours, _)| *ours == cell.policy).map(|(_, theirs)| *theirs);
    let compared = || {
        let published = gated.exact.iter().filter_map(|cell| Some((cell, theirs(cell)?)));
        published.map(|(cell, theirs)| (cell, reference.ratio(cell, theirs).unwrap_or(f64::NAN)))
    };
    let (explained, plain): (Vec<_>, Vec<_>) =
        compared().partition(|(cell, expected)| differs_by_definition(&cell.policy, *expected));
    let near = |ours: f64, theirs: f64| (ours / theirs - 1.0).abs() <= TOLERANCE;
    off.extend(against(plain.into_iter(), "reference", near));
    let explained = against(explained.into_iter(), "by its definition; reference", near);
    Gate {
        gate: format!("published policies within {:.0} % of the reference in every cell", TOLERANCE * 100.0),
        passed: off.is_empty(),
        found: off.into_iter().chain(explained).collect(),
    }
}

fn off_belady(reference: &Reference, gated: &Group) -> Vec<String> {
    let opt = gated.exact.iter().filter(|cell| cell.policy == OPT);
    let pairs = opt.map(|cell| (cell, reference.ratio(cell, "belady").unwrap_or(f64::NAN)));
    against(pairs, "belady", |opt, belady| (opt - belady).abs() <= ROUNDING)
}

fn below_opt(group: &Group) -> Vec<String> {
    let bounds = group.bounds();
    let pairs = group.all().map(|cell| (cell, bounds.at(cell).unwrap_or(f64::NAN)));
    against(pairs, "opt", |ours, opt| ours >= opt)
}

fn json(gated: &Group, others: &Group, gates: &[Gate]) -> io::Result<String> {
    let group = |group: &Group| {
        let bounds = group.bounds();
        serde_json::json!({
            "cells": group,
            "ranking": ranking(&group.exact, &bounds),
            "ranking_sampled": ranking(&group.sampled, &bounds),
        })
    };
    let passed = gates.iter().all(|gate| gate.passed);
    let report = serde_json::json!({
        "schema": "terrace.policies.v1", "passed": passed, "gates": gates, "gated": group(gated), "others": group(others),
    });
    Ok(serde_json::to_string_pretty(&report)? + "\n")
}

fn text(gated: &Group, others: &Group, gates: &[Gate]) -> String {
    let mut out = String::new();
    for (title, group) in [("Traces with gates", gated), ("Other traces", others)] {
        if group.cells() > 0 {
            let bounds = group.bounds();
            let ranks = ranking(&group.exact, &bounds);
            let _ = writeln!(out, "== {title} ==\n");
            out += &table(&group.exact, &bounds);
            out += &ranking_table(&ranks, group.cells());
            out += &sampled_table(&ranks, &ranking(&group.sampled, &bounds));
        }
    }
    out.push_str("== Gates ==\n");
    for Gate { gate, passed, found } in gates {
        let _ = writeln!(out, "{} {gate}", if *passed { "passed" } else { "FAILED" });
        for line in found {
            let _ = writeln!(out, "         {line}");
        }
    }
    out
}

/// What hits told in batches cost each policy.
fn sampled_table(exact: &[Rank], sampled: &[Rank]) -> String {
    let mut out = String::from("\nThe same as the engine feeds them (hits as touch counts, victims by 64)\n");
    for rank in sampled {
        let told = exact
            .iter()
            .find(|other| other.policy == rank.policy)
            .map_or(f64::NAN, |other| other.above_opt_mean);
        let _ = writeln!(
            out,
            "{:12}{:7.2} %  told each access {:7.2} %  mean miss ratio {:.4}  {:6.1} M requests/s",
            rank.policy,
            rank.above_opt_mean * 100.0,
            told * 100.0,
            rank.miss_ratio_mean,
            rank.requests_per_second / 1e6
        );
    }
    out.push('\n');
    out
}
