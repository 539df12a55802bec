//! Hooks of close, dup, fcntl, close_range and their forms: calls that change the meaning of a descriptor
//! number.
//!
//! The entry is forgotten before the real call: once that has returned, another thread may own the number.
//! The real call is libc's function, or the raw system call where the program used syscall
//! ([`super::process`]). An interposer that uses syscall would otherwise recurse for ever.

use super::guard::guard;
use crate::guarded::{self, Range, Ticket};
use crate::local::local;
use crate::{closing, helper, lasting, next, sys, table, writers};
use libc::{c_int, c_uint};

/// False in a vfork child: the table is its parent's.
pub(super) fn mine() -> bool {
    !local().vforked()
}

fn refuse(errno: c_int) -> c_int {
    sys::libc_ret(-(errno as isize)) as c_int
}

/// A close. For a descriptor of the library it returns EBADF.
#[inline]
pub(super) fn close_by(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let refused = guard(|| {
        if !mine() {
            return false;
        }
        lasting::close(fd);
        !helper::may_close(fd)
    });
    if refused {
        return refuse(libc::EBADF);
    }
    call()
}

/// Defines close under its names.
macro_rules! close_hook {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int) -> c_int {
            // SAFETY: the program's own argument.
            close_by(fd, || unsafe { next::$name(fd) })
        }
    };
}
close_hook!(close);
close_hook!(__close);

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn dup(old: c_int) -> c_int {
    // SAFETY: the program's own argument.
    dup_by(old, || unsafe { next::dup(old) })
}

pub(super) fn dup_by(old: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let new = call();
    duplicated(old, new);
    new
}

#[inline]
pub(super) fn dup_to_by(old: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let tickets = guard(|| replacing(old, new));
    replaced(old, new);
    let ret = call();
    match ret {
        0.. if old != new => guard(|| mine().then(|| lasting::close(new))),
        // `new` is still open.
        ..0 => guard(|| mine().then(|| writers::find(new))),
        _ => None,
    };
    duplicated(old, ret);
    for ticket in tickets.into_iter().filter(Ticket::is_announced) {
        guard(|| guarded::end(ticket, 0));
    }
    ret
}

/// Announces changes of both files. Other threads may write by `new` before it is marked.
fn replacing(old: c_int, new: c_int) -> [Ticket; 2] {
    if old == new || !mine() {
        return Default::default();
    }
    [old, new].map(|fd| {
        let writer = table::writer(fd);
        writer.map_or(Ticket::default(), |writer| guarded::begin(fd, writer, Range::All))
    })
}

fn duplicated(old: c_int, new: c_int) {
    guard(|| {
        if new >= 0 && mine() {
            table::duplicate(old, new);
            writers::duplicated(old, new);
        }
    });
}

/// Forgets the target of a dup2, which is closed silently. A descriptor of the library becomes the program's.
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
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(old: c_int, new: c_int) -> c_int {
            // SAFETY: the program's own arguments.
            dup_to_by(old, new, || unsafe { next::$name(old, new) })
        }
    };
}
dup2_hook!(dup2);
dup2_hook!(__dup2);

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    // SAFETY: the program's own arguments.
    dup_to_by(old, new, || unsafe { next::dup3(old, new, flags) })
}

fn before_fcntl(fd: c_int, op: c_int, arg: usize) {
    if op != libc::F_SETFL {
        return;
    }
    // Reads of a descriptor that switches to direct I/O follow other rules.
    if arg as c_int & libc::O_DIRECT != 0 {
        guard(|| mine().then(|| table::dismiss(fd)));
    }
    if arg as c_int & libc::O_APPEND != 0 {
        guard(|| mine().then(|| table::note_append(fd, true)));
    }
}

fn after_fcntl(fd: c_int, op: c_int, arg: usize, ret: c_int) {
    if op == libc::F_SETFL && ret == 0 && arg as c_int & libc::O_APPEND == 0 {
        guard(|| mine().then(|| table::note_append(fd, false)));
    }
    if matches!(op, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        duplicated(fd, ret);
    }
}

#[inline]
pub(super) fn fcntl_by(fd: c_int, op: c_int, arg: usize, call: impl FnOnce() -> c_int) -> c_int {
    before_fcntl(fd, op, arg);
    let ret = call();
    after_fcntl(fd, op, arg, ret);
    ret
}

/// Defines fcntl under its names. The argument, if any, is an integer or a pointer: one register.
macro_rules! fcntl_hook {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(fd: c_int, op: c_int, arg: usize) -> c_int {
            // SAFETY: the program's own arguments.
            fcntl_by(fd, op, arg, || unsafe { next::$name(fd, op, arg) })
        }
    };
}
fcntl_hook!(fcntl);
fcntl_hook!(fcntl64);
fcntl_hook!(__fcntl);

/// The library's descriptors stay open.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: the program's own arguments.
    close_range_by(first, last, flags, |a, b| unsafe { next::close_range(a, b, flags) })
}

/// A close_range, in pieces around the library's descriptors.
pub(super) fn close_range_by(
    first: c_uint,
    last: c_uint,
    flags: c_int,
    call: impl Fn(c_uint, c_uint) -> c_int,
) -> c_int {
    const KNOWN: c_uint = libc::CLOSE_RANGE_UNSHARE | libc::CLOSE_RANGE_CLOEXEC;
    let whole = guard(|| {
        if flags as c_uint & !KNOWN != 0 {
            return true;
        }
        if flags & libc::CLOSE_RANGE_UNSHARE as c_int != 0 {
            // From here on this thread has a table of descriptors of its own.
            closing::turn_off();
        }
        if !mine() || flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0 || first > last {
            return true;
        }
        is_free(first, last)
    });
    let ret = if whole { call(first, last) } else { gaps(first, last, call) };
    if ret != 0 {
        // The descriptors are still open.
        guard(|| mine().then(writers::find_all));
    }
    ret
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn closefrom(low: c_int) {
    let first = low.max(0) as c_uint;
    let whole = guard(|| !mine() || is_free(first, c_uint::MAX));
    // SAFETY: the program's own argument.
    unsafe {
        if whole || gaps(first, c_uint::MAX, |a, b| next::close_range(a, b, 0)) != 0 {
            next::closefrom(low);
        }
    }
}

/// Forgets a range that is closed. True if no descriptor of the library is in it.
fn is_free(first: c_uint, last: c_uint) -> bool {
    table::forget_range(first, last);
    lasting::close_range(first, last);
    helper::within(first, last).next().is_none()
}

/// Calls `f` for the ranges between the library's descriptors.
fn gaps(first: c_uint, last: c_uint, mut f: impl FnMut(c_uint, c_uint) -> c_int) -> c_int {
    let mut from = first;
    for helper in helper::within(first, last) {
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
