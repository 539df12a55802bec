//! Lookups of names, counts of the kernel's references to inodes, reads of attributes.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::attr::Attr;
use crate::error::Result;
use crate::inode::identity::hash_of;
use crate::inode::{Inode, ROOT};
use crate::{CachedFile, Kind, Namespace, Op, PageCache};

/// An inode as the answer to a lookup.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its attributes; `attr.ino` is the node id.
    pub(crate) attr: Attr,
    /// Lifetime of the attributes in the kernel.
    pub(crate) attr_ttl: Duration,
    /// Lifetime of the name in the kernel.
    pub(crate) entry_ttl: Duration,
}

/// Longest lifetime of names and attributes in the kernel without events of others' changes.
const UNWATCHED_TTL: Duration = Duration::from_secs(1);

pub(crate) const NOFOLLOW: AtFlags = AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::NO_AUTOMOUNT);

/// The source's status of `name`. A symbolic link is not followed.
pub(crate) fn stat_name(dir: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<Stat> {
    rustix::fs::statat(dir, name, NOFOLLOW)
}

impl<C: PageCache> Namespace<C> {
    /// Looks `name` up in the directory `parent` and raises the inode's reference count.
    pub(crate) fn lookup(&self, op: &mut Op<'_>, parent: u64, name: &OsStr) -> Result<Entry> {
        let parent = self.inode(parent)?;
        let name = match (name.as_encoded_bytes(), parent.nodeid) {
            // The parent of the root is the root, for lookups that resolve file handles.
            (b"..", ROOT) => OsStr::new("."),
            _ => name,
        };
        let entry = self.enter(&parent, name, op)?.1;
        if parent.nodeid == ROOT && !parent.watched.load(Ordering::Relaxed) {
            // The kernel has the root's mode by now: see `invalidate_watched`.
            parent.watched.store(self.watch_names_of(&parent), Ordering::Relaxed);
        }
        Ok(entry)
    }

    /// The inode under `name`, entered in the table and counted for `op`.
    pub(crate) fn enter(
        &self,
        parent: &Inode<C::Object>,
        name: &OsStr,
        op: &mut Op<'_>,
    ) -> Result<(Arc<Inode<C::Object>>, Entry)> {
        // A created file needs its descriptor: a refusal would come too late.
        let reserve = op.has_begun();
        let (inode, entry) = self.enter_if(parent, name, reserve, |nodeid| op.counts(nodeid))?;
        if op.counts(inode.nodeid) {
            op.counted(inode.nodeid);
        }
        Ok((inode, entry))
    }

    /// The inode under `name`, entered in the table. Its reference count is raised if `counts` returns true.
    /// `reserve`: its descriptor may be one of the last.
    pub(crate) fn enter_if(
        &self,
        parent: &Inode<C::Object>,
        name: &OsStr,
        reserve: bool,
        counts: impl Fn(u64) -> bool,
    ) -> Result<(Arc<Inode<C::Object>>, Entry)> {
        let dir = parent.directory()?;
        if self.crossings.leads(dir, name) {
            return Err(Errno::LOOP.into());
        }
        // Before the look: events then cover every later change by others.
        let watched = self.watch_names_of(parent);
        let mut stat = stat_name(dir, name)?;
        let inode = match self.known(parent, name, &stat, &counts)? {
            Some(inode) => inode,
            None => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                self.with_room(|| -> Result<_> {
                    let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
                    let fd = if reserve { fd } else { self.pressure.admit(fd)? };
                    self.pressure.opened(fd.as_raw_fd());
                    stat = rustix::fs::statat(&fd, "", AtFlags::EMPTY_PATH)?;
                    let place = hash_of(parent.nodeid, name);
                    let identity = self.inodes.devices.of_fd(fd.as_fd(), &stat, place)?;
                    self.inodes.insert(&identity, stat.st_mode, fd, &counts)
                })?
            }
        };
        inode.found_at(parent.nodeid, name);
        inode.watched.store(watched, Ordering::Relaxed);
        self.refused.forget(inode.nodeid);
        let (attr, attr_ttl) = self.overlay(&inode, &stat);
        let entry = Entry { attr_ttl, ..self.entry(attr, watched) };
        Ok((inode, entry))
    }

    /// The inode under `name`, with its status `stat`, if it is in the table.
    fn known(
        &self,
        parent: &Inode<C::Object>,
        name: &OsStr,
        stat: &Stat,
        counts: impl Fn(u64) -> bool,
    ) -> Result<Option<Arc<Inode<C::Object>>>> {
        let devices = &self.inodes.devices;
        let Some(identity) = devices.of_name(parent.nodeid, parent.fd(), name, stat)? else {
            return Ok(None);
        };
        if !identity.is_numbered()
            && let Some(inode) = self.inodes.find(&identity, |_| false)
            && inode.is_lost()
        {
            self.inodes.part(&identity, &inode);
        }
        Ok(self.inodes.find(&identity, counts))
    }

    /// The inode under `name`, if there is one and it is in the table.
    pub(crate) fn known_at(&self, parent: &Inode<C::Object>, name: &OsStr) -> Option<Arc<Inode<C::Object>>> {
        let stat = stat_name(parent.fd(), name).ok()?;
        self.known(parent, name, &stat, |_| false).ok()?
    }

    /// An entry with the current lifetimes. When the table of inodes fills up, the kernel keeps no new names,
    /// and forgets unused inodes at once.
    pub(crate) fn entry(&self, attr: Attr, watched: bool) -> Entry {
        let high = self.pressure.is_high(self.inodes.len());
        let ttl = |most: Duration| if watched { most } else { most.min(UNWATCHED_TTL) };
        let entry_ttl = if high { Duration::ZERO } else { ttl(self.config.entry_ttl) };
        Entry { attr, attr_ttl: ttl(self.config.attr_ttl), entry_ttl }
    }

    /// The kernel drops `n` references.
    pub fn forget(&self, nodeid: u64, n: u64) {
        if let Some(inode) = self.inodes.release(nodeid, n) {
            self.retire_if_unused(&inode);
        }
    }

    /// Attributes of an inode and their lifetime in the kernel.
    pub(crate) fn getattr(&self, nodeid: u64) -> Result<(Attr, Duration)> {
        self.attr_of(&*self.inode(nodeid)?)
    }

    pub(crate) fn attr_of(&self, inode: &Inode<C::Object>) -> Result<(Attr, Duration)> {
        Ok(self.overlay(inode, &self.stat_of(inode)?))
    }

    /// The source's attributes, also of a deleted file that only open descriptors reach.
    pub(crate) fn stat_of(&self, inode: &Inode<C::Object>) -> Result<Stat> {
        match inode.stat() {
            Err(error) if !inode.pins_file() => {
                let object = inode.life.lock().object.clone();
                object.and_then(|object| object.source().stat().ok()).ok_or(error)
            }
            stat => stat,
        }
    }

    /// The source's attributes with the cache's newer ones over them. Writeback changes the number of blocks
    /// at any time, so the kernel does not keep attributes while it is due.
    fn overlay(&self, inode: &Inode<C::Object>, stat: &Stat) -> (Attr, Duration) {
        let mut attr = Attr::from_stat(inode.nodeid, stat);
        // Changes by a hard link are reported in that link's directory, which may not be marked.
        let watched = inode.watched.load(Ordering::Relaxed)
            && !self.watch_failed.load(Ordering::Relaxed)
            && (inode.kind == Kind::Directory || attr.nlink <= 1);
        let mut ttl = if watched { self.config.attr_ttl } else { self.config.attr_ttl.min(UNWATCHED_TTL) };
        if inode.kind == Kind::File
            && let life = inode.life.lock()
            && let Some(object) = &life.object
        {
            // With writes past the daemon, the cache has nothing newer.
            let outside = self.changes_outside(inode, object, &life);
            if !outside {
                object.fix_attr(&mut attr);
            }
            if outside || object.dirty_pages() > 0 {
                ttl = Duration::ZERO;
            }
        }
        (attr, ttl)
    }

    pub(crate) fn readlink(&self, nodeid: u64) -> Result<Vec<u8>> {
        let inode = self.inode(nodeid)?;
        if inode.kind != Kind::Symlink {
            return Err(Errno::INVAL.into());
        }
        Ok(rustix::fs::readlinkat(inode.fd(), "", Vec::new())?.into_bytes())
    }

    /// Announces to the cache that metadata of the inode in the source are about to change.
    pub(crate) fn change_metadata(&self, inode: &Inode<C::Object>) {
        let object = inode.life.lock().object.clone();
        if let Some(object) = object {
            self.cache.change_metadata(&object);
        }
    }

    /// Announces to the cache that metadata of the inode in the source changed, if the cache has the inode.
    pub(crate) fn metadata_changed(&self, inode: &Inode<C::Object>) {
        if inode.kind == Kind::File
            && let Some(object) = &inode.life.lock().object
        {
            object.metadata_changed();
        }
    }

    /// As `metadata_changed`, for an inode that gained or lost a name.
    pub(crate) fn links_changed(&self, inode: &Inode<C::Object>) {
        inode.touch();
        self.metadata_changed(inode);
    }
}
