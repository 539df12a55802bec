//! What terrace's programs exchange, as types: nobody else spells the names of its JSON and TOML.
//!
//! | module | between |
//! |---|---|
//! | [`control`] | commands and daemon: requests and replies of the control socket |
//! | [`stats`], [`lru`], [`mrc`] | the daemon and whoever reads `terrace stat --json`, `terrace lru --json` |
//! | [`instance`] | an instance's records in its runtime directory and other commands |
//! | [`capture`] | `terrace trace` and the simulator: traces of accesses |
//! | [`device_profile`] | `terrace-bench probe` and terrace's configuration: what storage can do |
#![forbid(unsafe_code)]

pub mod capture;
pub mod control;
pub mod device_profile;
pub mod instance;
pub mod lru;
pub mod mrc;
pub mod stats;
