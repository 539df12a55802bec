//! Direct opens: small files that are only read are opened in the source itself, without a request to the daemon.
//!
//! ```text
//! open ──► statx through the mount ──► openat2 below the source's root ──► fstat ──► the same file? ──► the program's descriptor
//!              │ not of the mount, not small, not regular ...    │ not there   │ no: other inode, size or times
//!              └──────────────────────► the ordinary open ◄──────┴─────────────┘
//! ```
//! Under `--passthrough auto` the source's page cache is the truth: all writers write there. The statx asks for the caller's rights on the
//! way and is answered by the kernel; the openat2 asks for his rights on the file. Which path leads to the source's file is a guess
//! (directories are moved, working directories change), that it is the file is known: by device, inode number, size and times.
//!
//! What may be done with such a descriptor, and what makes us exchange it for one of the mount first ([`leave`]):
//! docs/design/preload.md. The mount's device is put into what fstat tells (`hooks/stat.rs`).

use crate::helper;
use crate::local::{HINT_BYTES, Hint, local};
use crate::sys::{self, Identity};
use crate::{connection, table};
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Paths longer than this are none of ours.
const PATH_BYTES: usize = 1024;
/// Flags of an open that may be a direct one; O_LARGEFILE is the kernel's.
const FLAGS: c_int =
    libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NOCTTY | libc::O_NOATIME | libc::O_NONBLOCK | 0o100_000;
const DAY_S: i64 = 24 * 3600;

/// Where the source's root can be opened (a string of the environment); null: no direct opens.
static SOURCE: AtomicPtr<c_char> = AtomicPtr::new(std::ptr::null_mut());
static SOURCE_DEV: AtomicU64 = AtomicU64::new(0);
static SOURCE_INO: AtomicU64 = AtomicU64::new(0);
/// The mount point, without a slash at its end.
static AT: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static AT_LEN: AtomicUsize = AtomicUsize::new(0);
/// The source's root.
static ROOT: helper::Slot = helper::Slot::new();
/// Nothing is opened so any more.
static STOPPED: AtomicBool = AtomicBool::new(false);
/// Reads of the source move access times (relatime), which the mount has to know: 0: not known yet.
static TIMES: AtomicU32 = AtomicU32::new(0);
const NEVER: u32 = 1;
const RELATIVE: u32 = 2;
/// The mount's number for statx.
static MOUNT_ID: AtomicU64 = AtomicU64::new(0);

/// There was a direct descriptor.
static ANY: AtomicBool = AtomicBool::new(false);

/// Reads the environment. Called once, from .init_array.
pub fn configure() {
    let (Some(source), Some(id), Some(at)) = (
        connection::variable(c"TERRACE_SOURCE").filter(|source| !source.is_empty()),
        connection::variable(c"TERRACE_SOURCE_ID"),
        connection::variable(c"TERRACE_AT").filter(|at| at.len() > 1 && at.len() < PATH_BYTES),
    ) else {
        return;
    };
    let numbers = std::str::from_utf8(id).ok().and_then(|id| id.split_once(':'));
    let Some((dev, ino)) = numbers.and_then(|(dev, ino)| dev.parse().ok().zip(ino.parse().ok())) else {
        return;
    };
    SOURCE_DEV.store(dev, Ordering::Relaxed);
    SOURCE_INO.store(ino, Ordering::Relaxed);
    AT.store(at.as_ptr().cast_mut(), Ordering::Relaxed);
    AT_LEN.store(at.len(), Ordering::Relaxed);
    SOURCE.store(source.as_ptr().cast_mut().cast(), Ordering::Release);
}

fn at() -> &'static [u8] {
    // SAFETY: set once from a string of the environment that stays, before SOURCE makes anybody ask.
    unsafe { std::slice::from_raw_parts(AT.load(Ordering::Relaxed), AT_LEN.load(Ordering::Relaxed)) }
}

/// Are there direct opens in this process?
#[inline]
pub fn is_on() -> bool {
    !SOURCE.load(Ordering::Acquire).is_null() && !STOPPED.load(Ordering::Relaxed)
}

/// May an open with these flags be a direct one?
#[inline]
pub fn takes(flags: c_int) -> bool {
    is_on() && flags & !FLAGS == libc::O_RDONLY
}

/// May there be direct descriptors?
#[inline]
pub fn has_any() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// /proc/self/fd/N of a direct descriptor would lead to the source, also for writing.
///
/// # Safety
/// `path` is a C string that the kernel has just read.
pub unsafe fn leave_what_is_named(path: *const c_char, found: &libc::statx) {
    if Identity::of(found).dev == SOURCE_DEV.load(Ordering::Relaxed) {
        // SAFETY: the caller's promise.
        let path = unsafe { CStr::from_ptr(path) }.to_bytes();
        if path.starts_with(b"/proc/") || path.starts_with(b"/dev/") {
            leave_all(Which::All);
        }
    }
}

/// Opens in the source what statx has `found` in the mount. None: the ordinary open.
///
/// # Safety
/// `path` is a C string that the kernel has just read.
pub unsafe fn open(dir: c_int, path: *const c_char, flags: c_int, found: &libc::statx) -> Option<c_int> {
    let mode = u32::from(found.stx_mode);
    // Set-id files are never in passthrough.
    let is_small = mode & libc::S_IFMT == libc::S_IFREG
        && mode & (libc::S_ISUID | libc::S_ISGID) == 0
        && found.stx_size < connection::large_file();
    if !is_small {
        return None;
    }
    let root = root()?;
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    let fd = if path.to_bytes().first() == Some(&b'/') {
        let below = below_mount(path.to_bytes())?;
        let mut whole = [0; PATH_BYTES];
        let below = simplify(0, &path.to_bytes()[below..], &mut whole)?;
        let guessed = path.to_bytes().windows(2).any(|two| two == b"..");
        open_same(root, below, flags, found, guessed, || restat(dir, path, flags))?
    } else {
        open_by_hint(root, dir, path, flags, found)?
    };
    if !table::enter_direct(fd, found.stx_ino) {
        sys::close(fd);
        return None;
    }
    MOUNT_ID.store(found.stx_mnt_id, Ordering::Relaxed);
    ANY.store(true, Ordering::Relaxed);
    if STOPPED.load(Ordering::SeqCst) {
        leave(fd);
    }
    Some(fd)
}

/// Where the part below the mount point begins in an absolute path.
fn below_mount(path: &[u8]) -> Option<usize> {
    let rest = path.strip_prefix(at())?;
    let slashes = rest.iter().take_while(|&&c| c == b'/').count();
    (slashes > 0 && rest.len() > slashes).then_some(at().len() + slashes)
}

fn restat(dir: c_int, path: &CStr, flags: c_int) -> Option<libc::statx> {
    let follow = if flags & libc::O_NOFOLLOW != 0 { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
    // SAFETY: the program's path, which the kernel has read before.
    unsafe { sys::statx(dir, path.as_ptr(), follow) }.ok()
}

/// A path from a directory: where that is was asked before, or is asked now.
fn open_by_hint(root: c_int, dir: c_int, path: &CStr, flags: c_int, found: &libc::statx) -> Option<c_int> {
    let hint = &local().hints[usize::from(dir != libc::AT_FDCWD)];
    let again = || restat(dir, path, flags);
    let mut whole = [0; PATH_BYTES];
    if hint.dir1.get() == dir.wrapping_add(1) && hint.dir1.get() != 0 {
        let fd = join(hint, path, &mut whole).and_then(|p| open_same(root, p, flags, found, true, again));
        if fd.is_some() {
            return fd;
        }
    }
    ask_where(hint, dir)?;
    join(hint, path, &mut whole).and_then(|p| open_same(root, p, flags, found, true, again))
}

/// Notes where a directory is. None: not in the mount, or where it was noted before.
fn ask_where(hint: &Hint, dir: c_int) -> Option<()> {
    let mut path = [0; PATH_BYTES];
    let len = if dir == libc::AT_FDCWD { working_directory(&mut path)? } else { path_of(dir, &mut path)? };
    let below = match &path[..len] {
        path if path == at() => len,
        path => below_mount(path)?,
    };
    let new = &path[below..len];
    let known = hint.path[..(hint.len.get() as usize).min(HINT_BYTES)].iter().map(|c| c.get());
    let same = hint.dir1.get() == dir.wrapping_add(1) && new.iter().copied().eq(known);
    if new.len() > HINT_BYTES || same {
        return None;
    }
    hint.path.iter().zip(new).for_each(|(to, from)| to.set(*from));
    hint.len.set(new.len() as u32);
    hint.dir1.set(dir.wrapping_add(1));
    Some(())
}

fn join<'a>(hint: &Hint, path: &CStr, whole: &'a mut [u8; PATH_BYTES]) -> Option<&'a CStr> {
    let dir = (hint.len.get() as usize).min(HINT_BYTES);
    whole.iter_mut().zip(&hint.path[..dir]).for_each(|(to, from)| *to = from.get());
    simplify(dir, path.to_bytes(), whole)
}

/// Appends a path to the one that the first `len` bytes hold. Without `..`, by which the kernel would climb onto the mount that covers the
/// source's root: what that means after a symbolic link is guessed wrong.
fn simplify<'a>(mut len: usize, path: &[u8], whole: &'a mut [u8; PATH_BYTES]) -> Option<&'a CStr> {
    for part in path.split(|&c| c == b'/') {
        match part {
            b"" | b"." => {}
            b".." if len == 0 => return None,
            b".." => len = whole[..len].iter().rposition(|&c| c == b'/').unwrap_or(0),
            part => {
                let start = if len == 0 { 0 } else { len + 1 };
                let end = start + part.len();
                if end >= whole.len() {
                    return None;
                }
                if len > 0 {
                    whole[len] = b'/';
                }
                whole[start..end].copy_from_slice(part);
                len = end;
            }
        }
    }
    whole[len] = 0;
    CStr::from_bytes_until_nul(&whole[..=len]).ok()
}

/// Opens a path below the source's root, if it leads to what was found in the mount. `guessed`: it may lead to anything.
fn open_same(
    root: c_int,
    path: &CStr,
    flags: c_int,
    found: &libc::statx,
    guessed: bool,
    again: impl Fn() -> Option<libc::statx>,
) -> Option<c_int> {
    // Of a pipe nobody waits for the other end.
    let wait = if guessed { libc::O_NONBLOCK } else { 0 };
    // SAFETY: a zeroed open_how asks for nothing.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (flags & !0o100_000 | wait) as u64;
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_XDEV | libc::RESOLVE_NO_MAGICLINKS;
    let args = [root as usize, path.as_ptr() as usize, &raw const how as usize, size_of_val(&how), 0, 0];
    // SAFETY: path and arguments live on frames of ours or are the program's.
    let fd = unsafe { sys::raw(libc::SYS_openat2, args) } as c_int;
    if fd < 0 {
        return None;
    }
    if is_same(fd, flags, found, again) {
        if wait & !flags != 0 {
            sys::fcntl(fd, libc::F_SETFL, (flags & libc::O_NOATIME) as usize);
        }
        return Some(fd);
    }
    sys::close(fd);
    None
}

/// Is the descriptor that of the file that was found, as the mount knows it, and may it be read without the mount hearing of it?
fn is_same(fd: c_int, flags: c_int, found: &libc::statx, again: impl Fn() -> Option<libc::statx>) -> bool {
    let Some(source) = sys::stat(fd) else { return false };
    if source.st_dev != SOURCE_DEV.load(Ordering::Relaxed) || source.st_ino != found.stx_ino {
        return false;
    }
    // Changes past the mount, and stores to mappings, are noticed by the ordinary open.
    let agrees = |found: &libc::statx| {
        let (mtime, ctime) = (&found.stx_mtime, &found.stx_ctime);
        found.stx_ino == source.st_ino
            && u32::from(found.stx_mode) == source.st_mode
            && found.stx_size == source.st_size as u64
            && (mtime.tv_sec, i64::from(mtime.tv_nsec)) == (source.st_mtime, source.st_mtime_nsec)
            && (ctime.tv_sec, i64::from(ctime.tv_nsec)) == (source.st_ctime, source.st_ctime_nsec)
    };
    // What the kernel has of it may be out of date.
    let agrees = agrees(found) || again().is_some_and(|found| agrees(&found));
    agrees && (flags & libc::O_NOATIME != 0 || !moves_access_time(&source))
}

/// Would a read move the access time (relatime)? That of the mount has to follow.
fn moves_access_time(source: &libc::stat) -> bool {
    if TIMES.load(Ordering::Relaxed) == NEVER {
        return false;
    }
    let atime = (source.st_atime, source.st_atime_nsec);
    atime <= (source.st_mtime, source.st_mtime_nsec)
        || atime <= (source.st_ctime, source.st_ctime_nsec)
        || source.st_atime + DAY_S <= sys::now_s()
}

/// The source's root, opened when it is first needed.
fn root() -> Option<c_int> {
    ROOT.unchecked().or_else(open_root)
}

#[cold]
fn open_root() -> Option<c_int> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let source = SOURCE.load(Ordering::Acquire);
    let args = [libc::AT_FDCWD as usize, source as usize, flags as usize, 0, 0, 0];
    // SAFETY: a string of the environment that stays.
    let fd = unsafe { sys::raw(libc::SYS_openat, args) } as c_int;
    let root = Identity { dev: SOURCE_DEV.load(Ordering::Relaxed), ino: SOURCE_INO.load(Ordering::Relaxed) };
    let raised = if fd >= 0 { helper::raise(fd) } else { None };
    let usable = raised.filter(|&fd| sys::is_still(fd, root) && note_times(fd) && ROOT.set(fd));
    if usable.is_none() {
        raised.inspect(|&fd| helper::lower(fd));
        // Another root directory, other rights, or the run is over.
        STOPPED.store(true, Ordering::SeqCst);
    }
    usable
}

/// False: each read moves the access time.
fn note_times(root: c_int) -> bool {
    // struct statfs: 15 words, the mount's flags are the eleventh.
    let mut words = [0_u64; 15];
    // SAFETY: the buffer is large enough.
    let ret =
        unsafe { sys::raw(libc::SYS_fstatfs, [root as usize, words.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    let times = match words[10] {
        flags if flags & (libc::ST_NOATIME | libc::ST_RDONLY) != 0 => NEVER,
        flags if flags & libc::ST_RELATIME != 0 => RELATIVE,
        _ => return false,
    };
    TIMES.store(times, Ordering::Relaxed);
    ret == 0
}

fn working_directory(path: &mut [u8; PATH_BYTES]) -> Option<usize> {
    // SAFETY: the buffer is ours.
    let n = unsafe { sys::raw(libc::SYS_getcwd, [path.as_mut_ptr() as usize, path.len(), 0, 0, 0, 0]) };
    // With its NUL.
    usize::try_from(n).ok()?.checked_sub(1)
}

/// The path of an open file or directory, as /proc tells it.
fn path_of(fd: c_int, path: &mut [u8; PATH_BYTES]) -> Option<usize> {
    let (mut link, mut digits) = (*b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0", [0; 10]);
    let mut left = u32::try_from(fd).ok()?;
    let mut n = 0;
    while n == 0 || left > 0 {
        digits[n] = b'0' + (left % 10) as u8;
        left /= 10;
        n += 1;
    }
    digits[..n].reverse();
    link[14..14 + n].copy_from_slice(&digits[..n]);
    let args = [link.as_ptr() as usize, path.as_mut_ptr() as usize, path.len(), 0, 0, 0];
    // SAFETY: a C string and a buffer of this frame.
    let n = unsafe { sys::raw(libc::SYS_readlink, args) };
    usize::try_from(n).ok().filter(|&n| n < PATH_BYTES)
}

/// Which descriptors [`leave_all`] exchanges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    All,
    /// Those that a program executed from here on gets.
    Inherited,
}

/// Exchanges direct descriptors for those of the mount.
pub fn leave_all(which: Which) {
    if SOURCE.load(Ordering::Relaxed).is_null() {
        return;
    }
    for fd in table::directs() {
        let closes = sys::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC as isize != 0;
        if which == Which::All || !closes {
            leave(fd);
        }
    }
}

/// From here on there are none: what they need is no longer sure, or the program locks files of the mount, and closing any descriptor of such
/// a file must release its locks.
pub fn stop() {
    STOPPED.store(true, Ordering::SeqCst);
    leave_all(Which::All);
}

/// See [`connection::turn_off`]: with what is known of descriptors, it is forgotten which are direct.
#[cold]
pub fn turn_off() {
    stop();
    connection::turn_off();
}

/// See [`connection::fall_silent`], likewise.
#[cold]
pub fn fall_silent() {
    stop();
    connection::fall_silent();
}

/// Exchanges a direct descriptor for one of the mount, with the same position and flags. False: it stays what it is, for the mount no longer
/// knows a name of the file, or the process may no longer open it there.
pub fn leave(fd: c_int) -> bool {
    let Some(ino) = table::direct(fd) else { return true };
    if local().vforked() {
        // Its descriptors are its own, the table is the parent's.
        return exchange(fd, ino).unwrap_or(false);
    }
    if !table::begin_leaving(fd) {
        return true;
    }
    let left = exchange(fd, ino);
    table::end_leaving(fd, left != Some(false));
    left.unwrap_or(true)
}

/// None: the number means something else by now.
fn exchange(fd: c_int, ino: u64) -> Option<bool> {
    let source = sys::stat(fd)?;
    if source.st_dev != SOURCE_DEV.load(Ordering::Relaxed) || source.st_ino != ino {
        return None;
    }
    let flags = sys::fcntl(fd, libc::F_GETFL, 0) as c_int & (libc::O_NOATIME | libc::O_NONBLOCK);
    let Some(new) = open_in_mount(fd, ino, flags) else { return Some(false) };
    // The daemon may have kept us waiting for longer than a close waits for us.
    if !local().vforked() && !table::is_leaving(fd) {
        sys::close(new);
        return None;
    }
    let at = sys::lseek_cur(fd, 0).max(0);
    sys::lseek_cur(new, at as i64);
    if flags & libc::O_NONBLOCK == 0 {
        sys::fcntl(new, libc::F_SETFL, flags as usize);
    }
    let closes = sys::fcntl(fd, libc::F_GETFD, 0) as c_int & libc::FD_CLOEXEC != 0;
    let cloexec = if closes { libc::O_CLOEXEC } else { 0 };
    // SAFETY: both descriptors are open; nobody closes `fd` meanwhile.
    let done = unsafe { sys::raw(libc::SYS_dup3, [new as usize, fd as usize, cloexec as usize, 0, 0, 0]) };
    sys::close(new);
    Some(done >= 0)
}

fn open_in_mount(fd: c_int, ino: u64, flags: c_int) -> Option<c_int> {
    let mut path = [0; PATH_BYTES];
    let len = path_of(fd, &mut path)?;
    below_mount(&path[..len])?;
    let flags = flags | libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    let args = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags as usize, 0, 0, 0];
    let new = loop {
        // SAFETY: a C string of this frame: the buffer was zeroed, and the path is shorter.
        match unsafe { sys::raw(libc::SYS_openat, args) } {
            ret if ret == -(libc::EINTR as isize) => {}
            ret => break c_int::try_from(ret).ok().filter(|&fd| fd >= 0)?,
        }
    };
    let mount = connection::any_dev().map(|dev| Identity { dev, ino });
    if mount.is_some_and(|mount| sys::is_still(new, mount)) {
        return Some(new);
    }
    sys::close(new);
    None
}

/// Device and number of the mount, if what was found of a direct descriptor of inode `direct` is the source's.
pub fn seen_as(direct: u64, dev: u64, ino: u64) -> Option<(u64, u64)> {
    let ours = direct == ino && dev == SOURCE_DEV.load(Ordering::Relaxed);
    let mount = connection::any_dev().filter(|_| ours)?;
    Some((mount, MOUNT_ID.load(Ordering::Relaxed)))
}
