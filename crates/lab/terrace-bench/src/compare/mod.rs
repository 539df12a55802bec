//! `terrace-bench compare`: differences between systems, or between two runs of one benchmark, with
//! confidence intervals.
//!
//! ```text
//!   files ─► sources: rows, one a run ─► cells: groups, Welch's test or pairs ─► show: text · Markdown · JSON · CSV
//! ```

pub mod cells;
pub mod fio_output;
pub mod metric;
mod options;
pub mod outcome;
pub mod show;
pub mod sources;

pub use cells::{CellComparison, Comparison, Question, Row, Side, compare};
pub use metric::Better;
pub use options::Compare;
pub use outcome::{Outcome, Verdict, outcome, paired};
pub use show::Format;

use std::io;

/// Reads, compares, prints.
///
/// # Errors
/// An error of reading or comparing, in one line with the cure.
pub fn run(options: &Compare) -> io::Result<()> {
    let loaded = sources::load(options).map_err(io::Error::other)?;
    let mut answer = compare(&loaded.rows, &loaded.question).map_err(io::Error::other)?;
    answer.notices.splice(0..0, loaded.notices);
    if options.format == Format::Csv {
        answer
            .refused
            .iter()
            .for_each(|why| terrace_output::error_line!("terrace-bench: refused, not averaged in: {why}"));
        answer.notices.iter().for_each(|notice| terrace_output::error_line!("terrace-bench: {notice}"));
    }
    terrace_output::print(&show::show(&answer, options.format))
}
