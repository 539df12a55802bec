//! Everything that changes what a descriptor number means.
//!
//! Forget first, then make the real call: once it has returned, another thread may own the number.

use super::guard::guard;
use crate::local::local;
use crate::{connection, direct, directory, next, source, sys, table};
use libc::{FILE, c_char, c_int, c_uint, off_t};

/// The table belongs to the parent while a vfork child runs.
fn mine() -> bool {
    !local().vforked()
}

fn refuse(errno: c_int) -> c_int {
    sys::libc_ret(-(errno as isize)) as c_int
}

/// The program is about to close a descriptor. False for one of ours.
fn closes(fd: c_int) -> bool {
    if directory::is_leased() {
        table::known_object(fd).into_iter().for_each(source::closes);
    }
    table::may_close(fd)
}

/// The same of all in a range.
fn closes_range(first: c_uint, last: c_uint) {
    if directory::is_leased() {
        table::objects(first, last).for_each(source::closes);
    }
    table::forget_range(first, last);
}

/// Defines close under its names.
macro_rules! close_hook {
    ($name:ident) => {
        /// See close(2). A descriptor of ours is none of the program's: EBADF.
        ///
        /// # Safety
        /// As close.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int) -> c_int {
            if guard(|| mine() && !closes(fd)) {
                return refuse(libc::EBADF);
            }
            // SAFETY: the program's own argument.
            unsafe { next::$name(fd) }
        }
    };
}
close_hook!(close);
close_hook!(__close);

/// See dup(2).
///
/// # Safety
/// As dup.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(old: c_int) -> c_int {
    // SAFETY: the program's own argument.
    let new = unsafe { next::dup(old) };
    duplicated(old, new);
    new
}

fn duplicated(old: c_int, new: c_int) {
    guard(|| {
        if new >= 0 && mine() {
            table::duplicate(old, new);
        }
    });
}

/// The target of dup2 is closed silently; one of ours is then the program's.
fn replaced(old: c_int, new: c_int) {
    guard(|| {
        if old != new && mine() {
            table::forget(new);
        }
    });
}

/// Defines dup2 under its names.
macro_rules! dup2_hook {
    ($name:ident) => {
        /// See dup2(2).
        ///
        /// # Safety
        /// As dup2.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(old: c_int, new: c_int) -> c_int {
            replaced(old, new);
            // SAFETY: the program's own arguments.
            let ret = unsafe { next::$name(old, new) };
            duplicated(old, ret);
            ret
        }
    };
}
dup2_hook!(dup2);
dup2_hook!(__dup2);

/// See dup3(2).
///
/// # Safety
/// As dup3.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    replaced(old, new);
    // SAFETY: the program's own arguments.
    let ret = unsafe { next::dup3(old, new, flags) };
    duplicated(old, ret);
    ret
}

/// Asks for a lock that ends when any descriptor of the file is closed.
fn locks(op: c_int) -> bool {
    matches!(op, libc::F_SETLK | libc::F_SETLKW) && directory::is_leased()
}

fn before_fcntl(fd: c_int, op: c_int, arg: usize) {
    if locks(op) {
        guard(direct::locking);
    }
    // A descriptor that turns to direct I/O has rules of its own.
    if op == libc::F_SETFL && arg as c_int & libc::O_DIRECT != 0 {
        guard(|| mine().then(|| table::forget(fd)));
    }
}

fn after_fcntl(fd: c_int, op: c_int, ret: c_int) {
    if locks(op) {
        guard(direct::locked);
    }
    if matches!(op, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        duplicated(fd, ret);
    }
}

/// Defines fcntl under its names. The argument, if there is one, is an integer or a pointer: one register.
macro_rules! fcntl_hook {
    ($name:ident) => {
        /// See fcntl(2).
        ///
        /// # Safety
        /// As fcntl.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, op: c_int, arg: usize) -> c_int {
            before_fcntl(fd, op, arg);
            // SAFETY: the program's own arguments.
            let ret = unsafe { next::$name(fd, op, arg) };
            after_fcntl(fd, op, ret);
            ret
        }
    };
}
fcntl_hook!(fcntl);
fcntl_hook!(fcntl64);
fcntl_hook!(__fcntl);

/// Defines lockf under its names: it asks inside libc for the same locks.
macro_rules! lockf_hook {
    ($name:ident) => {
        /// See lockf(3).
        ///
        /// # Safety
        /// As lockf.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, op: c_int, len: off_t) -> c_int {
            before_fcntl(fd, libc::F_SETLK, 0);
            // SAFETY: the program's own arguments.
            let ret = unsafe { next::$name(fd, op, len) };
            after_fcntl(fd, libc::F_SETLK, ret);
            ret
        }
    };
}
lockf_hook!(lockf);
lockf_hook!(lockf64);

/// A stream reads, and one day closes or replaces, its descriptor inside libc, where we do not see it.
///
/// # Safety
/// `stream` is null or the program's open stream.
unsafe fn forget_stream(stream: *mut FILE) {
    guard(|| {
        if !stream.is_null() && mine() {
            // SAFETY: the program's stream. fileno sets errno only for streams without descriptor, and is put back.
            unsafe {
                let errno = libc::__errno_location();
                let before = *errno;
                table::forget(libc::fileno(stream));
                *errno = before;
            }
        }
    });
}

/// See fclose(3).
///
/// # Safety
/// As fclose.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: the program's own argument.
    unsafe {
        forget_stream(stream);
        next::fclose(stream)
    }
}

/// See fdopen(3).
///
/// # Safety
/// As fdopen.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    guard(|| mine().then(|| table::forget(fd)));
    // SAFETY: the program's own arguments.
    unsafe { next::fdopen(fd, mode) }
}

/// See freopen(3).
///
/// # Safety
/// As freopen.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn freopen(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // SAFETY: the program's own arguments.
    unsafe {
        forget_stream(stream);
        next::freopen(path, mode, stream)
    }
}

/// See freopen(3).
///
/// # Safety
/// As freopen64.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn freopen64(
    path: *const c_char,
    mode: *const c_char,
    stream: *mut FILE,
) -> *mut FILE {
    // SAFETY: the program's own arguments.
    unsafe {
        forget_stream(stream);
        next::freopen64(path, mode, stream)
    }
}

/// See close_range(2). Descriptors of ours are left out.
///
/// # Safety
/// As close_range.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let whole = guard(|| {
        if flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0 {
            // From here on this thread's numbers mean something of their own.
            connection::turn_off();
        }
        if !mine() || flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0 || first > last {
            return true;
        }
        closes_range(first, last);
        table::helpers(first, last).next().is_none()
    });
    // SAFETY: the program's own arguments.
    unsafe {
        if whole {
            return next::close_range(first, last, flags);
        }
        gaps(first, last, |a, b| next::close_range(a, b, flags))
    }
}

/// See closefrom(3).
///
/// # Safety
/// As closefrom.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(low: c_int) {
    let first = low.max(0) as c_uint;
    let whole = guard(|| {
        if !mine() {
            return true;
        }
        closes_range(first, c_uint::MAX);
        table::helpers(first, c_uint::MAX).next().is_none()
    });
    // SAFETY: the program's own argument.
    unsafe {
        if whole || gaps(first, c_uint::MAX, |a, b| next::close_range(a, b, 0)) != 0 {
            next::closefrom(low);
        }
    }
}

/// Calls `f` for what lies between our descriptors.
fn gaps(first: c_uint, last: c_uint, mut f: impl FnMut(c_uint, c_uint) -> c_int) -> c_int {
    let mut from = first;
    for helper in table::helpers(first, last) {
        if helper > from {
            let ret = f(from, helper - 1);
            if ret != 0 {
                return ret;
            }
        }
        from = helper + 1;
    }
    if from <= last { f(from, last) } else { 0 }
}
