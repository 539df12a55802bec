//! The key-value server of terrace: clients of Redis and of memcached talk to a store of blobs.
//!
//! From the top down; no folder imports one above it.
//!
//! | | |
//! |---|---|
//! | [`net`] | threads with epoll, connections |
//! | [`commands`] | the tables of commands, and each command |
//! | [`server`], [`clients`], [`events`] | what connections share |
//! | [`keyspace`] | keys with types and times of expiry; hashes and sorted sets |
//! | [`cluster`], [`config`] | the map of several servers; settings |
//! | [`wire`], [`error`] | the protocols: Redis' and memcached's |
//! | [`store`] | `terrace-store` as such a store |
//! | [`blobs`] | what the server needs of a store |
//!
//! Values are blobs of the store, whose tiers, memory limit and survival of crashes they have: there is no second cache. Only large hashes and sorted
//! sets are also kept decoded, within a limit that counts against the store's memory.

#![forbid(unsafe_code)]

pub mod blobs;
pub mod clients;
pub mod cluster;
pub mod commands;
pub mod config;
pub mod error;
pub mod events;
pub mod keyspace;
pub mod net;
pub mod server;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod wire;

pub use config::{Config, Durability};
pub use net::{Listener, Running, start};
pub use server::Server;
