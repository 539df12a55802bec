//! The keyspace: the blob store, the locks of its keys, scans, and counters.

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use hashbrown::DefaultHashBuilder;
use terrace_sync::Mutex;

use super::deadlines::Deadlines;
use super::segment_list;
use super::stripe::Stripe;
use crate::blobs::{Blobs, DATABASES, Db, Page};
use crate::error::Outcome;

/// Number of locks. A key's hash chooses its lock.
const STRIPES: usize = 256;
/// Keys of one scan step.
const PAGE_KEYS: usize = 1000;
/// Milliseconds since 1970, from the system or from a test.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The system's clock.
pub fn system_clock() -> Clock {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    Arc::new(now)
}

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads of existing keys.
    pub hits: AtomicU64,
    /// Reads of missing keys.
    pub misses: AtomicU64,
    /// Keys that expired.
    pub expired: AtomicU64,
}

/// Position of the scan for expired keys.
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
    /// Memory of decoded collections and its limit, bytes.
    pub(super) decoded_bytes: Arc<AtomicUsize>,
    pub(super) decoded_max: usize,
    pub(super) expires_actively: AtomicBool,
    pub(super) counters: Counters,
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyspace").field("blobs", &self.blobs).finish_non_exhaustive()
    }
}

impl Keyspace {
    /// Opens the keyspace of a store. `decoded_max`: maximum memory of decoded collections, bytes, also of a
    /// single one.
    pub(crate) fn new(blobs: Arc<dyn Blobs>, decoded_max: usize, clock: Clock) -> Keyspace {
        for db in 0..DATABASES {
            if let Err(err) = segment_list::recover(&*blobs, db) {
                tracing::warn!(
                    "collections of database {db} cannot be cleaned after a crash, and take more space: {err}"
                );
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

    pub(crate) fn blobs(&self) -> &Arc<dyn Blobs> {
        &self.blobs
    }
    /// The time, milliseconds since 1970.
    pub(crate) fn now(&self) -> u64 {
        (self.clock)()
    }
    /// The keyspace's counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
    /// Memory outside the store, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.decoded_bytes.load(Ordering::Relaxed) + self.deadlines.bytes()
    }
    /// Number of keys of a database with a known expiry time.
    pub(crate) fn volatile(&self, db: Db) -> usize {
        self.deadlines.len(db)
    }
    /// Turns active expiry on or off.
    pub(crate) fn expire_actively(&self, yes: bool) {
        self.expires_actively.store(yes, Ordering::Relaxed);
    }

    pub(super) fn stripe_of(&self, db: Db, key: &[u8]) -> usize {
        // The low bits choose the slot in a stripe's table.
        (self.hasher.hash_one((db, key)) >> 48) as usize % STRIPES
    }

    /// A uniformly random key, which may have expired. None: the database is empty.
    pub(crate) fn any_key(&self, db: Db) -> Option<Box<[u8]>> {
        self.blobs.any_key(db)
    }

    /// A page of keys, some of which may have expired.
    fn scan(&self, db: Db, from: u64, count: usize) -> Page {
        self.blobs.scan(db, from, count)
    }

    /// Visits about `count` keys of a database from `from`, some of which may have expired, until `visit`
    /// returns false. Returns the next cursor. 0: there are no more keys.
    pub(crate) fn each_key_from(
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

    /// Visits all keys of a database like [`Keyspace::each_key_from`].
    pub(crate) fn each_key(&self, db: Db, visit: impl FnMut(&[u8]) -> bool) {
        self.each_key_from(db, 0, usize::MAX, visit);
    }

    /// Number of keys of a database, including expired ones.
    pub fn len(&self, db: Db) -> u64 {
        self.blobs.len(db)
    }

    /// Removes all keys of a database.
    pub(crate) fn clear(&self, db: Db) -> Outcome {
        let mut stripes: Vec<_> = self.stripes.iter().map(Mutex::lock).collect();
        for stripe in &mut stripes {
            self.decoded_bytes.fetch_sub(stripe.forget_database(db), Ordering::Relaxed);
        }
        self.deadlines.clear(db);
        Ok(segment_list::clear(&*self.blobs, db)?)
    }
}
