//! Validation of the simulated kernel policies: their miss ratios beside those of a real kernel, and of other
//! models of the kernel's rules.
//!
//! `reference_linux_6.1.csv` (trace,cap_pages,engine,mode,actual_file_pages,miss_ratio) has the miss ratios
//! of read(2) and of mappings in a memory cgroup of Linux 6.1.192, with MGLRU (`lru_gen=y`) and without.

use std::io;
use std::path::Path;

use csv::StringRecord;
use serde::Serialize;

use crate::cells::{Job, Size, compute_all, known};
use crate::gates::{Gate, Group};
use crate::reference::no_reference;
use crate::sim::Mode;
use crate::trace::Trace;
use terrace_output::Progress;

const REFERENCE: &str = "reference_linux_6.1.csv";
/// Maximum deviation from the kernel's miss ratio.
const TOLERANCE: f64 = 0.05;
/// A chaotic row must be met within this share of the pool to either side; the next constants are the
/// tolerance, and the steps to either side.
const AROUND: f64 = 0.015;
const TOLERANCE_AROUND: f64 = 0.06;
const STEPS: i32 = 4;
/// The kernel's policies, and the share above the optimum of models of their rules in the gated cells, where
/// models exist.
const MODELS: [(&str, Option<f64>); 4] =
    [("mglru-fg", None), ("mglru-7.1", None), ("mglru-6.1", Some(0.373)), ("classic", Some(0.349))];
const MODEL_TOLERANCE: f64 = 0.02;
/// Maximum mean cost of batches for these policies, as documented.
const BATCHES_MAX: f64 = 0.03;

/// One row of the reference with the simulator's result.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    trace: String,
    policy: &'static str,
    pages: usize,
    /// The kernel's miss ratio.
    kernel: f64,
    /// Deviation from the kernel's ratio, relative; for chaotic rows the smallest within [`AROUND`]. NaN: not
    /// simulated.
    off: f64,
    chaotic: bool,
}

/// Rows where the controller of MGLRU reacts chaotically: pools one page larger or smaller have miss ratios
/// up to a tenth apart, so one run of a kernel is one random draw.
fn is_chaotic(policy: &str, trace: &str) -> bool {
    policy == "mglru-6.1" && trace == "lirs-sprite"
}

/// The rows for read(2), empty without the file. Mapped pages cannot be compared: the kernel sees their
/// accessed bits.
pub fn rows(dir: &Path) -> io::Result<Vec<Row>> {
    let path = dir.join(REFERENCE);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let unread = |e: csv::Error| io::Error::other(format!("{}: {e}", path.display()));
    let mut rows = Vec::new();
    for record in csv::ReaderBuilder::new().flexible(true).from_path(&path).map_err(unread)?.records() {
        let record = record.map_err(unread)?;
        rows.extend(row(&record).ok_or_else(|| no_reference(&path, &record))?);
    }
    Ok(rows)
}

/// `None`: no row; `Some(None)`: a row of mappings.
fn row(record: &StringRecord) -> Option<Option<Row>> {
    let (trace, _, engine, mode, pages, kernel): (String, String, String, String, usize, f64) =
        record.deserialize(None).ok().filter(|_| record.len() == 6)?;
    let policy = if engine.ends_with("lru_gen=y") { "mglru-6.1" } else { "classic" };
    let chaotic = is_chaotic(policy, &trace);
    let row = Row { trace, policy, pages, kernel, off: f64::NAN, chaotic };
    Some((mode == "read").then_some(row)).filter(|_| pages > 0)
}

/// Simulates the rows of this trace.
pub fn run(rows: &mut [Row], trace: &Trace, progress: &mut Progress) {
    for row in rows.iter_mut().filter(|row| row.trace == trace.name && known().contains(&row.policy)) {
        let steps = if row.chaotic { -STEPS..=STEPS } else { 0..=0 };
        let jobs: Vec<Job> = steps
            .map(|step| (row.pages as f64 * (1.0 + AROUND * f64::from(step) / f64::from(STEPS))) as usize)
            .map(|pages| Job {
                policy: row.policy.into(),
                size: Size::Pages(pages.max(1)),
                mode: Mode::Exact,
            })
            .collect();
        let off =
            compute_all(trace, &jobs, progress).into_iter().map(|cell| cell.miss_ratio / row.kernel - 1.0);
        row.off = off.min_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(f64::NAN);
    }
}

/// The gates of these rows; none without rows. `above`: the mean share above the optimum of a policy.
pub fn gates(rows: &[Row], gated: &Group, above: impl Fn(&str) -> f64) -> Vec<Gate> {
    if rows.is_empty() {
        return Vec::new();
    }
    let (near, far): (Vec<&Row>, Vec<&Row>) =
        rows.iter().partition(|row| row.off.abs() <= if row.chaotic { TOLERANCE_AROUND } else { TOLERANCE });
    let models = MODELS.iter().filter_map(|(policy, model)| Some((above(policy), policy, (*model)?)));
    let models: Vec<(bool, String)> = models
        .map(|(above, policy, model)| {
            let text = format!("{policy} {:.2} %, the model {:.1} %", above * 100.0, model * 100.0);
            ((above - model).abs() < MODEL_TOLERANCE, text)
        })
        .collect();
    let batches: Vec<(bool, String)> = MODELS
        .iter()
        .map(|(policy, _)| (gated.cost_of_batches(policy), policy))
        .map(|(cost, policy)| (cost < BATCHES_MAX, format!("{policy} {:+.2} % misses", cost * 100.0)))
        .collect();
    let of = |gate: String, found: Vec<(bool, String)>| Gate {
        gate,
        passed: found.iter().all(|(good, _)| *good),
        found: found.into_iter().map(|(_, text)| text).collect(),
    };
    vec![
        Gate {
            gate: format!(
                "mglru-6.1 and classic within {:.0} % of Linux 6.1's miss ratios ({:.0} % near a chaotic size)",
                TOLERANCE * 100.0,
                TOLERANCE_AROUND * 100.0
            ),
            passed: far.is_empty(),
            found: far.into_iter().chain(near).map(told).collect(),
        },
        of(
            format!("the kernel's policies within {:.0} points of their models", MODEL_TOLERANCE * 100.0),
            models,
        ),
        of(format!("batches cost them less than {:.0} % misses", BATCHES_MAX * 100.0), batches),
    ]
}

fn told(row: &Row) -> String {
    let Row { trace, policy, pages, kernel, off, chaotic } = row;
    let around = if *chaotic { ", chaotic: the nearest of 9 pools around" } else { "" };
    let ours = kernel * (1.0 + off);
    format!(
        "{policy} on {trace} at {pages} pages: {ours:.4}, kernel {kernel:.4} ({:+.2} %{around})",
        off * 100.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_met_or_not() {
        let row = |line: &str| row(&StringRecord::from(line.split(',').collect::<Vec<_>>()));
        let line = |ratio: f64| format!("t,90,linux-6.1.192-lru_gen=n,read,100,{ratio:.6}");
        assert!(row("t,90,linux,mmap,100,0.5").unwrap().is_none());
        assert!(row("t,90,linux,read,0,0.5").is_none() && row("a,b").is_none());
        let ids: Vec<u32> = (0..30_000u32).map(|i| i * 7919 % 1000 * (i % 13) % 997).collect();
        let trace = Trace::new("t".into(), ids, 1000, 0);
        let off = |ratio: f64| {
            let mut rows = vec![row(&line(ratio)).unwrap().unwrap()];
            run(&mut rows, &trace, &mut Progress::default());
            let gates = gates(&rows, &Group::default(), |_| 0.35);
            (rows[0].off, gates[0].passed)
        };
        let ours = (off(0.5).0 + 1.0) * 0.5;
        assert_eq!(
            (off(ours).1, off(ours / 1.04).1, off(ours / 1.06).1, off(ours / 0.94).1),
            (true, true, false, false)
        );
    }
}
