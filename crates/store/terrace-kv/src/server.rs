//! State shared by all connections of a server: keys, settings, client list, counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::blobs::Blobs;
use crate::clients::Clients;
use crate::config::Config;
use crate::events::Events;
use crate::keyspace::{Clock, Keyspace};

/// Maximum of these numbers: clients that store them as a float keep them exact.
const UNIQUE_MAX: u64 = (1 << 53) - 1;

/// A salt that differs between processes. A fork may have copied the state of a random number generator, so
/// time and process id are used.
fn new_salt() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = since.as_nanos() as u64 ^ u64::from(std::process::id()) << 32;
    fastrand::Rng::with_seed(seed).u64(..) & UNIQUE_MAX
}

/// Counters of the server, since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Commands run or refused.
    pub commands: AtomicU64,
    pub errors: AtomicU64,
    /// Bytes from clients.
    pub input_bytes: AtomicU64,
    /// Bytes to clients.
    pub output_bytes: AtomicU64,
    /// Clients closed for malformed requests, or for unread replies.
    pub closed: AtomicU64,
    pub(crate) wrong_passwords: AtomicU64,
}

/// The server's state.
#[derive(Debug)]
pub struct Server {
    /// Keys.
    pub keyspace: Keyspace,
    pub(crate) config: Config,
    /// Clients.
    pub clients: Clients,
    /// Counters.
    pub counters: Counters,
    /// Counters of memcached's commands.
    pub(crate) events: Events,
    /// Unique to this server; see [`Server::unique_of`].
    salt: u64,
    /// The server is to end.
    pub is_stopping: AtomicBool,
    pub(crate) since: Instant,
}

impl Server {
    /// Creates a server over a store. `decoded_max`: see [`Keyspace::new`].
    pub fn new(blobs: Arc<dyn Blobs>, config: Config, decoded_max: usize, clock: Clock) -> Server {
        Server {
            keyspace: Keyspace::new(blobs, decoded_max, clock),
            config,
            clients: Clients::default(),
            counters: Counters::default(),
            events: Events::default(),
            salt: new_salt(),
            is_stopping: AtomicBool::new(false),
            since: Instant::now(),
        }
    }

    /// The number of an item's version for memcached clients (`cas`). Versions may repeat in another server.
    /// The salt makes its numbers differ, so a client's old number matches nothing there.
    pub(crate) fn unique_of(&self, version: u64) -> u64 {
        (version ^ self.salt) & UNIQUE_MAX
    }

    /// Memory outside the store, bytes: decoded collections, expiry list, buffers.
    pub fn memory_bytes(&self) -> usize {
        self.keyspace.memory_bytes() + self.clients.buffers_bytes()
    }
}
