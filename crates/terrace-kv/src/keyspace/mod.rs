//! Keys with types and times of expiry over a store of blobs.
//!
//! ```text
//!  command ──► hold(keys): locks of their stripes, in order ──► Held: read, write, remove, open a collection
//!         └──► read_string, read_compact: no lock, the store's reads are atomic
//! ```
//! A command that reads and then writes holds its keys' locks; so do those of several keys (MSET, RENAME). The store itself is never locked out: the
//! engine's threads and other connections go on.

pub mod collection;
mod deadlines;
pub mod hash;
mod held;
mod record;
mod stripe;
pub mod word;
pub mod zset;

use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use hashbrown::DefaultHashBuilder;
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::blobs::{Blobs, DATABASES, Db, Page};
use crate::error::{Outcome, Refusal};
use deadlines::Deadlines;
pub use held::Held;
pub use record::{FieldRecord, fields};
use stripe::Stripe;
use word::{Form, Kind, Word};

/// Locks; keys share them by hash.
const STRIPES: usize = 256;
/// Keys that one look for expired ones takes from the list at most.
const DUE_MAX: usize = 256;
/// Keys that the walk looks at in one step.
const WALK_STEP: usize = 512;

/// Milliseconds since 1970, by the system or by a test.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The system's clock.
pub fn system_clock() -> Clock {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    Arc::new(now)
}

/// What was counted since the start.
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
struct Walk {
    db: Db,
    from: u64,
    is_over: bool,
}

/// The keys of all databases.
pub struct Keyspace {
    blobs: Arc<dyn Blobs>,
    stripes: Box<[Mutex<Stripe>]>,
    hasher: DefaultHashBuilder,
    deadlines: Deadlines,
    walk: Mutex<Walk>,
    clock: Clock,
    /// Memory of decoded collections, bytes, and its limit.
    decoded_bytes: AtomicUsize,
    decoded_max: usize,
    /// Whether keys that nobody asks for expire.
    expires_actively: AtomicBool,
    counters: Counters,
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyspace").field("blobs", &self.blobs).finish_non_exhaustive()
    }
}

impl Keyspace {
    /// The keys of a store. `decoded_max`: memory for decoded collections, bytes; no collection may need more.
    pub fn new(blobs: Arc<dyn Blobs>, decoded_max: usize, clock: Clock) -> Keyspace {
        Keyspace {
            blobs,
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            hasher: DefaultHashBuilder::default(),
            deadlines: Deadlines::default(),
            walk: Mutex::default(),
            clock,
            decoded_bytes: AtomicUsize::new(0),
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
    /// What was counted.
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

    fn stripe_of(&self, db: Db, key: &[u8]) -> usize {
        // The low bits choose the place in the table of a stripe.
        (self.hasher.hash_one((db, key)) >> 48) as usize % STRIPES
    }

    /// Holds keys against other writers until the answer is dropped.
    pub fn hold<'a>(&self, db: Db, keys: impl IntoIterator<Item = &'a [u8]>) -> Held<'_> {
        self.hold_in(keys.into_iter().map(|key| (db, key)))
    }

    /// Likewise, of several databases.
    pub fn hold_in<'a>(&self, keys: impl IntoIterator<Item = (Db, &'a [u8])>) -> Held<'_> {
        let mut stripes: SmallVec<[usize; 4]> =
            keys.into_iter().map(|(db, key)| self.stripe_of(db, key)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        let guards = stripes.into_iter().map(|at| (at, self.stripes[at].lock())).collect();
        Held::new(self, guards, self.now())
    }

    /// Reads a string without a lock; whether there is one.
    ///
    /// # Errors
    /// The key has another type; the store's.
    pub fn read_string(&self, db: Db, key: &[u8], out: &mut Vec<u8>) -> Outcome<bool> {
        let word = self.blobs.get(db, key, out)?.map(Word::unpack);
        match self.live(db, key, word) {
            Some(word) if word.kind == Kind::String => Ok(true),
            Some(_) => Err(Refusal::WrongType),
            None => Ok(false),
        }
    }

    /// Reads the records of a compact collection without a lock. The outer none: it is a log, to be opened; the inner: there is none.
    ///
    /// # Errors
    /// The key has another type; the store's.
    pub fn read_compact(&self, db: Db, key: &[u8], kind: Kind, out: &mut Vec<u8>) -> Outcome<Option<Option<()>>> {
        let stat = self.blobs.stat(db, key).map(|stat| Word::unpack(stat.word));
        if stat.is_some_and(|word| word.form == Form::Log) {
            return Ok(None);
        }
        let word = self.blobs.get(db, key, out)?.map(Word::unpack);
        match self.live(db, key, word) {
            Some(word) if word.kind != kind => Err(Refusal::WrongType),
            Some(word) if word.form == Form::Log => Ok(None),
            Some(_) => Ok(Some(Some(()))),
            None => Ok(Some(None)),
        }
    }

    /// Word and size of a key, without a lock.
    pub fn stat(&self, db: Db, key: &[u8]) -> Option<(Word, u64)> {
        let stat = self.blobs.stat(db, key)?;
        self.live(db, key, Some(Word::unpack(stat.word))).map(|word| (word, stat.size))
    }

    /// The word, unless the key has expired: then it is removed.
    fn live(&self, db: Db, key: &[u8], word: Option<Word>) -> Option<Word> {
        // The clock is asked for those that expire only.
        let expired = word.is_some_and(|word| word.expires.is_some() && word.is_expired(self.now()));
        if expired {
            // Under the lock it is looked at again, and goes.
            let _ = self.hold(db, [key]).stat(db, key);
        }
        let live = word.filter(|_| !expired);
        let count = if live.is_some() { &self.counters.hits } else { &self.counters.misses };
        count.fetch_add(1, Ordering::Relaxed);
        live
    }

    /// A page of keys; some may have expired.
    pub fn scan(&self, db: Db, from: u64, count: usize) -> Page {
        self.blobs.scan(db, from, count)
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
        Ok(self.blobs.clear(db)?)
    }

    /// Removes keys whose time has come; to be called ten times a second or so. How many went.
    pub fn expire(&self) -> u64 {
        if !self.expires_actively.load(Ordering::Relaxed) {
            return 0;
        }
        let before = self.counters.expired.load(Ordering::Relaxed);
        loop {
            let due = self.deadlines.take_due(self.now(), DUE_MAX);
            for (_, db, key) in &due {
                let _ = self.hold(*db, [&**key]).stat(*db, key);
            }
            if due.len() < DUE_MAX {
                break;
            }
        }
        self.walk_on();
        self.counters.expired.load(Ordering::Relaxed) - before
    }

    /// One step of the walk through all keys, which lists those that expire. It is walked once after a start, and again when the list was full.
    fn walk_on(&self) {
        let mut walk = self.walk.lock();
        if walk.is_over && !self.deadlines.take_incomplete() {
            return;
        }
        let page = self.blobs.scan(walk.db, walk.from, WALK_STEP);
        for key in &page.keys {
            let mut held = self.hold(walk.db, [&**key]);
            if let Some((word, _)) = held.stat(walk.db, key) {
                self.deadlines.change(walk.db, key, None, word.expires);
            }
        }
        let db = if page.next == 0 { (walk.db + 1) % DATABASES } else { walk.db };
        *walk = Walk { db, from: page.next, is_over: page.next == 0 && db == 0 };
    }
}
