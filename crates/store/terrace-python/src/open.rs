//! An open store, shared by its Python objects.
//!
//! Calls hold a read lock while the store works. A close takes the write lock: it waits for running calls,
//! then drops store and buckets despite live Python objects. Memory and files are then free for the next
//! open.
//!
//! **Fork.** A forked process has the store's memory, but none of its threads, and its locks in an unknown
//! state. It must not touch them: calls are refused, and objects are leaked silently.

use crate::error::Failed;
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use terrace_store::{Bucket, Error, Store};
use terrace_sync::RwLock;

/// Number of forks between the first process and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn note_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// A store, and its buckets by the numbers that Python objects use.
#[derive(Debug)]
pub(crate) struct Open {
    parts: ManuallyDrop<RwLock<Option<Parts>>>,
    forks: u64,
}

#[derive(Debug)]
struct Parts {
    store: Store,
    buckets: RwLock<HashMap<u64, Bucket>>,
    next: AtomicU64,
}

impl Open {
    pub(crate) fn new(store: Store) -> Open {
        static ONCE: Once = Once::new();
        // SAFETY: the function only counts.
        ONCE.call_once(|| assert_eq!(unsafe { libc::pthread_atfork(None, None, Some(note_fork)) }, 0));
        let parts = Parts { store, buckets: RwLock::default(), next: AtomicU64::new(0) };
        let forks = FORKS.load(Ordering::Relaxed);
        Open { parts: ManuallyDrop::new(RwLock::new(Some(parts))), forks }
    }

    fn is_forked(&self) -> bool {
        FORKS.load(Ordering::Relaxed) != self.forks
    }

    fn with_parts<T>(&self, f: impl FnOnce(&Parts) -> Result<T, Failed>) -> Result<T, Failed> {
        if self.is_forked() {
            return Err(Failed::Forked);
        }
        let parts = self.parts.read();
        f(parts.as_ref().ok_or(Failed::Store(Error::Closed))?)
    }

    /// Calls `f` with the store.
    ///
    /// # Errors
    /// The store was closed; the process was forked; errors of `f`.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&Store) -> Result<T, Failed>) -> Result<T, Failed> {
        self.with_parts(|parts| f(&parts.store))
    }

    /// Calls `f` with the bucket of this number.
    ///
    /// # Errors
    /// As [`Open::with`].
    pub(crate) fn with_bucket<T>(
        &self,
        number: u64,
        f: impl FnOnce(&Bucket) -> Result<T, Failed>,
    ) -> Result<T, Failed> {
        self.with_parts(|parts| {
            let bucket = parts.buckets.read().get(&number).cloned();
            f(&bucket.expect("an object's bucket is there as long as it"))
        })
    }

    /// Registers the bucket that `find` returns. Returns its number, valid until `forget_bucket`.
    ///
    /// # Errors
    /// As [`Open::with`].
    pub(crate) fn take_bucket(
        &self,
        find: impl FnOnce(&Store) -> Result<Option<Bucket>, Failed>,
    ) -> Result<Option<u64>, Failed> {
        self.with_parts(|parts| {
            let Some(bucket) = find(&parts.store)? else { return Ok(None) };
            let number = parts.next.fetch_add(1, Ordering::Relaxed);
            parts.buckets.write().insert(number, bucket);
            Ok(Some(number))
        })
    }

    /// Forgets the bucket of a dropped object. Does not wait for a store being closed: its buckets are
    /// dropped with it.
    pub(crate) fn forget_bucket(&self, number: u64) {
        if self.is_forked() {
            return;
        }
        if let Some(parts) = self.parts.try_read().as_deref().and_then(Option::as_ref) {
            parts.buckets.write().remove(&number);
        }
    }

    /// Makes everything durable and closes the store. No change if it is closed already.
    ///
    /// # Errors
    /// A write or sync failed; the process was forked.
    pub(crate) fn close(&self) -> Result<(), Failed> {
        if self.is_forked() {
            return Err(Failed::Forked);
        }
        let Some(parts) = self.parts.write().take() else { return Ok(()) };
        Ok(parts.store.close()?)
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.is_forked() && self.parts.read().is_some()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.is_forked() {
            // SAFETY: dropped only here, once.
            unsafe { ManuallyDrop::drop(&mut self.parts) };
        }
    }
}
