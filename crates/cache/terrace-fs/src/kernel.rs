//! The kernel as the namespace sees it: senders of requests, and the kernel's caches.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// Bit of a request's number: the kernel has sent the request before, to an earlier daemon.
pub(crate) const RESENT: u64 = 1 << 63;

/// The sender of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// File-system user id.
    pub(crate) uid: u32,
    /// File-system group id.
    pub(crate) gid: u32,
    pub(crate) tid: u32,
    /// The request's number, bit 63 set when it is a resent one.
    pub(crate) unique: u64,
}

impl Caller {
    /// Whether the request was sent to an earlier daemon, which may have done it.
    pub(crate) fn is_resent(&self) -> bool {
        self.unique & RESENT != 0
    }
}

/// The kernel's caches, as far as the namespace controls them.
pub trait Kernel: Send + Sync + 'static {
    /// The kernel's attributes of `nodeid` are out of date.
    fn invalidate_attributes(&self, nodeid: u64);
    /// Drops unused names of these inodes from the kernel. Returns false if this kernel cannot.
    fn prune(&self, nodeids: &[u64]) -> bool;
    /// Drops the cached content of this range of a file.
    fn invalidate_content(&self, nodeid: u64, range: Range<u64>);
    /// Registers a source file for passthrough: the kernel itself then does reads, writes and mappings of an
    /// inode. Returns the id of an [`crate::Opened::backing`], which holds the file until `close_backing`.
    ///
    /// # Errors
    /// The kernel or this process cannot register files, or not this file.
    fn open_backing(&self, file: BorrowedFd<'_>) -> io::Result<u32>;
    /// Releases an id.
    fn close_backing(&self, backing: u32);
    /// Makes the kernel look a name up again before its next use. Mounts on it stay.
    fn expire_name(&self, parent: u64, name: &OsStr);
    /// Drops one name.
    fn invalidate_name(&self, parent: u64, name: &OsStr);
}
