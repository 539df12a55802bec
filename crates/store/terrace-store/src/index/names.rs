//! A store's buckets are found by name, in sharded hash tables with a lock each. The tables hold pointers to
//! the buckets' states, like those of blobs ([`super::bucket`]).

use super::bucket::spilled_bytes;
use super::memory::{Ahead, IndexMemory};
use super::{BucketState, Hashes};
use crate::allocated::allocated;
use crate::error::Result;
use hashbrown::HashTable;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_sync::{RwLock, RwLockWriteGuard};

const SHARDS: usize = 64;

/// The buckets of one shard.
pub(crate) type Named = HashTable<Arc<BucketState>>;

#[derive(Debug)]
pub(crate) struct Names {
    hashes: Hashes,
    shards: Vec<RwLock<Named>>,
    next_id: AtomicU64,
    len: AtomicU64,
}

/// Memory of a bucket without its tables, bytes.
fn bucket_bytes(name: &str) -> u64 {
    /// The reference counts of an `Arc`, bytes.
    const SHARED: usize = 16;
    allocated(SHARED + size_of::<BucketState>()) + spilled_bytes(name.as_bytes())
}

fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

impl Names {
    pub(crate) fn new(hashes: Hashes) -> Names {
        let shards = (0..SHARDS).map(|_| RwLock::default()).collect();
        Names { hashes, shards, next_id: AtomicU64::new(1), len: AtomicU64::new(0) }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<BucketState>> {
        let hash = self.hashes.of(name.as_bytes());
        find(&self.shards[shard_of(hash)].read(), hash, name).cloned()
    }

    /// Takes a number for a new bucket.
    pub(crate) fn take_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes that numbers up to this one are in use.
    pub(crate) fn note_id(&self, id: u64) {
        self.next_id.fetch_max(id + 1, Ordering::Relaxed);
    }

    /// Locks the shard of a name for writing. Also returns the name's hash.
    pub(crate) fn lock(&self, name: &str) -> (RwLockWriteGuard<'_, Named>, u64) {
        let hash = self.hashes.of(name.as_bytes());
        (self.shards[shard_of(hash)].write(), hash)
    }

    /// Locks the shards of two names. One guard if both are in the same shard.
    pub(crate) fn lock_two(
        &self,
        a: &str,
        b: &str,
    ) -> (RwLockWriteGuard<'_, Named>, Option<RwLockWriteGuard<'_, Named>>) {
        let place = |name: &str| shard_of(self.hashes.of(name.as_bytes()));
        let (i, j) = (place(a), place(b));
        if i == j {
            return (self.shards[i].write(), None);
        }
        if i < j {
            let first = self.shards[i].write();
            return (first, Some(self.shards[j].write()));
        }
        let second = self.shards[j].write();
        (self.shards[i].write(), Some(second))
    }

    /// Inserts a bucket under `name` into the name's shard. Returns the memory that it takes, for the caller
    /// to count.
    #[must_use]
    pub(crate) fn insert(&self, shard: &mut Named, bucket: Arc<BucketState>, name: &str) -> u64 {
        let (before, own) = (shard.allocation_size(), bucket_bytes(name));
        let hash = self.hashes.of(name.as_bytes());
        bucket.set_name(name);
        shard.insert_unique(hash, bucket, |bucket| bucket.hash(&self.hashes));
        self.len.fetch_add(1, Ordering::Relaxed);
        own + allocated(shard.allocation_size()) - allocated(before)
    }

    /// Reserves memory for one more bucket.
    ///
    /// # Errors
    /// As [`IndexMemory::ask`].
    pub(crate) fn ask<'a>(&self, shard: &Named, name: &str, memory: &'a IndexMemory) -> Result<Ahead<'a>> {
        let grown = if shard.len() < shard.capacity() { 0 } else { 2 * shard.allocation_size() + 256 };
        memory.ask(bucket_bytes(name) + grown as u64)
    }

    /// Removes the bucket of this name, if `end` succeeds. None: it does not exist.
    ///
    /// # Errors
    /// The error of `end`: the bucket stays.
    pub(crate) fn remove(
        &self,
        (shard, hash): (&mut Named, u64),
        name: &str,
        memory: &IndexMemory,
        end: impl FnOnce(&Arc<BucketState>) -> Result<()>,
    ) -> Result<Option<Arc<BucketState>>> {
        let Ok(found) = shard.find_entry(hash, |bucket| bucket.has_name(name)) else { return Ok(None) };
        end(found.get())?;
        self.len.fetch_sub(1, Ordering::Relaxed);
        memory.sub(bucket_bytes(name));
        Ok(Some(found.remove().0))
    }

    /// All buckets, unordered.
    pub(crate) fn all(&self) -> Vec<Arc<BucketState>> {
        self.shards.iter().flat_map(|shard| shard.read().iter().cloned().collect::<Vec<_>>()).collect()
    }
}

pub(crate) fn find<'a>(shard: &'a Named, hash: u64, name: &str) -> Option<&'a Arc<BucketState>> {
    shard.find(hash, |bucket| bucket.has_name(name))
}
