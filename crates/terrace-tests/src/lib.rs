//! The harness of terrace's black-box tests. It knows the product only from outside: the binary, the preload library and
//! what they promise. One test drives the same work on up to three sides: a plain directory (the reference), a terrace
//! mount, and a terrace mount with the fast door.
//!
//! Environment: `TERRACE_SEED` repeats a random run, `TERRACE_SOAK=1` makes every test long, `TERRACE_KEEP=1` keeps the
//! directories of tests, `TERRACE_TEST_DIR` says where they are made, `TERRACE_BIN_DIR` where the product lies.

pub mod compare;
pub mod exec;
pub mod gen_ops;
pub mod leftovers;
pub mod pages;
pub mod process;
pub mod rig;
pub mod rng;
pub mod stress;
pub mod tools;

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
