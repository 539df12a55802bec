//! Request buffers that are resident before the kernel copies into them.
//!
//! The kernel copies a FUSE request into the daemon's buffer page by page. If the daemon is killed just then and the page
//! has no memory yet, the copy fails and the *program* gets EIO, although the request was never seen. So the part of each
//! request buffer that requests use gets its memory when it is allocated.

use std::alloc::{GlobalAlloc, Layout, System};

/// Sizes of allocations that are taken for request buffers: fuser's are 16 MiB and a page.
const BUFFER: std::ops::Range<usize> = 16 << 20..(16 << 20) + (64 << 10);
/// Bytes of the largest request: 1 MiB of data and its headers.
const RESIDENT: usize = (1 << 20) + (64 << 10);

/// The system's allocator, which backs request buffers with memory at once.
#[derive(Debug)]
pub struct Prefault;

fn prefault(p: *mut u8, size: usize) -> *mut u8 {
    if BUFFER.contains(&size) && !p.is_null() {
        let start = p as usize & !4095;
        // SAFETY: the range lies inside the allocation (rounded to its pages); populating changes no content.
        unsafe { libc::madvise(start as *mut _, RESIDENT, libc::MADV_POPULATE_WRITE) };
    }
    p
}

// SAFETY: all work is the system allocator's.
unsafe impl GlobalAlloc for Prefault {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        prefault(unsafe { System.alloc(layout) }, layout.size())
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        prefault(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }
    // The trait's own copies all of it into a new one, also where pages could move.
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        prefault(unsafe { System.realloc(p, layout, size) }, size)
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(p, layout) }
    }
}
