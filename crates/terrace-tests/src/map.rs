//! Mappings that the executor keeps.

use libc::{c_int, c_void};

/// A part of a file in memory.
#[derive(Debug)]
pub(crate) struct Map {
    pub address: *mut c_void,
    pub len: usize,
    /// Where in the file it begins.
    at: u64,
}

impl Map {
    /// A page that nobody may touch follows it: the kernel would make one of two mappings that touch, of parts of a file that touch, and
    /// `/proc` would not tell of either.
    ///
    /// None: the kernel refused, and errno says why.
    pub fn new(fd: c_int, at: i64, len: usize, protection: c_int, flags: c_int) -> Option<Map> {
        let guarded = Map::guarded(len);
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), guarded, libc::PROT_NONE, anonymous, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED, "room for {guarded} bytes");
        // SAFETY: in the place that was just taken, of which the last page stays.
        let mapped = unsafe { libc::mmap(address, len, protection, flags | libc::MAP_FIXED, fd, at) };
        if mapped == libc::MAP_FAILED {
            let why = std::io::Error::last_os_error().raw_os_error().expect("mmap failed");
            // SAFETY: ours, and nothing knows of it; the error of interest is the one before.
            unsafe {
                libc::munmap(address, guarded);
                *libc::__errno_location() = why;
            }
            return None;
        }
        Some(Map { address, len, at: at as u64 })
    }

    pub fn unmap(self) -> c_int {
        // SAFETY: made by `new` with this length, and gone with this call.
        unsafe { libc::munmap(self.address, Map::guarded(self.len)) }
    }

    fn guarded(len: usize) -> usize {
        len.next_multiple_of(4096) + 4096
    }

    /// Bytes of it that lie in the file, as far as the kernel tells.
    pub fn in_file(&self) -> usize {
        let (start, pages) = (self.address as usize, self.len.next_multiple_of(4096));
        let size = std::fs::metadata(format!("/proc/self/map_files/{start:x}-{:x}", start + pages));
        let bytes = size.map_or(u64::MAX, |file| file.len().saturating_sub(self.at));
        usize::try_from(bytes).unwrap_or(usize::MAX).min(self.len)
    }
}
