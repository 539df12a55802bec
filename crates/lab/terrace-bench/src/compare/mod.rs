//! `terrace-bench compare`: differences between systems, or between two runs of one benchmark, with
//! confidence intervals.
//!
//! ```text
//!   files ─► sources: rows, one a run ─► cells: groups, Welch's test or pairs ─► show: text · Markdown · JSON · CSV
//! ```

pub mod cells;
pub mod fio_output;
pub mod metric;
pub mod outcome;
pub mod show;
pub mod sources;

pub use cells::{CellComparison, Comparison, Question, Row, Side, compare};
pub use metric::Better;
pub use outcome::{Outcome, Verdict, outcome, paired};
pub use show::Format;

use std::io;
use std::path::PathBuf;

/// Options of `compare`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  terrace-bench compare raw.jsonl --factor system --baseline kernel
  terrace-bench compare old/raw.jsonl new/raw.jsonl                      # regressions between two runs of one benchmark
  terrace-bench compare study.csv --factor kernel --baseline baseline --by jobs,distribution --format markdown
  terrace-bench compare a/*.json b/*.json --factor dir --baseline a --by bs      # fio's JSON, a file a run
Intervals of the difference are Welch's, or Student's of pairs. \"no significance\": the interval holds zero. Refused runs are listed, and never averaged.")]
pub struct Compare {
    /// Results: raw.jsonl of a matrix (or its directory), fio's JSON, CSV with a header line.
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// The column that distinguishes the systems; with two files by default the file.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) factor: Option<String>,
    /// The factor's value of the baseline.
    #[arg(long, value_name = "VALUE")]
    pub(crate) baseline: Option<String>,
    /// Columns whose values make a cell; default: by the kind of file.
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',')]
    pub(crate) by: Option<Vec<String>>,
    /// Metrics to compare; default: throughput, p99 latency, CPU per operation, misses, or a CSV's only
    /// column of numbers.
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',')]
    pub(crate) metric: Vec<String>,
    /// The column that pairs the runs of a cell, for a test of their ratios; default: the repetition, if a
    /// matrix was made in pairs.
    #[arg(long, value_name = "COLUMN")]
    pub(crate) pair: Option<String>,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: Format,
    /// Confidence of the intervals.
    #[arg(long, default_value_t = 0.95)]
    pub(crate) confidence: f64,
}

/// Reads, compares, prints.
///
/// # Errors
/// An error of reading or comparing, in one line with the cure.
pub fn run(options: &Compare) -> io::Result<i32> {
    let named = |names: &[String]| names.iter().filter(|name| !name.is_empty()).cloned().collect::<Vec<_>>();
    let asked = sources::Selection {
        factor: options.factor.clone(),
        baseline: options.baseline.clone(),
        by: options.by.as_deref().map(named),
        metrics: named(&options.metric),
        pair: options.pair.clone(),
        confidence: options.confidence,
    };
    let loaded = sources::load(&options.files, &asked).map_err(io::Error::other)?;
    let mut answer = compare(&loaded.rows, &loaded.question).map_err(io::Error::other)?;
    answer.notices.splice(0..0, loaded.notices);
    if options.format == Format::Csv {
        answer
            .refused
            .iter()
            .for_each(|why| terrace_output::error_line!("terrace-bench: refused, not averaged in: {why}"));
        answer.notices.iter().for_each(|notice| terrace_output::error_line!("terrace-bench: {notice}"));
    }
    terrace_output::print(&show::show(&answer, options.format))?;
    Ok(0)
}
