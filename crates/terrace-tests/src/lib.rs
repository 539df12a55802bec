//! The harness of terrace's black-box tests. It knows the product only from outside: the binary, the preload library and
//! what they promise. One test drives the same work on up to three sides: a plain directory (the reference), a terrace
//! mount, and a terrace mount with the fast door.
//!
//! Environment: `TERRACE_SEED` repeats a random run, `TERRACE_SOAK=1` makes every test long, `TERRACE_KEEP=1` keeps the
//! directories of tests, `TERRACE_TEST_DIR` says where they are made, `TERRACE_BIN_DIR` where the product lies,
//! `TERRACE_BUSY_TIER=1` keeps the compressed tier of every mount busy (`busy`), `TERRACE_REQUIRE_ROOT=1` makes it an error to leave tests out for want of root.

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

/// The quick or the long amount, or what the environment variable `name` says.
pub fn amount(name: &str, quick: u64, long: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is a number")),
        Err(_) if soak() => long,
        Err(_) => quick,
    }
}
