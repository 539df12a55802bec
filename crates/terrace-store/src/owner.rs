//! An open store and its thread; it ends when the last handle is dropped.

use crate::core::Core;
use crate::durable;
use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

/// What all handles of a store share.
#[derive(Debug)]
pub(crate) struct Owner {
    pub core: Arc<Core>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Owner {
    /// Starts the thread.
    ///
    /// # Errors
    /// No more threads.
    pub(crate) fn new(core: Core) -> Result<Owner> {
        let core = Arc::new(core);
        let of_thread = core.clone();
        let thread =
            std::thread::Builder::new().name("store-sync".into()).spawn(move || durable::run(&of_thread));
        match thread {
            Ok(thread) => Ok(Owner { core, thread: Mutex::new(Some(thread)) }),
            Err(source) => {
                core.heap.engine().halt();
                Err(Error::Io { path: core.heap.path().to_owned(), action: "start a thread for", source })
            }
        }
    }

    /// Ends the thread; false: the store was closed before.
    fn stop(&self) -> bool {
        if self.core.closed.swap(true, Ordering::AcqRel) {
            return false;
        }
        self.core.wake.signal();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        true
    }

    /// Makes everything durable and ends the threads.
    ///
    /// # Errors
    /// A failed write or sync: what was not durable before may be lost.
    pub(crate) fn close(&self) -> Result<()> {
        if !self.stop() {
            return Ok(());
        }
        let core = &self.core;
        let synced = durable::sync(core);
        let ended = core.heap.engine().shutdown();
        synced?;
        ended.map_err(|e| Error::io(core.heap.path(), "write back", e))?;
        core.log.finish();
        Ok(())
    }

    /// Ends the threads as a kill would: nothing is written, and what stands in the segment stays there.
    #[cfg(feature = "testing")]
    pub(crate) fn crash(&self) {
        if self.stop() {
            self.core.heap.engine().halt();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Err(e) = self.close() {
            tracing::error!("{e}; what was not durable may be lost");
        }
    }
}
