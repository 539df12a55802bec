//! Who takes files into service that clients show, where no mount tells of opens.

use crate::file::object::ObjectRef;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// Takes files into service.
pub trait Serve: Send + Sync + std::fmt::Debug {
    /// The object of the file that a client shows: published, and kept from going stale as long as its clients are not sent to the source.
    ///
    /// # Errors
    /// BUSY if somebody has the file open for writing; XDEV, ENFILE ... if it cannot be served.
    fn serve(&self, shown: BorrowedFd<'_>) -> Result<ObjectRef, Errno>;
}
