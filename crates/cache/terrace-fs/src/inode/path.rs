//! Paths below /proc/self/fd that lead to the inode of an open descriptor.

use std::ffi::{CStr, OsStr};
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `/proc/self/fd/N`: a path for an O_PATH descriptor, where system calls take only paths. It jumps to the
/// inode and is not followed as a symbolic link. If the inode is itself a symbolic link, the walk ends there:
/// link-following system calls act on the link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcPath {
    bytes: [u8; 32],
}

impl ProcPath {
    pub(crate) fn new(fd: BorrowedFd<'_>) -> Self {
        let mut bytes = [0; 32];
        write!(&mut bytes[..31], "/proc/self/fd/{}", fd.as_raw_fd()).expect("a descriptor number fits");
        Self { bytes }
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).expect("the last byte is never written")
    }

    pub(crate) fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.as_c_str().to_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_descriptor() {
        // SAFETY: only the number is used.
        let fd = unsafe { BorrowedFd::borrow_raw(i32::MAX) };
        assert_eq!(ProcPath::new(fd).as_c_str().to_bytes(), b"/proc/self/fd/2147483647");
    }
}
