//! I/O with a test's hook before each call: to count calls, to block one, to fail it.

use crate::{Io, IoVec, ReadOp};
use std::io;
use std::os::fd::RawFd;

/// An operation on the source that is about to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Number of reads in a batch.
    Read(usize),
    /// One write; a batch of writes is reported one by one.
    Write(RawFd),
    /// fsync or fdatasync.
    Sync(RawFd),
    /// syncfs.
    SyncFs,
    /// ftruncate.
    Truncate,
}

type Hook = Box<dyn Fn(Call) -> io::Result<()> + Send + Sync>;

/// Another implementation behind a hook. An error of the hook replaces the operation.
pub struct HookIo<T> {
    inner: T,
    hook: Hook,
}

impl<T> std::fmt::Debug for HookIo<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HookIo")
    }
}

impl<T: Io> HookIo<T> {
    /// Calls `hook` before each operation of `inner`.
    pub fn new(inner: T, hook: impl Fn(Call) -> io::Result<()> + Send + Sync + 'static) -> HookIo<T> {
        HookIo { inner, hook: Box::new(hook) }
    }
}

impl<T: Io> Io for HookIo<T> {
    unsafe fn read(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<usize> {
        (self.hook)(Call::Read(1))?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.read(fd, offset, bufs) }
    }
    unsafe fn read_batch(&self, ops: &mut [ReadOp]) {
        match (self.hook)(Call::Read(ops.len())) {
            // SAFETY: the caller's promise.
            Ok(()) => unsafe { self.inner.read_batch(ops) },
            Err(why) => {
                let errno = why.raw_os_error().unwrap_or(libc::EIO);
                ops.iter_mut().for_each(|op| op.result = Err(io::Error::from_raw_os_error(errno)));
            }
        }
    }
    unsafe fn write(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<()> {
        (self.hook)(Call::Write(fd))?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.write(fd, offset, bufs) }
    }
    fn sync(&self, fd: RawFd, data_only: bool) -> io::Result<()> {
        (self.hook)(Call::Sync(fd))?;
        self.inner.sync(fd, data_only)
    }
    fn sync_fs(&self, fd: RawFd) -> io::Result<()> {
        (self.hook)(Call::SyncFs)?;
        self.inner.sync_fs(fd)
    }
    fn truncate(&self, fd: RawFd, size: u64) -> io::Result<()> {
        (self.hook)(Call::Truncate)?;
        self.inner.truncate(fd, size)
    }
}
