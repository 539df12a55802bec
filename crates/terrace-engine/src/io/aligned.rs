//! A buffer that direct I/O takes.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use terrace_shm::PAGE_SIZE;

/// A page-aligned buffer that grows when a longer slice is asked for.
#[derive(Debug, Default)]
pub struct AlignedBuf {
    memory: Option<NonNull<u8>>,
    len: usize,
}

// SAFETY: owned memory, like a Vec's.
unsafe impl Send for AlignedBuf {}

impl AlignedBuf {
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, PAGE_SIZE).expect("buffers are small")
    }
    /// The first `len` bytes. Their content is whatever was left there.
    pub fn slice(&mut self, len: usize) -> &mut [u8] {
        let wanted = len.next_multiple_of(PAGE_SIZE).max(PAGE_SIZE);
        if self.len < wanted {
            *self = AlignedBuf::default();
            let layout = AlignedBuf::layout(wanted);
            // SAFETY: the layout has a non-zero size.
            let p = unsafe { alloc_zeroed(layout) };
            self.memory = Some(NonNull::new(p).unwrap_or_else(|| handle_alloc_error(layout)));
            self.len = wanted;
        }
        let p = self.memory.expect("allocated above").as_ptr();
        // SAFETY: allocated and initialised for at least `len` bytes, borrowed as `self` is.
        unsafe { std::slice::from_raw_parts_mut(p, len) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if let Some(p) = self.memory {
            // SAFETY: allocated in `slice` with the same layout.
            unsafe { dealloc(p.as_ptr(), AlignedBuf::layout(self.len)) }
        }
    }
}
