//! Cells with a compressed tier (`sim --compress`): misses and time beside the same policy without it.

use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::Serialize;
use terrace_output::Progress;
use terrace_policy::mix;
use terrace_sim::cells::Job;
use terrace_sim::compressed_sim::{CompressedOutcome, Content, Prices, Setup};
use terrace_sim::trace::Trace;

use super::tiers;

pub(super) const COLUMNS: &str = "trace,policy,size_frac,cache_pages,ratio,requests,misses,miss_ratio,tier_hits,stored,refused,\
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

/// Columns of a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Columns {
    #[serde(flatten)]
    outcome: CompressedOutcome,
    miss_ratio: f64,
    /// Hits in the tier for each page compressed.
    hits_per_compression: f64,
    /// Mean share of the memory over all requests; the next field is the share at the end.
    tier_share_mean: f64,
    tier_share_end: f64,
    /// Processor time of the tier for each request, us.
    tier_cpu_us: f64,
}

type Cell = tiers::Cell<Columns>;

/// A pseudo-random number for `id` (SplitMix64), in 0..1.
fn lot(id: u32) -> f64 {
    let word = mix(u64::from(id).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (word >> 11) as f64 / (1u64 << 53) as f64
}

fn compute(trace: &Trace, job: &Job, ratio: f64, options: &Compress) -> Cell {
    let prices = Prices::default();
    let setup = |budget| {
        let percent = if ratio > 1.0 { options.compress_share.0.clone() } else { 0..=0 };
        Setup { budget, ratio, percent, prices, device: None }
    };
    let content = |id| Content { file: 0, compresses: lot(id) >= options.compress_refused };
    Cell::of(trace, job, setup, &content, |sim| {
        let outcome = sim.outcome();
        Columns {
            miss_ratio: outcome.misses as f64 / outcome.requests.max(1) as f64,
            hits_per_compression: outcome.hits_per_compression(),
            tier_share_mean: outcome.share_mean() / sim.budget() as f64,
            tier_share_end: sim.share() as f64 / sim.budget() as f64,
            tier_cpu_us: outcome.tier_ns(&prices) / 1000.0,
            outcome,
        }
    })
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
    tiers::compute_all(trace, jobs, &ratios, progress, |job, ratio| compute(trace, job, ratio, options))
}

pub(super) fn table(cells: &[Cell]) -> String {
    let words = "ratio,misses,below,compr.,promoted,h/c,tier: mean,end,moves/turns,us,time";
    let head: Vec<_> = words.split(',').zip([7, 9, 8, 9, 9, 7, 13, 13, 11, 8, 8]).collect();
    tiers::table(cells, &head, |cell| {
        let Columns { outcome, miss_ratio, hits_per_compression, tier_share_mean, tier_share_end, .. } =
            &cell.more;
        format!(
            "{:>7}{miss_ratio:>9.4}{:>8.4}{:>9.4}{:>9.4}{hits_per_compression:>7.2}{:>11.1} %{:>11.1} %{:>11}{:>8.2}{:>7.1} %",
            cell.ratio,
            cell.of_requests(outcome.tier_hits),
            cell.of_requests(outcome.stored + outcome.refused),
            cell.of_requests(outcome.promoted),
            tier_share_mean * 100.0,
            tier_share_end * 100.0,
            format!("{}/{}", outcome.moves, outcome.turns),
            cell.request_us,
            cell.time_ratio * 100.0,
        )
    })
}
