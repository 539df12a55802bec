//! Shared mappings of whole memory files.

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// A shared mapping that is unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory; all shared access goes through atomics or the protocols of this crate.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` shared, aligned to `align` (a power of two) so that huge pages can back it.
    pub fn new(fd: BorrowedFd<'_>, len: usize, writable: bool, align: usize) -> io::Result<Mapping> {
        // Reserves enough address space to place the real mapping at an aligned address.
        // SAFETY: a new private reservation touches no existing mapping.
        let area = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len + align,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        } as usize;
        let start = area.next_multiple_of(align);
        // SAFETY: [start, start + len) lies inside the reservation just made, which has no other user.
        let mapped = unsafe { map_unlocked(start, len, writable, fd) };
        let (head, tail) = (start - area, area + align - start);
        // SAFETY: the two slices and, on failure, the middle belong to the reservation and to nothing else.
        unsafe {
            if head > 0 {
                munmap(area as *mut _, head)?;
            }
            if tail > 0 {
                munmap((start + len) as *mut _, tail)?;
            }
            if mapped.is_err() {
                munmap(start as *mut _, len)?;
            }
        }
        Ok(Mapping { base: mapped?, len })
    }
    /// Maps another file in place of this one, writable.
    ///
    /// # Safety
    /// Concurrent users of the mapping must accept the content of either file.
    pub unsafe fn replace(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: the mapping is this object's; the rest is the caller's promise.
        unsafe {
            let (start, both) = (self.base, ProtFlags::READ | ProtFlags::WRITE);
            map_over(start.as_ptr() as usize, self.len, both, fd)?;
            let _ = rustix::mm::madvise(start.as_ptr().cast(), self.len, Advice::LinuxDontDump);
        }
        Ok(())
    }
    /// Start of the mapping.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }
    /// Bytes mapped.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// As [`map_over`], but never locked in memory: mlockall(2) with MCL_FUTURE populates new readable mappings.
/// So the new mapping is unreadable until it is unlocked.
///
/// # Safety
/// As [`map_over`]; the range is not in use yet.
unsafe fn map_unlocked(
    start: usize,
    len: usize,
    writable: bool,
    fd: BorrowedFd<'_>,
) -> io::Result<NonNull<u8>> {
    // SAFETY: the caller's promise.
    unsafe {
        let base = map_over(start, len, ProtFlags::empty(), fd)?;
        open(base, len, writable)?;
        Ok(base)
    }
}

/// Unlocks an unreadable mapping and makes it readable.
///
/// # Safety
/// The mapping must be the caller's.
pub(crate) unsafe fn open(base: NonNull<u8>, len: usize, writable: bool) -> rustix::io::Result<()> {
    let write = if writable { MprotectFlags::WRITE } else { MprotectFlags::empty() };
    let base = base.as_ptr().cast();
    // SAFETY: the caller's promise.
    unsafe {
        // Keeps the cache out of core dumps of daemon and clients. The mapping also works without this.
        let _ = rustix::mm::madvise(base, len, Advice::LinuxDontDump);
        rustix::mm::munlock(base, len)?;
        rustix::mm::mprotect(base, len, MprotectFlags::READ | write)
    }
}

/// Maps `fd` shared over the existing mapping at `start`.
///
/// # Safety
/// The range and its present mapping must be the caller's.
unsafe fn map_over(start: usize, len: usize, prot: ProtFlags, fd: BorrowedFd<'_>) -> io::Result<NonNull<u8>> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller's promise.
    let base = unsafe { mmap(start as *mut _, len, prot, flags, fd, 0)? };
    Ok(NonNull::new(base.cast()).expect("mmap returned null"))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this object's and has no user after drop.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
