//! Harness of terrace's black-box tests. It uses only the binary, the preload library and their documented
//! behaviour. One test runs the same work on several sides (`Side`): a plain directory (the reference), a
//! mount with or without the preload path, and `terrace run` with a mount or by leases. The tests in
//! `crates/terrace/tests` use its directories and processes.
//!
//! Environment: `TERRACE_SEED` repeats a random run. `TERRACE_SOAK=1` makes every test long;
//! `TERRACE_SOAK_MINUTES` limits the time of all of them, 75 by default. `TERRACE_KEEP=1` keeps the
//! directories of tests. `TERRACE_TEST_DIR` is the parent of these directories, `TERRACE_BIN_DIR` the
//! directory of the product. `TERRACE_BUSY_TIER=1` keeps the compressed tier of every mount busy,
//! `TERRACE_DEVICE_TIER=1` one on a device (`busy`). `TERRACE_REQUIRE_ROOT=1` makes tests fail that would be
//! skipped without root.

pub mod busy;
mod chaos;
pub mod compare;
pub mod exec;
pub mod gen_ops;
pub mod leftovers;
mod map;
pub mod memory;
pub mod pages;
pub mod process;
pub mod rng;
pub mod storm;
pub mod stress;
mod test_dir;
mod test_mount;
pub mod tools;

pub use chaos::{Chaos, Fault};
pub use terrace_testkit::is_root;
pub use test_dir::{SmallDisk, TestDir, product, terrace, workspace};
pub use test_mount::{Side, TestMount};

/// Whether tests run in their long form.
pub fn soak() -> bool {
    std::env::var("TERRACE_SOAK").is_ok_and(|v| v != "0")
}

/// Minutes of `make soak` on two cores without `TERRACE_SOAK_MINUTES`: the long amounts are chosen for it.
const SOAK_MINUTES: u64 = 75;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Scales an amount for a soak of [`SOAK_MINUTES`] to the actual length.
fn in_proportion(long: u64) -> u64 {
    long * number("TERRACE_SOAK_MINUTES").unwrap_or(SOAK_MINUTES) / SOAK_MINUTES
}

/// The quick or the long amount, or the value of the environment variable `name`.
pub fn amount(name: &str, quick: u64, long: u64) -> u64 {
    let wanted = || if soak() { in_proportion(long).max(quick) } else { quick };
    number(name).unwrap_or_else(wanted)
}

/// Time limit of a test with many rounds in its long form. The quick form runs all of them.
#[derive(Clone, Copy, Debug)]
pub struct SoakEnd(Option<std::time::Instant>);

impl SoakEnd {
    /// Ends in `seconds`, for a soak of the usual length.
    pub fn after(seconds: u64) -> SoakEnd {
        let end = || std::time::Instant::now() + std::time::Duration::from_secs(in_proportion(seconds));
        SoakEnd(soak().then(end))
    }

    /// Whether the time is over.
    pub fn has_come(self) -> bool {
        self.0.is_some_and(|end| std::time::Instant::now() > end)
    }
}
