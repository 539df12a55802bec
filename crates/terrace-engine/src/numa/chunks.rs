//! On which node the memory of each chunk of frames lies: a byte a chunk, as the kernel says (move_pages without targets).

use crate::context::Context;
use crate::numa::topology::Topology;
use std::io;
use terrace_shm::layout::CHUNK_FRAMES;

/// The kernel does not say.
const UNKNOWN: u8 = u8::MAX;
/// Chunks that the kernel is asked about at once.
const ASKED_MAX: usize = 1024;

/// The places of the nodes of all chunks that have memory.
pub(super) fn nodes(cx: &Context, topology: &Topology) -> Vec<u8> {
    let populated = cx.state.lock().frames.populated() as usize;
    let starts: Vec<usize> = (0..populated).step_by(CHUNK_FRAMES).collect();
    let mut nodes = Vec::with_capacity(starts.len());
    for part in starts.chunks(ASKED_MAX) {
        let pages: Vec<*mut u8> = part.iter().map(|&first| cx.handles.segment.frame(first as u32)).collect();
        let place = |status: i32| {
            let number = u32::try_from(status).ok()?;
            topology.place_of(number).and_then(|place| u8::try_from(place).ok())
        };
        nodes.extend(ask(&pages).into_iter().map(|status| place(status).unwrap_or(UNKNOWN)));
    }
    nodes
}

/// The chunk of a frame.
pub(super) fn chunk_of(frame: u32) -> u32 {
    frame / CHUNK_FRAMES as u32
}

/// The frames' homes are the nodes that their memory is on: a full node gives a chunk away, and a dead daemon's are not known.
pub(super) fn note_homes(cx: &Context, chunks: &[u8]) {
    let mut state = cx.state.lock();
    for (chunk, &node) in chunks.iter().enumerate().filter(|(_, node)| **node != UNKNOWN) {
        state.frames.set_home((chunk * CHUNK_FRAMES) as u32, node.into());
    }
}

/// Moves the memory of a chunk to a node. What is read meanwhile waits for a moment: the kernel moves pages, and their content stays.
pub(super) fn move_to(cx: &Context, chunk: u32, node: usize) -> io::Result<()> {
    let first = chunk * CHUNK_FRAMES as u32;
    cx.nodes.relocate(&cx.handles, first, node)?;
    cx.state.lock().frames.set_home(first, node);
    Ok(())
}

/// The place of the node of a frame, by its chunk.
pub(super) fn node_of(chunks: &[u8], frame: u32) -> Option<usize> {
    let node = chunks.get(frame as usize / CHUNK_FRAMES).copied()?;
    (node != UNKNOWN).then_some(node.into())
}

/// Bytes of frames on each node.
pub(super) fn bytes(chunks: &[u8], nodes: usize) -> Vec<u64> {
    let on = |node: usize| chunks.iter().filter(|&&chunk| usize::from(chunk) == node).count();
    (0..nodes).map(|node| (on(node) * terrace_shm::layout::HUGE) as u64).collect()
}

/// The kernel's number of the node of each page; below zero: none.
fn ask(pages: &[*mut u8]) -> Vec<i32> {
    let mut status = vec![-libc::ENOENT; pages.len()];
    // SAFETY: without target nodes the kernel reads the list of addresses, which it only looks up, and writes a status for each.
    let asked = unsafe {
        let nowhere = std::ptr::null::<i32>();
        libc::syscall(libc::SYS_move_pages, 0, pages.len(), pages.as_ptr(), nowhere, status.as_mut_ptr(), 0)
    };
    if asked < 0 {
        // A kernel without NUMA, or a filter of system calls.
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
        let status = ask(&[page.as_mut_ptr(), 4096 as *mut u8]);
        assert!(status[0] >= 0 || status[0] == -libc::ENOSYS, "{status:?}");
        assert!(status[1] < 0);
    }

    #[test]
    fn frames_are_on_the_node_of_their_chunk() {
        let chunks = [0, 1, UNKNOWN];
        let at = |chunk: usize| node_of(&chunks, (chunk * CHUNK_FRAMES + 5) as u32);
        assert_eq!([at(0), at(1), at(2), at(3)], [Some(0), Some(1), None, None]);
        assert_eq!(bytes(&chunks, 2), [2 << 20, 2 << 20]);
    }
}
