//! Command-line options of several subcommands: trace files, and the output format.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::Value;
use terrace_api::capture::{Column, Format, Options};

/// Output format.
#[derive(Clone, Debug, Args)]
pub(crate) struct Output {
    /// Results as JSON on stdout, instead of a table.
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Results as CSV on stdout, instead of a table.
    #[arg(long)]
    pub(crate) csv: bool,
}

impl Output {
    /// Prints a result as CSV of these columns, as JSON, or as a table.
    pub(crate) fn print<R: Serialize>(
        &self,
        columns: &str,
        rows: impl IntoIterator<Item = R>,
        report: impl Serialize,
        table: impl FnOnce() -> String,
    ) -> io::Result<()> {
        terrace_output::print(&match (self.csv, self.json) {
            (true, _) => csv(columns, rows)?,
            (_, true) => json(&report)?,
            _ => table(),
        })
    }
}

/// A report as JSON on several lines.
pub(crate) fn json(report: &impl Serialize) -> io::Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

/// The fields of these names, a line a row.
fn csv<R: Serialize>(columns: &str, rows: impl IntoIterator<Item = R>) -> io::Result<String> {
    let fields = |row: R| {
        let row = serde_json::to_value(row)?;
        Ok(columns.split(',').map(|name| field(name, &row[name])).collect())
    };
    let rows: Vec<Vec<String>> = rows.into_iter().map(fields).collect::<io::Result<_>>()?;
    terrace_output::csv(columns.split(','), rows)
}

/// Parameters have all digits, miss ratios six decimals, other fractions four.
fn field(name: &str, value: &Value) -> String {
    match (name, value.as_f64().filter(|_| value.is_f64())) {
        (_, None) => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
        ("size_frac" | "ratio", Some(number)) => number.to_string(),
        ("miss_ratio" | "exact", Some(number)) => format!("{number:.6}"),
        (_, Some(number)) => format!("{number:.4}"),
    }
}

/// Trace files and their format.
#[derive(Clone, Debug, Args)]
pub(crate) struct Input {
    /// Trace files, compressed with zstd or not: u64 keys, libCacheSim's oracleGeneral, text, CSV, MSR Cambridge's, captures of `terrace trace`.
    #[arg(long = "trace", value_name = "FILE", num_args = 1.., required = true)]
    pub(crate) traces: Vec<PathBuf>,
    /// The traces' format, if content and name do not show it: u64, oracle, text, csv, msr, terrace.
    #[arg(long, value_parser = format)]
    pub(crate) format: Option<Format>,
    /// A CSV's column of keys: its number, from 1, or its name in the header.
    #[arg(long, value_parser = column)]
    pub(crate) column: Option<Column>,
}

impl Input {
    /// Options for a trace reader.
    pub(crate) fn options(&self) -> Options {
        Options { format: self.format, column: self.column.clone() }
    }
}

fn format(text: &str) -> Result<Format, String> {
    Format::named(text).ok_or_else(|| {
        let names = Format::ALL.map(Format::name).join(", ");
        format!("no format; there are {names}")
    })
}

fn column(text: &str) -> Result<Column, Infallible> {
    Ok(Column::parse(text))
}
