//! Scans of devices that a writer left in every state that the rules allow.

mod owed;
mod power_cuts;
mod regions;
mod writer;
