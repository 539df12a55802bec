//! State that all connections share: the keys, the settings, the list of clients, counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::blobs::Blobs;
use crate::clients::Clients;
use crate::config::Config;
use crate::events::Events;
use crate::keyspace::{Clock, Keyspace};

/// Largest of these numbers: what clients that keep it as a float can tell apart.
const UNIQUE_MAX: u64 = (1 << 53) - 1;

/// Another one in each process: its state of random numbers could be that of the process which it was forked from.
fn new_salt() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seed = since.as_nanos() as u64 ^ u64::from(std::process::id()) << 32;
    fastrand::Rng::with_seed(seed).u64(..) & UNIQUE_MAX
}

/// Counters of the server, since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Commands that were carried out or refused.
    pub commands: AtomicU64,
    /// Those that were refused.
    pub errors: AtomicU64,
    /// Bytes from clients.
    pub input_bytes: AtomicU64,
    /// Bytes to clients.
    pub output_bytes: AtomicU64,
    /// Clients that were closed for what they sent, or did not read.
    pub closed: AtomicU64,
    /// Wrong passwords.
    pub wrong_passwords: AtomicU64,
}

/// The server's state.
#[derive(Debug)]
pub struct Server {
    /// Keys.
    pub keyspace: Keyspace,
    /// Settings.
    pub config: Config,
    /// Clients.
    pub clients: Clients,
    /// Counters.
    pub counters: Counters,
    /// Counters of memcached's commands.
    pub events: Events,
    /// Of this server alone; see [`Server::unique_of`].
    salt: u64,
    /// The server is to end.
    pub is_stopping: AtomicBool,
    /// When it began.
    pub since: Instant,
}

impl Server {
    /// A server over a store. `decoded_max`: see [`Keyspace::new`].
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

    /// The number by which clients of memcached know one state of an item. Another server, of which the versions may be these again, gives others, so that
    /// one that a client has kept names nothing there.
    pub fn unique_of(&self, version: u64) -> u64 {
        (version ^ self.salt) & UNIQUE_MAX
    }

    /// Memory beside the store's: decoded collections, list of expiry, buffers; bytes.
    pub fn memory_bytes(&self) -> usize {
        self.keyspace.memory_bytes() + self.clients.buffers_bytes()
    }
}
