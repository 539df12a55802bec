//! Helpers of the tests of several crates. A development dependency only: no part of the product links it.
//! (I/O stand-ins for a device are in the engine, behind its feature `testing`: the engine's own tests need
//! them, too.)
//!
//! [`rng`]: random numbers from a printed seed. [`traces`]: page accesses to simulate. [`pages`]:
//! self-describing content. [`wait`]: waiting for a condition. [`command`]: commands of this project, run as
//! by a user. [`process`]: threads of a process. [`nodes`]: simulated memory nodes. [`exposition`]: metrics
//! in Prometheus' format. [`scrape`]: metrics over HTTP.
#![forbid(unsafe_code)]

use std::io::Write as _;

pub mod command;
pub mod exposition;
pub mod nodes;
pub mod pages;
pub mod process;
pub mod rng;
pub mod scrape;
pub mod traces;
pub mod wait;

/// Reports a skipped test: to standard error, and as a line `test: reason` to the file that `TERRACE_SKIPPED`
/// names, which `make test` sums up. A reason that begins with `needs root` fails CI.
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("test");
    eprintln!("skipped: {test}: {reason}");
    let Some(path) = std::env::var_os("TERRACE_SKIPPED") else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    // The sum is a service: a test does not fail for it.
    let _ = file.and_then(|mut file| writeln!(file, "{test}: {}", reason.replace('\n', " ")));
}

/// [`skip`] with the arguments of `format!`.
#[macro_export]
macro_rules! skipped {
    ($($argument:tt)*) => { $crate::skip(&format!($($argument)*)) };
}
