//! Staging: a program asks for a part of a file to be brought where clients of the preload path read it.
//!
//! Reading it through the mount would do the same only for files that the kernel does not read itself.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::io::Errno;
use terrace_engine::AccessPath;

use crate::error::Result;
use crate::{Namespace, PageCache};

/// The ioctl on an open file: `_IOW('t', 1, [u64; 2])`, offset and length. Its result is the number of bytes that are there now, less than the length at the
/// end of the file.
pub(crate) const STAGE: u32 = 0x4010_7401;
/// `_IOW('t', 2, [u64; 3])`: offset, length, milliseconds. What of it is in memory stays there so long; its result is the number of bytes that do.
pub(crate) const PIN: u32 = 0x4018_7402;
/// `_IOW('t', 3, [u64; 2])`: offset and length. What of it is clean leaves memory; its result is the number of pages.
pub(crate) const DROP: u32 = 0x4010_7403;
/// `_IOW('t', 4, [u64; 3])`: offset, length, level of a tier. What of it is in memory and was used by no program goes there; its result is the number of bytes that tiers have then.
pub(crate) const DOWN: u32 = 0x4018_7404;
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

/// Asks the mount's daemon to keep what of a part of a file is in memory there for so long, as far as it has room; bytes.
///
/// # Errors
/// ENOTTY: the file is on no mount of terrace.
pub fn pin(file: BorrowedFd<'_>, offset: u64, len: u64, time: Duration) -> std::io::Result<u64> {
    let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let part = [offset, len.min(STAGE_BYTES_MAX), time];
    // SAFETY: as in `stage`.
    let pinned = unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(PIN), part.as_ptr()) };
    u64::try_from(pinned).map_err(|_| std::io::Error::last_os_error())
}

/// Asks the mount's daemon to move what of a part of a file is in memory and was used by no program to the tier on devices of this level, 0 the fastest; bytes
/// of the part that tiers on devices have then.
///
/// # Errors
/// ENOTTY: the file is on no mount of terrace.
pub fn stage_down(file: BorrowedFd<'_>, offset: u64, len: u64, level: u8) -> std::io::Result<u64> {
    let part = [offset, len.min(STAGE_BYTES_MAX), level.into()];
    // SAFETY: as in `stage`.
    let moved = unsafe { libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(DOWN), part.as_ptr()) };
    u64::try_from(moved).map_err(|_| std::io::Error::last_os_error())
}

/// Asks the mount's daemon to drop the clean content of a file from memory, and the kernel, too; pages that the daemon has dropped.
///
/// # Errors
/// ENOTTY: the file is on no mount of terrace.
pub fn drop_content(file: BorrowedFd<'_>) -> std::io::Result<u64> {
    let part = [0, i64::MAX as u64];
    // SAFETY: plain numbers; and as in `stage`.
    let dropped = unsafe {
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
        libc::ioctl(file.as_raw_fd(), libc::Ioctl::from(DROP), part.as_ptr())
    };
    u64::try_from(dropped).map_err(|_| std::io::Error::last_os_error())
}

/// What an ioctl asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// This many bytes from an offset.
    Stage(u64, usize),
    /// Likewise, for so long.
    Pin(u64, u64, Duration),
    /// Likewise, to a tier.
    Down(u64, u64, u8),
    /// Likewise.
    Drop(u64, u64),
}

/// The number of an ioctl and its argument.
///
/// # Errors
/// ENOTTY: it is none of ours; EINVAL: its argument has another shape, or more bytes than one may ask for.
pub(crate) fn asked(number: u32, argument: &[u8]) -> Result<Asked> {
    let word = |at: usize| {
        let bytes = argument.get(at * 8..at * 8 + 8)?;
        bytes.try_into().map(u64::from_ne_bytes).ok()
    };
    let words = if argument.len().is_multiple_of(8) { argument.len() / 8 } else { 0 };
    let part = |most: u64| {
        let (offset, len) = (word(0)?, word(1)?);
        (len <= most && offset.checked_add(len).is_some()).then_some((offset, len))
    };
    let asked = match (number, words) {
        (STAGE, 2) => part(STAGE_BYTES_MAX).map(|(offset, len)| Asked::Stage(offset, len as usize)),
        (PIN, 3) => part(STAGE_BYTES_MAX)
            .and_then(|(offset, len)| Some(Asked::Pin(offset, len, Duration::from_millis(word(2)?)))),
        (DOWN, 3) => part(STAGE_BYTES_MAX)
            .and_then(|(offset, len)| Some(Asked::Down(offset, len, u8::try_from(word(2)?).ok()?))),
        (DROP, 2) => part(u64::MAX).map(|(offset, len)| Asked::Drop(offset, len)),
        (STAGE | PIN | DOWN | DROP, _) => None,
        _ => return Err(Errno::NOTTY.into()),
    };
    asked.ok_or(Errno::INVAL.into())
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

    /// Keeps what of a part of a file is in memory there for so long; bytes.
    pub fn pin(&self, fh: u64, offset: u64, len: u64, time: Duration) -> Result<u64> {
        let handle = self.handles.get(fh)?;
        Ok(self.cache.pin(&handle.file()?.object, offset..offset + len, time))
    }

    /// Moves what of a part of a file is in memory and was used by no program to a tier on devices; bytes of it that tiers have then.
    pub fn stage_down(&self, fh: u64, offset: u64, len: u64, level: u8) -> Result<u64> {
        let handle = self.handles.get(fh)?;
        Ok(self.cache.stage_down(&handle.file()?.object, offset..offset + len, level))
    }

    /// Drops what of a part of a file is clean; pages.
    pub fn drop_clean(&self, fh: u64, offset: u64, len: u64) -> Result<u64> {
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
        let asked = |number, argument: &[u8]| asked(number, argument).map_err(|error| error.errno());
        assert_eq!(asked(STAGE, &argument(4096, 1 << 20)), Ok(Asked::Stage(4096, 1 << 20)));
        for bad in [argument(0, (1 << 20) + 1), argument(u64::MAX, 1), vec![0; 8], vec![0; 17]] {
            assert_eq!(asked(STAGE, &bad), Err(libc::EINVAL), "{bad:?}");
            assert_eq!(asked(PIN, &bad), Err(libc::EINVAL), "{bad:?}");
        }
        let hour = [argument(0, 5), 3_600_000_u64.to_ne_bytes().to_vec()].concat();
        assert_eq!(asked(PIN, &hour), Ok(Asked::Pin(0, 5, Duration::from_secs(3600))));
        let level = |level: u64| [argument(0, 5), level.to_ne_bytes().to_vec()].concat();
        assert_eq!(asked(DOWN, &level(1)), Ok(Asked::Down(0, 5, 1)));
        assert_eq!(asked(DOWN, &level(256)), Err(libc::EINVAL));
        assert_eq!(asked(DROP, &argument(7, 1 << 40)), Ok(Asked::Drop(7, 1 << 40)));
        assert_eq!(asked(DROP, &hour), Err(libc::EINVAL));
        assert_eq!(asked(STAGE + 9, &argument(0, 1)), Err(libc::ENOTTY));
    }
}
