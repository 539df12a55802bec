//! Reads the heap when a store is opened, if all of it fits in memory.
//!
//! The engine reads the files of a store past the kernel's page cache. Without this, each page of a store that is opened again is read by the first get that
//! needs it, one at a time and in no order, and waits for the device. A store that is larger than memory is left alone: what it needs first is not known.

use crate::space::PAGE;
use crate::state::StoreState;
use std::sync::atomic::Ordering;
use terrace_api::stats::Memory;

/// Bytes that are read at once.
const PIECE: u64 = 256 << 10;
/// Part of the memory for pages that is left to what is written meanwhile.
const SPARE_SHARE: u64 = 8;

/// Reads the heap, and marks the store as warmed, also after a panic: a program may be waiting for it.
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

/// Reads what the heap has when it is called, until the store is closed.
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
            tracing::debug!("the heap is not read ahead: {e}");
            return;
        }
        at += part.len() as u64;
    }
}

/// Whether so many bytes more fit beside the pages that are there.
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
