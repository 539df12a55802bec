//! In the virtual machine: constants shared by the load and its starter.

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;
/// Its existence ends the load.
pub(super) const STOP: &str = "/tmp/stop";
/// Its existence pauses the load.
pub(super) const REST: &str = "/tmp/rest";
/// File with the threads' ids, once they run.
pub(super) const TIDS: &str = "/tmp/tids";

/// Parses a kernel list such as `0-3,8`.
pub(super) fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.trim().parse::<usize>().ok()?..=to.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}
