//! The harness of terrace's black-box tests. It knows the product only from outside: the binary, the preload library and
//! what they promise. One test drives the same work on up to three sides: a plain directory (the reference), a terrace
//! mount, and a terrace mount with the preload path.
//!
//! Environment: `TERRACE_SEED` repeats a random run, `TERRACE_SOAK=1` makes every test long
//! (`TERRACE_SOAK_MINUTES` says how long all of them may take, 75 by default), `TERRACE_KEEP=1` keeps the
//! directories of tests, `TERRACE_TEST_DIR` says where they are made, `TERRACE_BIN_DIR` where the product lies,
//! `TERRACE_BUSY_TIER=1` keeps the compressed tier of every mount busy, `TERRACE_DEVICE_TIER=1` one on a device (`busy`),
//! `TERRACE_REQUIRE_ROOT=1` makes it an error to leave tests out for want of root.

pub mod busy;
pub mod compare;
pub mod exec;
pub mod gen_ops;
pub mod leftovers;
mod map;
pub mod memory;
pub mod pages;
pub mod process;
pub mod rig;
pub mod rng;
pub mod storm;
pub mod stress;
pub mod tools;

/// True for root. Tests that only root can make are left out for others, with a word; where `TERRACE_REQUIRE_ROOT=1` promises root,
/// as in CI, leaving one out is an error.
#[track_caller]
pub fn is_root() -> bool {
    // SAFETY: no arguments.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        assert!(
            std::env::var_os("TERRACE_REQUIRE_ROOT").is_none(),
            "TERRACE_REQUIRE_ROOT is set: run as root"
        );
        println!("needs root: left out");
    }
    root
}

/// True when the long form of each test is wanted.
pub fn soak() -> bool {
    std::env::var("TERRACE_SOAK").is_ok_and(|v| v != "0")
}

/// The minutes that `make soak` takes on two cores if `TERRACE_SOAK_MINUTES` does not say otherwise: the long amounts are made for it.
const SOAK_MINUTES: u64 = 75;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// So much in a soak of [`SOAK_MINUTES`], in proportion in others.
fn in_proportion(long: u64) -> u64 {
    long * number("TERRACE_SOAK_MINUTES").unwrap_or(SOAK_MINUTES) / SOAK_MINUTES
}

/// The quick or the long amount, or what the environment variable `name` says.
pub fn amount(name: &str, quick: u64, long: u64) -> u64 {
    let wanted = || if soak() { in_proportion(long).max(quick) } else { quick };
    number(name).unwrap_or_else(wanted)
}

/// The end of the time that a test of many rounds has in its long form. In the quick form it does all of them.
#[derive(Clone, Copy, Debug)]
pub struct SoakEnd(Option<std::time::Instant>);

impl SoakEnd {
    /// So many seconds from now, in a soak of the usual length.
    pub fn after(seconds: u64) -> SoakEnd {
        let end = || std::time::Instant::now() + std::time::Duration::from_secs(in_proportion(seconds));
        SoakEnd(soak().then(end))
    }

    /// True when it has come.
    pub fn has_come(self) -> bool {
        self.0.is_some_and(|end| std::time::Instant::now() > end)
    }
}
