//! The store for programs in C, and for other languages by way of C: `libterrace.so` and `terrace.h`.
//!
//! One function of C is one call of the store. Each checks its pointers, turns an error into a negative errno and a line for `terrace_error`, and keeps
//! panics inside.

mod blob;
mod bucket;
mod call;
mod store;
