//! Memory of the index: counted to the byte, and asked for before it grows.
//!
//! A table doubles when it is full, and has the old room beside the new one for a moment. Both are counted before, so that the engine has given
//! back as many frames by then, or the change is refused.

use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrace_engine::Engine;

/// Each time that so many bytes have been added, the engine is asked: memory that is added in smaller pieces stays within its reserve.
const STEP: u64 = 32 << 10;
/// Part of the limit that the index of an open store leaves to other users.
const SPARE_SHARE: u64 = 16;

/// Memory of the index.
#[derive(Debug)]
pub(crate) struct IndexMemory {
    bytes: Arc<AtomicU64>,
    engine: Arc<Engine>,
    /// The store is open: the index leaves room to others.
    leaves_spare: AtomicBool,
}

/// Memory that was counted ahead; given back when it is dropped, but for what was kept.
#[derive(Debug)]
pub(crate) struct Ahead<'a> {
    memory: &'a IndexMemory,
    bytes: u64,
}

impl Ahead<'_> {
    /// So many bytes are in use now: they stay counted. Most often these are all, and the count, which all threads share, is left alone.
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
    /// Counted against the engine's limit from now on.
    pub(crate) fn new(engine: Arc<Engine>) -> IndexMemory {
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = bytes.clone();
        engine.count_also(move || counted.load(Ordering::Relaxed));
        IndexMemory { bytes, engine, leaves_spare: AtomicBool::new(false) }
    }

    /// Bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// From now on room is left to others.
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

    /// Asks for so much.
    ///
    /// # Errors
    /// All other memory has been given back, and it does not fit.
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
