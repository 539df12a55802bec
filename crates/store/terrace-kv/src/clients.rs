//! The list of connected clients, and the memory of their buffers. CLIENT LIST, CLIENT KILL and INFO use it.
//! Idle clients are closed if the buffers need too much memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use terrace_sync::Mutex;

/// A client as other connections see it.
pub(crate) struct Client {
    /// Number, never reused.
    pub(crate) id: u64,
    /// Address; `unix` for a Unix socket.
    pub(crate) address: String,
    /// The server's address of the connection.
    pub(crate) local: String,
    /// Names set by CLIENT SETNAME and SETINFO.
    pub(crate) names: Mutex<Names>,
    pub(crate) db: AtomicU8,
    /// RESP3.
    pub(crate) resp3: AtomicBool,
    /// Time of the connect.
    pub(crate) since: Instant,
    /// Time of the last request, milliseconds after `since`.
    pub(crate) active_ms: AtomicU64,
    /// Time of the last read of pending replies, milliseconds after `since`.
    taken_ms: AtomicU64,
    /// Requests of the client wait until it reads replies.
    pub(crate) is_stuck: AtomicBool,
    /// Memory of its buffers, bytes.
    buffers_bytes: AtomicUsize,
    /// The client is to be closed.
    pub(crate) killed: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// Names that a client has given itself.
#[derive(Debug, Default, Clone)]
pub(crate) struct Names {
    pub(crate) name: String,
    /// CLIENT SETINFO LIB-NAME.
    pub(crate) library: String,
    /// CLIENT SETINFO LIB-VER.
    pub(crate) version: String,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id).field("address", &self.address).finish_non_exhaustive()
    }
}

impl Client {
    /// Makes the client's thread close it.
    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
        (self.wake)();
    }

    fn age_ms(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }
    pub(crate) fn note_sent(&self) {
        self.active_ms.store(self.age_ms(), Ordering::Relaxed);
    }
    /// Notes a read of pending replies.
    pub(crate) fn note_taken(&self) {
        self.taken_ms.store(self.age_ms(), Ordering::Relaxed);
    }
    /// Memory of its buffers, bytes.
    pub(crate) fn buffers_bytes(&self) -> usize {
        self.buffers_bytes.load(Ordering::Relaxed)
    }
    /// Time since the last request or read.
    fn passive(&self) -> Duration {
        let last = self.active_ms.load(Ordering::Relaxed).max(self.taken_ms.load(Ordering::Relaxed));
        Duration::from_millis(self.age_ms().saturating_sub(last))
    }
    fn stays(&self) -> bool {
        !self.killed.load(Ordering::Relaxed)
    }

    /// The client's line in CLIENT LIST.
    pub(crate) fn line(&self) -> String {
        let names = self.names.lock().clone();
        let age = self.since.elapsed();
        let idle =
            age.as_millis() as u64 - self.active_ms.load(Ordering::Relaxed).min(age.as_millis() as u64);
        let mut line =
            format!("id={} addr={} laddr={} fd=-1 name={}", self.id, self.address, self.local, names.name);
        let _ = write!(
            line,
            " age={} idle={} flags=N db={} sub=0 psub=0 multi=-1 resp={} lib-name={} lib-ver={}",
            age.as_secs(),
            idle / 1000,
            self.db.load(Ordering::Relaxed),
            if self.resp3.load(Ordering::Relaxed) { 3 } else { 2 },
            names.library,
            names.version,
        );
        line
    }
}

#[derive(Debug, Default)]
pub struct Clients {
    connected: Mutex<BTreeMap<u64, Arc<Client>>>,
    last: AtomicU64,
    /// Clients accepted, and clients refused at the limit.
    came: AtomicU64,
    refused: AtomicU64,
    buffers_bytes: AtomicUsize,
}

impl Clients {
    /// Adds a client, unless there are `max` already. `wake` makes its thread check for kills.
    pub(crate) fn add(
        &self,
        address: String,
        local: String,
        max: usize,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Option<Arc<Client>> {
        let mut connected = self.connected.lock();
        if connected.len() >= max {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let client = Arc::new(Client {
            id: self.last.fetch_add(1, Ordering::Relaxed) + 1,
            address,
            local,
            names: Mutex::default(),
            db: AtomicU8::new(0),
            resp3: AtomicBool::new(false),
            since: Instant::now(),
            active_ms: AtomicU64::new(0),
            taken_ms: AtomicU64::new(0),
            is_stuck: AtomicBool::new(false),
            buffers_bytes: AtomicUsize::new(0),
            killed: AtomicBool::new(false),
            wake: Box::new(wake),
        });
        self.came.fetch_add(1, Ordering::Relaxed);
        connected.insert(client.id, client.clone());
        Some(client)
    }

    pub(crate) fn remove(&self, id: u64) {
        self.connected.lock().remove(&id);
    }
    /// All clients, in order of their connects.
    pub(crate) fn all(&self) -> Vec<Arc<Client>> {
        self.connected.lock().values().cloned().collect()
    }
    /// Number of connected clients.
    pub fn len(&self) -> usize {
        self.connected.lock().len()
    }
    /// Whether no client is connected.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Numbers of accepted and of refused clients.
    pub(crate) fn totals(&self) -> (u64, u64) {
        (self.came.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }
    /// Closes idle clients with buffers of more than `kept` bytes, longest idle first, until all buffers have
    /// at most `max` bytes. Without memory it closes one. Returns whether `own` may stay, and the number of
    /// closed clients.
    pub(crate) fn make_room(&self, own: &Client, kept: usize, max: usize, has_memory: bool) -> (bool, u64) {
        let mut closed = Vec::new();
        let (all, wanted) = {
            let connected = self.connected.lock();
            let mut all: usize =
                connected.values().filter(|client| client.stays()).map(|client| client.buffers_bytes()).sum();
            // The memory of a client being closed is about to be free.
            let is_leaving = |client: &Arc<Client>| !client.stays() && client.buffers_bytes() > kept;
            let is_enough = has_memory || connected.values().any(is_leaving);
            let wanted = if is_enough { max } else { max.min(all.saturating_sub(1)) };
            let is_large = |client: &&Arc<Client>| {
                client.stays() && client.buffers_bytes() > kept && client.id != own.id
            };
            let mut large: Vec<_> = connected.values().filter(is_large).collect();
            large.sort_by_cached_key(|client| Reverse(client.passive()));
            for client in large {
                if all <= wanted {
                    break;
                }
                all = all.saturating_sub(client.buffers_bytes());
                // Under the lock, so that other threads no longer count the client.
                client.killed.store(true, Ordering::Relaxed);
                closed.push(client.clone());
            }
            (all, wanted)
        };
        for client in &closed {
            tracing::warn!(
                "client {} is closed: other clients need its {} bytes of buffers, and it was idle for {:.1?}; \
                 let it read its replies, or raise --memory",
                client.address,
                client.buffers_bytes(),
                client.passive(),
            );
            client.kill();
        }
        (all <= wanted, closed.len() as u64)
    }

    /// Closes clients that have not read pending replies for `after`. Returns how many.
    pub(crate) fn end_stuck(&self, after: Duration) -> u64 {
        let is_due = |client: &&Arc<Client>| {
            client.is_stuck.load(Ordering::Relaxed) && client.stays() && client.passive() >= after
        };
        let stuck: Vec<_> = self.connected.lock().values().filter(is_due).cloned().collect();
        for client in &stuck {
            tracing::warn!(
                "client {} is closed: it sends requests without reading replies; let it read them, or send less at a time",
                client.address
            );
            client.kill();
        }
        stuck.len() as u64
    }

    /// Sets the size of a client's buffers. Returns the sum of all clients.
    pub(crate) fn count_buffers(&self, client: &Client, new: usize) -> usize {
        if client.buffers_bytes() == new {
            return self.buffers_bytes();
        }
        let old = client.buffers_bytes.swap(new, Ordering::Relaxed);
        if new > old {
            self.buffers_bytes.fetch_add(new - old, Ordering::Relaxed) + (new - old)
        } else {
            self.buffers_bytes.fetch_sub(old - new, Ordering::Relaxed) - (old - new)
        }
    }
    /// Memory of all buffers, bytes.
    pub fn buffers_bytes(&self) -> usize {
        self.buffers_bytes.load(Ordering::Relaxed)
    }
}
