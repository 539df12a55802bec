//! An open directory and the position of its listing.
//!
//! Offsets are the source's own cookies. A listing can continue at any entry, also in a restarted daemon and
//! after changes of entries. One buffer is read ahead. A listing from offset 0 always reads the source.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, SeekFrom};
use terrace_sync::Mutex;

use crate::error::Result;

const BUFFER_BYTES: usize = 32 * 1024;

/// Bytes of a `linux_dirent64` before the name: inode, cookie, length, type.
const HEADER: usize = 8 + 8 + 2 + 1;

#[derive(Debug)]
pub(crate) struct OpenDir {
    fd: OwnedFd,
    pub(crate) stream: Mutex<Stream>,
}

impl OpenDir {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd, stream: Mutex::new(Stream::default()) }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The position of an open directory's listing.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    buf: Vec<u8>,
    at: usize,
    end: usize,
    /// Cookie of the entry at `at`.
    next: Option<u64>,
}

/// One entry of a directory, as the source lists it.
pub(crate) struct Raw<'a> {
    pub(crate) ino: u64,
    pub(crate) next: u64,
    pub(crate) file_type: FileType,
    pub(crate) name: &'a OsStr,
    pub(crate) len: usize,
}

impl Stream {
    pub(crate) fn seek(&mut self, fd: BorrowedFd<'_>, offset: u64) -> Result<()> {
        if offset == 0 || self.next != Some(offset) {
            self.next = None;
            (self.at, self.end) = (0, 0);
            rustix::fs::seek(fd, SeekFrom::Start(offset))?;
            self.next = Some(offset);
        }
        Ok(())
    }

    /// The entry at the position, if there is one.
    pub(crate) fn peek(&mut self, fd: BorrowedFd<'_>) -> Result<Option<Raw<'_>>> {
        if self.at == self.end {
            self.buf.resize(BUFFER_BYTES, 0);
            self.at = 0;
            self.end = getdents(fd, &mut self.buf)?;
        }
        Ok(if self.at == self.end { None } else { Some(parse(&self.buf[self.at..self.end])) })
    }

    pub(crate) fn advance(&mut self, len: usize, next: u64) {
        self.at += len;
        self.next = Some(next);
    }
}

fn getdents(fd: BorrowedFd<'_>, buf: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `buf.len()` bytes to `buf`.
    let len = unsafe { libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), buf.as_mut_ptr(), buf.len()) };
    usize::try_from(len).map_err(|_| std::io::Error::last_os_error().into())
}

fn parse(bytes: &[u8]) -> Raw<'_> {
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let len = usize::from(u16::from_ne_bytes([bytes[16], bytes[17]]));
    let name = &bytes[HEADER..len];
    let name = &name[..name.iter().position(|&byte| byte == 0).unwrap_or(name.len())];
    Raw {
        ino: word(0),
        next: word(8),
        file_type: FileType::from_raw_mode(u32::from(bytes[18]) << 12),
        name: OsStr::from_bytes(name),
        len,
    }
}
