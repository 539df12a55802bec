//! Extended attributes, through `/proc/self/fd`: an O_PATH descriptor refuses the calls that take descriptors.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::change::set_mode;
use super::creds::SetIdPrivileges;
use crate::error::Result;
use crate::{Caller, Namespace, Op, PageCache, made_up};

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const ACLS: &[u8] = b"system.posix_acl_";
const S_ISGID: u32 = 0o2000;

/// True if this error at a read of an ACL means that none exists. This mount has ACLs, so the kernel reads
/// them at every open. A source without ACLs answers EOPNOTSUPP. A server may answer any error, since the
/// kernel sends no such request on the source itself.
fn has_none(errno: Errno, file: BorrowedFd<'_>) -> bool {
    errno == Errno::OPNOTSUPP || errno != Errno::RANGE && made_up::is_of_server(file)
}

impl<C: PageCache> Namespace<C> {
    /// Reads an attribute into `buf` and returns its length; with an empty `buf` only the length.
    pub(crate) fn getxattr(&self, nodeid: u64, name: &OsStr, buf: &mut [u8]) -> Result<usize> {
        let inode = self.inode(nodeid)?;
        let path = inode.path();
        let value = match buf.is_empty() {
            true => rustix::fs::getxattr_query(path.as_c_str(), name),
            false => rustix::fs::getxattr(path.as_c_str(), name, buf),
        };
        Ok(value.map_err(|errno| {
            match name.as_encoded_bytes().starts_with(ACLS) && has_none(errno, inode.fd()) {
                true => Errno::NODATA,
                false => errno,
            }
        })?)
    }

    /// The names of the attributes, each ended by NUL. Only root gets those that begin with `trusted.`.
    pub(crate) fn listxattr(&self, caller: &Caller, nodeid: u64) -> Result<Vec<u8>> {
        let inode = self.inode(nodeid)?;
        let path = inode.path();
        let list = loop {
            let mut list = vec![0; rustix::fs::listxattr_query(path.as_c_str())?];
            if list.is_empty() {
                break list;
            }
            match rustix::fs::listxattr(path.as_c_str(), &mut *list) {
                Ok(len) => {
                    list.truncate(len);
                    break list;
                }
                // The list grew meanwhile.
                Err(Errno::RANGE) => {}
                Err(errno) => return Err(errno.into()),
            }
        };
        let names = list.split_inclusive(|&byte| byte == 0);
        Ok(names
            .filter(|name| caller.uid == 0 || !name.starts_with(b"trusted."))
            .flatten()
            .copied()
            .collect())
    }

    pub(crate) fn setxattr(
        &self,
        op: &mut Op<'_>,
        nodeid: u64,
        name: &OsStr,
        value: &[u8],
        flags: u32,
    ) -> Result<()> {
        self.expect_changes()?;
        let inode = self.inode(nodeid)?;
        inode.touch();
        // The attribute may be capabilities or an ACL with a mode: the next write must look again.
        inode.unprivileged.store(false, std::sync::atomic::Ordering::Release);
        let (replayed, path) = (op.is_replayed(), inode.path());
        let flags = XattrFlags::from_bits_retain(flags);
        if flags.contains(XattrFlags::CREATE) && !replayed {
            if rustix::fs::getxattr_query(path.as_c_str(), name).is_ok() {
                return Err(Errno::EXIST.into());
            }
            op.intend(0);
        }
        self.change_metadata(&inode);
        match rustix::fs::setxattr(path.as_c_str(), name, value, flags) {
            Ok(()) => {}
            Err(Errno::EXIST) if replayed => {}
            Err(errno) => return Err(errno.into()),
        }
        if name.as_encoded_bytes() == ACCESS_ACL {
            self.drop_foreign_group_id(&op.caller, &inode)?;
        }
        self.metadata_changed(&inode);
        Ok(())
    }

    /// Setting an access ACL clears set-group-id unless the caller is in the group, as chmod does.
    fn drop_foreign_group_id(&self, caller: &Caller, inode: &crate::inode::Inode<C::Object>) -> Result<()> {
        let stat = inode.stat()?;
        if stat.st_mode & S_ISGID != 0 {
            let privileges = SetIdPrivileges::of(caller);
            if !privileges.keep_set_id() && !privileges.in_group(stat.st_gid) {
                set_mode(inode, stat.st_mode & 0o7777 & !S_ISGID)?;
            }
        }
        Ok(())
    }

    pub(crate) fn removexattr(&self, op: &mut Op<'_>, nodeid: u64, name: &OsStr) -> Result<()> {
        self.expect_changes()?;
        let inode = self.inode(nodeid)?;
        inode.touch();
        let (replayed, path) = (op.is_replayed(), inode.path());
        if !replayed {
            rustix::fs::getxattr_query(path.as_c_str(), name)?;
            op.intend(0);
        }
        self.change_metadata(&inode);
        match rustix::fs::removexattr(path.as_c_str(), name) {
            Ok(()) => {}
            Err(Errno::NODATA) if replayed => {}
            Err(errno) => return Err(errno.into()),
        }
        self.metadata_changed(&inode);
        Ok(())
    }
}
