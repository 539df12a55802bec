//! pwrite, fsync and their forms.

use super::guard::guard;
use super::read::fast;
use crate::{next, table, write};
use libc::{c_int, c_uint, c_void, off_t, size_t, ssize_t};

macro_rules! pwrite_hook {
    ($name:ident) => {
        /// See pwrite(2).
        ///
        /// # Safety
        /// As pwrite.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            buf: *const c_void,
            n: size_t,
            offset: off_t,
        ) -> ssize_t {
            // SAFETY: the program's own arguments.
            unsafe {
                match fast(fd, |class| write::pwrite(fd, class, buf.cast(), n, offset)) {
                    Some(ret) => ret,
                    None => next::$name(fd, buf, n, offset),
                }
            }
        }
    };
}
pwrite_hook!(pwrite);
pwrite_hook!(pwrite64);

macro_rules! sync_hook {
    ($name:ident, $call:expr) => {
        /// See fsync(2).
        ///
        /// # Safety
        /// As fsync.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int) -> c_int {
            // SAFETY: the program's own argument.
            unsafe {
                if let Some(ret) = fast(fd, |class| write::sync(fd, class, $call)) {
                    return ret as c_int;
                }
                let ret = next::$name(fd);
                guard(|| write::synced(fd));
                ret
            }
        }
    };
}
sync_hook!(fsync, libc::SYS_fsync);
sync_hook!(fdatasync, libc::SYS_fdatasync);

/// See sync_file_range(2). A FUSE file has nothing for it to do.
///
/// # Safety
/// As sync_file_range.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sync_file_range(fd: c_int, offset: off_t, n: off_t, flags: c_uint) -> c_int {
    let ret = table::get(fd).and_then(|_| {
        // SAFETY: touches no memory.
        unsafe { fast(fd, |class| write::sync_range(fd, class, offset, n, flags)) }
    });
    match ret {
        Some(ret) => ret as c_int,
        // SAFETY: the program's own arguments.
        None => unsafe { next::sync_file_range(fd, offset, n, flags) },
    }
}
