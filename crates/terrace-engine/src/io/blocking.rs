//! Plain preadv and pwritev on the calling thread: the fastest way to do one thing at a time.

use super::{Io, IoVec, advance, total};
use rustix::io::Errno;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};

/// The plain twin.
#[derive(Debug, Default)]
pub struct BlockingIo;

/// IOV_MAX of Linux.
const VECS_MAX: usize = 1024;

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

impl Io for BlockingIo {
    unsafe fn read(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<usize> {
        let want = total(bufs);
        let mut done = 0;
        while done < want {
            let left = advance(bufs, done);
            // SAFETY: IoVec has the layout of iovec; the caller vouches for the memory.
            let n = check(unsafe {
                libc::preadv64(
                    fd,
                    left.as_ptr().cast(),
                    left.len().min(VECS_MAX) as i32,
                    (offset + done as u64) as i64,
                )
            });
            match n {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    // A direct read that ends inside a page has met the end of the file.
                    if n % 512 != 0 {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(done)
    }

    unsafe fn write(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<()> {
        let want = total(bufs);
        let mut done = 0;
        while done < want {
            let left = advance(bufs, done);
            // SAFETY: IoVec has the layout of iovec; the caller vouches for the memory.
            let n = check(unsafe {
                libc::pwritev64(
                    fd,
                    left.as_ptr().cast(),
                    left.len().min(VECS_MAX) as i32,
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

    fn truncate(&self, fd: RawFd, size: u64) -> io::Result<()> {
        Ok(rustix::fs::ftruncate(borrow(fd), size)?)
    }
}
