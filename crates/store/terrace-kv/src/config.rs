//! Settings of a key-value server: durability, limits, numbers of threads.

use std::path::PathBuf;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::wire::Limits;

/// Maximum number of arguments of a request.
const ARGUMENTS_MAX: i64 = 1024 * 1024;
/// Maximum size of a value, bytes: the limit of Redis.
pub(crate) const VALUE_BYTES_MAX: u64 = 512 << 20;
/// Minimum of the limit on a request, bytes.
const REQUEST_BYTES_MIN: u64 = 1 << 20;

/// Maximum number of shared threads by default.
const THREADS_MAX: usize = 8;
/// Minimum number of threads for few clients, on several processors. memcached has the same default.
const THREADS_MIN: usize = 4;

/// When changes are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Before the reply.
    Always,
    /// At most a second after the reply.
    EverySecond,
    /// When the store decides.
    Never,
}

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Durability.
    pub durability: Durability,
    /// The password for AUTH and HELLO. None: clients need none.
    pub password: Option<String>,
    /// Shared threads: each serves any number of clients.
    pub threads: usize,
    /// Additional threads with one client each, used while clients are few.
    pub spare_threads: usize,
    /// Maximum number of clients for busy polling by their threads. 0: threads never poll.
    pub busy_poll_clients: usize,
    /// Minimum number of clients for pairing clients and threads on the same processor. None: the number of
    /// processors, if each has a shared thread.
    pub pairing_clients: Option<usize>,
    /// Maximum number of concurrent clients.
    pub clients_max: usize,
    /// Maximum size of a value, bytes.
    pub value_bytes_max: u64,
    /// Maximum size of the requests and replies of all clients together, bytes.
    pub buffers_bytes_max: usize,
    /// A client that leaves replies unread for this time is closed.
    pub stuck_max: Duration,
    /// The cluster map. None: this server has all keys.
    pub cluster: Option<Cluster>,
    /// TCP port for INFO and CLUSTER. 0: none.
    pub port: u16,
    /// Directory of the store, for INFO and CONFIG GET.
    pub dir: PathBuf,
}

impl Config {
    /// Number of threads of both kinds.
    pub(crate) fn all_threads(&self) -> usize {
        self.threads.max(1) + self.spare_threads
    }

    /// The defaults for `memory_bytes` of memory.
    pub fn for_memory(memory_bytes: u64) -> Config {
        let buffers = (memory_bytes / 4).max(2 * REQUEST_BYTES_MIN);
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let threads = processors.min(THREADS_MAX);
        Config {
            durability: Durability::EverySecond,
            password: None,
            threads,
            // On one processor it is better when each wake-up serves several requests.
            spare_threads: if threads > 1 { THREADS_MIN.saturating_sub(threads) } else { 0 },
            // One processor for the client, one for its thread.
            busy_poll_clients: processors / 2,
            pairing_clients: None,
            clients_max: 10_000,
            value_bytes_max: (buffers / 2).clamp(REQUEST_BYTES_MIN, VALUE_BYTES_MAX),
            buffers_bytes_max: buffers as usize,
            stuck_max: Duration::from_secs(60),
            cluster: None,
            port: 0,
            dir: PathBuf::new(),
        }
    }

    /// Maximum of unread replies before a client's requests wait, and of waiting requests, bytes.
    pub(crate) fn waiting_bytes_max(&self) -> usize {
        // Leaves room for other clients.
        self.buffers_bytes_max / 8
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            arguments_max: ARGUMENTS_MAX,
            argument_bytes_max: self.value_bytes_max as i64,
            // The longest value, with a key and a command.
            request_bytes_max: (self.value_bytes_max + REQUEST_BYTES_MIN) as usize,
        }
    }
}
