//! Helpers of the tests of several crates. A development dependency only: no part of the product links it.
//! (I/O stand-ins for a device are in the engine, behind its feature `testing`: the engine's own tests need
//! them, too.)
//!
//! [`rng`]: random numbers from a printed seed. [`traces`]: page accesses to simulate. [`pages`]:
//! self-describing content. [`wait`]: waiting for a condition. [`command`]: commands of this project, run as
//! by a user. [`process`]: memory and threads of a process. [`nodes`]: simulated memory nodes.
//! [`exposition`]: metrics in Prometheus' format. [`scrape`]: metrics over HTTP.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;

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

/// Whether the test runs as root. Otherwise it is skipped with a message. With `TERRACE_REQUIRE_ROOT=1`, as in
/// CI, skipping it is an error.
///
/// # Panics
/// If it is skipped under `TERRACE_REQUIRE_ROOT`.
#[track_caller]
pub fn is_root() -> bool {
    has_root_and("needs root", || true)
}

/// Whether the test can mount: as [`is_root`], with FUSE.
///
/// # Panics
/// If it is skipped under `TERRACE_REQUIRE_ROOT`.
#[track_caller]
pub fn can_mount() -> bool {
    let fuse = || std::fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    has_root_and("needs root and /dev/fuse", fuse)
}

#[track_caller]
fn has_root_and(reason: &str, more: impl FnOnce() -> bool) -> bool {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    let has_all = is_root && more();
    if !has_all {
        let required = std::env::var_os("TERRACE_REQUIRE_ROOT").is_some();
        assert!(!required, "TERRACE_REQUIRE_ROOT is set, but the test {reason}");
        skip(reason);
    }
    has_all
}

/// [`skip`] with the arguments of `format!`.
#[macro_export]
macro_rules! skipped {
    ($($argument:tt)*) => { $crate::skip(&format!($($argument)*)) };
}
