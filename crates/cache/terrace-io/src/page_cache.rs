//! Change of a source file from direct I/O to the kernel's page cache, after a failed direct call.

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

pub(super) fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: callers pass descriptors of source files that their object keeps open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// A buffered descriptor of the same file, if `fd` uses direct I/O and the file may be opened again.
///
/// Also serves after EIO of a direct call, for example just after a store to a hole through a mapping. Such a
/// page waits for its block without being dirty (fs/iomap/direct-io.c, IOMAP_DELALLOC). A broken device fails
/// again.
pub(super) fn through_page_cache(fd: RawFd, access: OFlags) -> Option<OwnedFd> {
    let direct = fcntl_getfl(borrow(fd)).ok()?.contains(OFlags::DIRECT);
    let path = format!("/proc/self/fd/{fd}");
    direct.then(|| open(path, access | OFlags::CLOEXEC, Mode::empty()).ok()).flatten()
}

/// Whether `errno` is the refusal of direct I/O by a file system that accepted O_DIRECT at the open.
pub(super) fn is_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::OPNOTSUPP)
}

/// Changes a descriptor to buffered I/O because its file system refuses direct calls. True: done. The number
/// gets a new open file, because a server may look at the flags of the open.
pub(super) fn leave_direct(fd: RawFd) -> bool {
    let Ok(flags) = fcntl_getfl(borrow(fd)) else { return false };
    if !flags.contains(OFlags::DIRECT) {
        return true; // Another thread has done it.
    }
    let Some(cached) = through_page_cache(fd, flags & OFlags::RWMODE) else {
        return fcntl_setfl(borrow(fd), flags - OFlags::DIRECT).is_ok();
    };
    // SAFETY: both are open; calls under way keep the old open file.
    unsafe { libc::dup3(cached.as_raw_fd(), fd, libc::O_CLOEXEC) >= 0 }
}

#[cfg(test)]
pub(super) mod tests {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use terrace_shm::PAGE_SIZE;

    /// Number of pages in the kernel's page cache, of the first `bytes` bytes of a file.
    pub(crate) fn cached_pages(file: &std::fs::File, bytes: usize) -> usize {
        // SAFETY: a new mapping.
        let map =
            unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0) }.unwrap();
        let mut resident = vec![0u8; bytes / PAGE_SIZE];
        // SAFETY: the mapping of above, and a byte for each of its pages.
        assert_eq!(unsafe { libc::mincore(map, bytes, resident.as_mut_ptr()) }, 0);
        // SAFETY: mapped above, and not used elsewhere.
        unsafe { munmap(map, bytes) }.unwrap();
        resident.iter().filter(|page| **page & 1 != 0).count()
    }
}
