//! Memory of the index: counted exactly, and reserved before it grows.
//!
//! A table doubles when it is full, and the old and the new room exist together for a moment. Both are
//! counted beforehand. So the engine has given up as many frames by then, or the change is refused.

use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrace_engine::Engine;

/// The index requests room from the engine each time this many bytes were added. Smaller growth stays within
/// its reserve.
const STEP: u64 = 32 << 10;
/// An open store's index leaves one part in this many of the limit to other users.
const SPARE_SHARE: u64 = 16;

#[derive(Debug)]
pub(crate) struct IndexMemory {
    bytes: Arc<AtomicU64>,
    engine: Arc<Engine>,
    /// The store is open: the index leaves the spare part to other users.
    leaves_spare: AtomicBool,
}

/// Reserved memory. Dropping it releases what was not kept.
#[derive(Debug)]
pub(crate) struct Ahead<'a> {
    memory: &'a IndexMemory,
    bytes: u64,
}

impl Ahead<'_> {
    /// Keeps `bytes` of it counted: they are in use now. Usually these are all, and then the shared count is
    /// not touched.
    pub(crate) fn keep(&mut self, bytes: u64) {
        self.memory.add(bytes.saturating_sub(self.bytes));
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        self.memory.sub(self.bytes);
    }
}

impl IndexMemory {
    /// Counts against the engine's limit from now on.
    pub(crate) fn new(engine: Arc<Engine>) -> IndexMemory {
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = bytes.clone();
        engine.count_also(move || counted.load(Ordering::Relaxed));
        IndexMemory { bytes, engine, leaves_spare: AtomicBool::new(false) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Leaves the spare part to other users from now on.
    pub(crate) fn leave_spare(&self) {
        self.leaves_spare.store(true, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, bytes: u64) {
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    pub(crate) fn sub(&self, bytes: u64) {
        if bytes > 0 {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Reserves memory.
    ///
    /// # Errors
    /// The memory does not fit, even after all other memory was given up.
    pub(crate) fn ask(&self, bytes: u64) -> Result<Ahead<'_>> {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let ahead = Ahead { memory: self, bytes };
        if before / STEP != (before + bytes) / STEP && !self.fits() {
            drop(ahead);
            let limit = self.engine.memory_bytes();
            return Err(Error::NoMemory { index: before, limit });
        }
        Ok(ahead)
    }

    fn fits(&self) -> bool {
        let leaves = self.leaves_spare.load(Ordering::Relaxed);
        let spare = if leaves { self.engine.memory_bytes() / SPARE_SHARE } else { 0 };
        self.engine.make_room(spare)
    }
}
