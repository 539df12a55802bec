//! Raw system calls: without errno, cancellation points and interposers.
//!
//! The preload path's calls leave no trace in the program. libc's wrappers would set errno, act on a pending
//! pthread_cancel, or call the library's own hooks.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

/// The kernel's answer: a value, or -errno.
pub(crate) type Ret = isize;

/// One raw system call.
///
/// # Safety
/// As the call itself.
#[inline]
pub(crate) unsafe fn raw(n: libc::c_long, a: [usize; 6]) -> Ret {
    let ret;
    // SAFETY: the kernel's calling convention; memory effects are the caller's promise.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") n as isize => ret,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

/// Turns a kernel answer into libc's: -1 and errno.
pub(crate) fn libc_ret(ret: Ret) -> isize {
    if (-4095..0).contains(&ret) {
        // SAFETY: errno is this thread's.
        unsafe { *libc::__errno_location() = -ret as c_int };
        return -1;
    }
    ret
}

/// Identity of an open file: device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
}

/// Identity and type bits of a descriptor, from the kernel's attribute cache (no request to a FUSE daemon).
pub(crate) fn identity(fd: c_int) -> Option<(Identity, u32)> {
    // SAFETY: a NUL-terminated path.
    unsafe { identity_at(fd, c"".as_ptr(), libc::AT_EMPTY_PATH) }.ok().map(|(id, kind, _)| (id, kind))
}

/// Identity, type bits and size of a path's file, or -errno.
///
/// # Safety
/// No requirement: the path is the program's and is passed on to the kernel unchanged.
pub(crate) unsafe fn identity_at(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
) -> Result<(Identity, u32, u64), Ret> {
    let mut st = std::mem::MaybeUninit::<libc::statx>::zeroed();
    let flags = flags | libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    let mask = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_SIZE;
    // SAFETY: the kernel checks the path; the buffer is large enough; zeroes are a valid statx.
    let (ret, st) = unsafe {
        let args = [dir as usize, path as usize, flags as usize, mask as usize, st.as_mut_ptr() as usize, 0];
        (raw(libc::SYS_statx, args), st.assume_init())
    };
    if ret != 0 {
        return Err(ret);
    }
    let dev = libc::makedev(st.stx_dev_major, st.stx_dev_minor);
    Ok((Identity { dev, ino: st.stx_ino }, u32::from(st.stx_mode) & libc::S_IFMT, st.stx_size))
}

/// True if the descriptor still is the file with the recorded identity.
pub(crate) fn is_still(fd: c_int, what: Identity) -> bool {
    identity(fd).is_some_and(|(now, _)| now == what)
}

pub(crate) fn close(fd: c_int) {
    // SAFETY: callers own the descriptor.
    unsafe { raw(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

pub(crate) fn fcntl(fd: c_int, op: c_int, arg: usize) -> Ret {
    // SAFETY: only operations with an integer argument are used.
    unsafe { raw(libc::SYS_fcntl, [fd as usize, op as usize, arg, 0, 0, 0]) }
}

pub(crate) fn lseek_cur(fd: c_int, delta: i64) -> Ret {
    // SAFETY: touches no memory.
    unsafe { raw(libc::SYS_lseek, [fd as usize, delta as usize, libc::SEEK_CUR as usize, 0, 0, 0]) }
}

/// # Safety
/// `buf` is the program's and is passed on to the kernel unchanged.
pub(crate) unsafe fn pread(fd: c_int, buf: *mut u8, n: usize, at: u64) -> Ret {
    // SAFETY: the kernel checks the buffer.
    unsafe { raw(libc::SYS_pread64, [fd as usize, buf as usize, n, at as usize, 0, 0]) }
}

/// # Safety
/// The vectors must name memory that may be written.
pub(crate) unsafe fn preadv(fd: c_int, iov: &[libc::iovec], at: u64) -> Ret {
    // SAFETY: the kernel takes the offset as two words; on 64 bits the low word holds all of it.
    unsafe { raw(libc::SYS_preadv, [fd as usize, iov.as_ptr() as usize, iov.len(), at as usize, 0, 0]) }
}

/// As [`preadv`], with flags of preadv2(2).
///
/// # Safety
/// The vectors must name memory that may be written.
pub(crate) unsafe fn preadv2(fd: c_int, iov: &[libc::iovec], at: u64, flags: c_int) -> Ret {
    let args = [fd as usize, iov.as_ptr() as usize, iov.len(), at as usize, 0, flags as usize];
    // SAFETY: the caller's promise.
    unsafe { raw(libc::SYS_preadv2, args) }
}

/// See posix_fadvise(2).
pub(crate) fn fadvise(fd: c_int, at: u64, len: usize, advice: c_int) {
    // SAFETY: changes no memory of the process.
    unsafe { raw(libc::SYS_fadvise64, [fd as usize, at as usize, len, advice as usize, 0, 0]) };
}

/// Blocks all signals of this thread but synchronous ones and the two of libc. Returns the old mask.
pub(crate) fn block_signals() -> u64 {
    const AT_ONCE: [c_int; 6] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];
    let stay = AT_ONCE.into_iter().chain([32, 33]).fold(0, |mask, signal| mask | 1 << (signal - 1));
    signal_mask(libc::SIG_BLOCK, !stay)
}

/// Sets this thread's signal mask.
pub(crate) fn set_signals(mask: u64) {
    signal_mask(libc::SIG_SETMASK, mask);
}

fn signal_mask(how: c_int, mask: u64) -> u64 {
    let mut before = 0_u64;
    let args = [how as usize, &raw const mask as usize, &raw mut before as usize, size_of::<u64>(), 0, 0];
    // SAFETY: reads and writes one mask each.
    unsafe { raw(libc::SYS_rt_sigprocmask, args) };
    before
}

/// A variable of the environment at the program's start.
pub(crate) fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: getenv in a constructor. The strings stay in place until the program changes its environment.
    unsafe {
        let p = libc::getenv(name.as_ptr());
        (!p.is_null()).then(|| CStr::from_ptr(p).to_bytes())
    }
}

/// Room for [`path_to`].
pub(crate) const FD_PATH_MAX: usize = 25;

/// The path in /proc of a descriptor, as a C string in `name`.
pub(crate) fn path_to(fd: c_int, name: &mut [u8; FD_PATH_MAX]) -> *const c_char {
    const DIR: &[u8] = b"/proc/self/fd/";
    *name = [0; FD_PATH_MAX];
    name[..DIR.len()].copy_from_slice(DIR);
    let (mut left, mut digits) = (fd.unsigned_abs(), 1);
    while left >= 10 {
        left /= 10;
        digits += 1;
    }
    let mut left = fd.unsigned_abs();
    for at in (DIR.len()..DIR.len() + digits).rev() {
        name[at] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    name.as_ptr().cast()
}

/// The path of a descriptor's file, as this process sees it now.
pub(crate) fn path_of(fd: c_int, out: &mut [u8]) -> Option<&[u8]> {
    let mut name = [0; FD_PATH_MAX];
    let path = path_to(fd, &mut name);
    let args = [libc::AT_FDCWD as usize, path as usize, out.as_mut_ptr() as usize, out.len(), 0, 0];
    // SAFETY: a path that ends. The kernel writes at most `out.len()` bytes.
    let len = unsafe { raw(libc::SYS_readlinkat, args) };
    // A path that fills the buffer may be cut.
    usize::try_from(len).ok().filter(|&len| len < out.len()).map(|len| &out[..len])
}

/// Milliseconds of the coarse monotonic clock.
pub(crate) fn now_ms() -> u64 {
    let t = clock(libc::CLOCK_MONOTONIC_COARSE);
    t.tv_sec as u64 * 1000 + t.tv_nsec as u64 / 1_000_000
}

/// Nanoseconds of the monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let t = clock(libc::CLOCK_MONOTONIC);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The calling thread's id.
pub(crate) fn thread() -> u32 {
    // SAFETY: no arguments.
    unsafe { raw(libc::SYS_gettid, [0; 6]) as u32 }
}

fn clock(which: libc::clockid_t) -> libc::timespec {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: async-signal-safe, writes the timespec.
    unsafe { libc::clock_gettime(which, &mut t) };
    t
}

/// Waits until `fd` is readable or hung up. False: timeout.
pub(crate) fn wait_readable(fd: c_int, timeout_ms: u64) -> bool {
    let end = now_ms().saturating_add(timeout_ms);
    loop {
        let left = end.saturating_sub(now_ms());
        let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let t = libc::timespec { tv_sec: (left / 1000) as i64, tv_nsec: (left % 1000 * 1_000_000) as i64 };
        // SAFETY: both structures live on this frame; no signal mask.
        let ret = unsafe { raw(libc::SYS_ppoll, [&raw mut p as usize, 1, &raw const t as usize, 0, 0, 0]) };
        if ret > 0 {
            return true;
        }
        if left == 0 || ret != -(libc::EINTR as isize) {
            return false;
        }
    }
}

/// Sleeps for less than a second.
pub(crate) fn nap(ms: i64) {
    let t = libc::timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 };
    // SAFETY: reads the timespec.
    unsafe { raw(libc::SYS_nanosleep, [&raw const t as usize, 0, 0, 0, 0, 0]) };
}

/// A private anonymous mapping, zeroed; null if there is no memory.
pub(crate) fn map_anonymous(len: usize) -> *mut c_void {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping touches no existing one.
    let p = unsafe { raw(libc::SYS_mmap, [0, len, prot as usize, flags as usize, usize::MAX, 0]) };
    if (-4095..0).contains(&p) { std::ptr::null_mut() } else { p as *mut c_void }
}

/// Maps anonymous memory at an unused range. False: the range is in use.
pub(crate) fn cover(start: usize, len: usize) -> bool {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces no mapping.
    unsafe { raw(libc::SYS_mmap, [start, len, prot as usize, flags as usize, usize::MAX, 0]) == start as Ret }
}

/// # Safety
/// The range must be a mapping of the library for which the advice is valid.
pub(crate) unsafe fn madvise(p: *mut c_void, len: usize, advice: c_int) -> bool {
    // SAFETY: the caller's promise.
    unsafe { raw(libc::SYS_madvise, [p as usize, len, advice as usize, 0, 0, 0]) == 0 }
}

/// The running kernel's version, major and minor; (0, 0) if unknown.
pub(crate) fn kernel_version() -> (u32, u32) {
    let mut name = std::mem::MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: the buffer is large enough; zeroes are a valid utsname, and the kernel ends its strings with
    // NUL.
    let release = unsafe {
        raw(libc::SYS_uname, [name.as_mut_ptr() as usize, 0, 0, 0, 0, 0]);
        CStr::from_ptr((*name.as_ptr()).release.as_ptr())
    };
    let mut numbers = release.to_bytes().split(|b| !b.is_ascii_digit());
    let mut next = || std::str::from_utf8(numbers.next()?).ok()?.parse().ok();
    next().zip(next()).unwrap_or_default()
}

/// Soft limit of open files.
pub(crate) fn files_max() -> u64 {
    let mut l = [0_u64; 2];
    // SAFETY: prlimit64 writes two u64.
    let ret = unsafe {
        raw(libc::SYS_prlimit64, [0, libc::RLIMIT_NOFILE as usize, 0, l.as_mut_ptr() as usize, 0, 0])
    };
    if ret == 0 { l[0] } else { 0 }
}

/// Plain addition: cheaper than fetch_add, but may lose counts of concurrent threads. For statistics only.
#[inline]
pub(crate) fn count(c: &AtomicU64, n: u64) {
    c.store(c.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}
