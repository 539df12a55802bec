//! Gives free memory of the heap back to the kernel after a burst of inodes.
//!
//! The allocator keeps freed memory between live allocations. It is bounded by the largest number of inodes ever, not by the present one.

/// Decides when freed memory is given back to the kernel: after a large number of entries were removed, and
/// when no more are being removed. Before that, live entries keep most freed pages of the heap in use.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    /// The most there were since the last time.
    most: usize,
    /// How many there were at the last look.
    last: usize,
}

impl Freed {
    /// Fewer things are no reason.
    const MANY: usize = 1024;

    /// So many there are now, some time after the last look. Has much been freed since the last time that it was said so?
    pub(crate) fn is_much(&mut self, now: usize) -> bool {
        self.most = self.most.max(now);
        let rests = now >= std::mem::replace(&mut self.last, now);
        let much = rests && self.most - now >= Self::MANY;
        if much {
            self.most = now;
        }
        much
    }
}

/// Allocations from here on have a mapping of their own, which goes when they are freed.
#[cfg(target_env = "gnu")]
const MAPPED_BYTES: libc::c_int = 1 << 20;

/// Sets the allocator up for a daemon: to be called before it has threads. Left to itself, glibc takes the first large buffer that is freed for a
/// reason to keep others of its size in its heaps, where a new one is zeroed by hand: all 16 MiB of a buffer for requests, of which one is used.
pub fn set_up_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a parameter of the allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
    }
}

/// Gives free memory of the heap back to the kernel, where the C library does not do so by itself.
pub(crate) fn give_heap_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes the allocator's own locks, and touches free memory only.
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
        // SAFETY: asks the allocator for its books.
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
        let mut freed = Freed::default();
        assert!(!freed.is_much(100) && !freed.is_much(1) && !freed.is_much(1), "few things are no reason");
        assert!(!freed.is_much(10_000) && !freed.is_much(5001) && !freed.is_much(3900), "they still go");
        assert!(!freed.is_much(20) && freed.is_much(20), "the rest of a burst, too");
        assert!(!freed.is_much(20) && !freed.is_much(0) && !freed.is_much(0), "told once");
        assert!(!freed.is_much(2000) && !freed.is_much(10) && freed.is_much(11));
    }
}
