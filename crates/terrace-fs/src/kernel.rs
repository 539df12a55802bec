//! The kernel as the namespace sees it: who asks, and what it caches.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// The mark of a resent request.
pub(crate) const RESENT: u64 = 1 << 63;

/// The sender of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// File-system user id.
    pub uid: u32,
    /// File-system group id.
    pub gid: u32,
    /// Thread id.
    pub tid: u32,
    /// The request's number, bit 63 set when it is a resent one.
    pub unique: u64,
}

impl Caller {
    /// Was the request sent to an earlier daemon, which may have done it?
    pub fn is_resent(&self) -> bool {
        self.unique & RESENT != 0
    }
}

/// The kernel's caches, as far as the namespace must speak to them.
pub trait Kernel: Send + Sync + 'static {
    /// The kernel's attributes of `nodeid` are out of date.
    fn invalidate_attributes(&self, nodeid: u64);
    /// Drops the kernel's names of these inodes where nobody uses them; false if this kernel cannot.
    fn prune(&self, nodeids: &[u64]) -> bool;
    /// Drops what is cached of this range of a file's content.
    fn invalidate_content(&self, nodeid: u64, range: Range<u64>);
    /// Registers a file of the source, with which the kernel then does reads, writes and mappings of an inode itself. The number is an
    /// [`crate::Opened::backing`], and holds the file until it is given back.
    ///
    /// # Errors
    /// This kernel or this process cannot, or not with this file.
    fn open_backing(&self, file: BorrowedFd<'_>) -> io::Result<u32>;
    /// Gives a number back.
    fn close_backing(&self, backing: u32);
    /// The kernel is to look a name up again before it uses it; what is mounted on it stays.
    fn expire_name(&self, parent: u64, name: &OsStr);
    /// Drops one name.
    fn invalidate_name(&self, parent: u64, name: &OsStr);
}
