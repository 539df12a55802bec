//! Formats of numbers, names and tables in the output of terrace-bench.

use comfy_table::{Table, presets};
use serde::Serialize;

/// Terminal escape: red.
pub(crate) const RED: &str = "\x1b[31m";
/// Terminal escape: ends [`RED`].
pub(crate) const UNDONE: &str = "\x1b[0m";

/// Three significant digits or more, no exponents: for progress and small tables.
pub(crate) fn short(v: f64) -> String {
    match v.abs() {
        a if a >= 100.0 => format!("{v:.0}"),
        a if a >= 10.0 => format!("{v:.1}"),
        a if a >= 1.0 => format!("{v:.2}"),
        _ => format!("{v:.3}"),
    }
}

/// The name of a variant in a matrix, or in JSON.
pub fn name_of(variant: impl Serialize) -> String {
    serde_json::to_value(variant).ok().and_then(|name| Some(name.as_str()?.to_owned())).expect("a plain enum")
}

/// A table without borders, columns two blanks apart.
pub(crate) fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

pub(crate) fn markdown_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table
}
