//! What is known of a file's state in the source, for fsyncs that a tier answers (`path/burst.rs`).

/// Books of one file, behind a lock of their own: inside the object's writeback lock, outside those of targets and the state.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    /// Digest of its identity and state, which is durable in the source. None: that is not known, or has changed.
    pub base: Option<u64>,
    /// The target that has pages of it that the source lacks, or had.
    pub target: Option<usize>,
    /// Until when that target says that the source may be changed (ns since 1970); 0: it may not.
    pub permit: i64,
    /// Changes of the source that have begun, and how many are under way.
    pub changes: u64,
    pub changing: u32,
}
