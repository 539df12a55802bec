//! The memory nodes on which frames are placed: a frame is taken on the node of the thread that asked for the page, and the memory of a
//! chunk of frames is bound to its node (mbind). Without `--numa auto`, and on one node, nothing of this is done.

use crate::proc;
use crate::segment::SegmentHandles;
use std::collections::HashMap;
use std::io;
use terrace_shm::layout::HUGE;
use terrace_sync::Mutex;

/// The kernel's `MPOL_PREFERRED`, which falls back to other nodes where one is full; and its flags that move what is there already, if
/// this process alone maps it, or whoever does.
const MPOL_PREFERRED: usize = 1;
const MPOL_MF_MOVE: usize = 2;
const MPOL_MF_MOVE_ALL: usize = 4;
/// Nodes in a mask of the kernel: more than it has.
const MASK_BITS: usize = 1024;

/// Nodes by their places, which is how all others count them.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    /// The kernel's number of each.
    numbers: Vec<u32>,
    /// The place of the node of each processor.
    of_cpu: Vec<Option<usize>>,
    /// The nodes of threads that asked for pages in this period.
    threads: Mutex<HashMap<u32, Option<usize>>>,
}

impl Nodes {
    /// Nodes with these numbers and processors.
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

    /// How many there are to choose from; 1: frames are placed anywhere.
    pub(crate) fn count(&self) -> usize {
        self.numbers.len().max(1)
    }

    /// The node of a processor.
    pub(crate) fn of_cpu(&self, cpu: usize) -> Option<usize> {
        self.of_cpu.get(cpu).copied().flatten()
    }

    /// The node that a thread ran on when it was first asked about in this period. Asking the kernel takes 3 us, a miss some 50.
    pub(crate) fn of_thread(&self, tid: u32) -> Option<usize> {
        if self.count() < 2 || tid == 0 {
            return None;
        }
        *self.threads.lock().entry(tid).or_insert_with(|| self.of_cpu(proc::stat(tid)?.cpu))
    }

    /// The next period begins.
    pub(crate) fn forget_threads(&self) {
        self.threads.lock().clear();
    }

    /// Binds the memory of a chunk of frames that is not there yet to a node. Where that fails it lies where the kernel puts it.
    pub(crate) fn place(&self, handles: &SegmentHandles, first: u32, node: usize) {
        if let Err(err) = self.bind(handles, first, node, false) {
            tracing::debug!("memory of frames {first}.. not bound to a node: {err}");
        }
    }

    /// Binds the memory of a chunk of frames to a node, and moves what is there already.
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
        // SAFETY: the range is a chunk of the segment's mapping; the call changes where memory lies and no content.
        let bind = |flags: usize| match unsafe {
            libc::syscall(libc::SYS_mbind, start, HUGE, MPOL_PREFERRED, mask.as_ptr(), MASK_BITS, flags)
        } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        };
        if !moves {
            return bind(0);
        }
        // Clients map the segment as well; moving what others map takes a capability.
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
