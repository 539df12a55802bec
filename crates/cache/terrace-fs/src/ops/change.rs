//! Changes of attributes. A change of content also clears set-id bits and file capabilities.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Gid, Mode, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid};
use rustix::io::Errno;

use super::creds::SetIdPrivileges;
use crate::attr::{Attr, Time};
use crate::error::Result;
use crate::inode::Inode;
use crate::{CachedFile, Caller, Kind, Namespace, PageCache, coherence};

/// A time to set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SetTime {
    /// The present.
    Now,
    /// This time.
    At(Time),
}

/// Attributes to set.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permission bits.
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) atime: Option<SetTime>,
    pub(crate) mtime: Option<SetTime>,
    /// The program used an open file, not a name.
    pub(crate) by_handle: bool,
}

/// The kernel truncates within this time after an open with O_TRUNC.
const TRUNCATES_WITHIN_NS: u64 = Duration::from_secs(1).as_nanos() as u64;

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o0010;
const CAPABILITY: &str = "security.capability";

/// `mode` after a change of content by a process that may not keep set-id bits. Set-group-id without group
/// execution (once for mandatory locking) stays for group members only, as on local file systems since Linux
/// 6.2.
fn without_set_id(mode: u32, in_group: impl FnOnce() -> bool) -> u32 {
    let mode = mode & !S_ISUID;
    match mode & S_ISGID != 0 && (mode & S_IXGRP != 0 || !in_group()) {
        true => mode & !S_ISGID,
        false => mode,
    }
}

impl<C: PageCache> Namespace<C> {
    /// Sets attributes. Returns all attributes and their lifetime.
    pub(crate) fn setattr(&self, caller: &Caller, nodeid: u64, set: &SetAttr) -> Result<(Attr, Duration)> {
        let inode = self.inode(nodeid)?;
        self.expect_changes()?;
        if self.goes_by_name(caller, &inode, set) {
            self.expect_in_place(caller, &inode)?;
        }
        inode.touch();
        self.change_metadata(&inode);
        if set.uid.is_some() || set.gid.is_some() {
            change_owner(caller, &inode, set)?;
        }
        if let Some(mode) = set.mode {
            self.keep_writer(&inode);
            set_mode(&inode, mode)?;
        }
        if let Some(size) = set.size {
            self.truncate(caller, &inode, size)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            set_times(&inode, set)?;
        }
        self.update_cache(&inode, set)?;
        self.attr_of(&inode)
    }

    /// Whether the program named the file. The kernel does not report that for mode, owner and times, which
    /// it also sets by a descriptor. Nor does it for the size after an open with O_TRUNC, which may be the
    /// program's second and last try.
    fn goes_by_name(&self, caller: &Caller, inode: &Inode<C::Object>, set: &SetAttr) -> bool {
        let life = inode.life.lock();
        match set.size {
            _ if set.by_handle => false,
            Some(_) => {
                let is_open = life.writers > 0 && inode.opened.within(TRUNCATES_WITHIN_NS, coherence::now());
                !(is_open && self.refused.is_refused(caller.tid))
            }
            None => life.handles == 0,
        }
    }

    /// Opens the source for writing before a mode change may forbid it: a file without handles may have dirty
    /// pages.
    fn keep_writer(&self, inode: &Inode<C::Object>) {
        let life = inode.life.lock();
        if let Some(object) =
            life.object.as_ref().filter(|object| self.bound_by_modes && object.has_unsynced_pages())
        {
            // If it fails now, it would have failed before.
            let _ = object.source().writer();
            inode.note_writer(object.source());
        }
    }

    fn truncate(&self, caller: &Caller, inode: &Inode<C::Object>, size: u64) -> Result<()> {
        if inode.kind == Kind::Directory {
            return Err(Errno::ISDIR.into());
        }
        let object = self.with_room(|| self.object_of(inode, &mut inode.life.lock()))?;
        self.strip_privileges(caller, inode, None)?;
        self.with_room(|| self.cache.truncate(&object, size))?;
        let life = inode.life.lock();
        // If a program has it open, its close does this later.
        let answer = if life.writers == 0 { object.take_close_error() } else { Ok(()) };
        inode.close_writer(&life);
        Ok(answer?)
    }

    fn update_cache(&self, inode: &Inode<C::Object>, set: &SetAttr) -> Result<()> {
        let object = inode.life.lock().object.clone();
        let Some(object) = object else { return Ok(()) };
        match set.mtime {
            // The source's time may be that of a writeback under way, so it is not used.
            Some(SetTime::At(mtime)) => object.set_mtime(mtime),
            Some(SetTime::Now) => {
                object.set_mtime(Attr::from_stat(inode.nodeid, &self.stat_of(inode)?).mtime)
            }
            None => {}
        }
        object.metadata_changed();
        Ok(())
    }

    /// Clears set-id bits and file capabilities before `caller` changes the content. `keep`: the kernel's
    /// word whether set-id bits stay.
    pub(crate) fn strip_privileges(
        &self,
        caller: &Caller,
        inode: &Inode<C::Object>,
        keep: Option<bool>,
    ) -> Result<()> {
        if inode.unprivileged.load(Ordering::Acquire) {
            return Ok(());
        }
        // Set before the look: a grant of new privileges meanwhile resets the mark.
        inode.unprivileged.store(true, Ordering::Release);
        let left = self.take_privileges(caller, inode, keep);
        if left.as_ref().map_or(true, |left| left & (S_ISUID | S_ISGID) != 0) {
            // Some bits are left, or the next writer may be one that may not keep them.
            inode.unprivileged.store(false, Ordering::Release);
        }
        left.map(drop)
    }

    /// Returns the remaining mode.
    fn take_privileges(&self, caller: &Caller, inode: &Inode<C::Object>, keep: Option<bool>) -> Result<u32> {
        let Stat { st_mode: mode, st_gid: gid, .. } = self.stat_of(inode)?;
        let mut left = mode;
        if mode & (S_ISUID | S_ISGID) != 0 && keep != Some(true) {
            let privileges = SetIdPrivileges::of(caller);
            if keep == Some(false) || !privileges.keep_set_id() {
                left = without_set_id(mode, || privileges.in_group(gid));
            }
        }
        if left != mode {
            self.change_metadata(inode);
            set_mode(inode, left)?;
            self.metadata_changed(inode);
            self.invalidate_attributes(inode.nodeid);
        }
        if has_capability(inode) {
            rustix::fs::removexattr(inode.path().as_c_str(), CAPABILITY)?;
        }
        Ok(left)
    }
}

/// Whether the inode, with its status `stat`, has set-id bits or file capabilities.
pub(crate) fn is_privileged<O: CachedFile>(inode: &Inode<O>, stat: &Stat) -> bool {
    if stat.st_mode & (S_ISUID | S_ISGID) != 0 {
        return true;
    }
    if inode.unprivileged.load(Ordering::Acquire) {
        return false;
    }
    // As in `strip_privileges`: a grant of a bit or capability from here on resets the mark.
    inode.unprivileged.store(true, Ordering::Release);
    let has_bits = inode.stat().is_ok_and(|stat| stat.st_mode & (S_ISUID | S_ISGID) != 0);
    let privileged = has_bits || has_capability(inode);
    if privileged {
        inode.unprivileged.store(false, Ordering::Release);
    }
    privileged
}

/// Whether the inode has file capabilities. A source without them has none, as for the kernel
/// (security/commoncap.c, `cap_inode_need_killpriv`).
fn has_capability<O>(inode: &Inode<O>) -> bool {
    rustix::fs::getxattr_query(inode.path().as_c_str(), CAPABILITY).is_ok_and(|bytes| bytes > 0)
}

/// Changes the inode's owner or group. The source clears set-id bits itself. Set-group-id without group
/// execution stays for callers that may keep it, as this daemon may. Members of the group may keep it. If
/// set-user-id is cleared too, the mode changes a second time, and they must be members of the new group.
fn change_owner<O>(caller: &Caller, inode: &Inode<O>, set: &SetAttr) -> Result<()> {
    let before = inode.stat()?;
    let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
    rustix::fs::chownat(inode.fd(), "", uid, gid, AtFlags::EMPTY_PATH)?;
    let after = inode.stat()?;
    if inode.kind == Kind::File && after.st_mode & S_ISGID != 0 {
        let privileges = SetIdPrivileges::of(caller);
        let member = privileges.in_group(before.st_gid)
            && (before.st_mode & S_ISUID == 0 || privileges.in_group(after.st_gid));
        if !privileges.keep_set_id() && !member {
            set_mode(inode, after.st_mode & !S_ISGID)?;
        }
    }
    Ok(())
}

/// Sets the permission bits through the descriptor.
pub(crate) fn set_mode<O>(inode: &Inode<O>, mode: u32) -> Result<()> {
    inode.unprivileged.store(false, Ordering::Release);
    let mode = Mode::from_raw_mode(mode & 0o7777);
    Ok(rustix::fs::chmodat(CWD, inode.path().as_c_str(), mode, AtFlags::empty())?)
}

fn set_times<O>(inode: &Inode<O>, set: &SetAttr) -> Result<()> {
    let spec = |time: Option<SetTime>| match time {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(time)) => Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() },
    };
    let times = Timestamps { last_access: spec(set.atime), last_modification: spec(set.mtime) };
    Ok(rustix::fs::utimensat(CWD, inode.path().as_c_str(), &times, AtFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_id_bits_go_with_a_write() {
        let (member, stranger) =
            (|mode| without_set_id(mode, || true), |mode| without_set_id(mode, || false));
        assert_eq!((member(0o104_755), stranger(0o104_755)), (0o100_755, 0o100_755));
        assert_eq!((member(0o106_755), stranger(0o106_755)), (0o100_755, 0o100_755));
        assert_eq!((member(0o106_766), stranger(0o106_766)), (0o102_766, 0o100_766));
        assert_eq!((member(0o100_644), stranger(0o100_644)), (0o100_644, 0o100_644));
    }
}
