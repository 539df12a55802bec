//! The command from outside: what it says to bad input, and that it leaves nothing behind; the lives of mounts and of `run`, to the
//! death of every process of them.
//!
//! Needs root and /dev/fuse; without them it says so and passes.

#[path = "command/stage.rs"]
mod stage;

#[path = "command/bad_input.rs"]
mod bad_input;
#[path = "command/crashes.rs"]
mod crashes;
#[path = "command/environment.rs"]
mod environment;
#[path = "command/except.rs"]
mod except;
#[path = "command/faults.rs"]
mod faults;
#[path = "command/hangs.rs"]
mod hangs;
#[path = "command/lab.rs"]
mod lab;
#[path = "command/lifecycle.rs"]
mod lifecycle;
#[path = "command/memory.rs"]
mod memory;
#[path = "command/metrics.rs"]
mod metrics;
#[path = "command/outputs.rs"]
mod outputs;
#[path = "command/owed.rs"]
mod owed;
#[path = "command/run.rs"]
mod run;
#[path = "command/server.rs"]
mod server;
#[path = "command/sources.rs"]
mod sources;
#[path = "command/staging.rs"]
mod staging;
#[path = "command/tiers.rs"]
mod tiers;
#[path = "command/unmount.rs"]
mod unmount;
