//! Directory listings.
//!
//! Offsets are the source's own cookies, so that a listing can go on from any entry, also in a restarted daemon and after
//! entries were made or removed; nothing is listed ahead but one buffer. A listing from offset 0 always asks
//! the source.

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::attr::{Attr, Kind};
use super::error::Result;
use super::handle::{OpenDir, What};
use super::inode::{Inode, ROOT};
use super::lookup::{Entry, stat_name};
use super::{Namespace, Op, PageCache};

const BUFFER_BYTES: usize = 32 * 1024;

/// Bytes of a `linux_dirent64` before the name: inode, cookie, length, type.
const HEADER: usize = 8 + 8 + 2 + 1;

/// One entry of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    /// Its inode number.
    pub ino: u64,
    /// Where the listing goes on after it.
    pub next: u64,
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: &'a OsStr,
}

/// An entry with attributes.
#[derive(Debug)]
pub struct ListedPlus<'a> {
    /// The entry.
    pub listed: Listed<'a>,
    /// Attributes and times to live; its reference count has been raised, except for `.` and `..`.
    pub entry: Entry,
}

/// Where an open directory's listing stands.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    buf: Vec<u8>,
    at: usize,
    end: usize,
    /// Cookie of the entry at `at`.
    next: Option<u64>,
}

struct Raw<'a> {
    ino: u64,
    next: u64,
    file_type: FileType,
    name: &'a OsStr,
    len: usize,
}

impl Stream {
    fn seek(&mut self, fd: BorrowedFd<'_>, offset: u64) -> Result<()> {
        if offset == 0 || self.next != Some(offset) {
            self.next = None;
            (self.at, self.end) = (0, 0);
            rustix::fs::seek(fd, SeekFrom::Start(offset))?;
            self.next = Some(offset);
        }
        Ok(())
    }

    /// The entry at hand, if the directory has one more.
    fn peek(&mut self, fd: BorrowedFd<'_>) -> Result<Option<Raw<'_>>> {
        if self.at == self.end {
            self.buf.resize(BUFFER_BYTES, 0);
            self.at = 0;
            self.end = getdents(fd, &mut self.buf)?;
        }
        Ok(if self.at == self.end { None } else { Some(parse(&self.buf[self.at..self.end])) })
    }

    fn advance(&mut self, len: usize, next: u64) {
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

fn is_dots(name: &OsStr) -> bool {
    matches!(name.as_bytes(), b"." | b"..")
}

impl<C: PageCache> Namespace<C> {
    /// Opens a directory.
    pub fn opendir(&self, op: &Op<'_>, nodeid: u64) -> Result<u64> {
        if op.is_resent()
            && let Some((fh, _)) = self.handles.reopened(op.unique())
        {
            return Ok(fh);
        }
        let inode = self.inode(nodeid)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = inode.directory()?;
        self.with_room(|| -> Result<_> {
            // Nor are the last for directories, which cannot be given up: else no command could be answered any more.
            let fd = self.pressure.admit(rustix::fs::openat(dir, ".", flags, Mode::empty())?)?;
            self.pressure.opened(fd.as_raw_fd());
            self.handles.insert(&inode, &mut inode.life.lock(), What::Dir(OpenDir::new(fd)), op.unique())
        })
    }

    /// Lists from `offset` on, until `emit` says that it has no room for the entry.
    pub fn readdir(&self, fh: u64, offset: u64, mut emit: impl FnMut(&Listed<'_>) -> bool) -> Result<()> {
        self.list(fh, offset, |_, _, listed| Ok(emit(listed)))
    }

    /// As `readdir`, with attributes. An entry that `emit` refuses is not counted. A resent request lists the same entries
    /// again, for the kernel holds the directory's lock over it; as many of them as its first try came to are counted already.
    pub fn readdirplus(
        &self,
        op: &mut Op<'_>,
        fh: u64,
        offset: u64,
        mut emit: impl FnMut(&ListedPlus<'_>) -> bool,
    ) -> Result<()> {
        let counted = op.entries_counted();
        let mut entries = 0;
        self.list(fh, offset, |namespace, dir, listed| {
            if is_dots(listed.name) {
                let entry = namespace.entry(nameless(listed));
                return Ok(emit(&ListedPlus { listed: *listed, entry }));
            }
            let counted_before = Cell::new(false);
            // Not asked of an inode that is new here: its only reference is this one.
            let counts = |_| {
                counted_before.set(entries < counted);
                entries >= counted
            };
            let (inode, entry) = match namespace.enter_if(dir, listed.name, counts) {
                Ok(entered) => entered,
                Err(error) if error.is(Errno::NOENT) => return Ok(false), // It is gone: left out.
                Err(error) => return Err(error),
            };
            let full = emit(&ListedPlus { listed: *listed, entry });
            if full {
                // The first try's reference stays: if this is another entry than it listed here, taking one away would drop an inode that the
                // kernel knows. One too many keeps it longer, no more.
                if !counted_before.get() {
                    namespace.forget(inode.nodeid, 1);
                }
            } else {
                entries += 1;
                op.entry_counted(entries);
            }
            Ok(full)
        })
    }

    fn list(
        &self,
        fh: u64,
        offset: u64,
        mut emit: impl FnMut(&Self, &Inode<C::Object>, &Listed<'_>) -> Result<bool>,
    ) -> Result<()> {
        let handle = self.handles.get(fh)?;
        let (inode, dir) = (&*handle.inode, handle.dir()?);
        let mut stream = dir.stream.lock();
        stream.seek(dir.fd(), offset)?;
        let mut any = false;
        loop {
            let raw = match stream.peek(dir.fd()) {
                Ok(Some(raw)) => raw,
                // A removed directory has no entries any more.
                Ok(None) => return Ok(()),
                Err(error) if error.is(Errno::NOENT) || any => return Ok(()),
                Err(error) => return Err(error),
            };
            let (len, next) = (raw.len, raw.next);
            let full = match self.listed(inode, &raw) {
                Some(listed) => emit(self, inode, &listed),
                None => Ok(false),
            };
            match full {
                Ok(false) => any = true,
                Ok(true) => return Ok(()),
                // What was listed so far is the answer; the error comes up again with the next one.
                Err(_) if any => return Ok(()),
                Err(error) => return Err(error),
            }
            stream.advance(len, next);
        }
    }

    fn listed<'a>(&self, dir: &Inode<C::Object>, raw: &Raw<'a>) -> Option<Listed<'a>> {
        let known = Kind::from_file_type(raw.file_type);
        let kind = match known {
            Some(kind) => kind,
            None => Kind::from_mode(stat_name(dir.fd(), raw.name).ok()?.st_mode),
        };
        let ino = if dir.nodeid == ROOT && is_dots(raw.name) { ROOT } else { self.inodes.reported(raw.ino) };
        Some(Listed { ino, next: raw.next, kind, name: raw.name })
    }

    /// Makes a directory's names stable.
    pub fn fsyncdir(&self, fh: u64, data_only: bool) -> Result<()> {
        let handle = self.handles.get(fh)?;
        let fd = handle.dir()?.fd();
        let synced = if data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) };
        Ok(synced?)
    }
}

/// Attributes of `.` and `..`: the kernel takes the number and the type from them and nothing else.
fn nameless(listed: &Listed<'_>) -> Attr {
    Attr {
        ino: listed.ino,
        size: 0,
        blocks: 0,
        atime: Default::default(),
        mtime: Default::default(),
        ctime: Default::default(),
        mode: 0o040_000,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
    }
}
