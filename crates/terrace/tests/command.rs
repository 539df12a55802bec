//! Tests of the command from outside: bad input, clean-up, and the lives of mounts and runs up to the death
//! of all their processes.
//!
//! They need root and /dev/fuse; without these they print that and pass.

#[path = "command/test_mount.rs"]
mod test_mount;

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
#[path = "command/undestaged.rs"]
mod undestaged;
#[path = "command/unmount.rs"]
mod unmount;
