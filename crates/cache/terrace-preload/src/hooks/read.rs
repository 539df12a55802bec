//! Hooks of read, pread, readv and their forms.

use super::guard::{caught, guard};
use crate::local::local;
use crate::sys::{self, Ret};
use crate::table::{self, Class};
use crate::{leased, next, read};
use libc::{c_int, c_void, iovec, off_t, size_t, ssize_t};
use terrace_shm::PAGE_SIZE;

unsafe extern "C-unwind" {
    /// A hit is a cancellation point, as the call that it replaces.
    fn pthread_testcancel();
}

/// The preload path's result for a classified descriptor.
///
/// # Safety
/// `serve` gets the program's arguments.
#[inline]
unsafe fn fast(
    fd: c_int,
    (at, n): (Option<u64>, usize),
    serve: impl FnOnce(Class) -> Option<Ret>,
) -> Option<ssize_t> {
    let Some(class) = table::get(fd) else {
        if table::is_candidate(fd) {
            guard(|| leased::consider(fd, at, n));
        }
        return None;
    };
    // SAFETY: may unwind; no destructor in this frame or its callers.
    unsafe { pthread_testcancel() };
    caught(|| serve(class)).map(sys::libc_ret)
}

/// The offset, unless negative.
fn offset_of(offset: off_t) -> Option<u64> {
    u64::try_from(offset).ok()
}

/// Defines a hook: name, arguments, offset and length, condition, and the preload path's function. For
/// vectors the length is set to a page: only its order of magnitude matters.
macro_rules! hook {
    ($name:ident($fd:ident: c_int $(, $arg:ident: $t:ty)*) at $at:expr, if $when:expr => $serve:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($fd: c_int $(, $arg: $t)*) -> ssize_t {
            /// The preload path's result, or the kernel's.
            #[inline(never)]
            unsafe extern "C-unwind" fn either($fd: c_int $(, $arg: $t)*) -> ssize_t {
                // SAFETY: the program's own arguments.
                unsafe {
                    if $when && let Some(ret) = fast($fd, $at, $serve) {
                        return ret;
                    }
                    next::$name($fd $(, $arg)*)
                }
            }
            // SAFETY: the program's own arguments.
            unsafe {
                // Such a thread could be cancelled in the middle of a copy (`guard.rs`).
                if local().is_cancelled_at_once() { next::$name($fd $(, $arg)*) } else { either($fd $(, $arg)*) }
            }
        }
    };
}

hook!(read(fd: c_int, buf: *mut c_void, n: size_t) at (None, n), if true => |c| read::read(fd, c, buf.cast(), n));
hook!(__read_chk(fd: c_int, buf: *mut c_void, n: size_t, max: size_t) at (None, n), if n <= max => |c| read::read(fd, c, buf.cast(), n));
hook!(readv(fd: c_int, v: *const iovec, n: c_int) at (None, PAGE_SIZE), if true => |c| read::readv(fd, c, v, n));
hook!(pread(fd: c_int, buf: *mut c_void, n: size_t, offset: off_t) at (offset_of(offset), n), if true => |c| read::pread(fd, c, buf.cast(), n, offset));
hook!(pread64(fd: c_int, buf: *mut c_void, n: size_t, offset: off_t) at (offset_of(offset), n), if true => |c| read::pread(fd, c, buf.cast(), n, offset));
hook!(__pread_chk(fd: c_int, buf: *mut c_void, n: size_t, offset: off_t, max: size_t) at (offset_of(offset), n), if n <= max
    => |c| read::pread(fd, c, buf.cast(), n, offset));
hook!(__pread64_chk(fd: c_int, buf: *mut c_void, n: size_t, offset: off_t, max: size_t) at (offset_of(offset), n), if n <= max
    => |c| read::pread(fd, c, buf.cast(), n, offset));
hook!(preadv(fd: c_int, v: *const iovec, n: c_int, offset: off_t) at (offset_of(offset), PAGE_SIZE), if true => |c| read::preadv(fd, c, v, n, offset));
hook!(preadv64(fd: c_int, v: *const iovec, n: c_int, offset: off_t) at (offset_of(offset), PAGE_SIZE), if true => |c| read::preadv(fd, c, v, n, offset));
// Flags change how a read may wait or fail, and offset -1 means the position: left to the kernel.
hook!(preadv2(fd: c_int, v: *const iovec, n: c_int, offset: off_t, flags: c_int) at (offset_of(offset), PAGE_SIZE), if flags == 0
    => |c| read::preadv(fd, c, v, n, offset));
hook!(preadv64v2(fd: c_int, v: *const iovec, n: c_int, offset: off_t, flags: c_int) at (offset_of(offset), PAGE_SIZE), if flags == 0
    => |c| read::preadv(fd, c, v, n, offset));
