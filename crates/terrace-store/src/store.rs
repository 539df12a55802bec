//! A store as programs see it.

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
use terrace_engine::io::{BlockingIo, Io, UringIo};
use terrace_engine::{Engine, IoKind};

/// An open store. Clones are the same store; it is closed when the last of them and of its buckets is dropped.
#[derive(Debug, Clone)]
pub struct Store(Arc<Anchors>);

/// How large a store is.
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
    /// A directory that is none, or not writable; another program that uses the store; damaged files; no memory.
    pub fn open(dir: impl AsRef<Path>, options: &StoreOptions) -> Result<Store> {
        Store::open_over(dir, options, &Segment::create(options)?)
    }

    /// As [`Store::open`], over a segment that outlives this process. If the process that used it was killed, nothing that it had acknowledged is
    /// lost. The store must not have been opened without the segment meanwhile.
    ///
    /// # Errors
    /// As [`Store::open`]; a segment of another store.
    pub fn open_over(dir: impl AsRef<Path>, options: &StoreOptions, segment: &Segment) -> Result<Store> {
        let io: Arc<dyn Io> = match options.engine.io {
            IoKind::Blocking => Arc::new(BlockingIo::default()),
            IoKind::Uring => {
                let ring = UringIo::new();
                Arc::new(
                    ring.map_err(|e| Error::Invalid { what: format!("io_uring: {e}; choose blocking I/O") })?,
                )
            }
        };
        Store::open_with(dir.as_ref(), options, segment, io)
    }

    /// As [`Store::open_over`], with I/O of the caller's.
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
            // The thread that syncs may write the log anew, with other numbers.
            let _turn = state.durable.turn.lock();
            state.log.journal.begin(state.log.last(), options.sync != SyncPolicy::Always)?;
        }
        Ok(Store(Arc::new(Anchors::new(owner))))
    }

    /// The bucket of this name, made if there is none.
    ///
    /// # Errors
    /// The store is full; a name over 64 KiB.
    pub fn bucket(&self, name: &str) -> Result<Bucket> {
        Ok(Bucket::new(&self.0, buckets::get_or_create(&self.0.state, name)?))
    }

    /// The bucket of this name, if there is one.
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

    /// Renames a bucket; false: there is none. Handles stay valid.
    ///
    /// # Errors
    /// There is one of the new name; the store is full.
    pub fn rename_bucket(&self, from: &str, to: &str) -> Result<bool> {
        buckets::rename_bucket(&self.0.state, from, to)
    }

    /// Removes a bucket with its blobs; false: there is none.
    ///
    /// # Errors
    /// Failing I/O of the log.
    pub fn remove_bucket(&self, name: &str) -> Result<bool> {
        buckets::remove_bucket(&self.0.state, name)
    }

    /// Holders of a tag: names of buckets, each with the key of a blob, or without one if it is the bucket itself. In no order.
    pub fn tagged(&self, tag: &str) -> Vec<(String, Option<Box<[u8]>>)> {
        if self.0.state.process.is_forked() {
            return Vec::new();
        }
        let names: HashMap<u64, String> =
            self.0.state.names.all().iter().map(|bucket| (bucket.id, bucket.name())).collect();
        let members = self.0.state.tags.members(tag).into_iter();
        members.filter_map(|(bucket, key)| Some((names.get(&bucket)?.clone(), key))).collect()
    }

    /// Makes all changes durable that were done before the call, and writes the files of buckets that persist.
    ///
    /// # Errors
    /// A write or sync failed; what was to be written is still in memory.
    pub fn sync(&self) -> Result<()> {
        self.0.state.check_fork()?;
        persist::sync(&self.0.state)
    }

    /// Ends a batch of changes ([`StoreOptions::batches`]): with [`crate::SyncPolicy::Always`] they are durable, else the kernel holds them.
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

    /// The error of the last sync, if it has failed: by a thread ([`crate::SyncPolicy::Every`]) or by a call.
    pub fn sync_failure(&self) -> Option<String> {
        self.0.state.durable.failure().map(|failure| failure.why)
    }

    /// Waits until a heap that fits in memory has been read ([`StoreOptions::warm`]), or a larger one will not be: from then on gets do not compete with it
    /// for the device. At once where the store is new, or was opened over the segment of a process that was killed.
    pub fn wait_warm(&self) {
        if self.0.state.process.is_forked() {
            return;
        }
        self.0.state.warmed.wait();
    }

    /// Writes the record log anew, without its garbage, and makes everything durable. Happens by itself when most of the log is garbage.
    ///
    /// # Errors
    /// No room for the new log; failing I/O. The old log stays.
    pub fn checkpoint(&self) -> Result<()> {
        self.0.state.check_fork()?;
        durable::write_anew(&self.0.state)
    }

    /// Makes everything durable and ends the store; other clones answer [`Error::Closed`] from now on.
    ///
    /// # Errors
    /// A write or sync failed: what was not durable may be lost.
    pub fn close(self) -> Result<()> {
        self.0.close()
    }

    /// Removes the files of a store.
    ///
    /// # Errors
    /// It is in use; a file that cannot be removed.
    pub fn destroy(dir: impl AsRef<Path>, name: &str) -> Result<()> {
        open::destroy(dir.as_ref(), name)
    }

    /// The engine's counters and sizes.
    pub fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// How large the store is.
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

    /// Counts further memory of the caller's against the limit; `bytes` is called often.
    pub fn count_memory(&self, bytes: impl Fn() -> u64 + Send + Sync + 'static) {
        self.engine().count_also(bytes);
    }

    /// Whether `bytes` more of the caller's memory fit beside all that is counted; what was counted has made the pool smaller by then.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.engine().make_room(bytes)
    }

    /// The engine: its limit of memory, recordings, lists.
    pub fn engine(&self) -> &Engine {
        self.0.state.heap.engine()
    }

    /// Ends the store as a kill would: nothing is written any more.
    #[cfg(feature = "testing")]
    pub fn crash(self) {
        self.0.crash();
    }
}
