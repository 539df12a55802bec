//! Directory listings.
//!
//! A listing can continue at any entry, also in a restarted daemon and after entries were made or removed
//! (`inode/stream`).

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::lookup::{Entry, stat_name};
use terrace_engine::source::differs_from_now_on;

use crate::attr::{Attr, Kind};
use crate::error::Result;
use crate::inode::handle::What;
use crate::inode::node::digest;
use crate::inode::stream::{OpenDir, Raw};
use crate::inode::{Inode, ROOT};
use crate::{Caller, Namespace, Op, PageCache};

/// One entry of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    pub(crate) ino: u64,
    /// Offset of the next entry.
    pub(crate) next: u64,
    pub(crate) kind: Kind,
    pub(crate) name: &'a OsStr,
}

/// An entry with attributes.
#[derive(Debug)]
pub struct ListedPlus<'a> {
    pub(crate) listed: Listed<'a>,
    /// Attributes and times to live; its reference count has been raised, except for `.` and `..`.
    pub(crate) entry: Entry,
}

fn is_dots(name: &OsStr) -> bool {
    matches!(name.as_bytes(), b"." | b"..")
}

impl<C: PageCache> Namespace<C> {
    pub(crate) fn opendir(&self, op: &Op<'_>, nodeid: u64) -> Result<u64> {
        if op.is_resent()
            && let Some((fh, _)) = self.handles.reopened(op.unique())
        {
            return Ok(fh);
        }
        let inode = self.inode(nodeid)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = inode.directory()?;
        self.with_room(|| -> Result<_> {
            // The last descriptors are not for directories, which cannot be closed on demand: no request
            // could be answered any more.
            let fd = self.pressure.admit(rustix::fs::openat(dir, ".", flags, Mode::empty())?)?;
            self.pressure.opened(fd.as_raw_fd());
            self.handles.insert(&inode, &mut inode.life.lock(), What::Dir(OpenDir::new(fd)), op.unique())
        })
    }

    /// Whether the kernel may keep the listing of a directory for its next open. If the directory changed
    /// behind the mount, its pages are dropped here. The kernel knows of changes through the mount. False:
    /// the directory changed a moment ago, so the next change might leave the same times.
    ///
    /// # Errors
    /// ESTALE: the directory was moved or replaced behind the mount.
    pub(crate) fn keeps_listing(&self, caller: &Caller, nodeid: u64) -> Result<bool> {
        let Ok(inode) = self.inode(nodeid) else { return Ok(false) };
        let Ok(stat) = inode.stat() else { return Ok(false) };
        let digest = digest(&stat);
        let is_trusted = inode.is_trusted(digest);
        if !is_trusted {
            // A moved directory has another ctime.
            self.expect_in_place(caller, &inode)?;
        }
        if !differs_from_now_on(&stat) {
            inode.touch();
            return Ok(false);
        }
        if !is_trusted {
            // Dropped before the digest is recorded: a reader of the digest may keep the content of that
            // time.
            self.invalidate_content(nodeid, 0..u64::MAX);
            inode.note_seen(digest);
        }
        Ok(true)
    }

    /// Lists from `offset` on, until `emit` returns true: no room for the entry.
    pub(crate) fn readdir(
        &self,
        fh: u64,
        offset: u64,
        mut emit: impl FnMut(&Listed<'_>) -> bool,
    ) -> Result<()> {
        self.list(fh, offset, |_, _, listed| Ok(emit(listed)))
    }

    /// As `readdir`, with attributes. An entry that `emit` refuses is not counted. A resent request lists the
    /// same entries again, since the kernel holds the directory's lock over it. Entries that its first try
    /// counted are not counted twice.
    pub(crate) fn readdirplus(
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
                let entry = namespace.entry(nameless(listed), true);
                return Ok(emit(&ListedPlus { listed: *listed, entry }));
            }
            let counted_before = Cell::new(false);
            // Not called for a new inode: this reference is its only one.
            let counts = |_| {
                counted_before.set(entries < counted);
                entries >= counted
            };
            let (inode, entry) = match namespace.enter_if(dir, listed.name, false, counts) {
                Ok(entered) => entered,
                Err(error) if error.is(Errno::NOENT) => return Ok(false), // It is gone: left out.
                // A name without attributes: its lookup reports the error.
                Err(error) if error.is(Errno::LOOP) => {
                    let entry = namespace.entry(nameless(listed), true);
                    return Ok(emit(&ListedPlus { listed: *listed, entry }));
                }
                Err(error) => return Err(error),
            };
            let full = emit(&ListedPlus { listed: *listed, entry });
            if full {
                // The first try's reference stays. If the first try listed another entry here, dropping it
                // would drop an inode that the kernel knows. One reference too many only keeps it longer.
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
                // A removed directory has no entries.
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
                // The entries listed so far are the answer; the next call reports the error again.
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
    pub(crate) fn fsyncdir(&self, fh: u64, data_only: bool) -> Result<()> {
        let handle = self.handles.get(fh)?;
        let fd = handle.dir()?.fd();
        let synced = if data_only { rustix::fs::fdatasync(fd) } else { rustix::fs::fsync(fd) };
        Ok(synced?)
    }
}

/// Attributes of `.` and `..`: the kernel uses only their number and type.
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
