//! Helpers of the tests of several crates. A development dependency only: nothing of the product links it. (I/O that stands in for a
//! device is in the engine, behind its feature `testing`: the engine's own tests need it too.)
//!
//! [`rng`]: random numbers from a printed seed. [`traces`]: page accesses to simulate. [`pages`]: content that says where it belongs.
//! [`wait`]: waiting for a condition. [`command`]: commands of this project as a user runs them. [`process`]: threads of a process. [`nodes`]: memory nodes
//! that are not there.
//! [`exposition`]: metrics as Prometheus reads them. [`scrape`]: the same over HTTP.
#![forbid(unsafe_code)]

pub mod command;
pub mod exposition;
pub mod nodes;
pub mod pages;
pub mod process;
pub mod rng;
pub mod scrape;
pub mod traces;
pub mod wait;
