//! Options of several subcommands.

use std::convert::Infallible;
use std::path::PathBuf;

use clap::Args;
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
