//! Options of a store: name, memory, sync policy and others.

use crate::error::{Error, Result};
use std::time::Duration;
use terrace_engine::{EngineConfig, IoKind};

/// When changes become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Each change, before its call returns. Concurrent callers share a sync (group commit).
    Always,
    /// A thread syncs at this interval. A call returns once the kernel holds its change. A kill of all
    /// processes loses nothing, a power cut the changes since the last sync.
    Every(Duration),
    /// Like `Every`, but syncs come only with [`crate::Store::sync`], at close, after many changes, or for
    /// the room of overwritten blobs.
    Never,
}

/// Options of a store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Name of the store; its files are `.NAME.heap` and `.NAME.names`. No `/`, at most 200 bytes.
    pub name: String,
    /// Limit of all memory: frames, tables of the engine, the index of the store, the tail of its log (bytes).
    pub memory_bytes: u64,
    /// Maximum size of the heap file, bytes. None: limited by the file system.
    pub capacity_bytes: Option<u64>,
    /// When changes become durable.
    pub sync: SyncPolicy,
    /// Changes return before the kernel holds them, or before they are durable. The caller ends each batch by
    /// [`crate::Store::end_batch`].
    pub batches: bool,
    /// A thread reads a heap that fits in memory when the store is opened. [`crate::Store::wait_warm`] waits
    /// for it.
    pub warm: bool,
    /// The engine's configuration. Its `memory_bytes` is replaced by the one above. Its I/O is blocking by
    /// default: once a killed process has been waited for, none of its I/O is in flight. The next process may then open
    /// the store over the same segment.
    pub engine: EngineConfig,
}

/// Maximum length of a store's name, bytes.
const NAME_MAX: usize = 200;

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        let engine = EngineConfig {
            io: IoKind::Blocking,
            // A high limit: blobs that are soon overwritten need no writeback.
            dirty_background_ratio: 25,
            dirty_ratio: 50,
            // No workers: the store gets no hints. A fork would also copy the locks of waiting workers, and
            // new ones in the child could run into them.
            prefetch_workers: 0,
            ..EngineConfig::default()
        };
        StoreOptions {
            name: "store".into(),
            memory_bytes: engine.memory_bytes,
            capacity_bytes: None,
            sync: SyncPolicy::Every(Duration::from_secs(1)),
            batches: false,
            warm: true,
            engine,
        }
    }
}

impl StoreOptions {
    pub(crate) fn engine_config(&self) -> EngineConfig {
        EngineConfig { memory_bytes: self.memory_bytes, ..self.engine.clone() }
    }

    /// # Errors
    /// An invalid name.
    pub(crate) fn check(&self) -> Result<()> {
        check_name(&self.name)
    }
}

/// # Errors
/// A name that cannot be part of a file name.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains(['/', '\0']) {
        let what = format!("store {name:?}: the name of a store has 1 to {NAME_MAX} bytes and no '/'");
        return Err(Error::Invalid { what });
    }
    Ok(())
}
