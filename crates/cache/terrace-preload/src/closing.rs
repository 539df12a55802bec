//! The end of the preload path in this process, after a bug of the library or a call that hides descriptors
//! or system calls.

use crate::local::local;
use crate::{connection, lasting, quiet, sys, table};
use std::ffi::c_int;

/// Closes the preload path. The process is no client any more, so the kernel caches the files that it opens
/// from here on. Its later writes are unseen.
#[cold]
pub(crate) fn turn_off() {
    connection::turn_off();
    if local().vforked() {
        // The descriptors are the parent's, which announces its writes as before.
        return table::dismiss_all();
    }
    lasting::hold_all_writers();
    table::forget_range(0, u32::MAX);
    connection::close();
}

/// A filter of system calls comes into force. It may kill the program at a call of the library, so these end.
/// Mappings can no longer be announced, so all mappable files are announced now. A process that is no client
/// opens files from here on.
#[cold]
pub(crate) fn fall_silent() {
    if !connection::may_ask() {
        return quiet::be_silent();
    }
    if connection::world().is_some() && connection::told_dev().is_some() {
        (0..table::FDS_MAX as c_int).filter(|&fd| is_mappable(fd)).for_each(|fd| {
            connection::mapped(fd);
        });
    }
    turn_off();
    quiet::be_silent();
}

/// True if a writable shared mapping of this descriptor is possible.
pub(crate) fn is_mappable(fd: c_int) -> bool {
    let mode = sys::fcntl(fd, libc::F_GETFL, 0) as c_int;
    mode >= 0
        && mode & libc::O_ACCMODE == libc::O_RDWR
        && sys::identity(fd)
            .is_some_and(|(id, kind)| Some(id.dev) == connection::told_dev() && kind == libc::S_IFREG)
}
