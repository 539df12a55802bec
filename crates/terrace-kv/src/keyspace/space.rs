//! The keys' store, locks and counters.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use hashbrown::DefaultHashBuilder;
use terrace_sync::Mutex;

use super::chain;
use super::deadlines::Deadlines;
use super::stripe::Stripe;
use crate::blobs::{Blobs, DATABASES, Db, Page};
use crate::error::Outcome;

/// Locks; keys share them by hash.
const STRIPES: usize = 256;
/// Keys that a walk takes at a time.
const PAGE_KEYS: usize = 1000;
/// Milliseconds since 1970, by the system or by a test.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The system's clock.
pub fn system_clock() -> Clock {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    Arc::new(now)
}

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads that found their key.
    pub hits: AtomicU64,
    /// Reads that did not.
    pub misses: AtomicU64,
    /// Keys that expired.
    pub expired: AtomicU64,
}

/// Where the walk for expired keys is.
#[derive(Debug, Default)]
pub(super) struct Walk {
    pub(super) db: Db,
    pub(super) from: u64,
    pub(super) is_over: bool,
}

/// The keys of all databases.
pub struct Keyspace {
    pub(super) blobs: Arc<dyn Blobs>,
    pub(super) stripes: Box<[Mutex<Stripe>]>,
    hasher: DefaultHashBuilder,
    pub(super) deadlines: Deadlines,
    pub(super) walk: Mutex<Walk>,
    clock: Clock,
    /// Memory of decoded collections, bytes, and its limit.
    pub(super) decoded_bytes: Arc<AtomicUsize>,
    pub(super) decoded_max: usize,
    /// Whether keys that nobody asks for expire.
    pub(super) expires_actively: AtomicBool,
    pub(super) counters: Counters,
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyspace").field("blobs", &self.blobs).finish_non_exhaustive()
    }
}

impl Keyspace {
    /// The keys of a store. `decoded_max`: memory for decoded collections, bytes; no collection may need more.
    pub fn new(blobs: Arc<dyn Blobs>, decoded_max: usize, clock: Clock) -> Keyspace {
        for db in 0..DATABASES {
            if let Err(err) = chain::recover(&*blobs, db) {
                tracing::warn!("what a crash has left of collections in database {db} stays: {err}");
            }
        }
        Keyspace {
            blobs,
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            hasher: DefaultHashBuilder::default(),
            deadlines: Deadlines::default(),
            walk: Mutex::default(),
            clock,
            decoded_bytes: Arc::default(),
            decoded_max,
            expires_actively: AtomicBool::new(true),
            counters: Counters::default(),
        }
    }

    /// The store.
    pub fn blobs(&self) -> &Arc<dyn Blobs> {
        &self.blobs
    }
    /// Now, milliseconds since 1970.
    pub fn now(&self) -> u64 {
        (self.clock)()
    }
    /// Its counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
    /// Memory that is kept beside the store's, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.decoded_bytes.load(Ordering::Relaxed) + self.deadlines.bytes()
    }
    /// Keys of a database that expire, as far as they are known.
    pub fn volatile(&self, db: Db) -> usize {
        self.deadlines.len(db)
    }
    /// Whether keys that nobody asks for expire.
    pub fn expire_actively(&self, yes: bool) {
        self.expires_actively.store(yes, Ordering::Relaxed);
    }

    pub(super) fn stripe_of(&self, db: Db, key: &[u8]) -> usize {
        // The low bits choose the place in the table of a stripe.
        (self.hasher.hash_one((db, key)) >> 48) as usize % STRIPES
    }

    /// A key, each of them as likely; it may have expired. None: there are none.
    pub fn any_key(&self, db: Db) -> Option<Box<[u8]>> {
        self.blobs.any_key(db)
    }

    /// A page of keys; some may have expired.
    fn scan(&self, db: Db, from: u64, count: usize) -> Page {
        self.blobs.scan(db, from, count)
    }

    /// Visits about `count` keys of a database from `from` on, some of which may have expired, as long as `visit` wants more. Where the next ones begin; 0: there
    /// are none.
    pub fn each_key_from(
        &self,
        db: Db,
        mut from: u64,
        mut count: usize,
        mut visit: impl FnMut(&[u8]) -> bool,
    ) -> u64 {
        loop {
            let page = self.scan(db, from, count.min(PAGE_KEYS));
            (from, count) = (page.next, count.saturating_sub(page.keys.len()));
            if !page.keys.iter().all(|key| visit(key)) || from == 0 || count == 0 {
                return from;
            }
        }
    }

    /// Likewise all keys of a database.
    pub fn each_key(&self, db: Db, visit: impl FnMut(&[u8]) -> bool) {
        self.each_key_from(db, 0, usize::MAX, visit);
    }

    /// Keys of a database, expired ones among them.
    pub fn len(&self, db: Db) -> u64 {
        self.blobs.len(db)
    }

    /// Removes all keys of a database.
    ///
    /// # Errors
    /// The store's.
    pub fn clear(&self, db: Db) -> Outcome {
        let mut stripes: Vec<_> = self.stripes.iter().map(Mutex::lock).collect();
        for stripe in &mut stripes {
            self.decoded_bytes.fetch_sub(stripe.forget_database(db), Ordering::Relaxed);
        }
        self.deadlines.clear(db);
        Ok(chain::clear(&*self.blobs, db)?)
    }
}
