//! The real functions behind the hooks: the next definition in the program's search order, which may be
//! another interposer.
//!
//! Each is looked up at its first call (docs/design/preload.md). Calls before the library's start (other
//! libraries' constructors, an allocator's start) go to the kernel directly.

use crate::{symbols, sys};
use libc::{
    FILE, aiocb, c_int, c_long, c_uint, c_ulong, c_void, iovec, mmsghdr, mode_t, msghdr, off_t, pid_t,
    sigevent, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};
use std::ffi::{CStr, c_char};
use std::mem::transmute;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Defines for each function an atomic pointer, and a call through it. "C-unwind": these are cancellation
/// points, and glibc cancels a thread by unwinding it.
macro_rules! next {
    ($pointers:ident: $($name:ident($($arg:ident: $t:ty),*) -> $r:ty = $early:expr;)*) => {
        #[allow(non_upper_case_globals)]
        mod $pointers {
            use super::*;
            $(pub(crate) static $name: AtomicUsize = AtomicUsize::new(0);)*
        }
        $(
            #[inline]
            #[allow(non_snake_case)]
            pub(crate) unsafe fn $name($($arg: $t),*) -> $r {
                let mut p = $pointers::$name.load(Ordering::Relaxed);
                if p == 0 {
                    p = find(concat!(stringify!($name), "\0"), &$pointers::$name);
                }
                if p == 0 {
                    // SAFETY: the program's own arguments.
                    #[allow(clippy::redundant_closure_call, unused_unsafe)]
                    return unsafe { ($early)($($arg),*) };
                }
                // SAFETY: dlsym returned this address for this name, and the type is the name's C prototype.
                unsafe { transmute::<usize, unsafe extern "C-unwind" fn($($t),*) -> $r>(p)($($arg),*) }
            }
        )*
    };
}

static STARTED: AtomicBool = AtomicBool::new(false);

/// Enables look-ups.
pub(crate) fn start() {
    STARTED.store(true, Ordering::Relaxed);
}

/// Looks a function up. 0: it does not exist, or the library has not started.
#[cold]
#[inline(never)]
fn find(name: &str, to: &AtomicUsize) -> usize {
    if !STARTED.load(Ordering::Relaxed) {
        return 0;
    }
    let p = symbols::next(c_name(name)).unwrap_or(0);
    to.store(p, Ordering::Relaxed);
    p
}

fn c_name(name: &str) -> &CStr {
    CStr::from_bytes_with_nul(name.as_bytes()).expect("macro adds the NUL")
}

/// Functions that exist in libraries only, as for streams and io_uring: no system call can replace them. The
/// loader looks up functions called before the library's start, and those of libraries loaded later. The
/// value behind `=` replaces a missing function's result.
macro_rules! library {
    ($($name:ident($($arg:ident: $t:ty),*) -> $r:ty = $none:expr;)*) => {
        next! {
            library_pointer:
            $($name($($arg: $t),*) -> $r = |$($arg: $t),*| {
                if found(concat!(stringify!($name), "\0"), &library_pointer::$name) { $name($($arg),*) } else { $none }
            };)*
        }
    };
}

fn found(name: &str, to: &AtomicUsize) -> bool {
    to.store(symbols::by_loader(c_name(name)).unwrap_or(0), Ordering::Relaxed);
    to.load(Ordering::Relaxed) != 0
}

/// A raw system call with errors as libc returns them.
macro_rules! call {
    ($n:ident $(, $a:expr)*) => {{
        let given: &[usize] = &[$($a as usize),*];
        let mut args = [0; 6];
        args[..given.len()].copy_from_slice(given);
        // SAFETY: the program's own arguments, for the call that it made.
        sys::libc_ret(unsafe { sys::raw(libc::$n, args) })
    }};
}

type Strings = *const *const c_char;

const CWD: c_int = libc::AT_FDCWD;

next! {
    pointer:
    open(p: *const c_char, f: c_int, m: mode_t) -> c_int = |p, f, m| call!(SYS_openat, CWD, p, f, m) as c_int;
    open64(p: *const c_char, f: c_int, m: mode_t) -> c_int = |p, f, m| call!(SYS_openat, CWD, p, f, m) as c_int;
    __open(p: *const c_char, f: c_int, m: mode_t) -> c_int = |p, f, m| call!(SYS_openat, CWD, p, f, m) as c_int;
    __open64(p: *const c_char, f: c_int, m: mode_t) -> c_int = |p, f, m| call!(SYS_openat, CWD, p, f, m) as c_int;
    openat(d: c_int, p: *const c_char, f: c_int, m: mode_t) -> c_int = |d, p, f, m| call!(SYS_openat, d, p, f, m) as c_int;
    openat64(d: c_int, p: *const c_char, f: c_int, m: mode_t) -> c_int = |d, p, f, m| call!(SYS_openat, d, p, f, m) as c_int;
    creat(p: *const c_char, m: mode_t) -> c_int = |p, m| call!(SYS_openat, CWD, p, CREAT, m) as c_int;
    creat64(p: *const c_char, m: mode_t) -> c_int = |p, m| call!(SYS_openat, CWD, p, CREAT, m) as c_int;
    __open_2(p: *const c_char, f: c_int) -> c_int = |p, f| call!(SYS_openat, CWD, p, f) as c_int;
    __open64_2(p: *const c_char, f: c_int) -> c_int = |p, f| call!(SYS_openat, CWD, p, f) as c_int;
    __openat_2(d: c_int, p: *const c_char, f: c_int) -> c_int = |d, p, f| call!(SYS_openat, d, p, f) as c_int;
    __openat64_2(d: c_int, p: *const c_char, f: c_int) -> c_int = |d, p, f| call!(SYS_openat, d, p, f) as c_int;
    openat2(d: c_int, p: *const c_char, h: *const c_void, n: size_t) -> c_int = |d, p, h, n| call!(SYS_openat2, d, p, h, n) as c_int;
    open_by_handle_at(d: c_int, h: *mut c_void, f: c_int) -> c_int = |d, h, f| call!(SYS_open_by_handle_at, d, h, f) as c_int;
    pidfd_getfd(p: c_int, fd: c_int, f: c_uint) -> c_int = |p, fd, f| call!(SYS_pidfd_getfd, p, fd, f) as c_int;

    close(fd: c_int) -> c_int = |fd| call!(SYS_close, fd) as c_int;
    __close(fd: c_int) -> c_int = |fd| call!(SYS_close, fd) as c_int;
    __dup2(a: c_int, b: c_int) -> c_int = early_dup2;
    dup(fd: c_int) -> c_int = |fd| call!(SYS_dup, fd) as c_int;
    dup2(a: c_int, b: c_int) -> c_int = early_dup2;
    dup3(a: c_int, b: c_int, f: c_int) -> c_int = |a, b, f| call!(SYS_dup3, a, b, f) as c_int;
    fclose(s: *mut FILE) -> c_int = |_| libc::EOF;
    close_range(a: c_uint, b: c_uint, f: c_int) -> c_int = |a, b, f| call!(SYS_close_range, a, b, f) as c_int;
    closefrom(low: c_int) -> () = |low| { call!(SYS_close_range, low, c_uint::MAX, 0); };
    fcntl(fd: c_int, op: c_int, arg: usize) -> c_int = |fd, op, arg| call!(SYS_fcntl, fd, op, arg) as c_int;
    __fcntl(fd: c_int, op: c_int, arg: usize) -> c_int = |fd, op, arg| call!(SYS_fcntl, fd, op, arg) as c_int;
    fcntl64(fd: c_int, op: c_int, arg: usize) -> c_int = |fd, op, arg| call!(SYS_fcntl, fd, op, arg) as c_int;

    read(fd: c_int, b: *mut c_void, n: size_t) -> ssize_t = |fd, b, n| call!(SYS_read, fd, b, n);
    readv(fd: c_int, v: *const iovec, n: c_int) -> ssize_t = |fd, v, n| call!(SYS_readv, fd, v, n);
    pread(fd: c_int, b: *mut c_void, n: size_t, o: off_t) -> ssize_t = |fd, b, n, o| call!(SYS_pread64, fd, b, n, o);
    pread64(fd: c_int, b: *mut c_void, n: size_t, o: off_t) -> ssize_t = |fd, b, n, o| call!(SYS_pread64, fd, b, n, o);
    preadv(fd: c_int, v: *const iovec, n: c_int, o: off_t) -> ssize_t = |fd, v, n, o| call!(SYS_preadv, fd, v, n, o);
    preadv64(fd: c_int, v: *const iovec, n: c_int, o: off_t) -> ssize_t = |fd, v, n, o| call!(SYS_preadv, fd, v, n, o);
    preadv2(fd: c_int, v: *const iovec, n: c_int, o: off_t, f: c_int) -> ssize_t
        = |fd, v, n, o, f| call!(SYS_preadv2, fd, v, n, o, 0, f);
    preadv64v2(fd: c_int, v: *const iovec, n: c_int, o: off_t, f: c_int) -> ssize_t
        = |fd, v, n, o, f| call!(SYS_preadv2, fd, v, n, o, 0, f);
    write(fd: c_int, b: *const c_void, n: size_t) -> ssize_t = |fd, b, n| call!(SYS_write, fd, b, n);
    __write(fd: c_int, b: *const c_void, n: size_t) -> ssize_t = |fd, b, n| call!(SYS_write, fd, b, n);
    writev(fd: c_int, v: *const iovec, n: c_int) -> ssize_t = |fd, v, n| call!(SYS_writev, fd, v, n);
    pwrite(fd: c_int, b: *const c_void, n: size_t, o: off_t) -> ssize_t = |fd, b, n, o| call!(SYS_pwrite64, fd, b, n, o);
    pwrite64(fd: c_int, b: *const c_void, n: size_t, o: off_t) -> ssize_t = |fd, b, n, o| call!(SYS_pwrite64, fd, b, n, o);
    __pwrite64(fd: c_int, b: *const c_void, n: size_t, o: off_t) -> ssize_t = |fd, b, n, o| call!(SYS_pwrite64, fd, b, n, o);
    pwritev(fd: c_int, v: *const iovec, n: c_int, o: off_t) -> ssize_t = |fd, v, n, o| call!(SYS_pwritev, fd, v, n, o);
    pwritev64(fd: c_int, v: *const iovec, n: c_int, o: off_t) -> ssize_t = |fd, v, n, o| call!(SYS_pwritev, fd, v, n, o);
    pwritev2(fd: c_int, v: *const iovec, n: c_int, o: off_t, f: c_int) -> ssize_t
        = |fd, v, n, o, f| call!(SYS_pwritev2, fd, v, n, o, 0, f);
    pwritev64v2(fd: c_int, v: *const iovec, n: c_int, o: off_t, f: c_int) -> ssize_t
        = |fd, v, n, o, f| call!(SYS_pwritev2, fd, v, n, o, 0, f);
    ftruncate(fd: c_int, n: off_t) -> c_int = |fd, n| call!(SYS_ftruncate, fd, n) as c_int;
    ftruncate64(fd: c_int, n: off_t) -> c_int = |fd, n| call!(SYS_ftruncate, fd, n) as c_int;
    fallocate(fd: c_int, m: c_int, o: off_t, n: off_t) -> c_int = |fd, m, o, n| call!(SYS_fallocate, fd, m, o, n) as c_int;
    fallocate64(fd: c_int, m: c_int, o: off_t, n: off_t) -> c_int = |fd, m, o, n| call!(SYS_fallocate, fd, m, o, n) as c_int;
    posix_fallocate(fd: c_int, o: off_t, n: off_t) -> c_int = early_fallocate;
    posix_fallocate64(fd: c_int, o: off_t, n: off_t) -> c_int = early_fallocate;
    sendfile(to: c_int, from: c_int, o: *mut off_t, n: size_t) -> ssize_t = |to, from, o, n| call!(SYS_sendfile, to, from, o, n);
    sendfile64(to: c_int, from: c_int, o: *mut off_t, n: size_t) -> ssize_t = |to, from, o, n| call!(SYS_sendfile, to, from, o, n);
    splice(from: c_int, a: *mut off_t, to: c_int, b: *mut off_t, n: size_t, f: c_uint) -> ssize_t
        = |from, a, to, b, n, f| call!(SYS_splice, from, a, to, b, n, f);
    copy_file_range(from: c_int, a: *mut off_t, to: c_int, b: *mut off_t, n: size_t, f: c_uint) -> ssize_t
        = |from, a, to, b, n, f| call!(SYS_copy_file_range, from, a, to, b, n, f);
    ioctl(fd: c_int, n: c_ulong, arg: usize) -> c_int = |fd, n, arg| call!(SYS_ioctl, fd, n, arg) as c_int;
    sendmsg(s: c_int, m: *const msghdr, f: c_int) -> ssize_t = |s, m, f| call!(SYS_sendmsg, s, m, f);
    sendmmsg(s: c_int, v: *mut mmsghdr, n: c_uint, f: c_int) -> c_int = |s, v, n, f| call!(SYS_sendmmsg, s, v, n, f) as c_int;
    __read_chk(fd: c_int, b: *mut c_void, n: size_t, max: size_t) -> ssize_t
        = |fd, b, n: size_t, max| call!(SYS_read, fd, b, n.min(max));
    __pread_chk(fd: c_int, b: *mut c_void, n: size_t, o: off_t, max: size_t) -> ssize_t
        = |fd, b, n: size_t, o, max| call!(SYS_pread64, fd, b, n.min(max), o);
    __pread64_chk(fd: c_int, b: *mut c_void, n: size_t, o: off_t, max: size_t) -> ssize_t
        = |fd, b, n: size_t, o, max| call!(SYS_pread64, fd, b, n.min(max), o);

    accept(s: c_int, a: *mut sockaddr, n: *mut socklen_t) -> c_int = |s, a, n| call!(SYS_accept, s, a, n) as c_int;
    accept4(s: c_int, a: *mut sockaddr, n: *mut socklen_t, f: c_int) -> c_int = |s, a, n, f| call!(SYS_accept4, s, a, n, f) as c_int;
    socket(d: c_int, t: c_int, p: c_int) -> c_int = |d, t, p| call!(SYS_socket, d, t, p) as c_int;
    socketpair(d: c_int, t: c_int, p: c_int, v: *mut c_int) -> c_int = |d, t, p, v| call!(SYS_socketpair, d, t, p, v) as c_int;
    pipe(v: *mut c_int) -> c_int = |v| call!(SYS_pipe2, v, 0) as c_int;
    __pipe(v: *mut c_int) -> c_int = |v| call!(SYS_pipe2, v, 0) as c_int;
    pipe2(v: *mut c_int, f: c_int) -> c_int = |v, f| call!(SYS_pipe2, v, f) as c_int;
    eventfd(n: c_uint, f: c_int) -> c_int = |n, f| call!(SYS_eventfd2, n, f) as c_int;
    epoll_create(n: c_int) -> c_int = |n| call!(SYS_epoll_create, n) as c_int;
    epoll_create1(f: c_int) -> c_int = |f| call!(SYS_epoll_create1, f) as c_int;
    timerfd_create(c: c_int, f: c_int) -> c_int = |c, f| call!(SYS_timerfd_create, c, f) as c_int;
    signalfd(fd: c_int, m: *const sigset_t, f: c_int) -> c_int = |fd, m, f| call!(SYS_signalfd4, fd, m, 8, f) as c_int;
    inotify_init() -> c_int = || call!(SYS_inotify_init1, 0) as c_int;
    inotify_init1(f: c_int) -> c_int = |f| call!(SYS_inotify_init1, f) as c_int;
    memfd_create(p: *const c_char, f: c_uint) -> c_int = |p, f| call!(SYS_memfd_create, p, f) as c_int;
    recvmsg(s: c_int, m: *mut msghdr, f: c_int) -> ssize_t = |s, m, f| call!(SYS_recvmsg, s, m, f);
    recvmmsg(s: c_int, v: *mut mmsghdr, n: c_uint, f: c_int, t: *mut timespec) -> c_int
        = |s, v, n, f, t| call!(SYS_recvmmsg, s, v, n, f, t) as c_int;

    truncate(p: *const c_char, n: off_t) -> c_int = |p, n| call!(SYS_truncate, p, n) as c_int;
    truncate64(p: *const c_char, n: off_t) -> c_int = |p, n| call!(SYS_truncate, p, n) as c_int;
    mmap(a: *mut c_void, n: size_t, p: c_int, f: c_int, fd: c_int, o: off_t) -> *mut c_void
        = |a, n, p, f, fd, o| call!(SYS_mmap, a, n, p, f, fd, o) as *mut c_void;
    mmap64(a: *mut c_void, n: size_t, p: c_int, f: c_int, fd: c_int, o: off_t) -> *mut c_void
        = |a, n, p, f, fd, o| call!(SYS_mmap, a, n, p, f, fd, o) as *mut c_void;
    posix_fadvise(fd: c_int, o: off_t, n: off_t, a: c_int) -> c_int = early_fadvise;
    posix_fadvise64(fd: c_int, o: off_t, n: off_t, a: c_int) -> c_int = early_fadvise;
    readahead(fd: c_int, o: off_t, n: size_t) -> ssize_t = |fd, o, n| call!(SYS_readahead, fd, o, n);
    syncfs(fd: c_int) -> c_int = |fd| call!(SYS_syncfs, fd) as c_int;
    sync() -> () = || { call!(SYS_sync); };
    mlockall(f: c_int) -> c_int = |f| call!(SYS_mlockall, f) as c_int;
    prctl(op: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int = |op, a, b, c, d| call!(SYS_prctl, op, a, b, c, d) as c_int;
    unshare(f: c_int) -> c_int = |f| call!(SYS_unshare, f) as c_int;
    execve(p: *const c_char, a: Strings, e: Strings) -> c_int = |p, a, e| call!(SYS_execve, p, a, e) as c_int;
    execveat(d: c_int, p: *const c_char, a: Strings, e: Strings, f: c_int) -> c_int = |d, p, a, e, f| call!(SYS_execveat, d, p, a, e, f) as c_int;
    _Fork() -> c_int = || call!(SYS_clone, libc::SIGCHLD) as c_int;
}

library! {
    execvpe(p: *const c_char, a: Strings, e: Strings) -> c_int = -1;
    fexecve(fd: c_int, a: Strings, e: Strings) -> c_int = -1;
    posix_spawn(pid: *mut pid_t, p: *const c_char, f: *const c_void, t: *const c_void, a: Strings, e: Strings) -> c_int = libc::ENOSYS;
    posix_spawnp(pid: *mut pid_t, p: *const c_char, f: *const c_void, t: *const c_void, a: Strings, e: Strings) -> c_int = libc::ENOSYS;
    posix_spawn_file_actions_addopen(a: *mut c_void, fd: c_int, p: *const c_char, f: c_int, m: mode_t) -> c_int = libc::ENOSYS;
    fdopen(fd: c_int, m: *const c_char) -> *mut FILE = std::ptr::null_mut();
    fopen(p: *const c_char, m: *const c_char) -> *mut FILE = std::ptr::null_mut();
    fopen64(p: *const c_char, m: *const c_char) -> *mut FILE = std::ptr::null_mut();
    vdprintf(fd: c_int, f: *const c_char, v: *mut c_void) -> c_int = -1;
    __vdprintf_chk(fd: c_int, g: c_int, f: *const c_char, v: *mut c_void) -> c_int = -1;
    mkstemp(p: *mut c_char) -> c_int = -1;
    mkstemp64(p: *mut c_char) -> c_int = -1;
    mkostemp(p: *mut c_char, f: c_int) -> c_int = -1;
    mkostemp64(p: *mut c_char, f: c_int) -> c_int = -1;
    mkstemps(p: *mut c_char, n: c_int) -> c_int = -1;
    mkstemps64(p: *mut c_char, n: c_int) -> c_int = -1;
    mkostemps(p: *mut c_char, n: c_int, f: c_int) -> c_int = -1;
    mkostemps64(p: *mut c_char, n: c_int, f: c_int) -> c_int = -1;
    io_submit(c: *mut c_void, n: c_long, v: *mut *mut c_void) -> c_int = -libc::ENOSYS;
    aio_write(r: *mut aiocb) -> c_int = no_aio();
    aio_write64(r: *mut aiocb) -> c_int = no_aio();
    lio_listio(m: c_int, v: *const *mut aiocb, n: c_int, e: *mut sigevent) -> c_int = no_aio();
    lio_listio64(m: c_int, v: *const *mut aiocb, n: c_int, e: *mut sigevent) -> c_int = no_aio();
    pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int = libc::ENOSYS;
    freopen(p: *const c_char, m: *const c_char, s: *mut FILE) -> *mut FILE = std::ptr::null_mut();
    freopen64(p: *const c_char, m: *const c_char, s: *mut FILE) -> *mut FILE = std::ptr::null_mut();
    io_uring_queue_init(n: c_uint, r: *mut c_void, f: c_uint) -> c_int = -libc::ENOSYS;
    io_uring_queue_init_params(n: c_uint, r: *mut c_void, p: *mut c_void) -> c_int = -libc::ENOSYS;
    io_uring_queue_init_mem(n: c_uint, r: *mut c_void, p: *mut c_void, a: *mut c_void, len: size_t) -> c_int = -libc::ENOSYS;
    io_uring_setup(n: c_uint, p: *mut c_void) -> c_int = -libc::ENOSYS;
    io_uring_enter(fd: c_uint, n: c_uint, min: c_uint, f: c_uint, s: *mut c_void) -> c_int = -libc::ENOSYS;
    io_uring_enter2(fd: c_uint, n: c_uint, min: c_uint, f: c_uint, s: *mut c_void, len: size_t) -> c_int = -libc::ENOSYS;
    io_uring_submit(r: *mut c_void) -> c_int = -libc::ENOSYS;
    io_uring_submit_and_wait(r: *mut c_void, n: c_uint) -> c_int = -libc::ENOSYS;
    io_uring_submit_and_wait_timeout(r: *mut c_void, c: *mut c_void, n: c_uint, t: *mut c_void, m: *mut c_void) -> c_int = -libc::ENOSYS;
    io_uring_submit_and_wait_min_timeout(r: *mut c_void, c: *mut c_void, n: c_uint, t: *mut c_void, min: c_uint, m: *mut c_void) -> c_int = -libc::ENOSYS;
    io_uring_submit_and_wait_reg(r: *mut c_void, c: *mut c_void, n: c_uint, at: c_int) -> c_int = -libc::ENOSYS;
    io_uring_submit_and_get_events(r: *mut c_void) -> c_int = -libc::ENOSYS;
    io_uring_wait_cqes(r: *mut c_void, c: *mut c_void, n: c_uint, t: *mut c_void, m: *mut c_void) -> c_int = -libc::ENOSYS;
    io_uring_wait_cqes_min_timeout(r: *mut c_void, c: *mut c_void, n: c_uint, t: *mut c_void, min: c_uint, m: *mut c_void) -> c_int = -libc::ENOSYS;
    io_uring_wait_cqe_timeout(r: *mut c_void, c: *mut c_void, t: *mut c_void) -> c_int = -libc::ENOSYS;
    __io_uring_get_cqe(r: *mut c_void, c: *mut c_void, n: c_uint, wait: c_uint, m: *mut c_void) -> c_int = -libc::ENOSYS;
    io_uring_peek_batch_cqe(r: *mut c_void, c: *mut c_void, n: c_uint) -> c_int = 0;
    io_uring_get_events(r: *mut c_void) -> c_int = -libc::ENOSYS;
    io_uring_queue_exit(r: *mut c_void) -> () = ();
    io_uring_register_files(r: *mut c_void, f: *const c_int, n: c_uint) -> c_int = -libc::ENOSYS;
    io_uring_register_files_tags(r: *mut c_void, f: *const c_int, t: *const c_void, n: c_uint) -> c_int = -libc::ENOSYS;
    io_uring_register_files_update(r: *mut c_void, at: c_uint, f: *const c_int, n: c_uint) -> c_int = -libc::ENOSYS;
    io_uring_register_files_update_tag(r: *mut c_void, at: c_uint, f: *const c_int, t: *const c_void, n: c_uint) -> c_int = -libc::ENOSYS;
    io_uring_register(fd: c_uint, op: c_uint, a: *const c_void, n: c_uint) -> c_int = -libc::ENOSYS;
    io_uring_major_version() -> c_int = 0;
    io_uring_minor_version() -> c_int = 0;
}

const CREAT: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

/// posix_fadvise returns the error instead of setting errno.
fn early_fadvise(fd: c_int, o: off_t, n: off_t, a: c_int) -> c_int {
    // SAFETY: touches no memory.
    -unsafe { sys::raw(libc::SYS_fadvise64, [fd as usize, o as usize, n as usize, a as usize, 0, 0]) }
        as c_int
}

/// posix_fallocate returns the error, too.
fn early_fallocate(fd: c_int, o: off_t, n: off_t) -> c_int {
    // SAFETY: touches no memory.
    -unsafe { sys::raw(libc::SYS_fallocate, [fd as usize, 0, o as usize, n as usize, 0, 0]) } as c_int
}

fn no_aio() -> c_int {
    sys::libc_ret(-(libc::ENOSYS as isize)) as c_int
}

/// dup2 by dup3, for kernels without dup2.
fn early_dup2(a: c_int, b: c_int) -> c_int {
    if a == b {
        return if call!(SYS_fcntl, a, libc::F_GETFD) < 0 { -1 } else { b };
    }
    call!(SYS_dup3, a, b, 0) as c_int
}
