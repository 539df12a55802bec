//! The compressed pool from outside: against a model, under readers, with bytes that somebody made up.

mod codec;
#[cfg(feature = "compress")]
mod fuzz;
mod pool;
mod reader;
mod rig;
