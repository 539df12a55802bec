//! Calls that the daemon has to know of: shared writable mappings, sync.

use super::guard;
use crate::local::local;
use crate::{door, next, sys};
use libc::{c_int, c_void, off_t, size_t};

/// Where io_uring's submission entries are mapped.
const IORING_OFF_SQES: off_t = 0x1000_0000;

/// Before a file is mapped shared: stores to the mapping reach the daemon late, so it must tell all readers to come to it.
fn before_shared_map(fd: c_int, offset: off_t) {
    let Some(dev) = door::mount_dev() else { return };
    if local().vforked() {
        return;
    }
    let Some((id, kind)) = sys::identity(fd) else { return };
    if kind == 0 && offset == IORING_OFF_SQES {
        // A ring can close descriptors unseen.
        return door::turn_off();
    }
    let mode = sys::fcntl(fd, libc::F_GETFL, 0) as c_int;
    // Also for descriptors that we did not see opened. A mapping made for reading can be made writable later.
    if id.dev == dev && kind == libc::S_IFREG && mode >= 0 && mode & libc::O_ACCMODE == libc::O_RDWR {
        door::mapped(fd);
    }
}

fn is_shared(flags: c_int) -> bool {
    matches!(flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE)
}

macro_rules! hook {
    ($name:ident) => {
        /// See mmap(2). Anonymous memory is an allocator's: no step of ours may lie between it and the kernel.
        ///
        /// # Safety
        /// As mmap.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
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
            if is_shared(flags) {
                guard(|| before_shared_map(fd, offset));
            }
            // SAFETY: the program's own arguments.
            unsafe { next::$name(at, n, prot, flags, fd, offset) }
        }
    };
}
hook!(mmap);
hook!(mmap64);

/// See syncfs(2). The kernel does not pass it on to a FUSE daemon; we do.
///
/// # Safety
/// As syncfs.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syncfs(fd: c_int) -> c_int {
    let errno = guard(|| match (door::mount_dev(), sys::identity(fd)) {
        (Some(dev), Some((id, _))) if id.dev == dev && !local().vforked() => door::flush(),
        _ => 0,
    });
    // SAFETY: the program's own argument.
    let ret = unsafe { next::syncfs(fd) };
    if ret == 0 && errno != 0 { sys::libc_ret(-(errno as isize)) as c_int } else { ret }
}

/// See sync(2).
///
/// # Safety
/// As sync.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sync() {
    guard(|| {
        if door::mount_dev().is_some() && !local().vforked() {
            door::flush();
        }
    });
    // SAFETY: no arguments.
    unsafe { next::sync() }
}
