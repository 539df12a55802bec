//! Tests of the pool of compressed pages, from outside: against a model, with concurrent readers, with
//! hostile bytes.

mod codec;
mod fixture;
#[cfg(feature = "compress")]
mod fuzz;
mod pool;
mod reader;
