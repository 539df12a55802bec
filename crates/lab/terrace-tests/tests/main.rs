//! All tests except `mixed` in one program: each further program would be linked with the whole crate, and
//! would wait for its longest test alone. To run one file:
//! `cargo test -p terrace-tests --test all -- crash::`.

mod announced;
mod behaviour;
mod compressed;
mod crash;
mod device;
mod fuzz;
mod harness;
mod hostile;
mod install;
mod lab;
mod leased;
mod leased_tier;
mod model;
mod passthrough;
mod paths;
mod policies;
mod prefetch;
mod programs;
mod sources;
mod stage;
mod storm;
mod stress;
mod tier_changes;
mod top;
mod tutorials;
mod uring;
