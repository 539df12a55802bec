//! I/O on files: the trait [`Io`] and its implementations, by io_uring and by plain calls. `testing` has stand-ins
//! for tests.
//!
//! It stands on `terrace-shm` (the size of a page), `terrace-sync` and `terrace-system`. It knows descriptors and
//! offsets, and no page cache of terrace.

mod aligned;
mod blocking;
mod page_cache;
mod scattered;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod timed;
mod uring;

pub use aligned::AlignedBuf;
pub use blocking::BlockingIo;
pub use page_cache::read_cached;
pub use timed::Limit;
pub use uring::{UringIo, is_busy, is_ring};

use std::io;
use std::ops::Range;
use std::os::fd::RawFd;

/// A buffer of an operation. The caller keeps it valid until the operation has returned.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct IoVec {
    /// Start.
    pub ptr: *mut u8,
    /// Bytes.
    pub len: usize,
}

// SAFETY: a plain address range; the submitter guarantees that it is valid.
unsafe impl Send for IoVec {}
// SAFETY: as above.
unsafe impl Sync for IoVec {}

/// One write of a batch.
#[derive(Debug)]
pub struct WriteOp {
    /// Descriptor of the file.
    pub fd: RawFd,
    /// Byte offset in the file.
    pub offset: u64,
    /// Source of the data, in order.
    pub bufs: Vec<IoVec>,
    /// Write through the kernel's page cache, with writeback at once and without keeping pages
    /// (RWF_DONTCACHE, Linux 6.14; elsewhere a plain write).
    pub drop_behind: bool,
    /// Result: success if all of `bufs` was written.
    pub result: io::Result<()>,
}

/// One read of a batch.
#[derive(Debug)]
pub struct ReadOp {
    /// Descriptor of the file.
    pub fd: RawFd,
    /// Byte offset in the file.
    pub offset: u64,
    /// Destination of the data, in order.
    pub bufs: Vec<IoVec>,
    /// Result: bytes read, short only at the end of the file.
    pub result: io::Result<usize>,
}

/// I/O on source files.
pub trait Io: Send + Sync + std::fmt::Debug {
    /// Reads at `offset` into `bufs`, in order; short only at the end of the file.
    ///
    /// # Errors
    /// The device's error.
    ///
    /// # Safety
    /// Each of `bufs` must be valid for writes until the call returns.
    unsafe fn read(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<usize>;

    /// Does several reads, concurrently where the implementation can.
    ///
    /// # Safety
    /// As [`Io::read`], for each operation.
    unsafe fn read_batch(&self, ops: &mut [ReadOp]) {
        for op in ops {
            // SAFETY: the caller's promise.
            op.result = unsafe { self.read(op.fd, op.offset, &op.bufs) };
        }
    }

    /// Writes all of `bufs` at `offset`.
    ///
    /// # Errors
    /// The device's error; any part of the data may have been written.
    ///
    /// # Safety
    /// Each of `bufs` must be valid for reads until the call returns.
    unsafe fn write(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<()>;

    /// Does several writes, concurrently where the implementation can.
    ///
    /// # Safety
    /// As [`Io::write`], for each operation.
    unsafe fn write_batch(&self, ops: &mut [WriteOp]) {
        for op in ops {
            // SAFETY: the caller's promise.
            op.result = unsafe { self.write(op.fd, op.offset, &op.bufs) };
        }
    }

    /// Does several reads, each within its time limit where the implementation can. A late read fails with
    /// `TimedOut`.
    ///
    /// # Safety
    /// As [`Io::read`], for each operation.
    unsafe fn read_batch_within(&self, ops: &mut [ReadOp], _limits: &[&Limit]) {
        // SAFETY: the caller's promise.
        unsafe { self.read_batch(ops) };
    }

    /// As [`Io::write`], within a time limit where the implementation can. A late write fails with
    /// `TimedOut`, and the device may still read the buffer, with later content.
    ///
    /// # Errors
    /// As [`Io::write`].
    ///
    /// # Safety
    /// As [`Io::write`].
    unsafe fn write_within(&self, fd: RawFd, offset: u64, buf: IoVec, _limit: &Limit) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.write(fd, offset, &[buf]) }
    }

    /// fdatasync, within a time limit where the implementation can.
    ///
    /// # Errors
    /// The device's error; `TimedOut`.
    fn sync_within(&self, fd: RawFd, _limit: &Limit) -> io::Result<()> {
        self.sync(fd, true)
    }

    /// fsync or fdatasync.
    ///
    /// # Errors
    /// The device's error.
    fn sync(&self, fd: RawFd, data_only: bool) -> io::Result<()>;

    /// syncfs: makes everything on the file system of `fd` stable.
    ///
    /// # Errors
    /// The device's error, reported once per descriptor.
    fn sync_fs(&self, fd: RawFd) -> io::Result<()>;

    /// Sets the size of a source file.
    ///
    /// # Errors
    /// The file system's error.
    fn truncate(&self, fd: RawFd, size: u64) -> io::Result<()>;

    /// Allocates space for a range of a source file, which keeps size and content. No effect in
    /// implementations without a device.
    ///
    /// # Errors
    /// The file system has no space, or no fallocate.
    fn allocate(&self, _fd: RawFd, _range: Range<u64>) -> io::Result<()> {
        Ok(())
    }
}

/// Drops the first `n` bytes of a list of buffers.
fn advance(bufs: &[IoVec], mut n: usize) -> Vec<IoVec> {
    let mut left = Vec::with_capacity(bufs.len());
    for b in bufs {
        if n >= b.len {
            n -= b.len;
            continue;
        }
        left.push(IoVec { ptr: b.ptr.wrapping_add(n), len: b.len - n });
        n = 0;
    }
    left
}

fn total(bufs: &[IoVec]) -> usize {
    bufs.iter().map(|b| b.len).sum()
}
