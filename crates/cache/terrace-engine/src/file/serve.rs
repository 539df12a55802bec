//! Callback of an instance without a mount: it serves a file at a client's request. Without a mount, opens
//! are invisible to terrace.

use crate::file::object::ObjectRef;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// Starts to serve files.
pub trait Serve: Send + Sync + std::fmt::Debug {
    /// The object of a client's file, published. It stays coherent until its clients must read the source.
    ///
    /// # Errors
    /// BUSY if the file is open for writing; XDEV, ENFILE ... if it cannot be served.
    fn serve(&self, shown: BorrowedFd<'_>) -> Result<ObjectRef, Errno>;
    /// Sees each open of a client's file from here on: the client opens it for writing next.
    ///
    /// # Errors
    /// As [`Serve::serve`]; INVAL: opens are not seen.
    fn watch(&self, _shown: BorrowedFd<'_>) -> Result<(), Errno> {
        Err(Errno::INVAL)
    }
    /// Leaves a client's file to the kernel for the rest of the run: a program may write it unannounced.
    ///
    /// # Errors
    /// As [`Serve::serve`].
    fn give_up(&self, shown: BorrowedFd<'_>) -> Result<(), Errno>;
}
