//! What fstat and its forms tell of a direct descriptor: the device is that of the mount.

use super::guard::guard;
use crate::{direct, next, table};
use libc::{c_char, c_int, c_uint, stat};

/// The inode number of a direct descriptor. Asked before the call: another thread may exchange it meanwhile.
#[inline]
fn direct_inode(fd: c_int) -> Option<u64> {
    if direct::has_any() { guard(|| table::direct(fd)) } else { None }
}

/// # Safety
/// `st` was filled by the kernel, if `ret` says so.
unsafe fn told(ret: c_int, direct: Option<u64>, st: *mut stat) -> c_int {
    if ret == 0
        && let Some(ino) = direct
    {
        guard(|| {
            // SAFETY: the caller's promise.
            let st = unsafe { &mut *st };
            if let Some((dev, _)) = direct::seen_as(ino, st.st_dev, st.st_ino) {
                st.st_dev = dev;
            }
        });
    }
    ret
}

/// Does a call with a directory and a path mean the descriptor itself?
///
/// # Safety
/// The kernel has read the path, if there is one.
unsafe fn is_itself(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: the caller's promise.
    flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

macro_rules! hook {
    ($name:ident($($arg:ident: $t:ty),*) of $fd:expr) => {
        /// See stat(2).
        ///
        /// # Safety
        /// As the function of that name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $t),*, st: *mut stat) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                let direct = direct_inode($fd);
                told(next::$name($($arg),*, st), direct, st)
            }
        }
    };
}
hook!(fstat(fd: c_int) of fd);
hook!(fstat64(fd: c_int) of fd);
hook!(__fxstat(version: c_int, fd: c_int) of fd);
hook!(__fxstat64(version: c_int, fd: c_int) of fd);

macro_rules! at_hook {
    ($name:ident($($version:ident: $t:ty)?)) => {
        /// See fstatat(2).
        ///
        /// # Safety
        /// As the function of that name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            $($version: $t,)?
            dir: c_int,
            path: *const c_char,
            st: *mut stat,
            flags: c_int,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                let direct = direct_inode(dir);
                let ret = next::$name($($version,)? dir, path, st, flags);
                if ret == 0 && is_itself(path, flags) { told(ret, direct, st) } else { ret }
            }
        }
    };
}
at_hook!(fstatat());
at_hook!(fstatat64());
at_hook!(__fxstatat(version: c_int));
at_hook!(__fxstatat64(version: c_int));

/// See statx(2).
///
/// # Safety
/// As statx.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    st: *mut libc::statx,
) -> c_int {
    // SAFETY: the program's own arguments; the kernel has filled the buffer and read the path.
    unsafe {
        let direct = direct_inode(dir);
        let ret = next::statx(dir, path, flags, mask, st);
        if ret == 0
            && let Some(ino) = direct
            && is_itself(path, flags)
        {
            guard(|| {
                let st = &mut *st;
                let dev = libc::makedev(st.stx_dev_major, st.stx_dev_minor);
                if let Some((dev, id)) = direct::seen_as(ino, dev, st.stx_ino) {
                    (st.stx_dev_major, st.stx_dev_minor) = (libc::major(dev), libc::minor(dev));
                    st.stx_mnt_id = id;
                }
            });
        }
        ret
    }
}
