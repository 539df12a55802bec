//! A buffer that direct I/O takes.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use terrace_shm::PAGE_SIZE;
use terrace_shm::layout::HUGE;

/// From this length on a buffer lies in huge pages. A device takes a few hundred pieces of adjacent memory at a time, and
/// its time depends on their number: with 1 MiB in one piece a virtual disk read at 2.1 to 2.8 GiB/s, with 256 scattered
/// pages at 0.9 to 1.2.
const LONG: usize = 256 << 10;

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
        let align = if len >= HUGE { HUGE } else { PAGE_SIZE };
        Layout::from_size_align(len, align).expect("buffers are small")
    }
    /// The first `len` bytes. Their content is whatever was left there.
    pub fn slice(&mut self, len: usize) -> &mut [u8] {
        let wanted = len.next_multiple_of(if len >= LONG { HUGE } else { PAGE_SIZE }).max(PAGE_SIZE);
        if self.len < wanted {
            *self = AlignedBuf::default();
            let layout = AlignedBuf::layout(wanted);
            // SAFETY: the layout has a non-zero size.
            let p = NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
            if layout.align() == HUGE {
                // SAFETY: advice on memory that is ours alone. Where there are no huge pages it works without them.
                unsafe { libc::madvise(p.as_ptr().cast(), wanted, libc::MADV_HUGEPAGE) };
            }
            // SAFETY: just allocated, `wanted` bytes long.
            unsafe { p.write_bytes(0, wanted) };
            (self.memory, self.len) = (Some(p), wanted);
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
