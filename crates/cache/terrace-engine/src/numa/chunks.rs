//! Memory node of each chunk of frames, from the kernel (move_pages without targets), in one byte.

use crate::context::Context;
use crate::numa::topology::Topology;
use std::io;
use terrace_shm::layout::CHUNK_FRAMES;

/// Node not known to the kernel.
const UNKNOWN: u8 = u8::MAX;
/// Maximum number of chunks in a query of the kernel, and of unread chunks queried in a period.
const QUERIED_MAX: usize = 1024;

/// Nodes of all populated chunks, as far as known.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    nodes: Vec<u8>,
    /// Chunk with which the next query of unread chunks starts.
    next: usize,
}

impl Chunks {
    /// Queries the nodes of the chunks in `used`, of new ones, and of some others. With `notes` it updates
    /// the frames' home nodes, which a full node or a restart of the daemon makes wrong.
    pub(super) fn look(&mut self, cx: &Context, topology: &Topology, used: &[u32], notes: bool) {
        let count = (cx.state.lock().frames.populated() as usize).div_ceil(CHUNK_FRAMES);
        let known = self.nodes.len().min(count);
        self.nodes.resize(count, UNKNOWN);
        let used = used.iter().map(|&chunk| chunk as usize);
        let next = self.next.min(known)..known.min(self.next + QUERIED_MAX);
        self.next = if next.end == known { 0 } else { next.end };
        let mut queried: Vec<usize> =
            used.filter(|&chunk| chunk < known).chain(next).chain(known..count).collect();
        queried.sort_unstable();
        queried.dedup();
        for part in queried.chunks(QUERIED_MAX) {
            self.query(cx, topology, part, notes);
        }
    }

    fn query(&mut self, cx: &Context, topology: &Topology, chunks: &[usize], notes: bool) {
        let first = |chunk: usize| (chunk * CHUNK_FRAMES) as u32;
        let pages: Vec<*mut u8> =
            chunks.iter().map(|&chunk| cx.handles.segment.frame(first(chunk))).collect();
        let place = |status: i32| {
            let number = u32::try_from(status).ok()?;
            topology.place_of(number).and_then(|place| u8::try_from(place).ok())
        };
        for (&chunk, status) in chunks.iter().zip(query(&pages)) {
            self.nodes[chunk] = place(status).unwrap_or(UNKNOWN);
        }
        let known = chunks.iter().filter(|&&chunk| notes && self.nodes[chunk] != UNKNOWN);
        let mut state = cx.state.lock();
        known.for_each(|&chunk| state.frames.set_home(first(chunk), self.nodes[chunk].into()));
    }

    pub(super) fn node_of(&self, chunk: u32) -> Option<usize> {
        let node = self.nodes.get(chunk as usize).copied()?;
        (node != UNKNOWN).then_some(node.into())
    }

    /// For tests: sets the node of a chunk.
    #[cfg(test)]
    pub(super) fn set(&mut self, chunk: usize, node: u8) {
        self.nodes.resize(self.nodes.len().max(chunk + 1), UNKNOWN);
        self.nodes[chunk] = node;
    }

    pub(super) fn bytes(&self, nodes: usize) -> Vec<u64> {
        let on = |node: usize| self.nodes.iter().filter(|&&chunk| usize::from(chunk) == node).count();
        (0..nodes).map(|node| (on(node) * terrace_shm::layout::HUGE) as u64).collect()
    }
}

pub(super) fn chunk_of(frame: u32) -> u32 {
    frame / CHUNK_FRAMES as u32
}

/// Moves the memory of a chunk to a node. Readers of its pages wait for a moment; the content stays.
pub(super) fn move_to(cx: &Context, chunk: u32, node: usize) -> io::Result<()> {
    let first = chunk * CHUNK_FRAMES as u32;
    cx.nodes.relocate(&cx.handles, first, node)?;
    cx.state.lock().frames.set_home(first, node);
    Ok(())
}

/// The kernel's node number for each page; negative: none.
fn query(pages: &[*mut u8]) -> Vec<i32> {
    let mut status = vec![-libc::ENOENT; pages.len()];
    // SAFETY: without target nodes the kernel reads the list of addresses, only looks them up, and writes a
    // status for each.
    let queried = unsafe {
        let nowhere = std::ptr::null::<i32>();
        libc::syscall(libc::SYS_move_pages, 0, pages.len(), pages.as_ptr(), nowhere, status.as_mut_ptr(), 0)
    };
    if queried < 0 {
        // A kernel without NUMA, or a seccomp filter.
        status.fill(-libc::ENOSYS);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_in_use_has_a_node_and_other_has_none() {
        let mut page = Box::new([1u8; 4096]);
        let status = query(&[page.as_mut_ptr(), 4096 as *mut u8]);
        assert!(status[0] >= 0 || status[0] == -libc::ENOSYS, "{status:?}");
        assert!(status[1] < 0);
    }

    #[test]
    fn frames_are_on_the_node_of_their_chunk() {
        let chunks = Chunks { nodes: vec![0, 1, UNKNOWN], next: 0 };
        let at = |chunk: usize| chunks.node_of(chunk_of((chunk * CHUNK_FRAMES + 5) as u32));
        assert_eq!([at(0), at(1), at(2), at(3)], [Some(0), Some(1), None, None]);
        assert_eq!(chunks.bytes(2), [2 << 20, 2 << 20]);
    }
}
