//! A mapped part of a file, which the executor keeps between operations.

use libc::{c_int, c_void};

/// A mapped part of a file.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) address: *mut c_void,
    pub(crate) len: usize,
    /// Offset in the file.
    at: u64,
}

impl Map {
    /// Maps a part of a file, with an inaccessible guard page behind it. Without the guard, the kernel would
    /// merge two adjacent mappings of adjacent parts of a file, and `/proc` would show neither.
    ///
    /// None: the kernel refused; errno has the reason.
    pub(crate) fn new(fd: c_int, at: i64, len: usize, protection: c_int, flags: c_int) -> Option<Map> {
        let guarded = Map::guarded(len);
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), guarded, libc::PROT_NONE, anonymous, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED, "room for {guarded} bytes");
        // SAFETY: replaces a part of the mapping just made; its last page stays.
        let mapped = unsafe { libc::mmap(address, len, protection, flags | libc::MAP_FIXED, fd, at) };
        if mapped == libc::MAP_FAILED {
            let why = std::io::Error::last_os_error().raw_os_error().expect("mmap failed");
            // SAFETY: the mapping is unused; errno of the failed mmap is preserved.
            unsafe {
                libc::munmap(address, guarded);
                *libc::__errno_location() = why;
            }
            return None;
        }
        Some(Map { address, len, at: at as u64 })
    }

    pub(crate) fn unmap(self) -> c_int {
        // SAFETY: made by `new` with this length, and not used after this call.
        unsafe { libc::munmap(self.address, Map::guarded(self.len)) }
    }

    fn guarded(len: usize) -> usize {
        len.next_multiple_of(4096) + 4096
    }

    /// Mapped bytes within the file, by the kernel's count.
    pub(crate) fn in_file(&self) -> usize {
        let (start, pages) = (self.address as usize, self.len.next_multiple_of(4096));
        let size = std::fs::metadata(format!("/proc/self/map_files/{start:x}-{:x}", start + pages));
        let bytes = size.map_or(u64::MAX, |file| file.len().saturating_sub(self.at));
        usize::try_from(bytes).unwrap_or(usize::MAX).min(self.len)
    }
}
