//! The policy laboratory: the engine's own policy objects on recorded accesses.
//!
//! ```text
//!   trace file ─► trace: keys numbered once ─► cells: policy x size, on all cores ─► table · CSV · JSON · plot
//!                                                                                └─► policies: gates
//!   trace file ─► mrc: one pass, no numbering, fixed memory ─► curve
//! ```
//! Commands: [`sim`], [`mrc`], [`policies`].

pub mod board;
pub mod cells;
pub mod kernel;
pub mod mrc;
pub mod plot;
pub mod policies;
pub mod progress;
pub mod sim;
pub mod squeezed;
pub mod trace;

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Where results go.
#[derive(Clone, Debug, clap::Args)]
pub struct Output {
    /// Results as JSON on stdout, instead of a table.
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Results as CSV on stdout, instead of a table.
    #[arg(long)]
    pub csv: bool,
    /// Draws the miss ratios into one HTML file that needs nothing else.
    #[arg(long, value_name = "FILE.html")]
    pub plot: Option<std::path::PathBuf>,
}

/// Which files are traces, and how they are read.
#[derive(Clone, Debug, clap::Args)]
pub struct Input {
    /// Trace files, compressed with zstd or not: u64 keys, libCacheSim's oracleGeneral, text, CSV, captures of `terrace trace`.
    #[arg(long = "trace", value_name = "FILE", num_args = 1.., required = true)]
    pub traces: Vec<std::path::PathBuf>,
    /// The traces' format, where content and name do not tell: u64, oracle, text, csv, terrace.
    #[arg(long, value_parser = format)]
    pub format: Option<terrace_trace::Format>,
    /// A CSV's column of keys: its number, from 1, or its name in the header.
    #[arg(long, value_parser = column)]
    pub column: Option<terrace_trace::Column>,
}

impl Input {
    /// What a trace reader wants to be told.
    pub fn options(&self) -> terrace_trace::Options {
        terrace_trace::Options { format: self.format, column: self.column.clone() }
    }
}

fn format(text: &str) -> Result<terrace_trace::Format, String> {
    terrace_trace::Format::named(text).ok_or_else(|| {
        let names = terrace_trace::Format::ALL.map(terrace_trace::Format::name).join(", ");
        format!("no format; there are {names}")
    })
}

fn column(text: &str) -> Result<terrace_trace::Column, std::convert::Infallible> {
    Ok(terrace_trace::Column::parse(text))
}

/// Prints all at once; a reader that went away (`| head`) is no error.
pub(crate) fn print(text: &str) -> io::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|e| unwritten("standard output", e)),
    }
}

/// Puts a file in place whole, or not at all. What is no file (a pipe, a device) is not replaced but written to.
pub(crate) fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let named = |e| unwritten(path.display(), e);
    if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
        return fs::write(path, text).map_err(named);
    }
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".new");
    fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, path)).map_err(|e| {
        let _ = fs::remove_file(&unfinished);
        named(e)
    })
}

fn unwritten(what: impl fmt::Display, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{what}: {e} (make room, or name another file)"))
}
