//! Types of the data that terrace's programs exchange as JSON and TOML.
//!
//! | module | between |
//! |---|---|
//! | [`control`] | commands and the daemon: requests and replies of the control socket |
//! | [`stats`], [`tiers`], [`lru`], [`mrc`], [`numa`] | the daemon, commands, and readers of `terrace stat --json`, `terrace lru --json`, `terrace numa --json` |
//! | [`instance`] | an instance and other commands: the records in its runtime directory |
//! | [`capture`] | `terrace trace` and the simulator: traces of accesses |
//! | [`schedule`] | `terrace-bench schedule` and `terrace run --prefetch`: the pages that a program reads, in order |
//! | [`doctor`] | `terrace doctor --json` and its readers |
//! | [`device_profile`] | terrace's configuration and the simulator: measurements of storage devices |
#![forbid(unsafe_code)]

pub mod capture;
pub mod control;
pub mod device_profile;
pub mod doctor;
pub mod instance;
pub mod lru;
pub mod mrc;
pub mod numa;
mod path;
pub mod schedule;
pub mod stats;
pub mod tiers;
