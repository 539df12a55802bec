//! Numbers and tables as people read them.

use comfy_table::{Table, presets};

/// Escapes of a terminal.
pub const RED: &str = "\x1b[31m";
/// Ends [`RED`].
pub const UNDONE: &str = "\x1b[0m";

/// Three significant digits or more, no exponents: for progress and small tables.
pub fn short(v: f64) -> String {
    match v.abs() {
        a if a >= 100.0 => format!("{v:.0}"),
        a if a >= 10.0 => format!("{v:.1}"),
        a if a >= 1.0 => format!("{v:.2}"),
        _ => format!("{v:.3}"),
    }
}

/// A table without lines, its columns two blanks apart.
pub fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

/// A table that is also Markdown.
pub fn markdown_table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table
}
