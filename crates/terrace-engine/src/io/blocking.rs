//! Plain preadv and pwritev on the calling thread: the fastest way to do one thing at a time.

#[cfg(any(test, feature = "testing"))]
use super::testing::ShortCalls;
use super::{Io, IoVec, advance, total};
use rustix::io::Errno;
use std::borrow::Cow;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use terrace_shm::PAGE_SIZE;

/// The plain twin.
#[derive(Debug, Default)]
pub struct BlockingIo {
    #[cfg(any(test, feature = "testing"))]
    short: ShortCalls,
}

/// IOV_MAX of Linux.
const VECS_MAX: usize = 1024;
/// Reads that may end inside the same page before they count as failed.
const STALLS_MAX: u32 = 8;

fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: callers pass descriptors of source files that their object keeps open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn check(n: isize) -> Result<usize, Errno> {
    if n >= 0 {
        Ok(n as usize)
    } else {
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

impl BlockingIo {
    /// The plain twin over a kernel some of whose calls fall short.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_short_calls(short: ShortCalls) -> BlockingIo {
        BlockingIo { short }
    }

    /// The part of `bufs` for the next call: all of it, unless a test wants a short call.
    pub(super) fn part<'a>(&self, bufs: &'a [IoVec]) -> Cow<'a, [IoVec]> {
        #[cfg(any(test, feature = "testing"))]
        return self.short.cut(bufs);
        #[cfg(not(any(test, feature = "testing")))]
        Cow::Borrowed(bufs)
    }

    /// Reads on after `done` bytes; all that is read in the end.
    ///
    /// # Safety
    /// As [`Io::read`].
    pub(super) unsafe fn read_on(
        &self,
        fd: RawFd,
        offset: u64,
        bufs: &[IoVec],
        mut done: usize,
    ) -> io::Result<usize> {
        let want = total(bufs);
        let mut stalls = 0;
        while done < want {
            let left = advance(bufs, done);
            let part = self.part(&left);
            let at = offset + done as u64;
            // SAFETY: IoVec has the layout of iovec; the caller vouches for the memory.
            let n = check(unsafe {
                libc::preadv64(fd, part.as_ptr().cast(), part.len().min(VECS_MAX) as i32, at as i64)
            });
            match n {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                // A direct read does not go on inside a block: the one before ended there, as a rule with the file.
                Err(Errno::INVAL) if !done.is_multiple_of(PAGE_SIZE) => {
                    if rustix::fs::fstat(borrow(fd))?.st_size as u64 <= at {
                        break;
                    }
                    stalls += 1;
                    if stalls > STALLS_MAX {
                        return Err(Errno::IO.into());
                    }
                    done = done / PAGE_SIZE * PAGE_SIZE;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(done)
    }
}

impl Io for BlockingIo {
    unsafe fn read(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<usize> {
        // SAFETY: the caller's promise.
        unsafe { self.read_on(fd, offset, bufs, 0) }
    }

    unsafe fn write(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<()> {
        let want = total(bufs);
        let mut done = 0;
        while done < want {
            let left = advance(bufs, done);
            let part = self.part(&left);
            // SAFETY: IoVec has the layout of iovec; the caller vouches for the memory.
            let n = check(unsafe {
                libc::pwritev64(
                    fd,
                    part.as_ptr().cast(),
                    part.len().min(VECS_MAX) as i32,
                    (offset + done as u64) as i64,
                )
            });
            match n {
                Ok(0) => return Err(Errno::NOSPC.into()),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn sync(&self, fd: RawFd, data_only: bool) -> io::Result<()> {
        Ok(if data_only { rustix::fs::fdatasync(borrow(fd)) } else { rustix::fs::fsync(borrow(fd)) }?)
    }

    fn sync_fs(&self, fd: RawFd) -> io::Result<()> {
        Ok(rustix::fs::syncfs(borrow(fd))?)
    }

    fn truncate(&self, fd: RawFd, size: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(borrow(fd), size)?)
    }
}
