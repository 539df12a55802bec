//! open and its forms: the only place where descriptors are classified.

use super::guard;
use crate::local::local;
use crate::{door, next, sys, table};
use libc::{c_char, c_int, mode_t};

/// Opens whose descriptors are never read through us: no content, not for reading, or not through a cache.
const NOT_OURS: c_int = libc::O_PATH | libc::O_DIRECTORY | libc::O_DIRECT;

/// Looks at a descriptor that an open has just made. Leaves errno alone: all calls are raw.
fn opened(fd: c_int, flags: c_int) {
    if fd < 0 || local().vforked() {
        return;
    }
    table::forget(fd);
    let Some(dev) = door::mount_dev() else { return };
    let readable = matches!(flags & libc::O_ACCMODE, libc::O_RDONLY | libc::O_RDWR);
    if flags & NOT_OURS != 0 || !readable {
        return;
    }
    let Some((id, kind)) = sys::identity(fd) else { return };
    if id.dev != dev || kind != libc::S_IFREG {
        return;
    }
    if !door::is_registered() {
        if !door::register(true) {
            // Not now; a process that was registered before its fork still has the segment.
            return classify(fd, id.ino);
        }
        reopen(fd, flags);
    }
    classify(fd, id.ino);
}

fn classify(fd: c_int, ino: u64) {
    if let Some(slot) = door::world().and_then(|w| w.segment.find_object(ino)) {
        table::classify(fd, slot);
    }
}

/// The first open was an ordinary program's, whose file the kernel caches as well. Open it again as a client's. If that
/// fails (the file's mode may not allow a second open), the first one serves.
fn reopen(fd: c_int, flags: c_int) {
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        return;
    }
    let once = libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_NOFOLLOW;
    let path = proc_path(fd);
    let flags = (flags & !once) | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated path of this frame.
    let again = unsafe {
        sys::raw(libc::SYS_openat, [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0])
    };
    if again < 0 {
        return;
    }
    let cloexec =
        if sys::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC as isize != 0 { libc::O_CLOEXEC } else { 0 };
    // SAFETY: both are descriptors of this open, which the program does not know yet.
    unsafe { sys::raw(libc::SYS_dup3, [again as usize, fd as usize, cloexec as usize, 0, 0, 0]) };
    sys::close(again as c_int);
}

/// "/proc/self/fd/N" without allocation.
fn proc_path(fd: c_int) -> [u8; 32] {
    const PREFIX: &[u8] = b"/proc/self/fd/";
    let mut path = [0; 32];
    path[..PREFIX.len()].copy_from_slice(PREFIX);
    let (mut digits, mut len, mut left) = ([0_u8; 10], 0, fd as u32);
    while len == 0 || left > 0 {
        digits[len] = b'0' + (left % 10) as u8;
        left /= 10;
        len += 1;
    }
    for (i, d) in digits[..len].iter().rev().enumerate() {
        path[PREFIX.len() + i] = *d;
    }
    path
}

/// Defines a hook. Third and fourth arguments are fixed: on x86-64 and aarch64 a variadic caller passes them in the same
/// registers, and the real function ignores a mode that it does not need.
macro_rules! hook {
    ($name:ident($($arg:ident: $t:ty),*) flags $flags:expr) => {
        /// See open(2).
        ///
        /// # Safety
        /// As the function of that name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $t),*) -> c_int {
            // SAFETY: the program's own arguments.
            let fd = unsafe { next::$name($($arg),*) };
            guard(|| opened(fd, $flags));
            fd
        }
    };
}

hook!(open(path: *const c_char, flags: c_int, mode: mode_t) flags flags);
hook!(open64(path: *const c_char, flags: c_int, mode: mode_t) flags flags);
hook!(openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) flags flags);
hook!(openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) flags flags);
hook!(creat(path: *const c_char, mode: mode_t) flags libc::O_WRONLY);
hook!(creat64(path: *const c_char, mode: mode_t) flags libc::O_WRONLY);
hook!(__open_2(path: *const c_char, flags: c_int) flags flags);
hook!(__open64_2(path: *const c_char, flags: c_int) flags flags);
hook!(__openat_2(dir: c_int, path: *const c_char, flags: c_int) flags flags);
hook!(__openat64_2(dir: c_int, path: *const c_char, flags: c_int) flags flags);
