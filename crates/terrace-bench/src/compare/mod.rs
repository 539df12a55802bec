//! `terrace-bench compare`: what differs between systems, or between two runs of one benchmark, and how sure that is.

pub mod cells;
pub mod metric;

pub use cells::{CellComparison, Comparison, Outcome, Question, Row, Side, Verdict, compare, outcome};
pub use metric::Better;
