//! The layout of liburing's rings. The kernel's and liburing's headers fix it (Linux: include/uapi/linux/io_uring.h).

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// liburing's `struct io_uring` up to its flags. Unchanged since 2.0.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Uring {
    _head_tail: [usize; 2],
    pub(crate) mask: *const u32,
    _sq: [usize; 4],
    pub(crate) entries: *mut Entry,
    /// First entry not submitted yet.
    pub(crate) head: u32,
    /// End of the entries.
    pub(crate) tail: u32,
    _sq_rest: [usize; 4],
    _cq_head: usize,
    completions_tail: *const AtomicU32,
    completions_mask: *const u32,
    completions_max: *const u32,
    _cq_flags: [usize; 2],
    completions: *const Completion,
    _cq_rest: [usize; 4],
    pub(crate) flags: u32,
    _ring_fd: c_int,
    features: u32,
}

/// `struct io_uring_cqe`.
#[derive(Debug)]
#[repr(C)]
struct Completion {
    user_data: AtomicU64,
    _result: u32,
    flags: AtomicU32,
}

/// Flag of a completion: the entry has further ones (CQE_F_MORE).
pub(crate) const COMPLETION_MORE: u32 = 1 << 1;
/// A wait with a time limit submits nothing (IORING_FEAT_EXT_ARG).
const FEATURE_WAITS: u32 = 1 << 8;

/// Completions of another size: CQE32, CQE_MIXED.
const RING_COMPLETIONS: u32 = 1 << 11 | 1 << 18;

impl Uring {
    pub(crate) fn has_small_completions(&self) -> bool {
        self.flags & RING_COMPLETIONS == 0
    }
    /// True if a wait with a time limit submits nothing. Another thread may fill entries meanwhile.
    pub(crate) fn waits_alone(&self) -> bool {
        self.features & FEATURE_WAITS != 0
    }
    /// Identifies the ring: programs may move the structure.
    pub(crate) fn key(&self) -> usize {
        self.completions_tail as usize
    }
    /// The end of the queue of completions.
    pub(crate) fn completions_end(&self) -> u32 {
        // SAFETY: a ring of liburing.
        unsafe { (*self.completions_tail).load(Ordering::Acquire) }
    }
    /// Places in the queue.
    pub(crate) fn completions_max(&self) -> u32 {
        // SAFETY: a ring of liburing. The kernel writes the number once.
        unsafe { *self.completions_max }
    }
    /// User data and flags in the place of a completion.
    pub(crate) fn completion(&self, i: u32) -> (u64, u32) {
        // SAFETY: a ring of liburing; the mask keeps the place inside the queue.
        unsafe {
            let place = i & *self.completions_mask;
            let completion = &*self.completions.add(place as usize);
            (completion.user_data.load(Ordering::Relaxed), completion.flags.load(Ordering::Relaxed))
        }
    }
}

/// `struct io_uring_sqe`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) ioprio: u16,
    pub(crate) fd: c_int,
    pub(crate) offset: u64,
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) op_flags: u32,
    pub(crate) user_data: u64,
    pub(crate) buf: u16,
    pub(crate) personality: u16,
    pub(crate) file_index: u32,
    pub(crate) _rest: [u64; 2],
}

const _: () = assert!(std::mem::offset_of!(Uring, flags) == 192 && size_of::<Entry>() == 64);
