//! Hooks of mmap, sync and syncfs: the library announces shared mappings and syncs to the daemon.

use super::guard::guard;
use crate::lasting::{self, Until};
use crate::local::local;
use crate::{closing, connection, directory, next, sys, writers};
use libc::{c_int, c_void, off_t, size_t};

/// Offset at which io_uring's submission entries are mapped.
const IORING_OFF_SQES: off_t = 0x1000_0000;

/// Called before a file is mapped shared. Stores to the mapping reach the daemon late, so it sends all
/// readers to the mount path. Returns zero, or the errno for a mapping that cannot be announced: other
/// processes would never see its stores.
///
/// Called also after the preload path has closed, for descriptors that the library did not see opened. Called
/// for mappings for reading too, since they can become writable later.
fn before_shared_map(fd: c_int, offset: off_t) -> c_int {
    if directory::announces_writes()
        && let Some(object) = writers::object(fd)
    {
        lasting::hold(fd, object, Until::Exit);
    }
    if connection::mount_dev().is_none() && connection::told_dev().is_none() {
        return 0;
    }
    if offset == IORING_OFF_SQES && !local().vforked() && sys::identity(fd).is_some_and(|(_, kind)| kind == 0)
    {
        // A ring can close descriptors unseen.
        closing::turn_off();
        return 0;
    }
    if connection::told_dev().is_some() && closing::is_mappable(fd) && !connection::mapped(fd) {
        libc::ENODEV
    } else {
        0
    }
}

fn is_shared(flags: c_int) -> bool {
    matches!(flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE)
}

/// An mmap of a file.
pub(super) fn map_by(
    flags: c_int,
    fd: c_int,
    offset: off_t,
    call: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    if is_shared(flags) {
        let errno = guard(|| before_shared_map(fd, offset));
        if errno != 0 {
            return sys::libc_ret(-(errno as isize)) as *mut c_void;
        }
    }
    call()
}

macro_rules! hook {
    ($name:ident) => {
        /// Anonymous memory is an allocator's: it goes to the kernel directly.
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            at: *mut c_void,
            n: size_t,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            offset: off_t,
        ) -> *mut c_void {
            if flags & libc::MAP_ANONYMOUS != 0 {
                let args = [at as usize, n, prot as usize, flags as usize, fd as usize, offset as usize];
                // SAFETY: the program's own arguments.
                return sys::libc_ret(unsafe { sys::raw(libc::SYS_mmap, args) }) as *mut c_void;
            }
            // SAFETY: the program's own arguments.
            map_by(flags, fd, offset, || unsafe { next::$name(at, n, prot, flags, fd, offset) })
        }
    };
}
hook!(mmap);
hook!(mmap64);

/// The kernel does not pass it on to a FUSE daemon; the library does.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn syncfs(fd: c_int) -> c_int {
    // SAFETY: the program's own argument.
    syncfs_by(fd, || unsafe { next::syncfs(fd) })
}

pub(super) fn syncfs_by(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let errno = guard(|| match connection::told_dev() {
        Some(dev) if sys::identity(fd).is_some_and(|(id, _)| id.dev == dev) => connection::flush(),
        _ => 0,
    });
    let ret = call();
    if ret == 0 && errno != 0 { sys::libc_ret(-(errno as isize)) as c_int } else { ret }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn sync() {
    before_sync();
    // SAFETY: no arguments.
    unsafe { next::sync() }
}

pub(super) fn before_sync() {
    guard(|| {
        if connection::told_dev().is_some() {
            connection::flush();
        }
    });
}
