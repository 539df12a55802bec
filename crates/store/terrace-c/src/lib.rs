//! The C interface of the store, also for languages that call C: `libterrace.so` and `terrace.h`.
//!
//! Each C function is one call of the store. It checks its pointers, turns an error into a negative errno and
//! a line for `terrace_error`, and catches panics.

mod blob;
mod bucket;
mod call;
mod store;

pub use store::{TERRACE_SYNC_ALWAYS, TERRACE_SYNC_EVERY, TERRACE_SYNC_NEVER};
