//! Cells with a compressed tier (`sim --compress`): misses and time beside the same policy without it.

use std::fmt::Write;
use std::io;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::Serialize;
use terrace_output::Progress;
use terrace_policy::mix;
use terrace_sim::cells::{Job, each_on_all_cores};
use terrace_sim::compressed_sim::{CompressedOutcome, CompressedSim, Content, Prices, Setup};
use terrace_sim::ranking::percent;
use terrace_sim::trace::Trace;
use terrace_sim::yardsticks::build;

const CSV_HEAD: &str = "trace,policy,size_frac,cache_pages,ratio,requests,misses,miss_ratio,tier_hits,stored,refused,\
refused_by_file,promoted,hits_per_compression,tier_share_mean,tier_share_end,windows,moves,turns,request_us,tier_cpu_us,time_ratio";

/// Options of the tier.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Compress {
    /// Compressed tiers, by the pages that fit into the memory of one; 1: none. Accesses are fed as with
    /// --sampled.
    #[arg(long, value_name = "RATIOS", value_delimiter = ',', value_parser = ratio)]
    pub(crate) compress: Vec<f64>,
    /// Share of pages that cannot be compressed.
    #[arg(long, value_name = "SHARE", requires = "compress", default_value = "0%", value_parser = refused)]
    pub(crate) compress_refused: f64,
    /// The tier's share of the memory, per cent; a single number is a fixed share.
    #[arg(long, value_name = "MIN-MAX", requires = "compress", default_value = "0-75")]
    pub(crate) compress_share: Share,
}

/// Bounds of the tier's memory, per cent.
#[derive(Clone, Debug)]
pub(super) struct Share(pub RangeInclusive<u32>);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        match (min.trim().parse(), max.trim().parse()) {
            (Ok(min), Ok(max)) if min <= max && max <= 95 => Ok(Share(min..=max)),
            _ => Err(format!("{text} is no share: two numbers up to 95, per cent (0-50), or one")),
        }
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    let sound = text.trim().parse().ok().filter(|ratio| (1.0..=100.0).contains(ratio));
    sound.ok_or_else(|| format!("{text} is no ratio: pages to a page of memory, 1 to 100 (1.87)"))
}

fn refused(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    let sound = number.filter(|share| (0.0..=100.0).contains(share)).map(|share| share / 100.0);
    sound.ok_or_else(|| format!("{text} is no share: per cent (15%)"))
}

/// One result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Cell {
    /// The trace's name.
    pub trace: String,
    /// The policy's name.
    pub policy: String,
    /// Memory as a share of the trace's pages.
    pub size_frac: f64,
    /// Memory, pages.
    pub cache_pages: usize,
    /// Compressed pages that fit into the memory of one; 1: no tier.
    pub(crate) ratio: f64,
    /// Requests in the trace.
    pub requests: u64,
    /// Requests that missed.
    pub misses: u64,
    /// Misses a request.
    pub miss_ratio: f64,
    /// Requests that the tier answered.
    pub(crate) tier_hits: u64,
    /// Pages compressed and stored.
    pub(crate) stored: u64,
    /// Pages compressed but not stored: the result was too long.
    pub(crate) refused: u64,
    /// Pages not compressed, because other pages of their file were refused.
    pub(crate) refused_by_file: u64,
    /// Pages moved from the tier to DRAM.
    pub(crate) promoted: u64,
    /// Hits in the tier for each page compressed.
    pub(crate) hits_per_compression: f64,
    /// Mean share of the memory over all requests; the next field is the share at the end.
    pub(crate) tier_share_mean: f64,
    /// The tier's share of the memory at the end.
    pub(crate) tier_share_end: f64,
    /// Windows judged by the balancer.
    pub(crate) windows: u64,
    /// Windows in which the boundary moved.
    pub(crate) moves: u64,
    /// Windows in which it turned.
    pub(crate) turns: u64,
    /// Mean time of a request at the engine's prices, us.
    pub(crate) request_us: f64,
    /// Processor time of the tier for each request, us.
    pub(crate) tier_cpu_us: f64,
    /// `request_us` by that of the same policy without a tier.
    pub(crate) time_ratio: f64,
}

/// A pseudo-random number for `id` (SplitMix64), in 0..1.
fn lot(id: u32) -> f64 {
    let word = mix(u64::from(id).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (word >> 11) as f64 / (1u64 << 53) as f64
}

/// Computes one cell, without its `time_ratio`.
fn compute(trace: &Trace, job: &Job, ratio: f64, options: &Compress) -> Cell {
    let cache_pages = job.size.pages(trace.pages);
    // A pool with spare room for all pages evicts none, whatever its size.
    let budget = cache_pages.min(2 * trace.pages + 64).max(2);
    let mut policy = build(&job.policy, budget, budget).expect("a known policy");
    let percent = if ratio > 1.0 { options.compress_share.0.clone() } else { 0..=0 };
    let prices = Prices::default();
    let content = |id| Content { file: 0, compresses: lot(id) >= options.compress_refused };
    let setup = Setup { budget, ratio, percent, prices, device: None };
    let mut sim = CompressedSim::new(policy.as_mut(), setup, trace.pages, &content);
    trace.ids.iter().for_each(|&id| sim.request(id));
    let (outcome, share) = (sim.outcome(), sim.share());
    let CompressedOutcome { requests, misses, tier_hits, stored, refused, refused_by_file, promoted, .. } =
        outcome;
    let CompressedOutcome { windows, moves, turns, .. } = outcome;
    Cell {
        trace: trace.name.clone(),
        policy: job.policy.clone(),
        size_frac: job.size.share(trace.pages),
        cache_pages,
        ratio,
        requests,
        misses,
        miss_ratio: misses as f64 / requests.max(1) as f64,
        tier_hits,
        stored,
        refused,
        refused_by_file,
        promoted,
        hits_per_compression: outcome.hits_per_compression(),
        tier_share_mean: outcome.share_mean() / budget as f64,
        tier_share_end: share as f64 / budget as f64,
        windows,
        moves,
        turns,
        request_us: outcome.request_ns(&prices) / 1000.0,
        tier_cpu_us: outcome.tier_ns(&prices) / 1000.0,
        time_ratio: f64::NAN,
    }
}

/// Each policy at each size without a tier, and with each of `options`.
pub(super) fn compute_all(
    trace: &Trace,
    jobs: &[Job],
    options: &Compress,
    progress: &mut Progress,
) -> Vec<Cell> {
    let mut ratios = options.compress.clone();
    ratios.push(1.0);
    ratios.sort_by(f64::total_cmp);
    ratios.dedup();
    let all: Vec<(&Job, f64)> =
        jobs.iter().flat_map(|job| ratios.iter().map(move |&ratio| (job, ratio))).collect();
    let mut cells =
        each_on_all_cores(&trace.name, &all, progress, |&(job, ratio)| compute(trace, job, ratio, options));
    for cells in cells.chunk_by_mut(|_, next| next.ratio > 1.0) {
        let without = cells[0].request_us;
        cells.iter_mut().for_each(|cell| cell.time_ratio = cell.request_us / without);
    }
    cells
}

/// One row a cell.
pub(super) fn csv(cells: &[Cell]) -> io::Result<String> {
    let row = |c: &Cell| {
        [
            c.trace.clone(),
            c.policy.clone(),
            c.size_frac.to_string(),
            c.cache_pages.to_string(),
            c.ratio.to_string(),
            c.requests.to_string(),
            c.misses.to_string(),
            format!("{:.6}", c.miss_ratio),
            c.tier_hits.to_string(),
            c.stored.to_string(),
            c.refused.to_string(),
            c.refused_by_file.to_string(),
            c.promoted.to_string(),
            format!("{:.4}", c.hits_per_compression),
            format!("{:.4}", c.tier_share_mean),
            format!("{:.4}", c.tier_share_end),
            c.windows.to_string(),
            c.moves.to_string(),
            c.turns.to_string(),
            format!("{:.4}", c.request_us),
            format!("{:.4}", c.tier_cpu_us),
            format!("{:.4}", c.time_ratio),
        ]
    };
    terrace_output::csv(CSV_HEAD.split(','), cells.iter().map(row))
}

/// One block a trace.
pub(super) fn table(cells: &[Cell]) -> String {
    let mut out = String::new();
    for cells in cells.chunk_by(|a, b| a.trace == b.trace) {
        let _ = writeln!(out, "{}, {} requests", cells[0].trace, cells[0].requests);
        let _ = writeln!(
            out,
            "{:12}{:>18}{:>7}{:>9}{:>8}{:>9}{:>9}{:>7}{:>13}{:>13}{:>11}{:>8}{:>8}",
            "",
            "memory",
            "ratio",
            "misses",
            "below",
            "compr.",
            "promoted",
            "h/c",
            "tier: mean",
            "end",
            "moves/turns",
            "us",
            "time"
        );
        cells.iter().for_each(|cell| row(cell, &mut out));
        out.push('\n');
    }
    out
}

fn row(c: &Cell, out: &mut String) {
    let of_requests = |n: u64| n as f64 / c.requests.max(1) as f64;
    let _ = writeln!(
        out,
        "{:12}{:>18}{:>7}{:>9.4}{:>8.4}{:>9.4}{:>9.4}{:>7.2}{:>11.1} %{:>11.1} %{:>11}{:>8.2}{:>7.1} %",
        c.policy,
        format!("{} = {}", percent(c.size_frac), c.cache_pages),
        c.ratio,
        c.miss_ratio,
        of_requests(c.tier_hits),
        of_requests(c.stored + c.refused),
        of_requests(c.promoted),
        c.hits_per_compression,
        c.tier_share_mean * 100.0,
        c.tier_share_end * 100.0,
        format!("{}/{}", c.moves, c.turns),
        c.request_us,
        c.time_ratio * 100.0,
    );
}
