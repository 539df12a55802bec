//! In the virtual machine: paths and sizes that the load and its starter share.

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;
/// Its existence ends the load.
pub(super) const STOP: &str = "/tmp/stop";
/// Its existence pauses the load.
pub(super) const REST: &str = "/tmp/rest";
/// File with the threads' ids, once they run.
pub(super) const TIDS: &str = "/tmp/tids";
