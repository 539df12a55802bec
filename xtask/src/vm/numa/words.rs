//! In the virtual machine: what the load and those who begin it both know.

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// The end.
pub const STOP: &str = "/tmp/stop";
/// The pause.
pub const REST: &str = "/tmp/rest";
/// The threads' numbers, once they have begun.
pub const TIDS: &str = "/tmp/tids";

/// The numbers of a list of the kernel, `0-3,8`.
pub fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        Some(from.trim().parse::<usize>().ok()?..=to.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}
