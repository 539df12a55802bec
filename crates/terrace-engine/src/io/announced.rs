//! I/O that its threads announce ([`crate::waits`]). Sizes are set without: that takes no longer than a write to memory.

use super::{Io, IoVec, ReadOp, WriteOp};
use crate::waits::{Wait, about_to_wait};
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Another twin, announced.
#[derive(Debug)]
pub(crate) struct Announced(pub(crate) Arc<dyn Io>);

impl Io for Announced {
    unsafe fn read(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<usize> {
        about_to_wait(Wait::Brief);
        // SAFETY: the caller's promise, as in all of these.
        unsafe { self.0.read(fd, offset, bufs) }
    }

    unsafe fn read_batch(&self, ops: &mut [ReadOp]) {
        about_to_wait(Wait::Brief);
        // SAFETY: as in `read`.
        unsafe { self.0.read_batch(ops) }
    }

    unsafe fn write(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<()> {
        about_to_wait(Wait::Long);
        // SAFETY: as in `read`.
        unsafe { self.0.write(fd, offset, bufs) }
    }

    unsafe fn write_batch(&self, ops: &mut [WriteOp]) {
        about_to_wait(Wait::Long);
        // SAFETY: as in `read`.
        unsafe { self.0.write_batch(ops) }
    }

    fn sync(&self, fd: RawFd, data_only: bool) -> io::Result<()> {
        about_to_wait(Wait::Long);
        self.0.sync(fd, data_only)
    }

    fn sync_fs(&self, fd: RawFd) -> io::Result<()> {
        about_to_wait(Wait::Long);
        self.0.sync_fs(fd)
    }

    fn truncate(&self, fd: RawFd, size: u64) -> io::Result<()> {
        self.0.truncate(fd, size)
    }
}
