//! Writes of whole buffers into a file, by the engine's I/O.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use terrace_io::{Io, IoVec};

pub(crate) fn write_all(io: &dyn Io, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    write_parts(io, file, at, &[bytes])
}

/// Writes the parts one after the other at `at`.
pub(crate) fn write_parts(io: &dyn Io, file: &File, at: u64, parts: &[&[u8]]) -> io::Result<()> {
    let parts = parts.iter().filter(|part| !part.is_empty());
    let bufs: Vec<IoVec> =
        parts.map(|part| IoVec { ptr: part.as_ptr().cast_mut(), len: part.len() }).collect();
    // SAFETY: the parts live until the call returns, and a write only reads them.
    unsafe { io.write(file.as_raw_fd(), at, &bufs) }
}
