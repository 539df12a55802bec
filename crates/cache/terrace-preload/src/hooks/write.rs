//! Hooks of write, pwrite, ftruncate and other calls announce each change of a file before the real call
//! ([`crate::guarded`]). Further hooks cover calls after which writes bypass the library ([`crate::lasting`]):
//! asynchronous I/O, and messages that carry descriptors to other processes.
//!
//! A descriptor that is not marked costs a look at the table.

use super::guard::guard;
use crate::guarded::{self, Range, Ticket};
use crate::lasting::Until;
use crate::{buffer, directory, next, read, sys, table, writers};
use libc::{
    aiocb, c_char, c_int, c_long, c_uint, c_ulong, c_void, iovec, mmsghdr, msghdr, off_t, sigevent, size_t,
    ssize_t,
};

/// Announces a write of a marked descriptor.
#[inline]
pub(super) fn begin(fd: c_int, range: impl FnOnce() -> Range) -> Ticket {
    match table::writer(fd) {
        None => Ticket::default(),
        Some(writer) => guard(|| guarded::begin(fd, writer, range())),
    }
}

#[inline]
pub(super) fn end(ticket: Ticket, ret: isize) {
    if ticket.is_announced() {
        guard(|| guarded::end(ticket, ret));
    }
}

/// Range of vectors at an offset.
///
/// # Safety
/// `v` is the program's array of `n` vectors.
unsafe fn vectors(v: *const iovec, n: c_int, offset: off_t) -> Range {
    // SAFETY: the caller's promise.
    match unsafe { read::vectors(v, n) } {
        Some((_, len)) => Range::At { offset, len },
        None => Range::All,
    }
}

/// Likewise, with flags. Offset -1 means the position.
///
/// # Safety
/// As [`vectors`].
unsafe fn flagged(v: *const iovec, n: c_int, offset: off_t, flags: c_int) -> Range {
    match offset {
        _ if flags & libc::RWF_APPEND != 0 => Range::All,
        -1 => Range::Position,
        // SAFETY: the caller's promise.
        _ => unsafe { vectors(v, n, offset) },
    }
}

/// Range at an offset that the program passes by pointer. Null: the position.
///
/// # Safety
/// `offset` is the program's.
unsafe fn pointed(offset: *const off_t, len: size_t) -> Range {
    if offset.is_null() {
        return Range::Position;
    }
    if !buffer::is_readable(offset.cast(), size_of::<off_t>()) {
        return Range::All;
    }
    // SAFETY: just checked.
    Range::At { offset: unsafe { offset.read_unaligned() }, len }
}

/// Defines a hook: name, arguments, descriptor that is written, range.
macro_rules! hook {
    ($name:ident($($arg:ident: $t:ty),*) -> $r:ty, to $fd:ident => $range:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $t),*) -> $r {
            // SAFETY: the program's own arguments.
            #[allow(unused_unsafe)]
            unsafe {
                let ticket = begin($fd, || $range);
                let ret = next::$name($($arg),*);
                end(ticket, ret as isize);
                ret
            }
        }
    };
}

hook!(write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t, to fd => Range::Position);
hook!(__write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t, to fd => Range::Position);
hook!(writev(fd: c_int, v: *const iovec, n: c_int) -> ssize_t, to fd => Range::Position);
hook!(pwrite(fd: c_int, buf: *const c_void, len: size_t, offset: off_t) -> ssize_t, to fd => Range::At { offset, len });
hook!(pwrite64(fd: c_int, buf: *const c_void, len: size_t, offset: off_t) -> ssize_t, to fd => Range::At { offset, len });
hook!(__pwrite64(fd: c_int, buf: *const c_void, len: size_t, offset: off_t) -> ssize_t, to fd => Range::At { offset, len });
hook!(pwritev(fd: c_int, v: *const iovec, n: c_int, offset: off_t) -> ssize_t, to fd => vectors(v, n, offset));
hook!(pwritev64(fd: c_int, v: *const iovec, n: c_int, offset: off_t) -> ssize_t, to fd => vectors(v, n, offset));
hook!(pwritev2(fd: c_int, v: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t, to fd => flagged(v, n, offset, flags));
hook!(pwritev64v2(fd: c_int, v: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t, to fd => flagged(v, n, offset, flags));
hook!(ftruncate(fd: c_int, len: off_t) -> c_int, to fd => Range::All);
hook!(ftruncate64(fd: c_int, len: off_t) -> c_int, to fd => Range::All);
hook!(fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int, to fd => Range::All);
hook!(fallocate64(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int, to fd => Range::All);
hook!(posix_fallocate(fd: c_int, offset: off_t, len: off_t) -> c_int, to fd => Range::All);
hook!(posix_fallocate64(fd: c_int, offset: off_t, len: off_t) -> c_int, to fd => Range::All);
hook!(sendfile(to: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t, to to => Range::Position);
hook!(sendfile64(to: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t, to to => Range::Position);
hook!(splice(from: c_int, from_at: *mut off_t, to: c_int, at: *mut off_t, n: size_t, flags: c_uint) -> ssize_t, to to => pointed(at, n));
hook!(copy_file_range(from: c_int, from_at: *mut off_t, to: c_int, at: *mut off_t, n: size_t, flags: c_uint) -> ssize_t, to to => pointed(at, n));

// Any request may change content, as those of file systems do. The argument, if any, is an integer or a pointer:
// one register.
hook!(ioctl(fd: c_int, request: c_ulong, arg: usize) -> c_int, to fd => Range::All);
// They write inside libc. `print.rs` has the forms with any number of arguments.
hook!(vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int, to fd => Range::Position);
hook!(__vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: *mut c_void) -> c_int, to fd => Range::Position);

/// The numbers that [`by_call`] handles.
pub(super) const NUMBERS: [c_long; 13] = [
    libc::SYS_write,
    libc::SYS_pwrite64,
    libc::SYS_writev,
    libc::SYS_ioctl,
    libc::SYS_sendfile,
    libc::SYS_truncate,
    libc::SYS_ftruncate,
    libc::SYS_io_submit,
    libc::SYS_splice,
    libc::SYS_fallocate,
    libc::SYS_pwritev,
    libc::SYS_copy_file_range,
    libc::SYS_pwritev2,
];

/// The raw system calls, for programs that use syscall.
///
/// # Safety
/// The program's own arguments, of a call of [`NUMBERS`].
pub(super) unsafe fn by_call(n: c_long, a: [usize; 6]) -> c_long {
    // SAFETY: the program's own arguments.
    let real = || sys::libc_ret(unsafe { sys::raw(n, a) }) as c_long;
    // SAFETY: likewise.
    unsafe {
        match n {
            libc::SYS_io_submit => {
                if directory::announces_writes() {
                    guard(|| submitting(a[1] as c_long, a[2] as _));
                }
                real()
            }
            libc::SYS_truncate => {
                let (path, dir) = (a[0] as _, libc::AT_FDCWD);
                let before = guard(|| writers::emptying(dir, path, libc::O_TRUNC));
                let ret = real();
                guard(|| writers::truncated(before, dir, path));
                ret
            }
            _ => {
                let is_by_third = matches!(n, libc::SYS_splice | libc::SYS_copy_file_range);
                let ticket = begin(a[if is_by_third { 2 } else { 0 }] as c_int, || range_of(n, a));
                let ret = real();
                end(ticket, ret as isize);
                ret
            }
        }
    }
}

/// # Safety
/// As [`by_call`].
unsafe fn range_of(n: c_long, a: [usize; 6]) -> Range {
    // SAFETY: the caller's promise.
    unsafe {
        match n {
            libc::SYS_write | libc::SYS_writev | libc::SYS_sendfile => Range::Position,
            libc::SYS_pwrite64 => Range::At { offset: a[3] as off_t, len: a[2] },
            libc::SYS_pwritev => vectors(a[1] as _, a[2] as c_int, a[3] as off_t),
            libc::SYS_pwritev2 => flagged(a[1] as _, a[2] as c_int, a[3] as off_t, a[5] as c_int),
            libc::SYS_splice | libc::SYS_copy_file_range => pointed(a[3] as _, a[4]),
            _ => Range::All,
        }
    }
}

/// `struct iocb` of the kernel, up to the descriptor.
#[repr(C)]
struct Iocb {
    _data: [u64; 2],
    _opcode: u16,
    _priority: u16,
    fd: c_int,
}

/// Called before io_submit.
///
/// # Safety
/// `list` is the program's array of `n` pointers.
unsafe fn submitting(n: c_long, list: *const *const Iocb) {
    let Ok(n) = usize::try_from(n) else { return };
    if n == 0 {
        return;
    }
    let is_usable = |at: *const u8, n| !at.is_null() && buffer::is_readable(at, n);
    let Some(bytes) = n.checked_mul(size_of::<usize>()) else { return };
    if (list as usize).checked_add(bytes).is_none() || !is_usable(list.cast(), bytes) {
        return;
    }
    for i in 0..n {
        // SAFETY: just checked. The kernel refuses an entry that is not readable.
        unsafe {
            let entry = list.add(i).read();
            if is_usable(entry.cast(), size_of::<Iocb>()) {
                writers::hold_marked((*entry).fd, Until::Exit);
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn io_submit(context: *mut c_void, n: c_long, list: *mut *mut c_void) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        if directory::announces_writes() {
            guard(|| submitting(n, list.cast()));
        }
        next::io_submit(context, n, list)
    }
}

/// Called before asynchronous writes.
///
/// # Safety
/// Null, or a request of the program.
unsafe fn requested(request: *const aiocb) {
    // SAFETY: the caller's promise.
    if let Some(request) = unsafe { request.as_ref() } {
        writers::hold_marked(request.aio_fildes, Until::Exit);
    }
}

/// Defines hooks of aio_write and lio_listio.
macro_rules! aio_hooks {
    ($write:ident, $list:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $write(request: *mut aiocb) -> c_int {
            // SAFETY: the program's own argument.
            unsafe {
                if directory::announces_writes() {
                    guard(|| requested(request));
                }
                next::$write(request)
            }
        }
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $list(
            mode: c_int,
            list: *const *mut aiocb,
            n: c_int,
            event: *mut sigevent,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                if directory::announces_writes() && !list.is_null() {
                    guard(|| (0..n.max(0) as usize).for_each(|i| requested(list.add(i).read())));
                }
                next::$list(mode, list, n, event)
            }
        }
    };
}
aio_hooks!(aio_write, lio_listio);
aio_hooks!(aio_write64, lio_listio64);

/// Called before a message is sent. Descriptors in it go to a process that may not announce its writes.
///
/// # Safety
/// `message` is the program's.
unsafe fn sending(message: *const msghdr) {
    if message.is_null() || !buffer::is_readable(message.cast(), size_of::<msghdr>()) {
        return;
    }
    // SAFETY: just checked. The macros stay inside `msg_controllen`.
    unsafe {
        let (control, len) = ((*message).msg_control, (*message).msg_controllen);
        let is_usable = (control as usize).checked_add(len).is_some();
        if control.is_null() || len == 0 || !is_usable || !buffer::is_readable(control.cast(), len) {
            return;
        }
        let mut at = libc::CMSG_FIRSTHDR(message);
        while let Some(head) = at.as_ref() {
            if (head.cmsg_level, head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let rest = (control as usize + len).saturating_sub(libc::CMSG_DATA(at) as usize);
                let bytes = head.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize).min(rest);
                let fds = libc::CMSG_DATA(at).cast::<c_int>();
                (0..bytes / size_of::<c_int>()).for_each(|i| writers::give_up(fds.add(i).read_unaligned()));
            }
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmsg(s: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program's own arguments.
    unsafe {
        if directory::announces_writes() {
            guard(|| sending(message));
        }
        next::sendmsg(s, message, flags)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn sendmmsg(s: c_int, v: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        if directory::announces_writes() && !v.is_null() {
            guard(|| (0..n as usize).for_each(|i| sending(&raw const (*v.add(i)).msg_hdr)));
        }
        next::sendmmsg(s, v, n, flags)
    }
}
