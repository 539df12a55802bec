//! Tests of the scan at a start, on devices left by a writer in every state that the rules allow.

mod power_cuts;
mod regions;
mod undestaged;
mod writer;
