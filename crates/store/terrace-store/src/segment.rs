//! The memory of a store. A parent process may hold it for successive processes that use the store.

use crate::error::{Error, Result};
use crate::options::StoreOptions;
use std::sync::Arc;
use terrace_engine::SegmentHandles;

/// The memory of a store: frames, page index, tail of the record log. A parent creates it before it forks,
/// and each child opens the store over it. The memory keeps everything that a killed child had acknowledged.
#[derive(Debug, Clone)]
pub struct Segment(pub(crate) Arc<SegmentHandles>);

impl Segment {
    /// Creates the memory. Starts no thread and opens no file of the directory.
    ///
    /// # Errors
    /// No memory, or no address space.
    pub fn create(options: &StoreOptions) -> Result<Segment> {
        options.check()?;
        let made = SegmentHandles::create(&options.engine_config());
        let made = made.map_err(|source| Error::Invalid {
            what: format!(
                "the store's memory of {} bytes cannot be reserved: {source}",
                options.memory_bytes
            ),
        })?;
        Ok(Segment(Arc::new(made)))
    }
}
