//! Operations that give a file its name: mknod, mkdir, symlink, link, create.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::creds::as_caller;
use super::lookup::{Entry, stat_name};
use super::place::LOOK_AGAIN;
use crate::attr::decode_device;
use crate::error::Result;
use crate::inode::Inode;
use crate::{Namespace, Op, Opened, PageCache};

impl<C: PageCache> Namespace<C> {
    /// Makes a file that is neither directory nor link. `mode` has the type bits.
    pub(crate) fn mknod(
        &self,
        op: &mut Op<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Result<Entry> {
        let caller = op.caller;
        let (kind, bits) = (FileType::from_raw_mode(mode), Mode::from_raw_mode(mode & 0o7777));
        let made = self.make(op, parent, name, |dir| {
            Ok(as_caller(&caller, umask, || rustix::fs::mknodat(dir, name, kind, bits, decode_device(rdev)))?)
        });
        Ok(made?.1)
    }

    pub(crate) fn mkdir(
        &self,
        op: &mut Op<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
    ) -> Result<Entry> {
        let caller = op.caller;
        let bits = Mode::from_raw_mode(mode & 0o7777);
        let made = self.make(op, parent, name, |dir| {
            Ok(as_caller(&caller, umask, || rustix::fs::mkdirat(dir, name, bits))?)
        });
        Ok(made?.1)
    }

    /// Makes a symbolic link to `target`.
    pub(crate) fn symlink(
        &self,
        op: &mut Op<'_>,
        parent: u64,
        name: &OsStr,
        target: &OsStr,
    ) -> Result<Entry> {
        let caller = op.caller;
        let made = self.make(op, parent, name, |dir| {
            Ok(as_caller(&caller, 0o022, || rustix::fs::symlinkat(target, dir, name))?)
        });
        Ok(made?.1)
    }

    /// Gives the inode `nodeid` another name.
    pub(crate) fn link(&self, op: &mut Op<'_>, nodeid: u64, parent: u64, name: &OsStr) -> Result<Entry> {
        let inode = self.inode(nodeid)?;
        if !op.is_replayed() {
            self.expect_changeable(&op.caller, &inode)?;
        }
        inode.touch();
        let (path, place) = (inode.path(), inode.place());
        self.change_metadata(&inode);
        let made = self.make(op, parent, name, |dir| {
            Ok(rustix::fs::linkat(CWD, path.as_c_str(), dir, name, AtFlags::SYMLINK_FOLLOW)?)
        });
        let (linked, mut entry) = made?;
        // The inode keeps its place by the old name: new names are often removed soon.
        if let Some(place) = place.filter(|_| linked.nodeid == nodeid) {
            linked.found_at(place.parent, &place.name);
        }
        let inode = linked;
        self.metadata_changed(&inode);
        (entry.attr, entry.attr_ttl) = self.attr_of(&inode)?;
        Ok(entry)
    }

    /// Makes a regular file and opens it.
    pub(crate) fn create(
        &self,
        op: &mut Op<'_>,
        parent: u64,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: u32,
    ) -> Result<(Entry, Opened)> {
        let caller = op.caller;
        let bits = Mode::from_raw_mode(mode & 0o7777);
        let access = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut fd = None;
        // The mode applies to later opens: the creator may write the file, so its descriptor is kept.
        let made = self.make(op, parent, name, |dir| {
            let open = || as_caller(&caller, umask, || rustix::fs::openat(dir, name, access, bits));
            fd = Some(self.with_room(open)?);
            Ok(())
        });
        let (inode, entry) = match made {
            // The name was created beside the mount. The kernel took it for free and has checked no
            // permission.
            Err(error) if error.is(Errno::EXIST) && flags & libc::O_EXCL as u32 == 0 => {
                return Err(LOOK_AGAIN);
            }
            made => made?,
        };
        let nodeid = inode.nodeid;
        let opened = match fd.as_ref().map(|fd| inode.is_open_as(fd.as_fd())).transpose() {
            Ok(Some(false)) => Err(LOOK_AGAIN),
            Ok(_) => self.open_inode(op, inode, flags, fd),
            Err(error) => Err(error),
        };
        match opened {
            Ok(opened) => Ok((entry, opened)),
            Err(error) => {
                self.forget(nodeid, 1);
                Err(error)
            }
        }
    }

    /// Runs `act`, which gives a file its name, once over all restarts. Then looks the name up.
    fn make(
        &self,
        op: &mut Op<'_>,
        parent: u64,
        name: &OsStr,
        act: impl FnOnce(BorrowedFd<'_>) -> Result<()>,
    ) -> Result<(Arc<Inode<C::Object>>, Entry)> {
        let parent = self.inode(parent)?;
        let dir = parent.directory()?;
        let replayed = op.is_replayed();
        if !replayed {
            self.expect_changeable(&op.caller, &parent)?;
            if stat_name(dir, name).is_ok() {
                return Err(Errno::EXIST.into());
            }
        }
        self.make_room(dir)?;
        op.intend(0);
        match act(dir) {
            Ok(()) => {}
            Err(error) if replayed && error.is(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        self.enter(&parent, name, op)
    }
}
