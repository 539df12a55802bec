//! The faulty twin: real I/O that fails, falls short or dawdles, by seed.

use super::{Io, IoVec};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// How often what goes wrong, in parts per thousand.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Reads that fail with EIO.
    pub read_eio: u32,
    /// Reads that stop half way and are resumed.
    pub read_short: u32,
    /// Writes that fail with EIO.
    pub write_eio: u32,
    /// Writes that fail with ENOSPC.
    pub write_enospc: u32,
    /// fsync that fails with EIO.
    pub sync_eio: u32,
    /// Operations that take `delay` longer.
    pub slow: u32,
    /// See `slow`.
    pub delay: Duration,
}

/// The faulty twin of any other.
#[derive(Debug)]
pub struct SimIo<T> {
    inner: T,
    state: Mutex<(u64, Faults)>,
}

impl<T: Io> SimIo<T> {
    /// Faults come in the order that `seed` fixes.
    pub fn new(inner: T, seed: u64, faults: Faults) -> SimIo<T> {
        SimIo { inner, state: Mutex::new((seed | 1, faults)) }
    }
    /// From now on these faults.
    pub fn set(&self, faults: Faults) {
        self.state.lock().1 = faults;
    }
    fn strike(&self, pick: impl Fn(&Faults) -> u32) -> bool {
        let mut s = self.state.lock();
        // xorshift64*: good enough to scatter faults.
        let mut x = s.0;
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        s.0 = x;
        (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % 1000 < u64::from(pick(&s.1))
    }
    fn dawdle(&self) {
        if self.strike(|f| f.slow) {
            std::thread::sleep(self.state.lock().1.delay);
        }
    }
}

impl<T: Io> Io for SimIo<T> {
    unsafe fn read(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<usize> {
        self.dawdle();
        if self.strike(|f| f.read_eio) {
            return Err(Errno::IO.into());
        }
        if self.strike(|f| f.read_short) && bufs.len() > 1 {
            // The device gave only the first part; a correct twin resumes, as the kernel would.
            let (a, b) = bufs.split_at(bufs.len() / 2);
            // SAFETY: the caller's promise.
            let n = unsafe { self.inner.read(fd, offset, a)? };
            if n < super::total(a) {
                return Ok(n);
            }
            // SAFETY: the caller's promise.
            return Ok(n + unsafe { self.inner.read(fd, offset + n as u64, b)? });
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.read(fd, offset, bufs) }
    }
    unsafe fn write(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<()> {
        self.dawdle();
        if self.strike(|f| f.write_eio) {
            return Err(Errno::IO.into());
        }
        if self.strike(|f| f.write_enospc) {
            return Err(Errno::NOSPC.into());
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.write(fd, offset, bufs) }
    }
    fn sync(&self, fd: RawFd, data_only: bool) -> io::Result<()> {
        self.dawdle();
        if self.strike(|f| f.sync_eio) {
            return Err(Errno::IO.into());
        }
        self.inner.sync(fd, data_only)
    }
    fn truncate(&self, fd: RawFd, size: u64) -> io::Result<()> {
        self.inner.truncate(fd, size)
    }
}
