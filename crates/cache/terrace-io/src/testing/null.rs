//! No I/O: reads give zeros, writes are discarded. For tests of the engine alone.

use crate::{Io, IoVec, total};
use std::io;
use std::os::fd::RawFd;

/// The implementation without I/O.
#[derive(Debug, Default)]
pub struct NullIo;

impl Io for NullIo {
    unsafe fn read(&self, _fd: RawFd, _offset: u64, bufs: &[IoVec]) -> io::Result<usize> {
        for b in bufs {
            // SAFETY: the caller vouches for the memory.
            unsafe { b.ptr.write_bytes(0, b.len) };
        }
        Ok(total(bufs))
    }
    unsafe fn write(&self, _fd: RawFd, _offset: u64, _bufs: &[IoVec]) -> io::Result<()> {
        Ok(())
    }
    fn sync(&self, _fd: RawFd, _data_only: bool) -> io::Result<()> {
        Ok(())
    }
    fn sync_fs(&self, _fd: RawFd) -> io::Result<()> {
        Ok(())
    }
    fn truncate(&self, _fd: RawFd, _size: u64) -> io::Result<()> {
        Ok(())
    }
}
