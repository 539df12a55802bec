//! io_uring for batches of writes, so that the device sees them at once; single operations take the plain way, which is
//! cheaper at depth one.

use super::{BlockingIo, Io, IoVec, WriteOp, advance, total};
use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use std::io;
use std::os::fd::RawFd;

/// Operations in flight at the most.
const DEPTH: u32 = 32;

/// The io_uring twin.
pub struct UringIo {
    ring: Mutex<IoUring>,
    plain: BlockingIo,
}

impl std::fmt::Debug for UringIo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UringIo")
    }
}

impl UringIo {
    /// Sets up a ring.
    ///
    /// # Errors
    /// If the kernel has no io_uring or forbids it; use [`BlockingIo`] then.
    pub fn new() -> io::Result<UringIo> {
        Ok(UringIo { ring: Mutex::new(IoUring::new(DEPTH)?), plain: BlockingIo })
    }
}

impl Io for UringIo {
    unsafe fn read(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<usize> {
        // SAFETY: the caller's promise.
        unsafe { self.plain.read(fd, offset, bufs) }
    }
    unsafe fn write(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.plain.write(fd, offset, bufs) }
    }
    unsafe fn write_batch(&self, ops: &mut [WriteOp]) {
        if ops.len() < 2 {
            for op in ops {
                // SAFETY: the caller's promise.
                op.result = unsafe { self.plain.write(op.fd, op.offset, &op.bufs) };
            }
            return;
        }
        let mut ring = self.ring.lock();
        for batch in ops.chunks_mut(DEPTH as usize) {
            for (i, op) in batch.iter().enumerate() {
                let sqe =
                    opcode::Writev::new(types::Fd(op.fd), op.bufs.as_ptr().cast(), op.bufs.len() as u32)
                        .offset(op.offset)
                        .build()
                        .user_data(i as u64);
                // SAFETY: buffers live until the batch has completed below; the queue has room for a whole batch.
                unsafe { ring.submission().push(&sqe).expect("submission queue is as deep as a batch") };
            }
            let mut left = batch.len();
            while left > 0 {
                if let Err(e) = ring.submit_and_wait(1) {
                    // Only EINTR and its like: operations stay in flight, so waiting goes on.
                    tracing::debug!("io_uring wait: {e}");
                }
                let done: Vec<_> = ring.completion().map(|c| (c.user_data() as usize, c.result())).collect();
                left -= done.len();
                for (i, res) in done {
                    // SAFETY: the caller's promise.
                    batch[i].result = unsafe { self.finish(&batch[i], res) };
                }
            }
        }
    }
    fn sync(&self, fd: RawFd, data_only: bool) -> io::Result<()> {
        self.plain.sync(fd, data_only)
    }
    fn truncate(&self, fd: RawFd, size: u64) -> io::Result<()> {
        self.plain.truncate(fd, size)
    }
}

impl UringIo {
    /// Completes a short or interrupted write the plain way.
    unsafe fn finish(&self, op: &WriteOp, res: i32) -> io::Result<()> {
        let done = match res {
            n if n >= 0 => n as usize,
            e if e == -libc::EINTR || e == -libc::EAGAIN => 0,
            e => return Err(io::Error::from_raw_os_error(-e)),
        };
        if done == total(&op.bufs) {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.plain.write(op.fd, op.offset + done as u64, &advance(&op.bufs, done)) }
    }
}
