//! Helpers of the tests of several crates. A development dependency only: no part of the product links it.
//! (I/O stand-ins for a device are in the engine, behind its feature `testing`: the engine's own tests need
//! them, too.)
//!
//! [`rng`]: random numbers from a printed seed. [`traces`]: page accesses to simulate. [`pages`]:
//! self-describing content. [`wait`]: waiting for a condition. [`command`]: commands of this project, run as
//! by a user. [`process`]: threads of a process. [`nodes`]: simulated memory nodes. [`exposition`]: metrics
//! in Prometheus' format. [`scrape`]: metrics over HTTP.
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
