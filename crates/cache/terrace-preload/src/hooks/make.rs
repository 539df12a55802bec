//! Hooks of calls that make descriptors of other kinds: socket, pipe, eventfd, recvmsg and so on. After an
//! unseen close (inside libc, or by a raw system call), a number's reuse removes its old entry here.

use super::guard::guard;
use crate::local::local;
use crate::{lasting, next, table, writers};
use libc::{c_int, c_uint, mmsghdr, msghdr, sigset_t, sockaddr, socklen_t, ssize_t, timespec};
use std::ffi::c_char;

fn made(fd: c_int) -> c_int {
    if fd >= 0 {
        guard(|| {
            if !local().vforked() {
                table::forget(fd);
                lasting::close(fd);
            }
        });
    }
    fd
}

/// # Safety
/// `fds` is null or the program's array of two.
unsafe fn made_two(ret: c_int, fds: *const c_int) -> c_int {
    if ret == 0 && !fds.is_null() {
        // SAFETY: the kernel has just written both.
        unsafe {
            made(*fds);
            made(*fds.add(1));
        }
    }
    ret
}

/// # Safety
/// A message that the kernel has just filled.
unsafe fn received(m: &msghdr) {
    // SAFETY: the caller's promise; the macros stay inside `msg_controllen`.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(m);
        while let Some(head) = at.as_ref() {
            if (head.cmsg_level, head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let fds = libc::CMSG_DATA(at).cast::<c_int>();
                let count = (head.cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<c_int>();
                (0..count).for_each(|i| {
                    let fd = made(fds.add(i).read_unaligned());
                    guard(|| (!local().vforked()).then(|| writers::find(fd)));
                });
            }
            at = libc::CMSG_NXTHDR(m, at);
        }
    }
}

/// Defines a hook: name, arguments, action on the result.
macro_rules! hook {
    ($name:ident($($arg:ident: $t:ty),*) => |$ret:ident| $after:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $t),*) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                let $ret = next::$name($($arg),*);
                $after
            }
        }
    };
}

hook!(accept(s: c_int, a: *mut sockaddr, n: *mut socklen_t) => |fd| made(fd));
hook!(accept4(s: c_int, a: *mut sockaddr, n: *mut socklen_t, f: c_int) => |fd| made(fd));
hook!(socket(d: c_int, t: c_int, p: c_int) => |fd| made(fd));
hook!(socketpair(d: c_int, t: c_int, p: c_int, fds: *mut c_int) => |ret| made_two(ret, fds));
hook!(pipe(fds: *mut c_int) => |ret| made_two(ret, fds));
hook!(__pipe(fds: *mut c_int) => |ret| made_two(ret, fds));
hook!(pipe2(fds: *mut c_int, f: c_int) => |ret| made_two(ret, fds));
hook!(eventfd(n: c_uint, f: c_int) => |fd| made(fd));
hook!(epoll_create(n: c_int) => |fd| made(fd));
hook!(epoll_create1(f: c_int) => |fd| made(fd));
hook!(timerfd_create(c: c_int, f: c_int) => |fd| made(fd));
hook!(signalfd(fd: c_int, m: *const sigset_t, f: c_int) => |fd| made(fd));
hook!(inotify_init() => |fd| made(fd));
hook!(inotify_init1(f: c_int) => |fd| made(fd));
hook!(memfd_create(p: *const c_char, f: c_uint) => |fd| made(fd));

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn recvmsg(s: c_int, m: *mut msghdr, f: c_int) -> ssize_t {
    // SAFETY: the program's own arguments. After success the message is valid.
    unsafe {
        let n = next::recvmsg(s, m, f);
        if n >= 0 {
            received(&*m);
        }
        n
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn recvmmsg(
    s: c_int,
    v: *mut mmsghdr,
    n: c_uint,
    f: c_int,
    t: *mut timespec,
) -> c_int {
    // SAFETY: the program's own arguments. Received messages are valid.
    unsafe {
        let got = next::recvmmsg(s, v, n, f, t);
        (0..got.max(0) as usize).for_each(|i| received(&(*v.add(i)).msg_hdr));
        got
    }
}
