//! Operations that remove or move names: unlink, rmdir, rename.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::lookup::stat_name;
use crate::error::Result;
use crate::{Namespace, Op, PageCache};

impl<C: PageCache> Namespace<C> {
    pub(crate) fn unlink(&self, op: &mut Op<'_>, parent: u64, name: &OsStr) -> Result<()> {
        self.remove(op, parent, name, AtFlags::empty())
    }

    /// Removes an empty directory.
    pub(crate) fn rmdir(&self, op: &mut Op<'_>, parent: u64, name: &OsStr) -> Result<()> {
        self.remove(op, parent, name, AtFlags::REMOVEDIR)
    }

    fn remove(&self, op: &mut Op<'_>, parent: u64, name: &OsStr, flags: AtFlags) -> Result<()> {
        let parent = self.inode(parent)?;
        let dir = parent.directory()?;
        let victim = self.known_at(&parent, name);
        let Some(stat) = intend(op, dir, name)? else { return Ok(()) };
        if !op.is_replayed() {
            self.expect_found(&op.caller, &parent, name, stat.st_nlink, victim.as_deref())?;
        }
        victim.iter().for_each(|victim| self.change_metadata(victim));
        rustix::fs::unlinkat(dir, name, flags)?;
        if let Some(victim) = victim {
            self.inodes.leave(&victim);
            self.links_changed(&victim);
        }
        Ok(())
    }

    /// Moves a name, with the flags of renameat2.
    pub(crate) fn rename(
        &self,
        op: &mut Op<'_>,
        parent: u64,
        name: &OsStr,
        new_parent: u64,
        new_name: &OsStr,
        flags: u32,
    ) -> Result<()> {
        let (parent, new_parent) = (self.inode(parent)?, self.inode(new_parent)?);
        let (dir, new_dir) = (parent.directory()?, new_parent.directory()?);
        let (moved, replaced) = (self.known_at(&parent, name), self.known_at(&new_parent, new_name));
        let Some(stat) = intend(op, dir, name)? else { return Ok(()) };
        if !op.is_replayed() {
            self.expect_found(&op.caller, &parent, name, stat.st_nlink, moved.as_deref())?;
            self.expect_changeable(&op.caller, &new_parent)?;
        }
        let both = || moved.iter().chain(&replaced);
        both().for_each(|inode| self.change_metadata(inode));
        let flags = RenameFlags::from_bits_retain(flags);
        rustix::fs::renameat_with(dir, name, new_dir, new_name, flags)?;
        if let Some(replaced) = &replaced {
            match flags.contains(RenameFlags::EXCHANGE) {
                true => self.inodes.move_to(replaced, parent.nodeid, name),
                false => self.inodes.leave(replaced),
            }
        }
        if let Some(moved) = &moved {
            self.inodes.move_to(moved, new_parent.nodeid, new_name);
        }
        both().for_each(|inode| self.links_changed(inode));
        Ok(())
    }
}

/// Looks at the name to be removed and records it in the journal. `None`: the first try of a resent request
/// succeeded, since the name is gone or another inode has it.
fn intend(op: &mut Op<'_>, dir: BorrowedFd<'_>, name: &OsStr) -> Result<Option<Stat>> {
    let found = stat_name(dir, name);
    match (op.before(), found) {
        (Some(_), Err(Errno::NOENT)) => Ok(None),
        (Some(before), Ok(stat)) if stat.st_ino != before => Ok(None),
        (_, Ok(stat)) => {
            op.intend(stat.st_ino);
            Ok(Some(stat))
        }
        (_, Err(errno)) => Err(errno.into()),
    }
}
