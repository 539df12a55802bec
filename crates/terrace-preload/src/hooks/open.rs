//! open and its forms: the only place where descriptors are classified.

use super::guard::guard;
use crate::local::local;
use crate::{connection, next, sys, table};
use libc::{c_char, c_int, mode_t};
use std::ffi::CStr;

/// Opens whose descriptors are never read through us: no content, not for reading, or not through a cache.
const NOT_OURS: c_int = libc::O_PATH | libc::O_DIRECTORY | libc::O_DIRECT;

/// Looks at a descriptor that an open has just made. Leaves errno alone: all calls are raw.
fn opened(fd: c_int, flags: c_int) {
    if fd < 0 || local().vforked() {
        return;
    }
    table::forget(fd);
    let Some(dev) = connection::mount_dev() else { return };
    if !is_ours(flags) {
        return;
    }
    let Some((id, kind)) = sys::identity(fd) else { return };
    if id.dev != dev || kind != libc::S_IFREG {
        return;
    }
    // What `opening` could not foresee. The kernel caches this one, as for any program; the next ones are a client's.
    if !connection::is_registered() {
        connection::register(true);
    }
    classify(fd, id.ino);
}

/// Before an open: if it leads to the mount, the process becomes a client first, for the daemon has the kernel cache what
/// others open. (Opening once more afterwards would not do: the close of the first descriptor drops the process's POSIX
/// locks on the file, and shows up in inotify.) A process that touches no file of the mount is asked nothing but this.
///
/// # Safety
/// The program's path.
unsafe fn opening(dir: c_int, path: *const c_char, flags: c_int) {
    let Some(dev) = connection::mount_dev() else { return };
    if connection::is_registered() || !is_ours(flags) || local().vforked() {
        return;
    }
    let follow = if flags & libc::O_NOFOLLOW != 0 { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
    // SAFETY: the kernel checks the path.
    let there = match unsafe { sys::identity_at(dir, path, follow) } {
        Ok((id, kind)) => id.dev == dev && kind == libc::S_IFREG,
        Err(e) if e == -(libc::ENOENT as isize) && flags & libc::O_CREAT != 0 => {
            // SAFETY: the kernel has just read the path to its end.
            unsafe { parent(dir, path) }.is_some_and(|id| id.dev == dev)
        }
        Err(_) => false,
    };
    if there {
        connection::register(true);
    }
}

/// The directory in which a path's last name is to be made.
///
/// # Safety
/// `path` is a C string.
unsafe fn parent(dir: c_int, path: *const c_char) -> Option<sys::Identity> {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let len = path.iter().rposition(|&c| c == b'/').map_or(0, |slash| slash + 1);
    // "name" is in ".", "/name" in "/", "a/name" in "a/".
    let mut name = [0; 1024];
    name[0] = b'.';
    if len >= name.len() {
        return None;
    }
    name[..len].copy_from_slice(&path[..len]);
    // SAFETY: a C string of this frame.
    unsafe { sys::identity_at(dir, name.as_ptr().cast(), 0) }.ok().map(|(id, _)| id)
}

/// True for opens whose descriptors may be read through us.
fn is_ours(flags: c_int) -> bool {
    flags & NOT_OURS == 0 && matches!(flags & libc::O_ACCMODE, libc::O_RDONLY | libc::O_RDWR)
}

fn classify(fd: c_int, ino: u64) {
    if let Some(slot) = connection::world().and_then(|w| w.segment.find_object(ino)) {
        table::classify(fd, slot);
    }
}

/// Defines a hook. Third and fourth arguments are fixed: a variadic caller passes them in the same registers, and the real
/// function ignores a mode that it does not need.
macro_rules! hook {
    ($name:ident($($arg:ident: $t:ty),*) at $dir:expr, $path:expr, flags $flags:expr) => {
        /// See open(2).
        ///
        /// # Safety
        /// As the function of that name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $t),*) -> c_int {
            // SAFETY: the program's own arguments.
            let fd = unsafe {
                guard(|| opening($dir, $path, $flags));
                next::$name($($arg),*)
            };
            guard(|| opened(fd, $flags));
            fd
        }
    };
}

hook!(open(path: *const c_char, flags: c_int, mode: mode_t) at libc::AT_FDCWD, path, flags flags);
hook!(open64(path: *const c_char, flags: c_int, mode: mode_t) at libc::AT_FDCWD, path, flags flags);
hook!(__open(path: *const c_char, flags: c_int, mode: mode_t) at libc::AT_FDCWD, path, flags flags);
hook!(__open64(path: *const c_char, flags: c_int, mode: mode_t) at libc::AT_FDCWD, path, flags flags);
hook!(openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) at dir, path, flags flags);
hook!(openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) at dir, path, flags flags);
hook!(creat(path: *const c_char, mode: mode_t) at libc::AT_FDCWD, path, flags libc::O_WRONLY);
hook!(creat64(path: *const c_char, mode: mode_t) at libc::AT_FDCWD, path, flags libc::O_WRONLY);
hook!(__open_2(path: *const c_char, flags: c_int) at libc::AT_FDCWD, path, flags flags);
hook!(__open64_2(path: *const c_char, flags: c_int) at libc::AT_FDCWD, path, flags flags);
hook!(__openat_2(dir: c_int, path: *const c_char, flags: c_int) at dir, path, flags flags);
hook!(__openat64_2(dir: c_int, path: *const c_char, flags: c_int) at dir, path, flags flags);
