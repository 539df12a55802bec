//! `terrace-sim mrc` estimates the miss ratios of LRU caches of all sizes in one pass, from sampled pages.
//! `--exact` adds the exact curve.

use std::fmt::Write;
use std::io;
use std::path::Path;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use terrace_output::Progress;
use terrace_policy::mrc::{Curve, Exact, SAMPLES, Shards};
use terrace_sim::ranking::percent;
use terrace_sim::trace::{each_key, name, warn_of_loss};

use super::options::{Input, Output};

/// Sizes at which sampled and exact curve are compared.
const COMPARED: usize = 1000;
/// Shares of all pages in the table.
const SHOWN: [f64; 13] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0];
/// Number of sizes in a CSV or in JSON.
const FINE: usize = 200;

const COLUMNS: &str = "trace,size_frac,cache_pages,miss_ratio,exact";

/// Options of `mrc`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  terrace-sim mrc --trace w106.u64.zst
  terrace-sim mrc --trace w106.u64.zst --exact
  terrace-sim mrc --trace big.oracleGeneral.bin.zst --samples 65536 --csv > mrc.csv")]
pub(crate) struct Mrc {
    #[command(flatten)]
    input: Input,
    /// Different pages followed at once (SHARDS with a fixed sample); the error falls with their root.
    #[arg(long, default_value_t = SAMPLES as u32, value_parser = clap::value_parser!(u32).range(2..=1 << 28))]
    samples: u32,
    /// Computes the exact curve, too (40 bytes a page), and prints the error of the sampled one.
    #[arg(long)]
    exact: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Point {
    size_frac: f64,
    cache_pages: u64,
    miss_ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    exact: Option<f64>,
}

/// A line of the CSV.
#[derive(Serialize)]
struct Row<'a> {
    trace: &'a str,
    #[serde(flatten)]
    point: &'a Point,
}

#[derive(Serialize)]
struct Found {
    trace: String,
    requests: f64,
    pages: f64,
    sampling_rate: f64,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_mean: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_greatest: Option<f64>,
    points: Vec<Point>,
}

/// Estimates the curves and prints them.
pub(crate) fn run(options: &Mrc) -> io::Result<()> {
    let mut progress = Progress::default();
    let mut found = Vec::new();
    for path in &options.input.traces {
        found.push(curve(path, options, &mut progress)?);
    }
    progress.clear();
    let columns = if options.exact { COLUMNS } else { COLUMNS.trim_end_matches(",exact") };
    let report = serde_json::json!({"schema": "terrace-sim.mrc.v1", "traces": found});
    options.output.print(columns, rows(&found), report, || found.iter().map(table).collect())
}

fn rows(found: &[Found]) -> impl Iterator<Item = Row<'_>> {
    found.iter().flat_map(|of| of.points.iter().map(|point| Row { trace: &of.trace, point }))
}

fn curve(path: &Path, options: &Mrc, progress: &mut Progress) -> io::Result<Found> {
    let begun = Instant::now();
    let mut shards = Shards::new(options.samples as usize);
    let mut exact = options.exact.then(Exact::default);
    let lost = each_key(path, &options.input.options(), progress, |key| {
        shards.feed(key);
        if let Some(exact) = &mut exact {
            exact.feed(key);
        }
    })?;
    let (sampled, exact) = (shards.curve(), exact.map(|exact| exact.curve()));
    let pages = exact.as_ref().map_or(sampled.pages, |exact| exact.pages);
    progress.clear();
    warn_of_loss(&name(path), lost, sampled.accesses as usize);
    let shown = if options.output.json || options.output.csv { fine() } else { SHOWN.to_vec() };
    let error = exact.as_ref().map(|exact| exact.difference(&sampled, pages, COMPARED));
    Ok(Found {
        trace: name(path),
        requests: sampled.accesses,
        pages: pages.round(),
        sampling_rate: shards.rate(),
        seconds: begun.elapsed().as_secs_f64(),
        error_mean: error.map(|error| error.0),
        error_greatest: error.map(|error| error.1),
        points: points(&shown, pages, &sampled, exact.as_ref()),
    })
}

/// From a thousandth to all, each size some 3.5 % above the one before.
fn fine() -> Vec<f64> {
    (0..=FINE).map(|i| 10f64.powf(3.0 * (i as f64 / FINE as f64 - 1.0))).collect()
}

fn points(shares: &[f64], pages: f64, sampled: &Curve, exact: Option<&Curve>) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    for share in shares {
        let size = (pages * share).round();
        if size >= 1.0 && points.last().is_none_or(|last| last.cache_pages < size as u64) {
            points.push(Point {
                size_frac: (share * 1e6).round() / 1e6,
                cache_pages: size as u64,
                miss_ratio: sampled.miss_ratio(size),
                exact: exact.map(|exact| exact.miss_ratio(size)),
            });
        }
    }
    points
}

fn table(found: &Found) -> String {
    let mut out = format!(
        "{}: {} requests, {} pages; {:.2} % of the pages sampled; {:.2} s\n",
        found.trace,
        found.requests,
        found.pages,
        found.sampling_rate * 100.0,
        found.seconds
    );
    let exact = if found.error_mean.is_some() { "     exact" } else { "" };
    let _ = writeln!(out, "{:>10}{:>12}{:>12}{exact}", "size", "pages", "miss ratio");
    for point in &found.points {
        let exact = point.exact.map_or(String::new(), |exact| format!("{exact:10.4}"));
        let size = percent(point.size_frac);
        let _ = writeln!(out, "{size:>10}{:12}{:12.4}{exact}", point.cache_pages, point.miss_ratio);
    }
    if let (Some(mean), Some(greatest)) = (found.error_mean, found.error_greatest) {
        let _ = writeln!(out, "difference at {COMPARED} sizes: {mean:.5} on average, {greatest:.4} at most");
    }
    out.push('\n');
    out
}
