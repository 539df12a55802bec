//! The public type [`Store`]: open, close and sync of a store, its buckets, and its statistics.

use crate::bucket::Bucket;
use crate::durable;
use crate::error::{Error, Result};
use crate::open;
use crate::ops::{buckets, persist};
use crate::options::{StoreOptions, SyncPolicy};
use crate::owner::{Anchors, Owner};
use crate::segment::Segment;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrace_api::stats::Stats;
use terrace_engine::{Engine, IoKind};
use terrace_io::{BlockingIo, Io, UringIo};

/// An open store. Clones are the same store; it is closed when the last of them and of its buckets is dropped.
#[derive(Debug, Clone)]
pub struct Store(Arc<Anchors>);

/// Counts and sizes of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Buckets.
    pub buckets: u64,
    /// Blobs.
    pub blobs: u64,
    /// Bytes of blobs.
    pub blob_bytes: u64,
    /// Bytes of the heap's file.
    pub heap_bytes: u64,
    /// Bytes of whole pages of it that are free.
    pub heap_free_bytes: u64,
    /// Bytes of it that will be free after the next sync.
    pub heap_retired_bytes: u64,
    /// Bytes of the record log.
    pub log_bytes: u64,
    /// Memory of the index, bytes.
    pub index_bytes: u64,
    /// Syncs since the store was opened.
    pub syncs: u64,
}

impl Store {
    /// Opens the store of `options` in a directory, and makes it if there is none.
    ///
    /// # Errors
    /// The directory is missing or not writable; another program uses the store; damaged files; no memory.
    pub fn open(dir: impl AsRef<Path>, options: &StoreOptions) -> Result<Store> {
        Store::open_over(dir, options, &Segment::create(options)?)
    }

    /// Like [`Store::open`], over a segment that outlives this process. A kill of the previous process loses
    /// no acknowledged change. The store must not have been opened without the segment in between.
    ///
    /// # Errors
    /// As [`Store::open`]; a segment of another store.
    pub fn open_over(dir: impl AsRef<Path>, options: &StoreOptions, segment: &Segment) -> Result<Store> {
        let io: Arc<dyn Io> = match options.engine.io {
            IoKind::Blocking => Arc::new(BlockingIo::default()),
            IoKind::Uring => {
                let ring = UringIo::new();
                Arc::new(ring.map_err(|e| Error::Invalid {
                    what: format!("io_uring is not available ({e}); choose blocking I/O"),
                })?)
            }
        };
        Store::open_with(dir.as_ref(), options, segment, io)
    }

    /// Like [`Store::open_over`], with the caller's I/O.
    ///
    /// # Errors
    /// As [`Store::open_over`].
    #[doc(hidden)]
    pub fn open_with(
        dir: &Path,
        options: &StoreOptions,
        segment: &Segment,
        io: Arc<dyn Io>,
    ) -> Result<Store> {
        options.check()?;
        let (state, is_unmarked) = open::open(dir, options, segment, io)?;
        let owner = Owner::new(state)?;
        if is_unmarked {
            durable::sync(&owner.state)?;
        }
        {
            let state = &owner.state;
            // The sync thread may compact the log, which changes the record numbers.
            let _turn = state.durable.turn.lock();
            state.log.journal.begin(state.log.last(), options.sync != SyncPolicy::Always)?;
        }
        Ok(Store(Arc::new(Anchors::new(owner))))
    }

    /// Returns the bucket of this name. It is created if missing.
    ///
    /// # Errors
    /// The store is full; a name over 64 KiB.
    pub fn bucket(&self, name: &str) -> Result<Bucket> {
        Ok(Bucket::new(&self.0, buckets::get_or_create(&self.0.state, name)?))
    }

    /// Returns the bucket of this name, if it exists.
    pub fn find_bucket(&self, name: &str) -> Option<Bucket> {
        self.0.state.check_fork().ok()?;
        Some(Bucket::new(&self.0, self.0.state.names.get(name)?))
    }

    /// Names of all buckets, sorted.
    pub fn buckets(&self) -> Vec<String> {
        if self.0.state.process.is_forked() {
            return Vec::new();
        }
        let mut names: Vec<String> = self.0.state.names.all().iter().map(|bucket| bucket.name()).collect();
        names.sort_unstable();
        names
    }

    /// Renames a bucket. Returns false if it does not exist. Handles stay valid.
    ///
    /// # Errors
    /// A bucket of the new name exists; the store is full.
    pub fn rename_bucket(&self, from: &str, to: &str) -> Result<bool> {
        buckets::rename_bucket(&self.0.state, from, to)
    }

    /// Removes a bucket with its blobs. Returns false if it does not exist.
    ///
    /// # Errors
    /// Failing I/O of the log.
    pub fn remove_bucket(&self, name: &str) -> Result<bool> {
        buckets::remove_bucket(&self.0.state, name)
    }

    /// Holders of a tag: names of buckets, each with a blob's key, or without one for the bucket's own tag.
    /// Unordered.
    pub fn tagged(&self, tag: &str) -> Vec<(String, Option<Box<[u8]>>)> {
        if self.0.state.process.is_forked() {
            return Vec::new();
        }
        let names: HashMap<u64, String> =
            self.0.state.names.all().iter().map(|bucket| (bucket.id, bucket.name())).collect();
        let members = self.0.state.tags.members(tag).into_iter();
        members.filter_map(|(bucket, key)| Some((names.get(&bucket)?.clone(), key))).collect()
    }

    /// Makes all changes before the call durable, and writes the files of persistent buckets.
    ///
    /// # Errors
    /// A write or sync failed; the unwritten data stays in memory.
    pub fn sync(&self) -> Result<()> {
        self.0.state.check_fork()?;
        persist::sync(&self.0.state)
    }

    /// Ends a batch of changes ([`StoreOptions::batches`]). With [`crate::SyncPolicy::Always`] they are
    /// durable afterwards, otherwise the kernel holds them.
    ///
    /// # Errors
    /// As [`Store::sync`].
    pub fn end_batch(&self) -> Result<()> {
        self.0.state.check_fork()?;
        let state = &self.0.state;
        match state.sync {
            SyncPolicy::Always => persist::sync(state),
            SyncPolicy::Every(_) | SyncPolicy::Never => durable::hold(state, state.log.appended()),
        }
    }

    /// The error of the last sync, if it failed: a sync of the thread ([`crate::SyncPolicy::Every`]) or of a
    /// call.
    pub fn sync_failure(&self) -> Option<String> {
        self.0.state.durable.failure().map(|failure| failure.why)
    }

    /// Waits until the heap has been read ahead ([`StoreOptions::warm`]), or is known not to fit in memory.
    /// Afterwards read-ahead no longer competes with gets for the device. Returns at once if the store is
    /// new, or was opened over the segment of a killed process.
    pub fn wait_warm(&self) {
        if self.0.state.process.is_forked() {
            return;
        }
        self.0.state.warmed.wait();
    }

    /// Compacts the record log and makes everything durable. The store does so by itself when most of the log
    /// is garbage.
    ///
    /// # Errors
    /// No room for the new log; I/O errors. The old log stays.
    pub fn checkpoint(&self) -> Result<()> {
        self.0.state.check_fork()?;
        durable::write_anew(&self.0.state)
    }

    /// Makes everything durable and closes the store. Other clones then return [`Error::Closed`].
    ///
    /// # Errors
    /// A write or sync failed: changes that were not durable may be lost.
    pub fn close(self) -> Result<()> {
        self.0.close()
    }

    /// Removes the files of a store.
    ///
    /// # Errors
    /// The store is in use; a file cannot be removed.
    pub fn destroy(dir: impl AsRef<Path>, name: &str) -> Result<()> {
        open::destroy(dir.as_ref(), name)
    }

    /// The engine's counters and sizes.
    pub fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// Counts and sizes of the store.
    pub fn usage(&self) -> Usage {
        let state = &self.0.state;
        let counts = &state.counts;
        let (heap_bytes, heap_free_bytes, heap_retired_bytes) = {
            let space = state.heap.space();
            (space.bytes(), space.free_bytes(), space.retired_bytes())
        };
        Usage {
            buckets: state.names.len(),
            blobs: counts.blobs.load(Ordering::Relaxed),
            blob_bytes: counts.bytes.load(Ordering::Relaxed),
            heap_bytes,
            heap_free_bytes,
            heap_retired_bytes,
            log_bytes: state.log.bytes(),
            index_bytes: state.memory.bytes() + state.heap.space().memory(),
            syncs: state.durable.syncs.load(Ordering::Relaxed),
        }
    }

    /// Counts more memory of the caller against the limit. `bytes` is called often.
    pub fn count_memory(&self, bytes: impl Fn() -> u64 + Send + Sync + 'static) {
        self.engine().count_also(bytes);
    }

    /// Whether the caller may take `bytes` more memory. Counted memory has already shrunk the pool by then.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.engine().make_room(bytes)
    }

    /// The engine: its limit of memory, recordings, lists.
    pub fn engine(&self) -> &Engine {
        self.0.state.heap.engine()
    }

    /// Ends the store like a kill: it writes nothing more.
    #[cfg(feature = "testing")]
    pub fn crash(self) {
        self.0.crash();
    }
}
