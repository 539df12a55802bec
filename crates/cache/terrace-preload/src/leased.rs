//! Reads without a mount (`terrace run` by leases): programs use the directory itself. Large files opened for
//! reading only are served from memory without a writer, once their reads jump. The kernel serves reads in
//! order.
//!
//! A descriptor is the source's own. So only a read of a resident page is not the kernel's call, and no other
//! call needs a hook. The daemon holds a lease on each served file. Before a writer gets access, it sends its
//! clients to the source ([`terrace_shm::layout::FLAG_SLOW`]).

use crate::local::{STREAK_MAX, local};
use crate::table::Order;
use crate::{connection, directory, sys, table};
use std::ffi::{c_char, c_int};
use std::sync::atomic::Ordering;
use terrace_shm::scratch::Scratch;

/// Jumps of a descriptor's reads after which it is served. The kernel's readahead serves reads in order. A
/// header and an index at the end of a file are not worth a request. With announced random reads
/// (posix_fadvise) the first jump suffices.
const JUMPS_MIN: u64 = 4;

/// Called after an open for reading only. `direct`: with O_DIRECT.
pub(crate) fn opened(fd: c_int, dev: u64, direct: bool) {
    // SAFETY: a path that ends.
    let Ok((id, kind, size)) = (unsafe { sys::identity_at(fd, c"".as_ptr(), libc::AT_EMPTY_PATH) }) else {
        return;
    };
    if id.dev == dev && kind == libc::S_IFREG && size >= connection::large_file() {
        table::mark(fd, id.ino, direct);
    }
}

/// Whether a failed open or truncate is to be repeated. An open for writing waits until a lease is returned,
/// for a moment. The wait may end with EINTR or, with O_NONBLOCK, EWOULDBLOCK, which programs do not expect
/// for a plain file.
///
/// # Safety
/// `path` is the program's, and the kernel has just read it.
pub(crate) unsafe fn waits_again(dir: c_int, path: *const c_char, flags: c_int, naps: &mut u32) -> bool {
    /// Milliseconds. A lease that is not returned by then belongs to another program.
    const NAPS_MAX: u32 = 500;
    // SAFETY: errno is this thread's.
    let failed = unsafe { *libc::__errno_location() };
    let refused = failed == libc::EWOULDBLOCK && flags & libc::O_NONBLOCK != 0 && *naps < NAPS_MAX;
    let writes = flags & (libc::O_ACCMODE | libc::O_TRUNC) != 0;
    // SAFETY: the caller's promise.
    if !(failed == libc::EINTR || refused) || !writes || !unsafe { may_be_served(dir, path) } {
        return false;
    }
    if refused {
        *naps += 1;
        sys::nap(1);
    }
    true
}

/// Whether terraced may hold a lease on the path's file.
///
/// # Safety
/// `path` is the program's. It is passed on to the kernel unchanged.
pub(crate) unsafe fn may_be_served(dir: c_int, path: *const c_char) -> bool {
    let Some(dev) = connection::mount_dev().filter(|_| directory::is_leased()) else { return false };
    // SAFETY: the caller's promise.
    let found = unsafe { sys::identity_at(dir, path, 0) };
    found.is_ok_and(|(id, kind, _)| id.dev == dev && kind == libc::S_IFREG)
}

/// An open for reading has emptied a file, so terraced must look at it. The truncation breaks no lease
/// (Linux: `break_lease` checks the access mode only).
pub(crate) fn truncated(fd: c_int, dev: u64) {
    let is_ours = sys::identity(fd).is_some_and(|(id, kind)| id.dev == dev && kind == libc::S_IFREG);
    if is_ours && lies_inside(fd) != Some(false) && connection::register(true) {
        connection::serve(fd);
    }
}

/// Called before the kernel reads a candidate at an offset (None: at its position). If its reads jump, the
/// next ones are served.
#[cold]
pub(crate) fn consider(fd: c_int, at: Option<u64>, n: usize) {
    let local = local();
    if local.vforked() {
        return;
    }
    let by_position = at.is_none();
    let Some(at) = at.or_else(|| u64::try_from(sys::lseek_cur(fd, 0)).ok()) else { return };
    match local.streak(fd, at, n) {
        0 if table::order(fd) == Order::Random || table::note_jump(fd) >= JUMPS_MIN => begin(fd),
        // The position costs a system call, so a sequential reader is no longer a candidate.
        STREAK_MAX.. if by_position => table::dismiss(fd),
        _ => {}
    }
}

/// Whether the file of a descriptor lies in the directory. None: no buffer for its path is free.
pub(crate) fn lies_inside(fd: c_int) -> Option<bool> {
    let mut scratch = Scratch::take()?;
    let (_, path) = scratch.pages();
    Some(sys::path_of(fd, path).is_some_and(directory::is_served))
}

/// Starts serving a candidate, if it lies in the directory.
fn begin(fd: c_int) {
    match lies_inside(fd) {
        Some(true) => {}
        Some(false) => return table::dismiss(fd),
        None => return table::reconsider(fd),
    }
    let object = table::object(fd);
    let find = || connection::world()?.segment.find_object(object);
    let is_served_now = |slot: u32| {
        connection::world().is_some_and(|w| w.segment.object(slot).flags.load(Ordering::Acquire) == 0)
    };
    // A stopped daemon would not answer.
    let is_answered = connection::world().is_none_or(connection::Attachment::has_lease_holder);
    if !is_answered || !connection::register(false) {
        return table::reconsider(fd);
    }
    let found = match find().filter(|&slot| is_served_now(slot)) {
        Some(slot) => Some(slot),
        None => match connection::serve(fd).map(|reply| reply.errno as c_int) {
            // A file with writers has an object as well: it is served as soon as the writers have closed it.
            Some(0 | libc::EBUSY) => find(),
            None | Some(libc::EAGAIN) => None,
            // Refused, as another user's file, for example: not requested again.
            Some(_) => return table::dismiss(fd),
        },
    };
    match found {
        Some(slot) => table::promote(fd, slot),
        None => table::reconsider(fd),
    }
}
