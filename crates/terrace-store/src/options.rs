//! How a store is opened.

use crate::error::{Error, Result};
use std::time::Duration;
use terrace_engine::{EngineConfig, IoKind};

/// When changes become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Each change before its call returns. Threads that wait at the same time share a sync.
    Always,
    /// A thread syncs so often. A call returns when the kernel holds its change: the end of all processes loses nothing, a power cut what was not synced.
    Every(Duration),
    /// As `Every`, at [`crate::Store::sync`] and at the end; or when much has changed, or room of overwritten blobs is needed again.
    Never,
}

/// Options of a store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Name of the store; its files are `.NAME.heap` and `.NAME.names`. No `/`, at most 200 bytes.
    pub name: String,
    /// Limit of all memory: frames, tables of the engine, the index of the store, the tail of its log (bytes).
    pub memory_bytes: u64,
    /// Maximum of the heap's file, bytes; None: what the file system has.
    pub capacity_bytes: Option<u64>,
    /// When changes become durable.
    pub sync: SyncPolicy,
    /// Changes return before the kernel holds them, or before they are durable: the caller ends each batch of them by [`crate::Store::end_batch`].
    pub batches: bool,
    /// A heap that fits in memory is read in the background when the store is opened; [`crate::Store::wait_warm`] waits for it.
    pub warm: bool,
    /// The engine's configuration; its `memory_bytes` is the one above. Its I/O is blocking by default: then none of it is under way
    /// any more when a killed process has been waited for, and the next one may open the store over the same segment.
    pub engine: EngineConfig,
}

/// Bytes of a name at the most: of a store.
const NAME_MAX: usize = 200;

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        let engine = EngineConfig {
            io: IoKind::Blocking,
            // Blobs that are overwritten soon need not be written at all.
            dirty_background_ratio: 25,
            dirty_ratio: 50,
            // Nobody gives hints, and a fork leaves the locks of many waiting threads behind, which new ones in the child would stumble over.
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
    /// The engine's configuration.
    pub(crate) fn engine_config(&self) -> EngineConfig {
        EngineConfig { memory_bytes: self.memory_bytes, ..self.engine.clone() }
    }

    /// # Errors
    /// A name that is none.
    pub(crate) fn check(&self) -> Result<()> {
        check_name(&self.name)
    }
}

/// # Errors
/// A name that cannot be part of a file's.
pub(crate) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains(['/', '\0']) {
        let what = format!("store {name:?}: a name has 1 to {NAME_MAX} bytes and no '/'");
        return Err(Error::Invalid { what });
    }
    Ok(())
}
