//! An open store and its threads; they end when the last handle is dropped.

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

/// State that all handles of a store share.
#[derive(Debug)]
pub(crate) struct Owner {
    pub state: Arc<StoreState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// One of the counts of those who hold a store. All handles of buckets count themselves where they begin and end; with a single count threads
/// that only look buckets up would wait for each other.
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
    /// Whether both hold the same store.
    pub(crate) fn is_with(&self, other: &Anchor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Anchors([Arc<Anchor>; 64]);

impl Anchors {
    pub(crate) fn new(owner: Owner) -> Anchors {
        let owner = Arc::new(owner);
        Anchors(std::array::from_fn(|_| Arc::new(Anchor(owner.clone()))))
    }

    /// The one of a bucket.
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

    /// Ends the threads; false: the store was closed before.
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
    /// A failed write or sync: what was not durable before may be lost.
    pub(crate) fn close(&self) -> Result<()> {
        if self.state.process.is_forked() {
            return Err(Error::Forked);
        }
        if !self.stop() {
            return Ok(());
        }
        let ended = self.end();
        // Handles of buckets may live on.
        self.state.heap.unlock();
        ended
    }

    fn end(&self) -> Result<()> {
        let state = &self.state;
        // A change that looked before the store was closed is in the log now, or refused there.
        state.log.close();
        let synced = persist::sync(state);
        let ended = state.heap.engine().shutdown();
        synced?;
        ended.map_err(|e| Error::io(state.heap.path(), "write back", e))?;
        state.log.finish();
        state.log.journal.end();
        Ok(())
    }

    /// Ends the threads as a kill would: nothing is written, and what stands in the segment stays there.
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
            // Locks, threads and files are the parent's: nothing of it ends here.
            return std::mem::forget(self.state.clone());
        }
        if let Err(e) = self.close() {
            tracing::error!("{e}; what was not durable may be lost");
        }
        self.state.heap.unlock();
    }
}
