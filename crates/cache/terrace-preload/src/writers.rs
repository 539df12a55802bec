//! Writers: descriptors with announced writes. They are open for writing, on a regular file of the served
//! directory's device. Files are served by inode: a path shows no hard links, and no moved or mounted names.
//!
//! Where the daemon sees opens, a process announces nothing until it opens a large file. Small and new files are
//! not served, so most programs need no connection.

use crate::guarded::{self, Ticket};
use crate::lasting::{self, Until};
use crate::local::local;
use crate::table;
use crate::{connection, directory, sys};
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use terrace_shm::writes::{ClientPage, Span};

/// Descriptors that are tried without /proc.
const TRIED: c_int = 1024;

/// Whether writes of any descriptor may be unseen, by a ring.
static UNSEEN: AtomicBool = AtomicBool::new(false);
/// Whether a descriptor of a small file may be without a mark.
static UNMARKED: AtomicBool = AtomicBool::new(false);

/// Marks a descriptor that an open has just made.
pub(crate) fn opened(fd: c_int, flags: c_int) {
    let Some(dev) = connection::announced_dev().filter(|_| flags & libc::O_PATH == 0) else { return };
    // SAFETY: a path that ends.
    let Ok((id, kind, size)) = (unsafe { sys::identity_at(fd, c"".as_ptr(), libc::AT_EMPTY_PATH) }) else {
        return;
    };
    if id.dev != dev || kind != libc::S_IFREG {
        return;
    }
    let mode = flags & libc::O_ACCMODE;
    let is_large = size >= connection::large_file();
    if mode != libc::O_RDONLY && (is_large || must_announce()) {
        watch(fd, id.ino, flags & libc::O_APPEND != 0, false);
    }
    if mode != libc::O_WRONLY && is_large && connection::mount_dev().is_some() {
        table::mark(fd, id.ino, flags & libc::O_DIRECT != 0);
    }
}

/// Whether descriptors of small files are marked, too. A thread that registers this process meanwhile finds them.
fn must_announce() -> bool {
    let is_known = || !directory::is_guarded() || connection::writes_page().is_some();
    is_known() || {
        UNMARKED.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        is_known()
    }
}

/// The process has its client page: announces that unmarked descriptors are written until their close. Then the
/// daemon counts the process as one that announces its writes.
#[cold]
pub(crate) fn begin_announcing() {
    fence(Ordering::SeqCst);
    if directory::is_guarded() && UNMARKED.load(Ordering::SeqCst) {
        let until = if UNSEEN.load(Ordering::SeqCst) { Until::Exit } else { Until::Close };
        let hold = |fd| {
            if let Some((object, _)) = look(fd).filter(|_| table::writer(fd).is_none()) {
                lasting::hold(fd, object, until);
            }
        };
        if each_open(&mut { hold }).is_none() {
            (0..TRIED).for_each(hold);
        }
    }
    if let Some(page) = connection::writes_page() {
        page.set_ready();
    }
}

/// Before an open. If it may write a large file, the process registers first. Returns whether the daemon is
/// shown that the library sees the open ([`opening_end`]).
///
/// # Safety
/// As [`emptying`].
pub(crate) unsafe fn opening(dir: c_int, path: *const c_char, flags: c_int) -> bool {
    let writes = flags & (libc::O_ACCMODE | libc::O_TRUNC) != libc::O_RDONLY && flags & libc::O_PATH == 0;
    let Some(dev) = connection::announced_dev().filter(|_| writes && directory::is_guarded()) else {
        return false;
    };
    if local().vforked() {
        return false;
    }
    // SAFETY: the caller's promise.
    let found = unsafe { sys::identity_at(dir, path, 0) };
    let large = connection::large_file();
    let may_be_served =
        found.ok().filter(|&(id, kind, size)| id.dev == dev && kind == libc::S_IFREG && size >= large);
    if may_be_served.is_some() {
        connection::register_writer();
    }
    let Some(page) = connection::writes_page() else { return false };
    let is_watched = |object| connection::world().is_some_and(|world| world.segment.is_watched(object));
    if may_be_served.is_some_and(|(id, ..)| !is_watched(id.ino)) {
        // SAFETY: the caller's promise.
        unsafe { by_path(dir, path, |fd, _| connection::watch(fd)) };
    }
    page.begin_open();
    true
}

/// Before an open of any file, in a process that announces its writes; as [`opening`].
pub(crate) fn opening_any() -> bool {
    let page = connection::writes_page().filter(|_| directory::is_guarded() && !local().vforked());
    page.map(ClientPage::begin_open).is_some()
}

/// After an open for which [`opening`] has returned true.
pub(crate) fn opening_end() {
    connection::writes_page().map(ClientPage::end_open);
}

/// Announces the descriptor's writes from here on.
fn watch(fd: c_int, object: u64, appends: bool, shared: bool) {
    connection::register_writer();
    let is_marked = table::mark_writer(fd, object, appends, shared);
    // A thread that hides later writes looks at the marks after it has set its flag.
    fence(Ordering::SeqCst);
    if connection::mount_dev().is_none() || UNSEEN.load(Ordering::Relaxed) {
        lasting::hold(fd, object, Until::Exit);
    } else if !is_marked {
        lasting::hold(fd, object, Until::Close);
    }
}

/// Inode and O_APPEND of an unmarked writer.
fn look(fd: c_int) -> Option<(u64, bool)> {
    connection::announced_dev()?;
    let flags = sys::fcntl(fd, libc::F_GETFL, 0) as c_int;
    if flags < 0 || flags & libc::O_PATH != 0 || flags & libc::O_ACCMODE == libc::O_RDONLY {
        return None;
    }
    Some((served(fd)?, flags & libc::O_APPEND != 0))
}

/// Inode of a writer, marked or not.
pub(crate) fn object(fd: c_int) -> Option<u64> {
    table::writer(fd).map(|writer| writer.object).or_else(|| look(fd).map(|(object, _)| object))
}

/// Leaves the file of a descriptor to the kernel, since a process that may not announce its writes gets it.
pub(crate) fn give_up(fd: c_int) {
    if let Some((object, _)) = look(fd)
        && !connection::give_up(fd)
    {
        guarded::begin_for_good(object);
    }
}

/// Marks a descriptor that may have lost its mark, or has never had one.
pub(crate) fn find(fd: c_int) {
    if let Some((object, appends)) = look(fd).filter(|_| table::writer(fd).is_none())
        && (is_large(fd) || must_announce())
    {
        watch(fd, object, appends, true);
    }
}

/// Whether the file of a descriptor may be served.
fn is_large(fd: c_int) -> bool {
    // SAFETY: a path that ends.
    let found = unsafe { sys::identity_at(fd, c"".as_ptr(), libc::AT_EMPTY_PATH) };
    found.is_ok_and(|(.., size)| size >= connection::large_file())
}

/// `new` is a duplicate of `old`.
pub(crate) fn duplicated(old: c_int, new: c_int) {
    let lasting = || lasting::object(old);
    match table::writer(old).map(|writer| writer.object).or_else(lasting) {
        Some(object) if old != new && !table::has_place(new) => lasting::hold(new, object, Until::Close),
        Some(_) if old != new => find(new),
        _ => {}
    }
}

/// Marks a descriptor of a call that was not announced. The call may have emptied the file. None: its flags are
/// not known.
pub(crate) fn made(fd: c_int, flags: Option<c_int>) {
    if fd < 0 {
        return;
    }
    if !local().vforked() {
        table::forget(fd);
        lasting::close(fd);
        find(fd);
    }
    let may_empty = flags.map_or_else(|| look(fd).is_some(), |flags| flags & libc::O_TRUNC != 0);
    if may_empty && let Some(object) = served(fd) {
        announce_after(fd, object);
    }
}

/// Announces the writes of a descriptor's stream, until it is closed. Writes by duplicates are seen.
pub(crate) fn stream(fd: c_int) {
    find(fd);
    let is_silent = directory::is_guarded() && connection::writes_page().is_none();
    if let Some(object) = object(fd).filter(|_| !is_silent) {
        lasting::hold(fd, object, Until::Close);
    }
}

/// A path's file is emptied or written unseen, until the process ends.
///
/// # Safety
/// As [`emptying`].
pub(crate) unsafe fn hold_path(path: *const c_char) {
    let hold = |fd, object| lasting::hold(fd, object, Until::Exit);
    // SAFETY: the caller's promise.
    unsafe { by_path(libc::AT_FDCWD, path, hold) };
}

/// A marked descriptor is written unseen. Where small files have no marks: any descriptor.
pub(crate) fn hold_marked(fd: c_int, until: Until) {
    let known = table::writer(fd).map(|writer| writer.object).or_else(|| lasting::object(fd));
    let unmarked = || look(fd).filter(|_| directory::is_guarded()).map(|(object, _)| object);
    if let Some(object) = known.or_else(unmarked) {
        lasting::hold(fd, object, until);
    }
}

/// A ring may write by any descriptor from here on, also after its close.
#[cold]
pub(crate) fn hold_all() {
    if connection::announced_dev().is_some() && !UNSEEN.swap(true, Ordering::SeqCst) {
        fence(Ordering::SeqCst);
        lasting::hold_all_writers();
    }
}

/// A file that an open or a truncate empties.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Emptied {
    ticket: Ticket,
    object: u64,
}

/// Announces the truncation of a path's file, before the call.
///
/// # Safety
/// `path` is the program's. It is passed on to the kernel unchanged.
pub(crate) unsafe fn emptying(dir: c_int, path: *const c_char, flags: c_int) -> Emptied {
    if flags & libc::O_TRUNC == 0 {
        return Emptied::default();
    }
    // SAFETY: the caller's promise.
    match unsafe { at(dir, path) }.filter(|_| !shows_itself(flags)) {
        Some(object) => Emptied { ticket: guarded::announce(Span::all(object)), object },
        None => Emptied::default(),
    }
}

/// Whether the daemon sees this open without an announcement: as one for writing, of a process that announces
/// nothing.
fn shows_itself(flags: c_int) -> bool {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    directory::is_guarded() && writes && connection::writes_page().is_none()
}

/// After an open that empties a file. If the path has meant another file meanwhile, that one is announced.
pub(crate) fn emptied(before: Emptied, fd: c_int, flags: c_int) {
    guarded::end(before.ticket, 0);
    if fd < 0 || flags & libc::O_TRUNC == 0 || flags & libc::O_PATH != 0 {
        return;
    }
    let is_new = |&object: &u64| object != before.object || !before.ticket.is_announced();
    if shows_itself(flags) {
        return;
    }
    if let Some(object) = served(fd).filter(is_new) {
        announce_after(fd, object);
    }
}

/// Announces a change of a descriptor's file after the call that has made it.
fn announce_after(fd: c_int, object: u64) {
    let ticket = guarded::announce(Span::all(object));
    if !ticket.is_announced() {
        connection::give_up(fd);
    }
    guarded::end(ticket, 0);
}

/// After a truncate of a path.
///
/// # Safety
/// As [`emptying`].
pub(crate) unsafe fn truncated(before: Emptied, dir: c_int, path: *const c_char) {
    guarded::end(before.ticket, 0);
    let is_new = |object| object != before.object || !before.ticket.is_announced();
    // SAFETY: the caller's promise.
    unsafe {
        if at(dir, path).is_some_and(is_new) {
            by_path(dir, path, announce_after);
        }
    }
}

/// Calls `f` with a descriptor of a path's file, and the file, if it may be served.
///
/// # Safety
/// As [`emptying`].
unsafe fn by_path(dir: c_int, path: *const c_char, f: impl FnOnce(c_int, u64)) {
    let flags = (libc::O_PATH | libc::O_CLOEXEC) as usize;
    // SAFETY: the caller's promise.
    let fd = unsafe { sys::raw(libc::SYS_openat, [dir as usize, path as usize, flags, 0, 0, 0]) };
    let Ok(fd @ 0..) = c_int::try_from(fd) else { return };
    if let Some(object) = served(fd) {
        f(fd, object);
    }
    sys::close(fd);
}

/// The file of a descriptor, if it may be served.
fn served(fd: c_int) -> Option<u64> {
    let dev = connection::announced_dev()?;
    let (id, kind) = sys::identity(fd)?;
    (id.dev == dev && kind == libc::S_IFREG).then_some(id.ino)
}

/// The file of a path, if it may be served.
///
/// # Safety
/// As [`emptying`].
unsafe fn at(dir: c_int, path: *const c_char) -> Option<u64> {
    let dev = connection::announced_dev()?;
    // SAFETY: the caller's promise.
    let (id, kind, _) = unsafe { sys::identity_at(dir, path, 0) }.ok()?;
    (id.dev == dev && kind == libc::S_IFREG).then_some(id.ino)
}

/// The same for all descriptors that exec leaves open. `any`: also for those that it closes.
#[cold]
pub(crate) fn give_up_passed(any: bool) {
    let mut one = |fd| {
        if any || sys::fcntl(fd, libc::F_GETFD, 0) as c_int & libc::FD_CLOEXEC == 0 {
            give_up(fd);
        }
    };
    // The daemon sees descriptors of a process that announces nothing.
    let is_seen = directory::is_guarded() && connection::writes_page().is_none();
    if connection::announced_dev().is_some() && !is_seen && each_open(&mut one).is_none() {
        (0..TRIED).for_each(one);
    }
}

/// Marks the descriptors that exist already. Called once from .init_array, and after failed calls that have
/// cleared marks.
#[cold]
pub(crate) fn find_all() {
    if connection::announced_dev().is_some() && each_open(&mut find).is_none() {
        (0..TRIED).for_each(find);
    }
}

/// Calls `f` for each open descriptor. None: /proc cannot be read.
fn each_open(f: &mut dyn FnMut(c_int)) -> Option<()> {
    /// Words before a name in `struct linux_dirent64`; offset of the record's length.
    const NAME_AT: usize = 19;
    const LEN_AT: usize = 16;
    let path = c"/proc/self/fd".as_ptr() as usize;
    let flags = (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize;
    // SAFETY: a path that ends.
    let dir = unsafe { sys::raw(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0]) };
    let dir = c_int::try_from(dir).ok().filter(|&dir| dir >= 0)?;
    let mut list = [0_u8; 1024];
    let done = loop {
        let args = [dir as usize, list.as_mut_ptr() as usize, list.len(), 0, 0, 0];
        // SAFETY: the kernel writes into the buffer.
        let got = unsafe { sys::raw(libc::SYS_getdents64, args) };
        let Some(mut rest) = usize::try_from(got).ok().and_then(|got| list.get(..got)) else { break None };
        if rest.is_empty() {
            break Some(());
        }
        while let Some(name) = rest.get(NAME_AT..) {
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            let number = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
            number.into_iter().filter(|&fd| fd != dir).for_each(&mut *f);
            let len = u16::from_ne_bytes([rest[LEN_AT], rest[LEN_AT + 1]]).into();
            rest = rest.get(len..).filter(|_| len > 0).unwrap_or_default();
        }
    };
    sys::close(dir);
    done
}
