//! Descriptors of ours in the program's table: socket, source files.
//!
//! They stand at the upper end, so that the numbers a program gets do not change, and their closing by the program is
//! answered with EBADF. A program that closes by raw system call and reuses the number is found out before each use: the
//! recorded identity no longer fits.

use crate::sys::{self, Identity};
use crate::table;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Of the program's limit of open files, the part that we use: one in 32, at most 1,024.
fn room() -> (u64, u64) {
    let limit = sys::files_max().min(table::FDS_MAX as u64);
    (limit, (limit / 32).min(1024))
}

/// A copy of a descriptor at the upper end, closed on exec and hidden.
fn copy_up(fd: c_int) -> Option<c_int> {
    let (limit, mine) = room();
    let high = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, (limit - mine) as usize) as c_int;
    if high < 0 {
        return None;
    }
    if high as usize >= table::FDS_MAX {
        sys::close(high);
        return None;
    }
    table::hide(high);
    Some(high)
}

/// Moves a descriptor to the upper end. None (and it is closed) if there is no room.
pub fn raise(fd: c_int) -> Option<c_int> {
    let high = copy_up(fd);
    sys::close(fd);
    high
}

/// Moves a descriptor to the upper end; it stays where it is if there is no room.
pub fn lift(fd: c_int) -> c_int {
    match copy_up(fd) {
        Some(high) => {
            sys::close(fd);
            high
        }
        None => {
            table::hide(fd);
            fd
        }
    }
}

/// Closes a descriptor of ours.
pub fn lower(fd: c_int) {
    table::forget(fd);
    sys::close(fd);
}

/// A place for one such descriptor. All zero = none.
#[derive(Debug)]
pub struct Slot {
    fd1: AtomicI32,
    dev: AtomicU64,
    ino: AtomicU64,
}

impl Slot {
    /// An empty place.
    pub const fn new() -> Slot {
        Slot { fd1: AtomicI32::new(0), dev: AtomicU64::new(0), ino: AtomicU64::new(0) }
    }
    /// Keeps a descriptor. False if it is gone already.
    pub fn set(&self, fd: c_int) -> bool {
        let Some((Identity { dev, ino }, _)) = sys::identity(fd) else { return false };
        self.dev.store(dev, Ordering::Relaxed);
        self.ino.store(ino, Ordering::Relaxed);
        self.fd1.store(fd + 1, Ordering::Release);
        true
    }
    /// The descriptor, if it still is ours.
    pub fn get(&self) -> Option<c_int> {
        let fd = self.fd1.load(Ordering::Acquire) - 1;
        if fd < 0 {
            return None;
        }
        let what = Identity { dev: self.dev.load(Ordering::Relaxed), ino: self.ino.load(Ordering::Relaxed) };
        if table::is_helper(fd) && sys::is_still(fd, what) {
            return Some(fd);
        }
        self.forget(fd);
        None
    }
    /// Whether both keep the same descriptor.
    pub fn is_same(&self, other: &Slot) -> bool {
        let fd1 = self.fd1.load(Ordering::Relaxed);
        fd1 != 0 && fd1 == other.fd1.load(Ordering::Relaxed)
    }
    /// Closes the descriptor, if it still is ours.
    pub fn discard(&self) {
        if let Some(fd) = self.get() {
            self.forget(fd);
            lower(fd);
        }
    }
    /// Makes the place empty and leaves the descriptor alone.
    pub fn clear(&self) {
        self.fd1.store(0, Ordering::Release);
    }
    /// Unless another one has taken the place meanwhile.
    fn forget(&self, fd: c_int) {
        let _ = self.fd1.compare_exchange(fd + 1, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}
