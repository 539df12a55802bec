//! Hooks of fopen and other calls of streams. Streams open, read and close their descriptors inside libc,
//! where hooks do not see it. Also truncate, which waits for a lease as an open for writing does.

use super::close::mine;
use super::guard::guard;
use crate::{leased, next, sys, table};
use libc::{FILE, c_char, c_int, off_t};
use std::ffi::CStr;

/// Forgets a stream's descriptor: libc reads, closes and replaces it internally, where hooks do not see it.
///
/// # Safety
/// `stream` is null or the program's open stream.
unsafe fn forget_stream(stream: *mut FILE) {
    guard(|| {
        if !stream.is_null() && mine() {
            // SAFETY: the program's stream. fileno sets errno only for streams without descriptor; it is
            // restored.
            unsafe {
                let errno = libc::__errno_location();
                let before = *errno;
                table::forget(libc::fileno(stream));
                *errno = before;
            }
        }
    });
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: the program's own argument.
    unsafe {
        forget_stream(stream);
        next::fclose(stream)
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    guard(|| mine().then(|| table::forget(fd)));
    // SAFETY: the program's own arguments.
    unsafe { next::fdopen(fd, mode) }
}

/// Whether fopen with this mode opens for writing.
///
/// # Safety
/// `mode` is a C string.
unsafe fn writes(mode: *const c_char) -> bool {
    // SAFETY: the caller's promise. An encoding may follow a comma.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes().split(|&c| c == b',').next();
    mode.is_some_and(|mode| mode.iter().any(|c| b"wa+".contains(c)))
}

/// Defines hooks of fopen.
macro_rules! fopen_hook {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            // SAFETY: the program's own arguments.
            unsafe {
                let (mut stream, mut naps) = (next::$name(path, mode), 0);
                while stream.is_null()
                    && guard(|| {
                        writes(mode) && leased::waits_again(libc::AT_FDCWD, path, libc::O_RDWR, &mut naps)
                    })
                {
                    stream = next::$name(path, mode);
                }
                forget_stream(stream);
                stream
            }
        }
    };
}
fopen_hook!(fopen);
fopen_hook!(fopen64);

/// Defines hooks of freopen. freopen closes the stream before it opens the path. The call cannot be repeated,
/// so signals are blocked meanwhile.
macro_rules! freopen_hook {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            mode: *const c_char,
            stream: *mut FILE,
        ) -> *mut FILE {
            // SAFETY: the program's own arguments.
            unsafe {
                forget_stream(stream);
                let waits = || writes(mode) && leased::may_be_served(libc::AT_FDCWD, path);
                let before = guard(|| waits().then(sys::block_signals));
                let stream = next::$name(path, mode, stream);
                guard(|| before.map(sys::set_signals));
                stream
            }
        }
    };
}
freopen_hook!(freopen);
freopen_hook!(freopen64);

/// Defines hooks of truncate.
macro_rules! truncate_hook {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(path: *const c_char, len: off_t) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                let (mut ret, mut naps) = (next::$name(path, len), 0);
                while ret != 0
                    && guard(|| leased::waits_again(libc::AT_FDCWD, path, libc::O_WRONLY, &mut naps))
                {
                    ret = next::$name(path, len);
                }
                ret
            }
        }
    };
}
truncate_hook!(truncate);
truncate_hook!(truncate64);
