//! Command-line options of `terrace-bench compare`.

use super::show::Format;
use clap::Args;
use std::path::PathBuf;

/// Options of `compare`.
#[derive(Clone, Debug, Default, Args)]
#[command(after_help = "Examples:
  terrace-bench compare raw.jsonl --factor system --baseline kernel
  terrace-bench compare old/raw.jsonl new/raw.jsonl                      # regressions between two runs of one benchmark
  terrace-bench compare study.csv --factor kernel --baseline baseline --by jobs,distribution --format markdown
  terrace-bench compare a/*.json b/*.json --factor dir --baseline a --by bs      # fio's JSON, a file a run
Intervals of the difference are Welch's, or Student's of pairs. \"no significance\": the interval holds zero. Refused runs are listed, and never averaged.")]
pub struct Compare {
    /// Results: raw.jsonl of a matrix (or its directory), fio's JSON, CSV with a header line.
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// The column that distinguishes the systems; with two files by default the file.
    #[arg(long, value_name = "COLUMN")]
    pub factor: Option<String>,
    /// The factor's value of the baseline.
    #[arg(long, value_name = "VALUE")]
    pub baseline: Option<String>,
    /// Columns whose values make a cell; default: by the kind of file.
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',')]
    pub by: Option<Vec<String>>,
    /// Metrics to compare; default: throughput, p99 latency, CPU per operation, misses, or a CSV's only
    /// column of numbers.
    #[arg(long, value_name = "COLUMN,...", value_delimiter = ',')]
    pub metric: Vec<String>,
    /// The column that pairs the runs of a cell, for a test of their ratios; default: the repetition, if a
    /// matrix was made in pairs.
    #[arg(long, value_name = "COLUMN")]
    pub pair: Option<String>,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
    /// Confidence of the intervals.
    #[arg(long, default_value_t = 0.95)]
    pub confidence: f64,
}
