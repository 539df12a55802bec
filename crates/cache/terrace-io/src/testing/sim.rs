//! Faulty implementation: real I/O with errors and delays, determined by a seed. ([`super::ShortCalls`] makes
//! calls short.)

use crate::{Io, IoVec, ReadOp, WriteOp};
use rustix::io::Errno;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;
use terrace_sync::Mutex;
use terrace_testkit::rng::Rng;

/// Rates of failures and delays, in parts per thousand.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Reads that fail with EIO.
    pub read_eio: u32,
    /// Writes that fail with EIO.
    pub write_eio: u32,
    /// Writes that fail with ENOSPC.
    pub write_enospc: u32,
    /// fsync and syncfs that fail with EIO.
    pub sync_eio: u32,
    /// Operations delayed by `delay`.
    pub slow: u32,
    /// See `slow`.
    pub delay: Duration,
}

/// Another implementation with faults.
#[derive(Debug)]
pub struct SimIo<T> {
    inner: T,
    state: Mutex<(Rng, Faults)>,
}

impl<T: Io> SimIo<T> {
    /// `seed` determines the order of faults.
    pub fn new(inner: T, seed: u64, faults: Faults) -> SimIo<T> {
        SimIo { inner, state: Mutex::new((Rng::new(seed), faults)) }
    }
    /// Changes the rates.
    pub fn set(&self, faults: Faults) {
        self.state.lock().1 = faults;
    }
    fn should_fail(&self, pick: impl Fn(&Faults) -> u32) -> bool {
        let (rng, faults) = &mut *self.state.lock();
        rng.below(1000) < u64::from(pick(faults))
    }
    fn write_fault(&self) -> io::Result<()> {
        if self.should_fail(|f| f.write_eio) {
            return Err(Errno::IO.into());
        }
        if self.should_fail(|f| f.write_enospc) {
            return Err(Errno::NOSPC.into());
        }
        Ok(())
    }
    fn delay(&self) {
        if self.should_fail(|f| f.slow) {
            std::thread::sleep(self.state.lock().1.delay);
        }
    }
}

impl<T: Io> Io for SimIo<T> {
    unsafe fn read(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<usize> {
        self.delay();
        if self.should_fail(|f| f.read_eio) {
            return Err(Errno::IO.into());
        }
        // SAFETY: the caller's promise.
        unsafe { self.inner.read(fd, offset, bufs) }
    }
    unsafe fn read_batch(&self, ops: &mut [ReadOp]) {
        self.delay();
        // SAFETY: the caller's promise.
        unsafe { self.inner.read_batch(ops) };
        for op in ops.iter_mut().filter(|op| op.result.is_ok()) {
            if self.should_fail(|f| f.read_eio) {
                op.result = Err(Errno::IO.into());
            }
        }
    }
    unsafe fn write(&self, fd: RawFd, offset: u64, bufs: &[IoVec]) -> io::Result<()> {
        self.delay();
        self.write_fault()?;
        // SAFETY: the caller's promise.
        unsafe { self.inner.write(fd, offset, bufs) }
    }
    unsafe fn write_batch(&self, ops: &mut [WriteOp]) {
        self.delay();
        // SAFETY: the caller's promise.
        unsafe { self.inner.write_batch(ops) };
        // A failed write may have written any part of its data.
        for op in ops.iter_mut().filter(|op| op.result.is_ok()) {
            op.result = self.write_fault();
        }
    }
    fn sync(&self, fd: RawFd, data_only: bool) -> io::Result<()> {
        self.delay();
        if self.should_fail(|f| f.sync_eio) {
            return Err(Errno::IO.into());
        }
        self.inner.sync(fd, data_only)
    }
    fn sync_fs(&self, fd: RawFd) -> io::Result<()> {
        self.delay();
        if self.should_fail(|f| f.sync_eio) {
            return Err(Errno::IO.into());
        }
        self.inner.sync_fs(fd)
    }
    fn truncate(&self, fd: RawFd, size: u64) -> io::Result<()> {
        self.inner.truncate(fd, size)
    }
}
