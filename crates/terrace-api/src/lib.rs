//! What terrace's programs exchange, as types: nobody else spells the names of its JSON and TOML.
//!
//! | module | between |
//! |---|---|
//! | [`capture`] | traces of accesses: `terrace trace` and the simulator |
//! | [`device_profile`] | what storage can do: `terrace-bench probe` and terrace's configuration |
#![forbid(unsafe_code)]

pub mod capture;
pub mod device_profile;
