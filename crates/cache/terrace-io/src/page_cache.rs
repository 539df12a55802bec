//! The kernel's page cache: change of a source file from direct I/O to it after a failed direct call, and reads
//! of cached pages.

use crate::IoVec;
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

/// Number of the call cachestat (Linux 6.5: include/uapi/asm-generic/unistd.h).
const CACHESTAT: libc::c_long = 451;

/// Counts of cachestat (Linux: include/uapi/linux/mman.h).
#[repr(C)]
#[derive(Default)]
struct CacheStat {
    cached: u64,
    _others: [u64; 4],
}

/// Reads `bufs` at `offset` of a buffered descriptor, if the kernel has all of the range in its page cache. Starts
/// no I/O. False: a page is not cached, the file ends before, or the kernel is older than Linux 6.5.
///
/// # Safety
/// As [`crate::Io::read`].
pub unsafe fn read_cached(fd: BorrowedFd<'_>, offset: u64, bufs: &[IoVec]) -> bool {
    let (len, page) = (bufs.iter().map(|buf| buf.len).sum::<usize>(), terrace_shm::PAGE_SIZE as u64);
    let pages = (offset + len as u64).div_ceil(page) - offset / page;
    // Without this look, a read of an absent page would start I/O in spite of RWF_NOWAIT.
    let (range, mut found) = ([offset, len as u64], CacheStat::default());
    // SAFETY: both structures live until the call returns.
    let looked = unsafe { libc::syscall(CACHESTAT, fd.as_raw_fd(), &raw const range, &raw mut found, 0) };
    if looked != 0 || found.cached < pages {
        return false;
    }
    // SAFETY: the caller's promise. An IoVec is an iovec.
    let got = unsafe {
        let (iov, n) = (bufs.as_ptr().cast::<libc::iovec>(), bufs.len() as i32);
        libc::preadv2(fd.as_raw_fd(), iov, n, offset as i64, libc::RWF_NOWAIT)
    };
    got == len as isize
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
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

    #[test]
    fn cached_reads_start_no_io() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let pages = |n: usize| n * PAGE_SIZE;
        file.write_all_at(&vec![5; pages(8)], 0).unwrap();
        let read = |first: usize, n: usize| {
            let mut out = vec![0u8; pages(n)];
            let buf = IoVec { ptr: out.as_mut_ptr(), len: out.len() };
            // SAFETY: `out` lives until the call returns.
            let is_read = unsafe { read_cached(file.as_fd(), pages(first) as u64, &[buf]) };
            assert!(!is_read || out.iter().all(|&byte| byte == 5));
            is_read
        };
        assert!(read(2, 3), "written pages are cached");
        assert!(!read(6, 3), "beyond the end");
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_eq!(cached_pages(&file, pages(8)), 0);
        assert!(!read(2, 1), "not cached");
        assert_eq!(cached_pages(&file, pages(8)), 0, "and not read by the attempt");
    }
}
