//! NUMA placement of frames: a page gets a frame on the node of its reader. Each chunk of frames has memory
//! of one node (mbind). Inactive without `--numa auto`, and on a single node.

use crate::segment::SegmentHandles;
use std::collections::HashMap;
use std::io;
use terrace_shm::layout::HUGE;
use terrace_sync::Mutex;
use terrace_system::proc;

/// The kernel's `MPOL_PREFERRED`, which falls back to other nodes if one is full. The flags move existing
/// pages: this process's own, or those of any process.
const MPOL_PREFERRED: usize = 1;
const MPOL_MF_MOVE: usize = 2;
const MPOL_MF_MOVE_ALL: usize = 4;
/// Bits of the kernel's node mask: more than it has nodes.
const MASK_BITS: usize = 1024;

/// Nodes by index. All other code uses these indexes.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    /// The kernel's number of each node.
    numbers: Vec<u32>,
    /// Node of each processor.
    of_cpu: Vec<Option<usize>>,
    /// Nodes of threads with requests in this period.
    threads: Mutex<HashMap<u32, Option<usize>>>,
}

impl Nodes {
    pub(crate) fn new<'a>(nodes: impl Iterator<Item = (u32, &'a [usize])>) -> Nodes {
        let mut found = Nodes::default();
        for (place, (number, cpus)) in nodes.enumerate() {
            found.numbers.push(number);
            for &cpu in cpus {
                found.of_cpu.resize(found.of_cpu.len().max(cpu + 1), None);
                found.of_cpu[cpu] = Some(place);
            }
        }
        found
    }

    /// Number of nodes; 1: frames are placed anywhere.
    pub(crate) fn count(&self) -> usize {
        self.numbers.len().max(1)
    }

    pub(crate) fn of_cpu(&self, cpu: usize) -> Option<usize> {
        self.of_cpu.get(cpu).copied().flatten()
    }

    /// Node of a thread, from its first lookup in this period: a lookup in the kernel takes 3 us,
    /// a miss some 50.
    pub(crate) fn of_thread(&self, tid: u32) -> Option<usize> {
        if self.count() < 2 || tid == 0 {
            return None;
        }
        *self.threads.lock().entry(tid).or_insert_with(|| self.of_cpu(proc::stat(tid)?.cpu))
    }

    pub(crate) fn forget_threads(&self) {
        self.threads.lock().clear();
    }

    /// Binds the memory of an unpopulated chunk of frames to a node. On failure the kernel chooses.
    pub(crate) fn place(&self, handles: &SegmentHandles, first: u32, node: usize) {
        if let Err(err) = self.bind(handles, first, node, false) {
            tracing::debug!("memory of frames {first}.. not bound to a node: {err}");
        }
    }

    /// Binds the memory of a chunk of frames to a node, and moves its present pages.
    pub(crate) fn relocate(&self, handles: &SegmentHandles, first: u32, node: usize) -> io::Result<()> {
        self.bind(handles, first, node, true)
    }

    fn bind(&self, handles: &SegmentHandles, first: u32, node: usize, moves: bool) -> io::Result<()> {
        if self.count() < 2 {
            return Ok(());
        }
        let number = self.numbers[node] as usize;
        let mut mask = [0u64; MASK_BITS / 64];
        mask[number / 64 % mask.len()] |= 1 << (number % 64);
        let start = handles.segment.frame(first);
        // SAFETY: the range is a chunk of the segment's mapping; the call changes no content.
        let bind = |flags: usize| match unsafe {
            libc::syscall(libc::SYS_mbind, start, HUGE, MPOL_PREFERRED, mask.as_ptr(), MASK_BITS, flags)
        } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        if !moves {
            return bind(0);
        }
        // Clients map the segment as well. A move of pages mapped by others needs a capability.
        bind(MPOL_MF_MOVE_ALL).or_else(|_| bind(MPOL_MF_MOVE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_on_the_node_of_their_processor() {
        let all: Vec<usize> = (0..1024).collect();
        let nodes = Nodes::new([(4, &[][..]), (7, &all[..])].into_iter());
        assert_eq!((nodes.count(), nodes.of_cpu(3), nodes.of_cpu(5000)), (2, Some(1), None));
        assert_eq!(nodes.of_thread(std::process::id()), Some(1));
        assert_eq!((nodes.of_thread(0), nodes.of_thread(u32::MAX)), (None, None));
        nodes.forget_threads();
        assert!(nodes.threads.lock().is_empty());
        let one = Nodes::new([(0, &all[..])].into_iter());
        assert_eq!((one.count(), one.of_thread(std::process::id())), (1, None));
    }
}
