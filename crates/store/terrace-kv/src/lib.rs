//! The key-value server: clients of Redis and of memcached use a store of blobs.
//!
//! Modules from the top down. No folder imports one above it.
//!
//! | | |
//! |---|---|
//! | `net` | threads with epoll, connections |
//! | `commands` | the command tables, and each command |
//! | `server`, `clients`, `events` | state shared by all connections |
//! | [`keyspace`] | keys with types and expiry times; hashes and sorted sets |
//! | [`cluster`], `config` | the cluster map; settings |
//! | `wire`, `error` | the protocols of Redis and of memcached |
//! | [`store`] | `terrace-store` as the blob store |
//! | [`blobs`] | the interface to the blob store |
//!
//! Values are blobs of the store, and share its tiers, memory limit and crash safety. There is no second
//! cache. Only large hashes and sorted sets are also kept decoded, within a limit that counts against the
//! store's memory.

#![forbid(unsafe_code)]

pub mod blobs;
mod clients;
pub mod cluster;
mod commands;
mod config;
mod error;
mod events;
pub mod keyspace;
mod net;
mod server;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod wire;

pub use config::{Config, Durability};
pub use net::{Listener, Running, start};
pub use server::Server;
