//! The library's descriptors in the program's table: socket, source files, targets.
//!
//! They have the highest numbers, so that the program's numbers do not change. If the program closes one, the
//! call returns EBADF. After an unseen close (by a raw system call) and a reuse, the check before each use
//! finds another identity.

use crate::sys::{self, Identity};
use crate::table;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// The library's share of the program's limit of open files: one in 32, at most 1,024.
fn room() -> (u64, u64) {
    let limit = sys::files_max().min(table::FDS_MAX as u64);
    (limit, (limit / 32).min(1024))
}

/// A descriptor of the library, and its file: raw system calls may close it, or reuse its number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnFd {
    pub(crate) fd: c_int,
    what: Identity,
}

impl OwnFd {
    fn is_still(self) -> bool {
        sys::is_still(self.fd, self.what)
    }
}

/// A copy of a descriptor at the highest numbers, closed on exec and hidden.
fn copy_up(fd: c_int, what: Identity) -> Option<OwnFd> {
    let (limit, mine) = room();
    let high = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, (limit - mine) as usize) as c_int;
    if high < 0 {
        return None;
    }
    if high as usize >= table::FDS_MAX {
        sys::close(high);
        return None;
    }
    table::hide(high, what);
    Some(OwnFd { fd: high, what })
}

/// Moves a descriptor to the highest numbers. None (and it is closed) if there is no room.
pub(crate) fn raise(fd: c_int) -> Option<OwnFd> {
    let high = sys::identity(fd).and_then(|(what, _)| copy_up(fd, what));
    sys::close(fd);
    high
}

/// Moves a descriptor to the highest numbers; it stays in place if there is no room. None: it is not open.
pub(crate) fn lift(fd: c_int) -> Option<OwnFd> {
    let (what, _) = sys::identity(fd)?;
    let high = copy_up(fd, what);
    match high {
        Some(_) => sys::close(fd),
        None => table::hide(fd, what),
    }
    Some(high.unwrap_or(OwnFd { fd, what }))
}

/// Closes a descriptor of the library, if it is still the library's.
pub(crate) fn lower(kept: OwnFd) {
    if kept.is_still() {
        table::forget(kept.fd);
        sys::close(kept.fd);
    }
}

/// The program is about to close a descriptor: forgets it. False for one of the library's.
pub(crate) fn may_close(fd: c_int) -> bool {
    let is_theirs = !is_ours(fd);
    if is_theirs {
        table::forget(fd);
    }
    is_theirs
}

fn is_ours(fd: c_int) -> bool {
    table::helper(fd).is_some_and(|what| sys::is_still(fd, what))
}

/// The library's descriptors in `[first, last]`, ascending.
pub(crate) fn within(first: u32, last: u32) -> impl Iterator<Item = u32> {
    table::helpers(first, last).filter(|&fd| is_ours(fd as c_int))
}

/// A place for one descriptor of the library. All zero = empty.
#[derive(Debug)]
pub(crate) struct Slot {
    fd1: AtomicI32,
    dev: AtomicU64,
    ino: AtomicU64,
}

impl Slot {
    pub(crate) const fn new() -> Slot {
        Slot { fd1: AtomicI32::new(0), dev: AtomicU64::new(0), ino: AtomicU64::new(0) }
    }
    pub(crate) fn set(&self, kept: OwnFd) {
        self.dev.store(kept.what.dev, Ordering::Relaxed);
        self.ino.store(kept.what.ino, Ordering::Relaxed);
        self.fd1.store(kept.fd + 1, Ordering::Release);
    }
    /// The descriptor, if it is still the library's.
    pub(crate) fn get(&self) -> Option<c_int> {
        self.kept().map(|kept| kept.fd)
    }
    /// Likewise, with its file.
    pub(crate) fn kept(&self) -> Option<OwnFd> {
        let fd = self.fd1.load(Ordering::Acquire) - 1;
        if fd < 0 {
            return None;
        }
        let what = Identity { dev: self.dev.load(Ordering::Relaxed), ino: self.ino.load(Ordering::Relaxed) };
        let kept = OwnFd { fd, what };
        if table::helper(fd).is_some() && kept.is_still() {
            return Some(kept);
        }
        self.forget(fd);
        None
    }
    /// Whether both keep the same descriptor.
    pub(crate) fn is_same(&self, other: &Slot) -> bool {
        let fd1 = self.fd1.load(Ordering::Relaxed);
        fd1 != 0 && fd1 == other.fd1.load(Ordering::Relaxed)
    }
    /// Closes the descriptor, if it is still the library's.
    pub(crate) fn discard(&self) {
        if let Some(kept) = self.kept() {
            self.forget(kept.fd);
            lower(kept);
        }
    }
    /// Empties the place without closing the descriptor.
    pub(crate) fn clear(&self) {
        self.fd1.store(0, Ordering::Release);
    }
    /// Empties the place, unless another descriptor has been set meanwhile.
    fn forget(&self, fd: c_int) {
        let _ = self.fd1.compare_exchange(fd + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}
