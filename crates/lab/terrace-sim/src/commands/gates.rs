//! `terrace-sim gates`: every policy on a directory of traces, and the gates that the policies must pass.
//!
//! The reference ([`reference`]) names the cells of the first group, which the gates judge. All other traces
//! of the directory are the second group. An optional file has the misses of a real kernel ([`kernel`]).

use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use terrace_api::capture::Options;
use terrace_output::{Progress, named, print};
use terrace_sim::cells::Size;
use terrace_sim::gates::{self, Gate, Group};
use terrace_sim::kernel;
use terrace_sim::ranking::{Rank, ranking, ranking_table, table};
use terrace_sim::reference::{self, PAGES_MIN, Reference};
use terrace_sim::trace::{self, Trace};

use super::options::json;

const TRACES: [&str; 2] = [".u64.zst", ".u64"];
/// Shares of a trace's pages, for traces outside the reference.
const SHARES: [f64; 4] = [0.001, 0.01, 0.1, 0.25];

/// Options of `gates`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example:
  terrace-sim gates --traces DIR
Exit code: 0 all gates passed, 1 one did not, 2 error.")]
pub(crate) struct Gates {
    /// Directory of NAME.u64 or NAME.u64.zst and reference_miss_ratios.csv (trace,policy,size_frac,cache_objects,miss_ratio).
    #[arg(long, env = "TERRACE_TRACES", value_name = "DIR")]
    traces: PathBuf,
    /// Results as JSON on stdout, instead of tables.
    #[arg(long)]
    json: bool,
}

/// Runs all policies on all traces and judges them.
pub(crate) fn run(options: &Gates) -> io::Result<u8> {
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
    let (of_default, of_published) = (gates::of_default(&gated), reference::gates(&reference, &gated));
    let mut gates: Vec<Gate> = of_default.into_iter().chain(of_published).collect();
    gates.push(gates::of_optimum([&gated, &others]));
    let ranks = ranking(&gated.exact, &gated.bounds());
    let above = |policy: &str| {
        ranks.iter().find(|rank| rank.policy == policy).map_or(f64::NAN, |rank| rank.above_opt_mean)
    };
    gates.extend(kernel::gates(&kernel, &gated, above));
    print(&if options.json { report(&gated, &others, &gates)? } else { text(&gated, &others, &gates) })?;
    Ok(u8::from(gates.iter().any(|gate| !gate.passed)))
}

fn traces(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let named = named(dir);
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

fn report(gated: &Group, others: &Group, gates: &[Gate]) -> io::Result<String> {
    let group = |group: &Group| {
        let bounds = group.bounds();
        serde_json::json!({
            "cells": group,
            "ranking": ranking(&group.exact, &bounds),
            "ranking_sampled": ranking(&group.sampled, &bounds),
        })
    };
    let passed = gates.iter().all(|gate| gate.passed);
    json(&serde_json::json!({
        "schema": "terrace.policies.v1", "passed": passed, "gates": gates, "gated": group(gated), "others": group(others),
    }))
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

/// The cost of batched hits for each policy.
fn sampled_table(exact: &[Rank], sampled: &[Rank]) -> String {
    let mut out = String::from("\nThe same as the engine feeds them (hits as touch counts, victims by 64)\n");
    for rank in sampled {
        let told = exact
            .iter()
            .find(|other| other.policy == rank.policy)
            .map_or(f64::NAN, |other| other.above_opt_mean);
        let _ = writeln!(
            out,
            "{:12}{:7.2} %  each access reported {:7.2} %  mean miss ratio {:.4}  {:6.1} M requests/s",
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
