//! Staging: a program asks for a part of a file to be brought where clients of the preload path read it.
//!
//! Reading it through the mount would do the same only for files that the kernel does not read itself.

use std::os::fd::{AsRawFd, BorrowedFd};

use terrace_engine::AccessPath;

use crate::error::Result;
use crate::{Namespace, PageCache};

/// The ioctl on an open file: `_IOW('t', 1, [u64; 2])`, offset and length. Its result is the number of bytes that are there now, less than the length at the
/// end of the file.
pub(crate) const STAGE: u32 = 0x4010_7401;
/// Longest part of a file in one ioctl.
const STAGE_BYTES_MAX: u64 = 1 << 20;

/// Asks the mount's daemon to stage a part of a file; bytes that are there now.
///
/// # Errors
/// ENOTTY: the file is on no mount of terrace. Errors of reading the source.
pub fn stage(file: BorrowedFd<'_>, offset: u64, len: u64) -> std::io::Result<u64> {
    let part = [offset, len.min(STAGE_BYTES_MAX)];
    // SAFETY: the kernel reads as many bytes as the number says, which is the array's size.
    let staged = unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(STAGE), part.as_ptr()) };
    u64::try_from(staged).map_err(|_| std::io::Error::last_os_error())
}

/// Offset and length of the ioctl's argument.
pub(crate) fn part(argument: &[u8]) -> Option<(u64, usize)> {
    let words: &[u8; 16] = argument.try_into().ok()?;
    let word = |at: usize| words[at..at + 8].try_into().map(u64::from_ne_bytes).ok();
    let (offset, len) = (word(0)?, word(8)?);
    (len <= STAGE_BYTES_MAX && offset.checked_add(len).is_some()).then_some((offset, len as usize))
}

impl<C: PageCache> Namespace<C> {
    /// Reads a part of a file into `buf` from where clients will read it, so that it is there: memory, or the source's page cache.
    pub fn stage(&self, fh: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let handle = self.handles.get(fh)?;
        let (inode, file) = (&handle.inode, handle.file()?);
        if self.is_written_outside(inode, &file.object) {
            return Ok(self.read_source(&file.object, offset, buf)?);
        }
        self.with_room(|| self.cache.read(&file.object, offset, &mut *buf, AccessPath::FuseDirect))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_other_shapes_are_refused() {
        let argument = |offset: u64, len: u64| [offset.to_ne_bytes(), len.to_ne_bytes()].concat();
        assert_eq!(part(&argument(4096, 1 << 20)), Some((4096, 1 << 20)));
        assert_eq!(part(&argument(0, (1 << 20) + 1)), None);
        assert_eq!(part(&argument(u64::MAX, 1)), None);
        assert_eq!(part(&[0; 8]), None);
    }
}
