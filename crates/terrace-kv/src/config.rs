//! How a server is set up.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::wire::Limits;

/// Most arguments of one request.
const ARGUMENTS_MAX: i64 = 1024 * 1024;
/// Longest value, bytes: Redis' own limit.
pub const VALUE_BYTES_MAX: u64 = 512 << 20;
/// Shortest limit on a request, bytes.
const REQUEST_BYTES_MIN: u64 = 1 << 20;

/// Threads that serve any number of clients, on a machine of more processors.
const THREADS_MAX: usize = 8;
/// Threads while clients are few, on several processors; as many as memcached has by default.
const THREADS_MIN: usize = 4;

/// When written data are durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Before the reply.
    Always,
    /// A second later at most.
    EverySecond,
    /// When the store likes.
    Never,
}

/// Where clients come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// TCP.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// Settings of a server.
#[derive(Debug, Clone)]
pub struct Config {
    /// Durability.
    pub durability: Durability,
    /// The password that clients must give first (AUTH, HELLO); none: no password.
    pub password: Option<String>,
    /// Threads that serve any number of clients.
    pub threads: usize,
    /// Threads beside these that serve one client each, while clients are few.
    pub spare_threads: usize,
    /// So many clients, or fewer, may each keep their thread busy polling for the next request; 0: threads sleep at once.
    pub busy_poll_clients: usize,
    /// From so many clients on, clients and threads are brought to the same processor; none: as many as there are processors, if each has a thread.
    pub pairing_clients: Option<usize>,
    /// Clients at one time.
    pub clients_max: usize,
    /// Bytes of one value.
    pub value_bytes_max: u64,
    /// Bytes of requests and replies of all clients together.
    pub buffers_bytes_max: usize,
    /// A client that cannot send, since it does not read, is closed after so long.
    pub stuck_max: Duration,
    /// The map of several servers; none: this one has all keys.
    pub cluster: Option<Cluster>,
    /// TCP port that INFO and CLUSTER tell; 0: none.
    pub port: u16,
    /// Directory of the store, for INFO and CONFIG GET.
    pub dir: PathBuf,
}

impl Config {
    /// Threads that serve clients, of both kinds.
    pub fn all_threads(&self) -> usize {
        self.threads.max(1) + self.spare_threads
    }

    /// The defaults within so much memory, bytes.
    pub fn for_memory(memory_bytes: u64) -> Config {
        let buffers = (memory_bytes / 4).max(2 * REQUEST_BYTES_MIN);
        let processors = std::thread::available_parallelism().map_or(2, usize::from);
        let threads = processors.min(THREADS_MAX);
        Config {
            durability: Durability::EverySecond,
            password: None,
            threads,
            // On one processor each wake-up had better find several requests.
            spare_threads: if threads > 1 { THREADS_MIN.saturating_sub(threads) } else { 0 },
            // One processor for the client, another for its thread.
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

    /// Bytes of replies that a client may leave unread before its requests wait, and bytes of requests that wait then.
    pub fn waiting_bytes_max(&self) -> usize {
        // Several such clients leave room for others.
        self.buffers_bytes_max / 8
    }

    /// Limits of a request.
    pub fn limits(&self) -> Limits {
        Limits {
            arguments_max: ARGUMENTS_MAX,
            argument_bytes_max: self.value_bytes_max as i64,
            // A key and a command beside the longest value.
            request_bytes_max: (self.value_bytes_max + REQUEST_BYTES_MIN) as usize,
        }
    }
}
