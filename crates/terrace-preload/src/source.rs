//! Where this process reads pages that it missed.
//!
//! With a mount: a descriptor of the source, opened by the daemon, kept for the life of the process, because closing any descriptor of an
//! inode drops the process's POSIX locks on it. Without a mount the program's own descriptor is the source's: its page cache is asked
//! first, and what had to be read does not stay in it. Written under the connection's lock, read without; an entry never changes its object.

use crate::sys::Identity;
use crate::table::{self, Class};
use crate::{connection, directory, helper, sys};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

const SOURCES_MAX: usize = 1024;
const PROBES_MAX: usize = 16;

#[derive(Debug)]
struct Entry {
    /// Object id; 0 = free.
    object: AtomicU64,
    /// Alignment of direct reads, bytes; 0 = the source takes none.
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
pub struct Source {
    pub fd: c_int,
    /// Alignment of the address of a direct read, bytes.
    pub align: usize,
    /// Page fills of this process are taken.
    pub may_write: bool,
    /// Without a mount: the file that the program's descriptor is one of. Through the page cache, in which nothing is to stay.
    own: Option<Identity>,
}

/// RWF_DONTCACHE of preadv2(2), Linux 6.14.
const DONTCACHE: c_int = 0x80;
/// The kernel knows the flag, as far as it has been asked.
static HAS_DONTCACHE: AtomicBool = AtomicBool::new(true);

impl Source {
    /// Reads at `at`; bytes.
    ///
    /// # Safety
    /// The vectors must name memory that may be written.
    pub unsafe fn read(&self, iov: &[libc::iovec], at: u64) -> usize {
        // SAFETY: the caller's promise.
        let got = unsafe {
            if self.own.is_some() { self.read_uncached(iov, at) } else { sys::preadv(self.fd, iov, at) }
        };
        // A number that came to mean another file, unseen, must not fill this one's pages.
        let is_ours = self.own.is_none_or(|what| sys::is_still(self.fd, what));
        usize::try_from(got).ok().filter(|_| is_ours).unwrap_or(0)
    }

    unsafe fn read_uncached(&self, iov: &[libc::iovec], at: u64) -> sys::Ret {
        if HAS_DONTCACHE.load(Ordering::Relaxed) {
            // SAFETY: the caller's promise.
            let got = unsafe { sys::preadv2(self.fd, iov, at, DONTCACHE) };
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

/// The source of a classified descriptor.
pub fn of(fd: c_int, class: Class, object: u64) -> Option<Source> {
    let known = class.source().filter(|&i| SOURCES[i].object.load(Ordering::Acquire) == object);
    let i = match known.or_else(|| find(object)) {
        Some(i) => i,
        None if directory::is_leased() => ask(fd, object)?,
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
    if !directory::is_leased() {
        return Some(Source { fd: e.fd.get()?, align, may_write, own: None });
    }
    let own = Identity { dev: connection::mount_dev()?, ino: object };
    Some(Source { fd, align, may_write, own: Some(own) })
}

fn probe(object: u64) -> impl Iterator<Item = usize> {
    let start = terrace_shm::layout::object_hash(object) as usize;
    (0..PROBES_MAX).map(move |k| (start + k) % SOURCES_MAX)
}

fn find(object: u64) -> Option<usize> {
    probe(object).find(|&i| SOURCES[i].object.load(Ordering::Acquire) == object)
}

/// Asks the daemon without a mount, once for each object that is served: whether page fills are taken.
fn ask(fd: c_int, object: u64) -> Option<usize> {
    let i = probe(object).find(|&i| SOURCES[i].object.load(Ordering::Acquire) == 0)?;
    if !connection::world()?.has_keeper() {
        return None; // Nobody would answer.
    }
    let reply = connection::serve(fd).filter(|reply| reply.errno == 0 && reply.object == object)?;
    let e = &SOURCES[i];
    e.object.compare_exchange(0, u64::MAX, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    e.align.store(1, Ordering::Relaxed);
    e.may_write.store(reply.may_write, Ordering::Relaxed);
    e.object.store(object, Ordering::Release);
    Some(i)
}

/// Asks the daemon, once for each object: an answer is kept, also a no.
fn fetch(fd: c_int, object: u64) -> Option<usize> {
    let i = probe(object).find(|&i| SOURCES[i].object.load(Ordering::Acquire) == 0)?;
    let (reply, received) = connection::source(fd)?;
    let usable =
        reply.errno == 0 && reply.object == object && (reply.direct_align as usize) <= terrace_shm::PAGE_SIZE;
    let source = received.and_then(helper::raise);
    let e = &SOURCES[i];
    // Two threads may have asked for different objects; who takes the place first, keeps it.
    if e.object.compare_exchange(0, u64::MAX, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        source.inspect(|&fd| helper::lower(fd));
        return None;
    }
    let kept = usable && source.is_some_and(|fd| e.fd.set(fd));
    if let Some(fd) = source.filter(|_| !kept) {
        helper::lower(fd);
    }
    e.align.store(if kept { reply.direct_align } else { 0 }, Ordering::Relaxed);
    e.may_write.store(reply.may_write, Ordering::Relaxed);
    e.object.store(object, Ordering::Release);
    Some(i)
}
