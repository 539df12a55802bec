//! Lifetime of an open store: its threads end when the last handle is dropped.

use crate::durable;
use crate::error::{Error, Result};
use crate::ops::persist;
use crate::state::StoreState;
use crate::warm;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use terrace_sync::Mutex;

/// The state behind all handles of a store.
#[derive(Debug)]
pub(crate) struct Owner {
    pub state: Arc<StoreState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// One of several reference counts of a store. Handles of buckets count themselves when created and dropped.
/// With a single count, threads that only look up buckets would contend for its cache line.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Anchor(Arc<Owner>);

impl Deref for Anchor {
    type Target = Owner;

    fn deref(&self) -> &Owner {
        &self.0
    }
}

impl Anchor {
    /// Whether both belong to the same store.
    pub(crate) fn is_with(&self, other: &Anchor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// All reference counts of a store.
#[derive(Debug)]
pub(crate) struct Anchors([Arc<Anchor>; 64]);

impl Anchors {
    pub(crate) fn new(owner: Owner) -> Anchors {
        let owner = Arc::new(owner);
        Anchors(std::array::from_fn(|_| Arc::new(Anchor(owner.clone()))))
    }

    /// The reference count that handles of this bucket use.
    pub(crate) fn of(&self, bucket: u64) -> Arc<Anchor> {
        self.0[bucket as usize % self.0.len()].clone()
    }
}

impl Deref for Anchors {
    type Target = Owner;

    fn deref(&self) -> &Owner {
        &self.0[0]
    }
}

impl Owner {
    /// Starts the threads.
    ///
    /// # Errors
    /// No more threads.
    pub(crate) fn new(state: StoreState) -> Result<Owner> {
        let state = Arc::new(state);
        let owner = Owner { state, threads: Mutex::default() };
        let warm = owner.state.warmed.get().is_none().then_some(("store-warm", warm::run as fn(&StoreState)));
        let threads = [("store-sync", durable::run as fn(&StoreState)), ("store-files", persist::run)];
        let started = threads.into_iter().chain(warm).try_for_each(|(name, run)| owner.start(name, run));
        if let Err(source) = started {
            owner.stop();
            owner.state.heap.engine().halt();
            let path = owner.state.heap.path().to_owned();
            return Err(Error::Io { path, action: "start a thread for", source });
        }
        Ok(owner)
    }

    fn start(&self, name: &str, run: fn(&StoreState)) -> std::io::Result<()> {
        let state = self.state.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || run(&state))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Ends the threads. Returns false if the store was already closed.
    fn stop(&self) -> bool {
        if self.state.closed.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.state.wake.signal();
        self.state.files_wake.signal();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
        true
    }

    /// Makes everything durable and ends the threads.
    ///
    /// # Errors
    /// A write or sync failed: changes that were not durable may be lost.
    pub(crate) fn close(&self) -> Result<()> {
        if self.state.process.is_forked() {
            return Err(Error::Forked);
        }
        if !self.stop() {
            return Ok(());
        }
        let ended = self.end();
        // Handles of buckets may outlive the store.
        self.state.heap.unlock();
        ended
    }

    fn end(&self) -> Result<()> {
        let state = &self.state;
        // A change that passed its check before the close is in the log by now, or refused there.
        state.log.close();
        let synced = persist::sync(state);
        let ended = state.heap.engine().shutdown();
        synced?;
        ended.map_err(|e| Error::io(state.heap.path(), "write back", e))?;
        state.log.finish();
        state.log.journal.end();
        Ok(())
    }

    /// Ends the threads like a kill: nothing is written, and the segment stays as it is.
    #[cfg(feature = "testing")]
    pub(crate) fn crash(&self) {
        if self.stop() {
            self.state.heap.engine().halt();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.state.process.is_forked() {
            // A fork: locks, threads and files belong to the parent, so nothing is released here.
            return std::mem::forget(self.state.clone());
        }
        if let Err(e) = self.close() {
            tracing::error!("{e}; changes without a sync may be lost");
        }
        self.state.heap.unlock();
    }
}
