//! `terrace-sim numa`: thread placement on machines with several memory nodes.

use std::fmt::Write;
use std::io;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use terrace_output::{Progress, print};
use terrace_sim::numa::cells::{Cell, Report, report};
use terrace_sim::numa::load::Preset;
use terrace_sim::numa::run::{Baseline, Policy};

use super::options::json;

/// Options of `numa`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  terrace-sim numa --preset fio
  terrace-sim numa --preset rocksdb --nodes 4 --policy full --json

The model is one of two sockets with a module of persistent memory each (or of four such nodes), from published measurements; nothing here
was measured on one. Gains are against the baseline without any policy: in `home-node`, writes go to the node of the file; in `local-writes`,
to the node of the thread. With a policy they always go to the node of the thread.")]
pub(crate) struct Numa {
    /// The load: fio (4 KiB at random, 20 to 80 % reads) or rocksdb (PUT, MIX, GET)
    #[arg(long, value_parser = PossibleValuesParser::new(["fio", "rocksdb"]))]
    preset: String,
    /// Memory nodes, each with ten processors and four threads
    #[arg(long, default_value = "2", value_parser = PossibleValuesParser::new(["2", "4"]))]
    nodes: String,
    /// Shows only this policy, beside the baseline
    #[arg(long, value_parser = PossibleValuesParser::new(Policy::ALL.map(Policy::name)))]
    policy: Option<String>,
    /// Placement of writes by the file system without a policy
    #[arg(long, default_value = "home-node", value_parser = PossibleValuesParser::new(Baseline::ALL.map(Baseline::name)))]
    baseline: String,
    /// Results as JSON on stdout, instead of a table: those of both baselines.
    #[arg(long)]
    json: bool,
}

/// The JSON: the requested baseline at the top, below it both.
#[derive(Serialize)]
struct Json<'a> {
    schema: &'static str,
    preset: &'a str,
    nodes: usize,
    #[serde(flatten)]
    report: &'a Report,
    baselines: &'a [Report],
}

/// Runs the model and prints the result.
pub(crate) fn run(options: &Numa) -> io::Result<()> {
    let preset = Preset::named(&options.preset).expect("clap has checked it");
    let nodes = if options.nodes == "4" { 4 } else { 2 };
    let mut progress = Progress::default();
    // The requested baseline comes first.
    let mut baselines = Baseline::ALL.to_vec();
    baselines.sort_by_key(|baseline| baseline.name() != options.baseline);
    let mut reports: Vec<Report> =
        baselines.into_iter().map(|baseline| report(preset, nodes, baseline, &mut progress)).collect();
    progress.clear();
    for report in &mut reports {
        report.cells.retain(|cell| is_shown(cell, options));
    }
    let asked = &reports[0];
    let (schema, preset) = ("terrace-sim.numa.v1", preset.name());
    print(&if options.json {
        json(&Json { schema, preset, nodes, report: asked, baselines: &reports })?
    } else {
        let head =
            format!("{preset} on {nodes} nodes, {} threads, mean of {} layouts\n", 4 * nodes, asked.layouts);
        reports.iter().fold(head, |text, report| text + &table(report))
    })
}

fn is_shown(cell: &Cell, options: &Numa) -> bool {
    let asked = options.policy.as_deref();
    cell.policy == Policy::None.name() || asked.is_none_or(|policy| cell.policy == policy)
}

fn table(report: &Report) -> String {
    let mut out = format!("\nbaseline {}\n", report.baseline);
    let _ = writeln!(
        out,
        "{:12}{:16}{:>10}{:>10}{:>20}{:>10}{:>8}{:>8}{:>12}",
        "", "policy", "MB/s", "gain %", "min - max", "remote %", "moves", "late", "frames MB"
    );
    for cell in &report.cells {
        let range = format!("{:.1} - {:.1}", cell.gain_percent_min, cell.gain_percent_max);
        let _ = writeln!(
            out,
            "{:12}{:16}{:10.0}{:10.1}{range:>20}{:10.1}{:8.1}{:8.2}{:12.0}",
            cell.kind,
            cell.policy,
            cell.mb_s,
            cell.gain_percent,
            cell.remote_reads * 100.0,
            cell.thread_moves,
            cell.late_moves,
            cell.frame_mb
        );
    }
    let _ = writeln!(
        out,
        "remote access alone at 40 % reads {:+.1} %; all rules, mean {:+.1} %; and frames {:+.1} %",
        report.gain_remote_at_40, report.gain_full_mean, report.gain_threads_frames_mean
    );
    out
}
