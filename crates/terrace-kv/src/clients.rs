//! Connected clients, for CLIENT LIST, CLIENT KILL and INFO, and the memory of all buffers.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use terrace_sync::Mutex;

/// A client as others see it.
pub struct Client {
    /// Number; it never comes twice.
    pub id: u64,
    /// Its address, `unix` for a socket in the file system.
    pub address: String,
    /// Our address that it came to.
    pub local: String,
    /// By CLIENT SETNAME, and the library that it says it uses.
    pub names: Mutex<Names>,
    /// Database.
    pub db: AtomicU8,
    /// RESP3.
    pub resp3: AtomicBool,
    /// When it came.
    pub since: Instant,
    /// Milliseconds after that when it last asked something.
    pub active_ms: AtomicU64,
    /// It is to be closed.
    pub killed: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// Names that a client has given itself.
#[derive(Debug, Default, Clone)]
pub struct Names {
    /// CLIENT SETNAME.
    pub name: String,
    /// CLIENT SETINFO LIB-NAME.
    pub library: String,
    /// CLIENT SETINFO LIB-VER.
    pub version: String,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("id", &self.id).field("address", &self.address).finish_non_exhaustive()
    }
}

impl Client {
    /// Asks its thread to close it.
    pub fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
        (self.wake)();
    }

    /// Its line in CLIENT LIST.
    pub fn line(&self) -> String {
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

/// All that are connected.
#[derive(Debug, Default)]
pub struct Clients {
    connected: Mutex<BTreeMap<u64, Arc<Client>>>,
    last: AtomicU64,
    /// Clients that came, and those that were refused for their number.
    came: AtomicU64,
    refused: AtomicU64,
    buffers_bytes: AtomicUsize,
}

impl Clients {
    /// A new one, unless there are `max` already. `wake` lets its thread look whether it is killed.
    pub fn add(
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
            killed: AtomicBool::new(false),
            wake: Box::new(wake),
        });
        self.came.fetch_add(1, Ordering::Relaxed);
        connected.insert(client.id, client.clone());
        Some(client)
    }

    /// One has gone.
    pub fn remove(&self, id: u64) {
        self.connected.lock().remove(&id);
    }
    /// All, in order of their coming.
    pub fn all(&self) -> Vec<Arc<Client>> {
        self.connected.lock().values().cloned().collect()
    }
    /// How many are connected.
    pub fn len(&self) -> usize {
        self.connected.lock().len()
    }
    /// Whether nobody is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// How many came, and how many were refused.
    pub fn totals(&self) -> (u64, u64) {
        (self.came.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }
    /// A client's buffers had `old` bytes and have `new`; the sum of all.
    pub fn count_buffers(&self, old: usize, new: usize) -> usize {
        if new == old {
            return self.buffers_bytes();
        }
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
