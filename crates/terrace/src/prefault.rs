//! An allocator that makes request buffers resident before the kernel copies into them.
//!
//! The kernel copies a FUSE request into the daemon's buffer page by page. The daemon may be killed during
//! the copy, when a page has no memory yet. The copy then fails, and the *program* gets EIO although no
//! daemon has read the request. So the used part of each request buffer gets its memory when it is allocated.

use std::alloc::{GlobalAlloc, Layout, System};

/// Sizes of allocations that count as request buffers: fuser's have 16 MiB and a page.
const BUFFER: std::ops::Range<usize> = 16 << 20..(16 << 20) + (64 << 10);
/// Bytes of the largest request: 1 MiB of data and its headers.
const RESIDENT: usize = (1 << 20) + (64 << 10);

/// The system's allocator, which populates request buffers at once.
#[derive(Debug)]
pub(crate) struct Prefault;

fn prefault(p: *mut u8, size: usize) -> *mut u8 {
    if BUFFER.contains(&size) && !p.is_null() {
        let start = p as usize & !4095;
        // SAFETY: the range lies inside the allocation (rounded to its pages); populating changes no content.
        unsafe { libc::madvise(start as *mut _, RESIDENT, libc::MADV_POPULATE_WRITE) };
    }
    p
}

// SAFETY: the system's allocator does all the work, and populating pages changes no content.
unsafe impl GlobalAlloc for Prefault {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds `GlobalAlloc::alloc`.
        prefault(unsafe { System.alloc(layout) }, layout.size())
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds `GlobalAlloc::alloc_zeroed`.
        prefault(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }
    // The trait's default copies all content into a new allocation, even where mremap could move pages.
    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller upholds `GlobalAlloc::realloc`.
        prefault(unsafe { System.realloc(p, layout, size) }, size)
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(p, layout) }
    }
}
