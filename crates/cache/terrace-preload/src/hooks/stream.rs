//! Hooks of fopen and other calls of streams. Streams open, read and close their descriptors inside libc,
//! where hooks do not see it. Also truncate, which waits for a lease as an open for writing does.

use super::close::mine;
use super::guard::guard;
use crate::guarded::{self, Ticket};
use crate::lasting;
use crate::writers::{self, Emptied};
use crate::{directory, leased, next, sys, table};
use libc::{FILE, c_char, c_int, off_t};
use std::ffi::CStr;

/// Forgets a stream's descriptor: libc reads, closes and replaces it internally, where hooks do not see it.
/// Returns the announcement of the stream's writes, which ends after its last one.
///
/// # Safety
/// `stream` is null or the program's open stream.
unsafe fn forget_stream(stream: *mut FILE) -> Ticket {
    guard(|| {
        // SAFETY: the caller's promise.
        let Some(fd) = (unsafe { descriptor(stream) }) else { return Ticket::default() };
        table::forget(fd);
        lasting::take(fd).unwrap_or_default()
    })
}

/// # Safety
/// As [`forget_stream`].
unsafe fn descriptor(stream: *mut FILE) -> Option<c_int> {
    if stream.is_null() || !mine() {
        return None;
    }
    // SAFETY: the program's stream. fileno sets errno only for streams without descriptor; it is restored.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let fd = libc::fileno(stream);
        *errno = before;
        Some(fd)
    }
}

fn end(ticket: Ticket) {
    if ticket.is_announced() {
        guard(|| guarded::end(ticket, 0));
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: the program's own argument.
    unsafe {
        let ticket = forget_stream(stream);
        let ret = next::fclose(stream);
        end(ticket);
        ret
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    guard(|| {
        if mine() {
            table::dismiss(fd);
            // SAFETY: the program's own argument.
            if directory::announces_writes() && unsafe { writes(mode) } {
                writers::stream(fd);
            }
        }
    });
    // SAFETY: the program's own arguments.
    unsafe { next::fdopen(fd, mode) }
}

/// Announces that fopen empties a file.
///
/// # Safety
/// The program's own arguments.
unsafe fn opening(path: *const c_char, mode: *const c_char) -> Emptied {
    if !directory::announces_writes() || mode.is_null() {
        return Emptied::default();
    }
    // SAFETY: the caller's promise.
    guard(|| unsafe { writers::emptying(libc::AT_FDCWD, path, flags_of(mode)) })
}

/// Shows the daemon an open for writing; as [`writers::opening`].
///
/// # Safety
/// The program's own arguments.
unsafe fn shown(path: *const c_char, mode: *const c_char) -> bool {
    if !directory::is_guarded() || path.is_null() || mode.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    guard(|| unsafe { writes(mode) && writers::opening(libc::AT_FDCWD, path, libc::O_RDWR) })
}

fn shown_end(shown: bool) {
    if shown {
        guard(writers::opening_end);
    }
}

/// Announces the writes of a new stream.
///
/// # Safety
/// As [`opening`]. `stream` is null or a new stream.
unsafe fn opened(before: Emptied, mode: *const c_char, stream: *mut FILE) {
    if directory::announces_writes() && !mode.is_null() {
        // SAFETY: the caller's promise.
        guard(|| unsafe {
            let fd = descriptor(stream);
            writers::emptied(before, fd.unwrap_or(-1), flags_of(mode));
            fd.filter(|_| writes(mode)).map(writers::stream)
        });
    }
}

/// Flags of an open, if fopen with this mode empties the file.
///
/// # Safety
/// `mode` is a C string.
unsafe fn flags_of(mode: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    if unsafe { *mode } as u8 == b'w' { libc::O_TRUNC | libc::O_WRONLY } else { 0 }
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
                let before = opening(path, mode);
                let is_shown = shown(path, mode);
                let (mut stream, mut naps) = (next::$name(path, mode), 0);
                while stream.is_null()
                    && guard(|| {
                        writes(mode) && leased::waits_again(libc::AT_FDCWD, path, libc::O_RDWR, &mut naps)
                    })
                {
                    stream = next::$name(path, mode);
                }
                shown_end(is_shown);
                // Of a descriptor that was closed unseen.
                end(forget_stream(stream));
                opened(before, mode, stream);
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
                let ticket = forget_stream(stream);
                let emptied = opening(path, mode);
                let waits = || writes(mode) && leased::may_be_served(libc::AT_FDCWD, path);
                let before = guard(|| waits().then(sys::block_signals));
                let is_shown = shown(path, mode);
                let stream = next::$name(path, mode, stream);
                shown_end(is_shown);
                guard(|| before.map(sys::set_signals));
                end(ticket);
                opened(emptied, mode, stream);
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
                let emptied = match directory::announces_writes() {
                    true => guard(|| writers::emptying(libc::AT_FDCWD, path, libc::O_TRUNC)),
                    false => Emptied::default(),
                };
                let (mut ret, mut naps) = (next::$name(path, len), 0);
                while ret != 0
                    && guard(|| leased::waits_again(libc::AT_FDCWD, path, libc::O_WRONLY, &mut naps))
                {
                    ret = next::$name(path, len);
                }
                if directory::announces_writes() {
                    guard(|| writers::truncated(emptied, libc::AT_FDCWD, path));
                }
                ret
            }
        }
    };
}
truncate_hook!(truncate);
truncate_hook!(truncate64);
