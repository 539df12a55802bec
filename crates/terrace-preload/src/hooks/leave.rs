//! Calls for which a direct descriptor is exchanged for one of the mount first: locks, changes of the file, what the mount answers
//! in its own way, and messages that carry descriptors to others.

use super::guard::guard;
use crate::{connection, direct, next, sys};
use libc::{
    c_char, c_int, c_uint, c_ulong, c_void, mmsghdr, mode_t, msghdr, off_t, size_t, ssize_t, timespec,
};

/// Before a lock: zero, or the errno of one that would be none, since others lock the file in the mount.
///
/// Of one that is the process's own (POSIX), any close of a descriptor of the file is the end: all must be of the mount.
pub(super) fn before_lock(fd: c_int, of_process: bool) -> c_int {
    if of_process && direct::is_on() {
        let is_ours = sys::identity(fd).is_some_and(|(id, _)| Some(id.dev) == connection::any_dev());
        if is_ours || crate::table::direct(fd).is_some() {
            direct::stop();
        }
    }
    // Nobody else opens a file without a name any more.
    if direct::leave(fd) || sys::stat(fd).is_some_and(|st| st.st_nlink == 0) { 0 } else { libc::ENOLCK }
}

/// Defines a hook: name, arguments, what comes before.
macro_rules! hook {
    ($name:ident($($arg:ident: $t:ty),*) -> $r:ty, $before:expr) => {
        /// See the manual page of that name.
        ///
        /// # Safety
        /// As the function of that name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $t),*) -> $r {
            if direct::has_any() {
                guard(|| { $before; });
            }
            // SAFETY: the program's own arguments.
            unsafe { next::$name($($arg),*) }
        }
    };
}

macro_rules! lock_hook {
    ($name:ident($($arg:ident: $t:ty),*), $of_process:expr) => {
        /// See flock(2), lockf(3).
        ///
        /// # Safety
        /// As the function of that name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, $($arg: $t),*) -> c_int {
            let errno = guard(|| before_lock(fd, $of_process));
            if errno != 0 {
                return sys::libc_ret(-(errno as isize)) as c_int;
            }
            // SAFETY: the program's own arguments.
            unsafe { next::$name(fd, $($arg),*) }
        }
    };
}
lock_hook!(flock(op: c_int), false);
lock_hook!(lockf(op: c_int, n: off_t), true);
lock_hook!(lockf64(op: c_int, n: off_t), true);

hook!(fchmod(fd: c_int, mode: mode_t) -> c_int, direct::leave(fd));
hook!(fchown(fd: c_int, user: c_uint, group: c_uint) -> c_int, direct::leave(fd));
hook!(fchownat(fd: c_int, path: *const c_char, user: c_uint, group: c_uint, flags: c_int) -> c_int, direct::leave(fd));
hook!(futimens(fd: c_int, times: *const timespec) -> c_int, direct::leave(fd));
hook!(futimes(fd: c_int, times: *const c_void) -> c_int, direct::leave(fd));
hook!(utimensat(fd: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int, direct::leave(fd));
hook!(fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, n: size_t, flags: c_int) -> c_int, direct::leave(fd));
hook!(fremovexattr(fd: c_int, name: *const c_char) -> c_int, direct::leave(fd));
hook!(fstatfs(fd: c_int, st: *mut c_void) -> c_int, direct::leave(fd));
hook!(fstatfs64(fd: c_int, st: *mut c_void) -> c_int, direct::leave(fd));
hook!(fstatvfs(fd: c_int, st: *mut c_void) -> c_int, direct::leave(fd));
hook!(fstatvfs64(fd: c_int, st: *mut c_void) -> c_int, direct::leave(fd));
hook!(copy_file_range(from: c_int, at: *mut off_t, to: c_int, to_at: *mut off_t, n: size_t, flags: c_uint) -> ssize_t,
    direct::leave(from));
hook!(ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int, before_ioctl(fd, request, arg));
hook!(sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t,
    // SAFETY: the program's message, which the call itself is about to read.
    unsafe { sending(message) });
hook!(sendmmsg(socket: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int,
    // SAFETY: likewise.
    (0..n as usize).for_each(|i| unsafe { sending(&raw const (*messages.add(i)).msg_hdr) }));

/// Terminals answer requests of type T, of which a program asks every descriptor; no file does. FIONREAD is one of them.
fn before_ioctl(fd: c_int, request: c_ulong, arg: usize) {
    const FICLONE: c_ulong = 0x4004_9409;
    if request >> 8 & 0xff != c_ulong::from(b'T') {
        direct::leave(fd);
    }
    if request == FICLONE {
        direct::leave(arg as c_int);
    }
}

/// # Safety
/// A message that is about to be sent.
unsafe fn sending(message: *const msghdr) {
    // SAFETY: the caller's promise; the macros stay inside `msg_controllen`.
    unsafe {
        let Some(m) = message.as_ref() else { return };
        if m.msg_control.is_null() || m.msg_controllen == 0 {
            return;
        }
        let mut at = libc::CMSG_FIRSTHDR(m);
        while let Some(head) = at.as_ref() {
            if (head.cmsg_level, head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let fds = libc::CMSG_DATA(at).cast::<c_int>();
                let bytes = head.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                (0..bytes / size_of::<c_int>()).for_each(|i| {
                    direct::leave(fds.add(i).read_unaligned());
                });
            }
            at = libc::CMSG_NXTHDR(m, at);
        }
    }
}
