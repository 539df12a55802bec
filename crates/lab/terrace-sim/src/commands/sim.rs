//! `terrace-sim sim`: the misses of each policy on a trace.

use std::io;

use clap::Args;
use serde::Serialize;
use terrace_output::Progress;
use terrace_policy::NAMES;
use terrace_sim::cells::{Cell, Job, OPT, SAMPLED, Size, chosen, compute_all, known, pages};
use terrace_sim::ranking::{Bounds, Rank, ranking, ranking_table, table};
use terrace_sim::sim::Mode;
use terrace_sim::trace::{Trace, names, warn_of_loss};

use super::compressed::{self, Compress};
use super::device::{self, Device};
use super::options::{Input, Output};

const COLUMNS: &str = "trace,policy,size_frac,cache_pages,requests,misses,miss_ratio";

/// Options of `sim`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  terrace-sim sim --trace w106.u64.zst
  terrace-sim sim --trace a.oracleGeneral.bin.zst b.csv --policy strata,lru,opt --size 1%,10%,50000
  terrace trace MNT -o today.trc; terrace-sim sim --trace today.trc --size 262144 --sampled
  terrace-sim sim --trace w106.u64.zst --policy strata --size 10% --compress 1.62,1.87
  terrace-sim sim --trace w106.u64.zst --policy strata --size 5% --device 10%,40% --source-us 500 --device-us 90")]
pub(crate) struct Sim {
    #[command(flatten)]
    input: Input,
    /// Policies; default: all. `opt` (Belady's optimum) is added where shares above it are shown.
    #[arg(long = "policy", value_name = "NAMES", value_delimiter = ',')]
    policies: Vec<String>,
    /// Pool sizes: pages, or shares of the trace's different pages, rounded down.
    #[arg(long = "size", value_name = "SIZES", value_delimiter = ',', default_value = "0.1%,1%,10%,25%")]
    sizes: Vec<Size>,
    /// Feeds accesses as the engine does: hits as touch counts, victims in batches ahead of demand.
    #[arg(long)]
    sampled: bool,
    #[command(flatten)]
    compress: Compress,
    #[command(flatten)]
    device: Device,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    sampled: bool,
    cells: Vec<Above<'a>>,
    ranking: &'a [Rank],
}

#[derive(Serialize)]
struct Above<'a> {
    #[serde(flatten)]
    cell: &'a Cell,
    above_opt: Option<f64>,
}

/// Runs the simulations and prints them.
pub(crate) fn run(options: &Sim) -> io::Result<()> {
    if !options.device.device.is_empty() {
        return run_device(options);
    }
    if !options.compress.compress.is_empty() {
        return run_compressed(options);
    }
    let mut policies = policies(options, known())?;
    if !options.output.csv && !policies.iter().any(|policy| policy == OPT) {
        policies.push(OPT.into());
    }
    let mode = if options.sampled { SAMPLED } else { Mode::Exact };
    let cells = of_traces(options, &policies, mode, compute_all)?;
    let bounds = Bounds::of(&cells);
    let ranks = ranking(&cells, &bounds);
    let above = |cell| Above { cell, above_opt: bounds.above(cell) };
    let report = Report {
        schema: "terrace.sim.v1",
        sampled: options.sampled,
        cells: cells.iter().map(above).collect(),
        ranking: &ranks,
    };
    let of_each = cells.len() / ranks.len().max(1);
    let text = || format!("{}{}", table(&cells, &bounds), ranking_table(&ranks, of_each));
    options.output.print(COLUMNS, &cells, report, text)
}

/// The policies of the command line, or `usual`.
fn policies(options: &Sim, usual: Vec<&str>) -> io::Result<Vec<String>> {
    if options.policies.is_empty() {
        return Ok(usual.into_iter().map(str::to_owned).collect());
    }
    chosen(&options.policies).map_err(io::Error::other)
}

/// The cells of all traces with each policy at each size.
fn of_traces<C>(
    options: &Sim,
    policies: &[String],
    mode: Mode,
    mut compute: impl FnMut(&Trace, &[Job], &mut Progress) -> Vec<C>,
) -> io::Result<Vec<C>> {
    let mut progress = Progress::default();
    let mut cells = Vec::new();
    for (path, name) in options.input.traces.iter().zip(names(&options.input.traces)) {
        let trace = Trace { name, ..Trace::load(path, &options.input.options(), &mut progress)? };
        options.sizes.iter().try_for_each(|size| check_size(options, &trace, *size))?;
        cells.extend(compute(&trace, &jobs(policies, &options.sizes, mode), &mut progress));
        progress.clear();
        warn_of_loss(&trace.name, trace.lost, trace.ids.len());
    }
    Ok(cells)
}

fn check_size(options: &Sim, trace: &Trace, size: Size) -> io::Result<()> {
    let has_tiers = !(options.device.device.is_empty() && options.compress.compress.is_empty());
    match pages(trace, size).map_err(io::Error::other)? {
        1 if has_tiers => {
            let why = format!("{}: two tiers need two pages; give a larger --size", trace.name);
            Err(io::Error::other(why))
        }
        _ => Ok(()),
    }
}

/// The cells of all traces with more than one tier.
fn with_tiers<C>(
    options: &Sim,
    compute: impl FnMut(&Trace, &[Job], &mut Progress) -> Vec<C>,
) -> io::Result<Vec<C>> {
    let policies = policies(options, vec![NAMES[0]])?;
    if policies.iter().any(|policy| policy == OPT) {
        return Err(io::Error::other("opt has no tiers below memory; leave it out of --policy"));
    }
    of_traces(options, &policies, SAMPLED, compute)
}

/// As [`run`], with tiers on a device.
fn run_device(options: &Sim) -> io::Result<()> {
    let Compress { compress, compress_share, .. } = &options.compress;
    let compressed = (compress.first().copied().unwrap_or(1.0), *compress_share.0.end());
    let prices = options.device.prices()?;
    let cells = with_tiers(options, |trace, jobs, progress| {
        device::compute_all(trace, jobs, compressed, &options.device, prices, progress)
    })?;
    let report = serde_json::json!({ "schema": "terrace.sim-device.v1", "cells": cells });
    options.output.print(device::COLUMNS, &cells, report, || device::table(&cells))
}

/// As [`run`], with compressed tiers.
fn run_compressed(options: &Sim) -> io::Result<()> {
    let cells = with_tiers(options, |trace, jobs, progress| {
        compressed::compute_all(trace, jobs, &options.compress, progress)
    })?;
    let report = serde_json::json!({ "schema": "terrace.sim-compress.v1", "cells": cells });
    options.output.print(compressed::COLUMNS, &cells, report, || compressed::table(&cells))
}

/// Each policy at each size. The largest pools do not come last, or one core would wait for the other.
fn jobs(policies: &[String], sizes: &[Size], mode: Mode) -> Vec<Job> {
    let at = |size: &Size| {
        let size = *size;
        policies.iter().map(move |policy| Job { policy: policy.clone(), size, mode })
    };
    sizes.iter().rev().flat_map(at).collect()
}
