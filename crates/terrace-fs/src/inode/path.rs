//! Paths that name an open descriptor.

use std::ffi::{CStr, OsStr};
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// `/proc/self/fd/N`: the way to use an O_PATH descriptor where system calls take only paths. It is a jump to the inode,
/// not a symbolic link: at a symbolic link's own inode the walk ends, so the forms of system calls that follow
/// links work on the link itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcPath {
    bytes: [u8; 32],
}

impl ProcPath {
    /// The path of `fd`.
    pub(crate) fn new(fd: BorrowedFd<'_>) -> Self {
        let mut bytes = [0; 32];
        write!(&mut bytes[..31], "/proc/self/fd/{}", fd.as_raw_fd()).expect("a descriptor number fits");
        Self { bytes }
    }

    /// The path as a system call wants it.
    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).expect("the last byte is never written")
    }

    /// The path for std's functions.
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
