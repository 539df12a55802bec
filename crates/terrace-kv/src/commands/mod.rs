//! Commands: a table of one line each ([`table`]), and what every command needs ([`Context`]).
//!
//! ```text
//! request ──► run(): name, number of arguments, password, slot of its keys ──► a function of strings, hashes, ...
//!                                                                               └──► Reply, or a Refusal, which becomes the reply
//! ```

pub mod args;
mod client;
mod cluster;
mod context;
mod counters;
mod dispatch;
mod expire;
mod glob;
mod hashes;
mod info;
mod keys;
mod scan;
mod server;
mod strings;
pub mod table;
mod zrange;
mod zsets;

pub use context::{Context, Flags, Keys, Replies, Row, Session};
pub use dispatch::run;

#[cfg(test)]
#[path = "tests/mod.rs"]
mod tests;
