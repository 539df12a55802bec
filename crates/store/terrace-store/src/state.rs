//! The state of an open store, which all operations share.

use crate::error::{Error, Result};
use crate::fork::Process;
use crate::heap::Heap;
use crate::index::{BucketState, Hashes, IndexMemory, Names, Tags};
use crate::log::{Log, Logged, ROOM, Room};
use crate::options::{StoreOptions, SyncPolicy};
use crate::record::Record;
use crate::scan_cache::ScanCache;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use terrace_io::Io;
use terrace_sync::{Mutex, Wakeup};

/// Numbers of changes that are not logged begin here.
const UNLOGGED: u64 = 1 << 63;

#[derive(Debug)]
pub(crate) struct StoreState {
    pub dir: Arc<File>,
    pub names_path: PathBuf,
    pub io: Arc<dyn Io>,
    pub heap: Heap,
    pub log: Log,
    pub names: Names,
    /// Buckets with the trait `persist`.
    pub persisting: Mutex<Vec<Arc<BucketState>>>,
    pub tags: Tags,
    /// Rests of scans, by bucket number.
    pub scan_cache: Mutex<ScanCache>,
    pub hashes: Hashes,
    pub store: u64,
    pub seed: u64,
    pub sync: SyncPolicy,
    /// Calls return before the kernel holds their changes ([`crate::Store::end_batch`]).
    pub batches: bool,
    pub wake: Arc<Wakeup>,
    /// Wakes the thread `store-files`.
    pub files_wake: Wakeup,
    pub memory: IndexMemory,
    pub counts: Counts,
    pub durable: Durable,
    pub closed: AtomicBool,
    pub process: Process,
    /// Set when the heap has been read ahead, or read-ahead was given up.
    pub warmed: OnceLock<()>,
    unlogged: AtomicU64,
}

/// The durable part of the log, and the locks of syncs.
#[derive(Debug, Default)]
pub(crate) struct Durable {
    /// Number of the last durable record.
    pub upto: AtomicU64,
    /// Held during a sync. Waiting threads share its result.
    pub turn: Mutex<()>,
    /// Held during log compaction.
    pub anew: Mutex<()>,
    pub syncs: AtomicU64,
    fails: AtomicBool,
    failure: Mutex<Option<SyncFailure>>,
}

#[derive(Debug, Clone)]
pub(crate) struct SyncFailure {
    pub why: String,
    /// The sync failed for lack of room: removals may still be made.
    pub is_full: bool,
}

impl Durable {
    pub(crate) fn note(&self, result: &Result<()>) {
        let failure = result.as_ref().err().map(|e| SyncFailure { why: e.to_string(), is_full: e.is_full() });
        let fails = failure.is_some();
        // Fast path: this sync and the last one succeeded.
        if fails || self.fails.load(Ordering::Relaxed) {
            *self.failure.lock() = failure;
            self.fails.store(fails, Ordering::Relaxed);
        }
    }

    pub(crate) fn failure(&self) -> Option<SyncFailure> {
        if self.fails.load(Ordering::Relaxed) { self.failure.lock().clone() } else { None }
    }
}

/// Totals of the store.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub blobs: AtomicU64,
    pub bytes: AtomicU64,
    /// Size of the log without garbage, bytes.
    pub logged: AtomicU64,
}

impl StoreState {
    #[expect(clippy::too_many_arguments, reason = "each is one part of it")]
    pub(crate) fn new(
        (dir, names_path): (Arc<File>, PathBuf),
        io: Arc<dyn Io>,
        heap: Heap,
        log: Log,
        (names, tags): (Names, Tags),
        hashes: Hashes,
        (store, seed): (u64, u64),
        options: &StoreOptions,
        wake: Arc<Wakeup>,
        (memory, counts, process): (IndexMemory, Counts, Process),
    ) -> StoreState {
        let persisting = names.all().into_iter();
        let persisting = persisting.filter(|bucket| bucket.persist().is_some()).collect();
        StoreState {
            dir,
            names_path,
            io,
            heap,
            log,
            names,
            persisting: Mutex::new(persisting),
            tags,
            scan_cache: Mutex::default(),
            hashes,
            store,
            seed,
            sync: options.sync,
            batches: options.batches,
            wake,
            files_wake: Wakeup::default(),
            memory,
            counts,
            durable: Durable::default(),
            closed: AtomicBool::new(false),
            process,
            warmed: OnceLock::new(),
            unlogged: AtomicU64::new(UNLOGGED),
        }
    }

    /// # Errors
    /// The store was closed; this process is a fork of the one that opened it.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.check_fork()?;
        if self.closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Whether a durable change may be made. `frees`: the change frees room. With [`SyncPolicy::Every`] a
    /// thread syncs, so the failure of its last sync is reported here.
    ///
    /// # Errors
    /// The store was closed; the last sync has failed.
    pub(crate) fn check_change(&self, frees: bool) -> Result<()> {
        self.check_open()?;
        let refuses =
            |failure: &SyncFailure| matches!(self.sync, SyncPolicy::Every(_)) && !(frees && failure.is_full);
        match self.durable.failure().filter(refuses) {
            Some(SyncFailure { why, is_full }) => Err(Error::NotDurable { why, is_full }),
            None => Ok(()),
        }
    }

    /// # Errors
    /// This process is a fork of the one that opened the store.
    pub(crate) fn check_fork(&self) -> Result<()> {
        if self.process.is_forked() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Like [`Log::append`]. On a full disk the journal and the heap give unused blocks back, then the append
    /// is retried.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub(crate) fn append(&self, record: &Record<'_>, room: Room) -> Result<u64> {
        self.append_over(record, room).map(|logged| logged.number)
    }

    /// Like [`StoreState::append`], for a record that may replace another.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub(crate) fn append_over(&self, record: &Record<'_>, room: Room) -> Result<Logged> {
        self.with_log_room(|| self.log.append(record, room))
    }

    /// Like [`Log::ask`], with the retry of [`StoreState::append`].
    ///
    /// # Errors
    /// As [`Log::ask`].
    pub(crate) fn ask_log(&self, bytes: u64) -> Result<()> {
        self.with_log_room(|| self.log.ask(bytes))
    }

    fn with_log_room<T>(&self, f: impl Fn() -> Result<T>) -> Result<T> {
        match f() {
            Err(e) if e.is_full() && (self.log.journal.give_back() | (self.heap.give_back(ROOM) > 0)) => f(),
            done => done,
        }
    }

    pub(crate) fn take_unlogged(&self) -> u64 {
        self.unlogged.fetch_add(1, Ordering::Relaxed)
    }
}

impl Counts {
    /// Counts a new (1) or removed (-1) blob.
    pub(crate) fn blob(&self, sign: i64, logged: u64) {
        let add = |to: &AtomicU64, n: u64| to.fetch_add((n as i64 * sign) as u64, Ordering::Relaxed);
        add(&self.blobs, 1);
        add(&self.logged, logged);
    }
    /// Counts a change of a blob's size.
    pub(crate) fn size(&self, old: u64, new: u64) {
        self.bytes.fetch_add(new.wrapping_sub(old), Ordering::Relaxed);
    }
    /// Counts a new (1) or removed (-1) bucket.
    pub(crate) fn bucket(&self, sign: i64, name: usize) {
        let add = |to: &AtomicU64, n: u64| to.fetch_add((n as i64 * sign) as u64, Ordering::Relaxed);
        add(&self.logged, name as u64 + 17);
    }
}
