//! The memory of a store, which a parent process may hold for the processes that use it one after the other.

use crate::error::{Error, Result};
use crate::options::StoreOptions;
use std::sync::Arc;
use terrace_engine::SegmentHandles;

/// The memory of a store: frames, index of pages, the tail of the record log. A parent makes it before it forks; each child opens the store over
/// it. It holds all that a killed child had acknowledged.
#[derive(Debug, Clone)]
pub struct Segment(pub(crate) Arc<SegmentHandles>);

impl Segment {
    /// Makes the memory. Starts no thread and opens no file of the directory.
    ///
    /// # Errors
    /// No memory, or no address space.
    pub fn create(options: &StoreOptions) -> Result<Segment> {
        options.check()?;
        let made = SegmentHandles::create(&options.engine_config());
        let made = made.map_err(|source| Error::Invalid {
            what: format!("memory of {} bytes for the store: {source}", options.memory_bytes),
        })?;
        Ok(Segment(Arc::new(made)))
    }
}
