//! Read-ahead of the heap when a store is opened, if all of it fits in memory.
//!
//! The engine reads store files past the kernel's page cache. Without read-ahead, the first get of each page
//! waits for one random device read. A heap larger than memory is not read ahead: which pages come first is
//! unknown.

use crate::space::PAGE;
use crate::state::StoreState;
use std::sync::atomic::Ordering;
use terrace_api::stats::Memory;

/// Bytes of one read.
const PIECE: u64 = 256 << 10;
/// One part in this many of the memory for pages is left free for concurrent writes.
const SPARE_SHARE: u64 = 8;

/// Reads the heap, then marks the store as warmed, even after a panic: [`crate::Store::wait_warm`] may be
/// waiting.
pub(crate) fn run(state: &StoreState) {
    let _marks = MarkWarmed(state);
    read(state);
}

struct MarkWarmed<'a>(&'a StoreState);

impl Drop for MarkWarmed<'_> {
    fn drop(&mut self) {
        let _ = self.0.warmed.set(());
    }
}

/// Reads the heap as large as it is at the call. Stops when the store is closed.
fn read(state: &StoreState) {
    let bytes = state.heap.space().bytes();
    let mut piece = vec![0; PIECE as usize];
    let mut at = 0;
    while at < bytes
        && !state.closed.load(Ordering::Acquire)
        && fits(&state.heap.engine().stats().memory, bytes - at)
    {
        let part = &mut piece[..PIECE.min(bytes - at) as usize];
        if let Err(e) = state.heap.read(at, part) {
            tracing::debug!("heap read-ahead stopped: {e}");
            return;
        }
        at += part.len() as u64;
    }
}

/// Whether `bytes` more fit beside the cached pages.
fn fits(memory: &Memory, bytes: u64) -> bool {
    memory.pages * PAGE + bytes <= memory.frames_max_bytes - memory.frames_max_bytes / SPARE_SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heap_that_would_push_others_out_is_left_alone() {
        let memory = Memory { pages: 100, frames_max_bytes: 800 * PAGE, ..Memory::default() };
        assert!(fits(&memory, 600 * PAGE));
        assert!(!fits(&memory, 601 * PAGE));
    }
}
