//! The source of pages that this process missed.
//!
//! With a mount: a descriptor of the source, opened by the daemon and kept for the life of the process.
//! Closing any descriptor of an inode would drop the process's POSIX locks on it. Entries are written under
//! the connection's lock and read without it. An entry never changes its object.
//!
//! Without a mount: the program's own descriptor. The file's content does not stay in the page cache. A
//! descriptor of the library would disturb the program. Its close ends locks; until then it keeps a deleted
//! file's space and a number.

use crate::sys::Identity;
use crate::table::{self, Class};
use crate::{connection, directory, helper, sys};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Alignment of reads with O_DIRECT, bytes: the smallest one of Linux. The kernel answers reads with less.
pub(crate) const DIRECT_ALIGN: usize = 512;
const SOURCES_MAX: usize = 1024;
const PROBES_MAX: usize = 16;

#[derive(Debug)]
struct Entry {
    /// Object id; 0 = free.
    object: AtomicU64,
    /// Alignment of direct reads, bytes; 0 = the source does not support them.
    align: AtomicU32,
    may_write: AtomicU32,
    fd: helper::Slot,
}

static SOURCES: [Entry; SOURCES_MAX] = [const {
    Entry {
        object: AtomicU64::new(0),
        align: AtomicU32::new(0),
        may_write: AtomicU32::new(0),
        fd: helper::Slot::new(),
    }
}; SOURCES_MAX];

/// A source that can be read now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Source {
    pub(crate) fd: c_int,
    /// Alignment of the address of a direct read, bytes.
    pub(crate) align: usize,
    /// Whether page fills of this process are accepted.
    pub(crate) may_write: bool,
    /// Without a mount: identity of `fd`, which is the program's own.
    own: Option<Identity>,
    /// The program's own descriptor is open with O_DIRECT.
    direct: bool,
}

/// Without a mount: terraced's answers whether page fills of a file are accepted. One file a place, the
/// latest.
/// ```text
///  63..1    0
/// | object | may_write |
/// ```
static ANSWERS: [AtomicU64; SOURCES_MAX] = [const { AtomicU64::new(0) }; SOURCES_MAX];

/// Whether the kernel supports RWF_DONTCACHE (Linux 6.14). True until a read shows otherwise.
static HAS_DONTCACHE: AtomicBool = AtomicBool::new(true);

impl Source {
    /// Without a mount: the kernel reads the rest with the program's own descriptor.
    pub(crate) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Reads at `at`. Returns the bytes. `offers`: the pages are also offered to other processes.
    ///
    /// # Safety
    /// The vectors must name memory that may be written.
    pub(crate) unsafe fn read(&self, iov: &[libc::iovec], at: u64, offers: bool) -> usize {
        // SAFETY: the caller's promise.
        let got = unsafe {
            match self.own {
                Some(_) if !self.direct => self.read_uncached(iov, at),
                _ => sys::preadv(self.fd, iov, at),
            }
        };
        // If the number was reused unseen for another file, its content must not fill this file's pages. The
        // program itself gets that file's content by its own read.
        let is_right = !offers || self.own.is_none_or(|what| sys::is_still(self.fd, what));
        usize::try_from(got).ok().filter(|_| is_right).unwrap_or(0)
    }

    unsafe fn read_uncached(&self, iov: &[libc::iovec], at: u64) -> sys::Ret {
        if HAS_DONTCACHE.load(Ordering::Relaxed) {
            // SAFETY: the caller's promise.
            let got = unsafe { sys::preadv2(self.fd, iov, at, libc::RWF_DONTCACHE) };
            if got != -(libc::EOPNOTSUPP as isize) {
                return got;
            }
            HAS_DONTCACHE.store(false, Ordering::Relaxed);
        }
        // SAFETY: likewise.
        let got = unsafe { sys::preadv(self.fd, iov, at) };
        if let Ok(bytes) = usize::try_from(got) {
            sys::fadvise(self.fd, at, bytes, libc::POSIX_FADV_DONTNEED);
        }
        got
    }
}

pub(crate) fn of(fd: c_int, class: Class, object: u64) -> Option<Source> {
    if directory::is_leased() {
        return own(fd, class, object);
    }
    let known = class.source().filter(|&i| SOURCES[i].object.load(Ordering::Acquire) == object);
    let i = match known.or_else(|| find(object)) {
        Some(i) => i,
        None => fetch(fd, object)?,
    };
    if class.source() != Some(i) {
        table::note_source(fd, class, i);
    }
    let e = &SOURCES[i];
    let align = e.align.load(Ordering::Relaxed) as usize;
    if align == 0 {
        return None;
    }
    let may_write = e.may_write.load(Ordering::Relaxed) != 0;
    Some(Source { fd: e.fd.get()?, align, may_write, own: None, direct: false })
}

/// The program's own descriptor, without a mount. The answer is recorded with the descriptor.
fn own(fd: c_int, class: Class, object: u64) -> Option<Source> {
    let may_write = match class.source() {
        Some(known) => known != 0,
        None => {
            let place = &ANSWERS[terrace_shm::layout::object_hash(object) as usize % SOURCES_MAX];
            let known = place.load(Ordering::Relaxed);
            let may_write = if known >> 1 == object { known & 1 != 0 } else { ask(fd, object)? };
            place.store(object << 1 | u64::from(may_write), Ordering::Relaxed);
            table::note_source(fd, class, usize::from(may_write));
            may_write
        }
    };
    let what = Identity { dev: connection::mount_dev()?, ino: object };
    let direct = class.is_direct();
    Some(Source { fd, align: if direct { DIRECT_ALIGN } else { 1 }, may_write, own: Some(what), direct })
}

fn probe(object: u64) -> impl Iterator<Item = usize> {
    let start = terrace_shm::layout::object_hash(object) as usize;
    (0..PROBES_MAX).map(move |k| (start + k) % SOURCES_MAX)
}

fn find(object: u64) -> Option<usize> {
    probe(object).find(|&i| SOURCES[i].object.load(Ordering::Acquire) == object)
}

/// Request to the daemon without a mount. Returns whether it accepts page fills.
fn ask(fd: c_int, object: u64) -> Option<bool> {
    if !connection::world()?.has_lease_holder() {
        return None; // No daemon would answer.
    }
    let reply = connection::serve(fd).filter(|reply| reply.errno == 0 && reply.object == object)?;
    Some(reply.may_write != 0)
}

/// Requests the source from the daemon, once for each object: a refusal is kept as well.
fn fetch(fd: c_int, object: u64) -> Option<usize> {
    let i = probe(object).find(|&i| SOURCES[i].object.load(Ordering::Acquire) == 0)?;
    let (reply, received) = connection::source(fd)?;
    let usable =
        reply.errno == 0 && reply.object == object && (reply.direct_align as usize) <= terrace_shm::PAGE_SIZE;
    let source = received.and_then(helper::raise);
    let e = &SOURCES[i];
    // Two threads may have requested different objects: the first keeps the place.
    if e.object.compare_exchange(0, u64::MAX, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        source.into_iter().for_each(helper::lower);
        return None;
    }
    match source {
        Some(kept) if usable => e.fd.set(kept),
        _ => source.into_iter().for_each(helper::lower),
    }
    let is_kept = usable && source.is_some();
    e.align.store(if is_kept { reply.direct_align } else { 0 }, Ordering::Relaxed);
    e.may_write.store(reply.may_write, Ordering::Relaxed);
    e.object.store(object, Ordering::Release);
    Some(i)
}
