//! Hooks of open and its forms: they register the process if worthwhile, and classify new descriptors.
//! Without a mount, [`crate::leased`] classifies them at later reads.

use super::guard::guard;
use crate::local::local;
use crate::writers::Emptied;
use crate::{buffer, connection, directory, lasting, leased, next, sys, table, writers};
use libc::{c_char, c_int, c_long, c_uint, c_void, mode_t, size_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};
use terrace_shm::scratch::Scratch;

/// Opens with descriptors that the library never reads: without content, or of a mount that answers direct reads
/// itself.
const NOT_OURS: c_int = libc::O_PATH | libc::O_DIRECTORY;
const NOT_OURS_BY_MOUNT: c_int = NOT_OURS | libc::O_DIRECT;

/// Flags of creat.
const CREAT: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

/// Classifies a descriptor that an open has just made. Leaves errno alone: all calls are raw.
fn opened(fd: c_int, flags: c_int) {
    if fd < 0 || local().vforked() {
        return;
    }
    table::forget(fd);
    lasting::close(fd);
    if directory::announces_writes() {
        return writers::opened(fd, flags);
    }
    let Some(dev) = connection::mount_dev() else { return };
    if directory::is_leased() {
        if flags & libc::O_ACCMODE == libc::O_RDONLY {
            if flags & libc::O_TRUNC != 0 {
                leased::truncated(fd, dev);
            }
            if flags & NOT_OURS == 0 {
                leased::opened(fd, dev, flags & libc::O_DIRECT != 0);
            }
        }
        return;
    }
    // Files opened before the process was a client are cached by the kernel.
    if !is_ours(flags) || !connection::is_registered() {
        return;
    }
    let Some((id, kind)) = sys::identity(fd) else { return };
    if id.dev == dev && kind == libc::S_IFREG {
        classify(fd, id.ino);
    }
}

/// Called before an open. If the open makes registration worthwhile, the process becomes a client first: the
/// kernel caches files opened by non-clients. A second open afterwards does harm: the first descriptor's
/// close drops the process's POSIX locks and is visible to inotify. A process that uses no file of the mount
/// pays for one statx only.
///
/// # Safety
/// `path` is the program's.
unsafe fn opening(dir: c_int, path: *const c_char, flags: c_int) {
    let Some(dev) = connection::mount_dev() else { return };
    if directory::is_leased() || connection::is_registered() || !is_ours(flags) || local().vforked() {
        return;
    }
    let follow = if flags & libc::O_NOFOLLOW != 0 { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
    // SAFETY: the kernel checks the path.
    let size = match unsafe { sys::identity_at(dir, path, follow) } {
        Ok((id, kind, size)) => (id.dev == dev && kind == libc::S_IFREG).then_some(size),
        Err(e) if e == -(libc::ENOENT as isize) && flags & libc::O_CREAT != 0 => {
            // SAFETY: the kernel has just read the path to its end.
            unsafe { parent(dir, path) }.filter(|id| id.dev == dev).map(|_| 0)
        }
        Err(_) => None,
    };
    if size.is_some_and(|size| is_worth_registering(size, flags)) {
        connection::register(true);
    }
}

/// Opens for reading and writing after which registration is worthwhile.
const WRITES_MIN: u32 = 32;

/// Registration costs as much as reads of a few hundred pages. A process with small or few reads never
/// regains that: the kernel's page cache serves it as well. A file changed in place mostly belongs to a
/// database, and all its openers should be clients. While one of them is not, the others use the mount path.
fn is_worth_registering(size: u64, flags: c_int) -> bool {
    static WRITES: AtomicU32 = AtomicU32::new(0);
    let changes = flags & libc::O_ACCMODE == libc::O_RDWR;
    let large = connection::large_file();
    if size >= large && (flags & libc::O_TRUNC == 0 || large == 0) {
        return true;
    }
    if !changes {
        return false;
    }
    let in_place = size > 0 && flags & (libc::O_TRUNC | libc::O_EXCL) == 0;
    in_place || WRITES.fetch_add(1, Ordering::Relaxed) + 1 >= WRITES_MIN
}

/// The directory of a path's last name.
///
/// # Safety
/// `path` is a C string.
unsafe fn parent(dir: c_int, path: *const c_char) -> Option<sys::Identity> {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let len = path.iter().rposition(|&c| c == b'/').map_or(0, |slash| slash + 1);
    // "name" is in ".", "/name" in "/", "a/name" in "a/".
    let mut scratch = Scratch::take()?;
    let (_, name) = scratch.pages();
    name[0] = b'.';
    if len + 1 >= name.len() {
        return None;
    }
    name[..len].copy_from_slice(&path[..len]);
    name[len.max(1)] = 0;
    // SAFETY: a C string.
    unsafe { sys::identity_at(dir, name.as_ptr().cast(), 0) }.ok().map(|(id, ..)| id)
}

/// Announces that an open empties a file.
///
/// # Safety
/// As [`opening`].
#[inline]
unsafe fn emptying(dir: c_int, path: *const c_char, flags: c_int) -> Emptied {
    if !directory::announces_writes() {
        return Emptied::default();
    }
    // SAFETY: the caller's promise.
    guard(|| unsafe { writers::emptying(dir, path, flags) })
}

/// True for opens with descriptors of a mount that the library may read.
fn is_ours(flags: c_int) -> bool {
    flags & NOT_OURS_BY_MOUNT == 0 && matches!(flags & libc::O_ACCMODE, libc::O_RDONLY | libc::O_RDWR)
}

fn classify(fd: c_int, ino: u64) {
    if let Some(slot) = connection::world().and_then(|w| w.segment.find_object(ino)) {
        table::classify(fd, ino, slot);
    }
}

/// Defines a hook. Third and fourth arguments are fixed: variadic callers use the same registers, and the
/// real function ignores an unneeded mode.
macro_rules! hook {
    ($name:ident($($arg:ident: $t:ty),*) at $dir:expr, $path:expr, flags $flags:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $t),*) -> c_int {
            // SAFETY: the program's own arguments.
            let fd = unsafe {
                guard(|| opening($dir, $path, $flags));
                let emptied = emptying($dir, $path, $flags);
                let shown = directory::is_guarded() && guard(|| writers::opening($dir, $path, $flags));
                let mut fd = next::$name($($arg),*);
                let mut naps = 0;
                while fd < 0 && guard(|| leased::waits_again($dir, $path, $flags, &mut naps)) {
                    fd = next::$name($($arg),*);
                }
                if shown {
                    guard(writers::opening_end);
                }
                if directory::announces_writes() {
                    guard(|| writers::emptied(emptied, fd, $flags));
                }
                fd
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
hook!(creat(path: *const c_char, mode: mode_t) at libc::AT_FDCWD, path, flags CREAT);
hook!(creat64(path: *const c_char, mode: mode_t) at libc::AT_FDCWD, path, flags CREAT);
hook!(__open_2(path: *const c_char, flags: c_int) at libc::AT_FDCWD, path, flags flags);
hook!(__open64_2(path: *const c_char, flags: c_int) at libc::AT_FDCWD, path, flags flags);
hook!(__openat_2(dir: c_int, path: *const c_char, flags: c_int) at dir, path, flags flags);
hook!(__openat64_2(dir: c_int, path: *const c_char, flags: c_int) at dir, path, flags flags);

/// Defines hooks of mkstemp and its forms, which open a new file.
macro_rules! temporary_hook {
    ($name:ident($($arg:ident: $t:ty),*), flags $flags:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $t),*) -> c_int {
            // SAFETY: the program's own arguments.
            let fd = unsafe { next::$name($($arg),*) };
            if directory::announces_writes() {
                guard(|| opened(fd, libc::O_RDWR | $flags));
            }
            fd
        }
    };
}

temporary_hook!(mkstemp(path: *mut c_char), flags 0);
temporary_hook!(mkstemp64(path: *mut c_char), flags 0);
temporary_hook!(mkostemp(path: *mut c_char, flags: c_int), flags flags);
temporary_hook!(mkostemp64(path: *mut c_char, flags: c_int), flags flags);
temporary_hook!(mkstemps(path: *mut c_char, suffix: c_int), flags 0);
temporary_hook!(mkstemps64(path: *mut c_char, suffix: c_int), flags 0);
temporary_hook!(mkostemps(path: *mut c_char, suffix: c_int, flags: c_int), flags flags);
temporary_hook!(mkostemps64(path: *mut c_char, suffix: c_int, flags: c_int), flags flags);

/// Flags of `struct open_how`. None: the kernel refuses it.
fn flags_of(how: *const c_void) -> Option<c_int> {
    if how.is_null() || !buffer::is_readable(how.cast(), size_of::<u64>()) {
        return None;
    }
    // SAFETY: just checked.
    Some(unsafe { how.cast::<u64>().read_unaligned() } as c_int)
}

/// Defines hooks of calls that make a descriptor of any file. None: the flags are not known.
macro_rules! rare_hook {
    ($name:ident($($arg:ident: $t:ty),*), flags $flags:expr) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($arg: $t),*) -> c_int {
            // SAFETY: the program's own arguments.
            let fd = unsafe {
                let shown = guard(writers::opening_any);
                let fd = next::$name($($arg),*);
                if shown {
                    guard(writers::opening_end);
                }
                fd
            };
            if directory::announces_writes() {
                guard(|| writers::made(fd, $flags));
            }
            fd
        }
    };
}

rare_hook!(openat2(dir: c_int, path: *const c_char, how: *const c_void, n: size_t), flags flags_of(how));
rare_hook!(open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int), flags Some(flags));
rare_hook!(pidfd_getfd(pid: c_int, fd: c_int, flags: c_uint), flags Some(0));

/// The numbers that [`by_call`] handles.
pub(super) const NUMBERS: [c_long; 6] = [
    libc::SYS_open,
    libc::SYS_creat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_open_by_handle_at,
    libc::SYS_pidfd_getfd,
];

/// The raw system calls, for programs that use syscall. The file is announced after the call, before the program
/// knows that the call has emptied it.
///
/// # Safety
/// The program's own arguments, of a call of [`NUMBERS`].
pub(super) unsafe fn by_call(n: c_long, a: [usize; 6]) -> c_long {
    let shown = guard(writers::opening_any);
    // SAFETY: the program's own arguments.
    let fd = sys::libc_ret(unsafe { sys::raw(n, a) });
    if shown {
        guard(writers::opening_end);
    }
    if directory::announces_writes() {
        let flags = || match n {
            libc::SYS_open => Some(a[1] as c_int),
            libc::SYS_creat => Some(CREAT),
            libc::SYS_openat | libc::SYS_open_by_handle_at => Some(a[2] as c_int),
            libc::SYS_openat2 => flags_of(a[2] as _),
            _ => Some(0),
        };
        guard(|| writers::made(fd as c_int, flags()));
    }
    fd as c_long
}
