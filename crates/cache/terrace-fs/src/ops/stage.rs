//! Staging: brings a part of a file to the cache from which clients of the preload path read.
//!
//! A read through the mount would do the same only for files without passthrough.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use terrace_engine::AccessPath;

use crate::error::Result;
use crate::{Namespace, PageCache};

/// The ioctl on an open file: `_IOW('t', 1, [u64; 2])`, offset and length. Returns the number of staged
/// bytes, less than the length at the end of the file.
pub(crate) const STAGE: u32 = 0x4010_7401;
/// `_IOW('t', 2, [u64; 3])`: offset, length, milliseconds. Pages of the range in memory stay there for that
/// time. Returns their bytes.
pub(crate) const PIN: u32 = 0x4018_7402;
/// `_IOW('t', 3, [u64; 2])`: offset and length. Drops the clean pages of the range from memory. Returns their
/// number.
pub(crate) const DROP: u32 = 0x4010_7403;
/// `_IOW('t', 4, [u64; 3])`: offset, length, level of a tier. Moves unused pages of the range from memory to
/// the tier. Returns the bytes of the range that tiers then have.
pub(crate) const DOWN: u32 = 0x4018_7404;
/// Longest part of a file in one request, bytes.
pub const STAGE_BYTES_MAX: u64 = 1 << 20;

/// Makes the mount's daemon stage a part of a file. Returns the bytes that are staged.
///
/// # Errors
/// ENOTTY: the file is not on a mount of terrace. Errors of reading the source.
pub fn stage(file: BorrowedFd<'_>, offset: u64, len: u64) -> std::io::Result<u64> {
    let part = [offset, len.min(STAGE_BYTES_MAX)];
    // SAFETY: the kernel reads as many bytes as the ioctl's number encodes, which is the array's size.
    let staged = unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(STAGE), part.as_ptr()) };
    u64::try_from(staged).map_err(|_| std::io::Error::last_os_error())
}

/// Makes the mount's daemon keep cached pages of a file's part in memory for `time`, as far as room permits.
/// Returns the bytes.
///
/// # Errors
/// ENOTTY: the file is not on a mount of terrace.
pub fn pin(file: BorrowedFd<'_>, offset: u64, len: u64, time: Duration) -> std::io::Result<u64> {
    let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let part = [offset, len.min(STAGE_BYTES_MAX), time];
    // SAFETY: as in `stage`.
    let pinned = unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(PIN), part.as_ptr()) };
    u64::try_from(pinned).map_err(|_| std::io::Error::last_os_error())
}

/// Makes the mount's daemon move unused cached pages of a file's part to this device tier (0: fastest).
/// Returns the bytes of the part that device tiers then have.
///
/// # Errors
/// ENOTTY: the file is not on a mount of terrace.
pub fn stage_down(file: BorrowedFd<'_>, offset: u64, len: u64, level: u8) -> std::io::Result<u64> {
    let part = [offset, len.min(STAGE_BYTES_MAX), level.into()];
    // SAFETY: as in `stage`.
    let moved = unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(DOWN), part.as_ptr()) };
    u64::try_from(moved).map_err(|_| std::io::Error::last_os_error())
}

/// Makes the mount's daemon and the kernel drop the clean content of a file from memory. Returns the number
/// of pages that the daemon dropped.
///
/// # Errors
/// ENOTTY: the file is not on a mount of terrace.
pub fn drop_content(file: BorrowedFd<'_>) -> std::io::Result<u64> {
    let part = [0, i64::MAX as u64];
    // SAFETY: plain numbers. The ioctl is as in `stage`.
    let dropped = unsafe {
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
        libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(DROP), part.as_ptr())
    };
    u64::try_from(dropped).map_err(|_| std::io::Error::last_os_error())
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StageRequest {
    /// Offset and number of bytes.
    Stage(u64, usize),
    /// Offset, number of bytes, time.
    Pin(u64, u64, Duration),
    /// Offset, number of bytes, level.
    Down(u64, u64, u8),
    /// Offset and number of bytes.
    Drop(u64, u64),
}

/// Decodes an ioctl's number and argument.
///
/// # Errors
/// ENOTTY: not an ioctl of terrace. EINVAL: the argument has another shape, or too many bytes.
pub(crate) fn parse_request(number: u32, argument: &[u8]) -> Result<StageRequest> {
    let word = |at: usize| {
        let bytes = argument.get(at * 8..at * 8 + 8)?;
        bytes.try_into().map(u64::from_ne_bytes).ok()
    };
    let words = if argument.len().is_multiple_of(8) { argument.len() / 8 } else { 0 };
    let part = |most: u64| {
        let (offset, len) = (word(0)?, word(1)?);
        (len <= most && offset.checked_add(len).is_some()).then_some((offset, len))
    };
    let request = match (number, words) {
        (STAGE, 2) => part(STAGE_BYTES_MAX).map(|(offset, len)| StageRequest::Stage(offset, len as usize)),
        (PIN, 3) => part(STAGE_BYTES_MAX)
            .and_then(|(offset, len)| Some(StageRequest::Pin(offset, len, Duration::from_millis(word(2)?)))),
        (DOWN, 3) => part(STAGE_BYTES_MAX)
            .and_then(|(offset, len)| Some(StageRequest::Down(offset, len, u8::try_from(word(2)?).ok()?))),
        (DROP, 2) => part(u64::MAX).map(|(offset, len)| StageRequest::Drop(offset, len)),
        (STAGE | PIN | DOWN | DROP, _) => None,
        _ => return Err(Errno::NOTTY.into()),
    };
    request.ok_or(Errno::INVAL.into())
}

impl<C: PageCache> Namespace<C> {
    /// Reads a part of a file into `buf` to cache it in memory, or in the source's page cache.
    pub fn stage(&self, fh: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let handle = self.handles.get(fh)?;
        let (inode, file) = (&handle.inode, handle.file()?);
        if self.is_written_outside(inode, &file.object) {
            return Ok(self.read_source(&file.object, offset, buf)?);
        }
        self.with_room(|| self.cache.read(&file.object, offset, &mut *buf, AccessPath::FuseDirect))
    }

    /// Keeps cached pages of a part of a file in memory for `time`. Returns the bytes.
    pub fn pin(&self, fh: u64, offset: u64, len: u64, time: Duration) -> Result<u64> {
        let handle = self.handles.get(fh)?;
        Ok(self.cache.pin(&handle.file()?.object, offset..offset + len, time))
    }

    /// Moves cached pages of a part of a file that no program has used to a device tier. Returns the bytes of
    /// the part that device tiers then have.
    pub fn stage_down(&self, fh: u64, offset: u64, len: u64, level: u8) -> Result<u64> {
        let handle = self.handles.get(fh)?;
        Ok(self.cache.stage_down(&handle.file()?.object, offset..offset + len, level))
    }

    /// Drops the clean pages of a part of a file. Returns their number.
    pub(crate) fn drop_clean(&self, fh: u64, offset: u64, len: u64) -> Result<u64> {
        let handle = self.handles.get(fh)?;
        Ok(self.cache.drop_clean(&handle.file()?.object, offset..offset + len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_other_shapes_are_refused() {
        let argument = |offset: u64, len: u64| [offset.to_ne_bytes(), len.to_ne_bytes()].concat();
        let parse = |number, argument: &[u8]| parse_request(number, argument).map_err(|error| error.errno());
        assert_eq!(parse(STAGE, &argument(4096, 1 << 20)), Ok(StageRequest::Stage(4096, 1 << 20)));
        for bad in [argument(0, (1 << 20) + 1), argument(u64::MAX, 1), vec![0; 8], vec![0; 17]] {
            assert_eq!(parse(STAGE, &bad), Err(libc::EINVAL), "{bad:?}");
            assert_eq!(parse(PIN, &bad), Err(libc::EINVAL), "{bad:?}");
        }
        let hour = [argument(0, 5), 3_600_000_u64.to_ne_bytes().to_vec()].concat();
        assert_eq!(parse(PIN, &hour), Ok(StageRequest::Pin(0, 5, Duration::from_secs(3600))));
        let level = |level: u64| [argument(0, 5), level.to_ne_bytes().to_vec()].concat();
        assert_eq!(parse(DOWN, &level(1)), Ok(StageRequest::Down(0, 5, 1)));
        assert_eq!(parse(DOWN, &level(256)), Err(libc::EINVAL));
        assert_eq!(parse(DROP, &argument(7, 1 << 40)), Ok(StageRequest::Drop(7, 1 << 40)));
        assert_eq!(parse(DROP, &hour), Err(libc::EINVAL));
        assert_eq!(parse(STAGE + 9, &argument(0, 1)), Err(libc::ENOTTY));
    }
}
