//! Descriptors of source files with which this process writes itself, one for each of the program's descriptors that has one.
//!
//! A number in the program's table can come to mean another file unseen (a raw close), so before each use both are looked at, the program's
//! descriptor and ours: nothing is ever written to a file for which it was not meant.

use crate::sys::{self, Identity};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// Descriptors of one process at the most.
pub const GRANTS_MAX: usize = 256;

/// `Grant::fd1` of a place that is being filled.
const TAKEN: c_int = -1;
/// fcntl: a lock that another description would meet.
const F_OFD_GETLK: c_int = 36;

#[derive(Debug)]
struct Grant {
    /// The descriptor + 1; 0: free.
    fd1: AtomicI32,
    /// What it is, and what the program's descriptor is.
    source: Place,
    shown: Place,
    /// The mount's fsync was called since: it told what had failed before.
    synced: AtomicBool,
}

#[derive(Debug)]
struct Place {
    dev: AtomicU64,
    ino: AtomicU64,
}

impl Place {
    const fn new() -> Place {
        Place { dev: AtomicU64::new(0), ino: AtomicU64::new(0) }
    }
    fn set(&self, what: Identity) {
        self.dev.store(what.dev, Ordering::Relaxed);
        self.ino.store(what.ino, Ordering::Relaxed);
    }
    fn is(&self, fd: c_int) -> bool {
        let what = Identity { dev: self.dev.load(Ordering::Relaxed), ino: self.ino.load(Ordering::Relaxed) };
        sys::is_still(fd, what)
    }
}

static GRANTS: [Grant; GRANTS_MAX] = [const {
    Grant {
        fd1: AtomicI32::new(0),
        source: Place::new(),
        shown: Place::new(),
        synced: AtomicBool::new(false),
    }
}; GRANTS_MAX];

/// Keeps `source`, with which the file of the program's descriptor `fd` can be written. None: no room, or one of them is gone.
pub fn keep(fd: c_int, source: c_int) -> Option<usize> {
    let (shown, source_is) = (sys::identity(fd)?.0, sys::identity(source)?.0);
    let free =
        |grant: &Grant| grant.fd1.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok();
    let i = GRANTS.iter().position(free)?;
    let grant = &GRANTS[i];
    grant.source.set(source_is);
    grant.shown.set(shown);
    grant.synced.store(false, Ordering::Relaxed);
    grant.fd1.store(source + 1, Ordering::Release);
    Some(i)
}

/// The descriptor with which to write the file of the program's descriptor `fd`, if both still are what they were.
pub fn get(i: usize, fd: c_int) -> Option<c_int> {
    let grant = GRANTS.get(i)?;
    let source = grant.fd1.load(Ordering::Acquire) - 1;
    let unchanged = || grant.fd1.load(Ordering::Acquire) == source + 1;
    (source >= 0 && grant.shown.is(fd) && grant.source.is(source) && unchanged()).then_some(source)
}

/// Has [`note_synced`] been called?
pub fn is_synced(i: usize) -> bool {
    GRANTS[i].synced.load(Ordering::Relaxed)
}

/// The mount's fsync of the descriptor was answered.
pub fn note_synced(i: usize) {
    GRANTS[i].synced.store(true, Ordering::Relaxed);
}

/// Takes a descriptor out; it is the caller's to close. None: it is to stay open, or is gone. Whoever closes any descriptor of a file loses
/// his POSIX locks on it, and the program may have some if it knows the source by another way.
pub fn take(i: usize) -> Option<c_int> {
    let grant = GRANTS.get(i)?;
    let source = grant.fd1.load(Ordering::Acquire) - 1;
    if source < 0 {
        return None;
    }
    let ours = grant.source.is(source);
    grant.fd1.store(0, Ordering::Release);
    (ours && !is_locked(source)).then_some(source)
}

/// Does anybody have a lock on the file?
fn is_locked(fd: c_int) -> bool {
    // SAFETY: zero is a valid flock: the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    // SAFETY: fcntl reads and writes the flock.
    let ret = unsafe {
        sys::raw(libc::SYS_fcntl, [fd as usize, F_OFD_GETLK as usize, &raw mut lock as usize, 0, 0, 0])
    };
    ret != 0 || lock.l_type != libc::F_UNLCK as libc::c_short
}
