//! Returns free heap memory to the kernel after a burst of inodes.
//!
//! Freed memory stays in the allocator between live allocations: memory would follow the highest number of
//! inodes ever.

/// Decides when freed memory is returned to the kernel: after many entries were removed, and when removals
/// have stopped. Earlier, live entries keep most freed pages of the heap in use.
#[derive(Debug, Default)]
pub(crate) struct FreedEntries {
    /// Highest number since the last return.
    most: usize,
    /// Number at the last look.
    last: usize,
}

impl FreedEntries {
    /// Fewer entries are not worth a return.
    const RETURN_MIN_ENTRIES: usize = 1024;

    /// Updates with the present number of entries. Returns true if many were removed since the last return,
    /// and none since the last look.
    pub(crate) fn is_much(&mut self, now: usize) -> bool {
        self.most = self.most.max(now);
        let is_stable = now >= std::mem::replace(&mut self.last, now);
        let much = is_stable && self.most - now >= Self::RETURN_MIN_ENTRIES;
        if much {
            self.most = now;
        }
        much
    }
}

/// Allocations from this size on have a mapping of their own, which ends when they are freed.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 1 << 20;

/// Sets the allocator up for a daemon. To be called before there are threads. By default glibc adapts its
/// threshold to the first large buffer that is freed. Later buffers of that size come from its heaps, zeroed
/// by hand: 16 MiB, of which 1 MiB is used.
pub fn set_up_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a parameter of the allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
    }
}

/// Returns free heap memory to the kernel, where the C library does not do so by itself.
pub(crate) fn give_heap_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes the allocator's own locks and changes free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_env = "gnu")]
    fn large_buffers_leave_the_heap_alone() {
        // SAFETY: mallinfo2 only reads the allocator's statistics.
        let in_heaps = || unsafe { libc::mallinfo2() }.arena;
        set_up_heap();
        drop(vec![0_u8; 16 << 20]);
        let before = in_heaps();
        let again = std::hint::black_box(vec![0_u8; 16 << 20]);
        assert!(in_heaps() < before + (8 << 20), "a mapping of its own");
        drop(again);
    }

    #[test]
    fn freed_memory_is_given_back_once_a_burst() {
        let mut freed = FreedEntries::default();
        assert!(!freed.is_much(100) && !freed.is_much(1) && !freed.is_much(1), "few things are no reason");
        assert!(!freed.is_much(10_000) && !freed.is_much(5001) && !freed.is_much(3900), "they still go");
        assert!(!freed.is_much(20) && freed.is_much(20), "the rest of a burst, too");
        assert!(!freed.is_much(20) && !freed.is_much(0) && !freed.is_much(0), "reported once");
        assert!(!freed.is_much(2000) && !freed.is_much(10) && freed.is_much(11));
    }
}
