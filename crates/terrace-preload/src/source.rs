//! Where this process reads pages that it missed.
//!
//! With a mount: a descriptor of the source, opened by the daemon, kept for the life of the process, because closing any descriptor of an
//! inode drops the process's POSIX locks on it. Without a mount the program's own descriptor is the source's: what its page cache has is read from
//! there, the rest by a descriptor for direct reads ([`crate::direct`]), or so that it does not stay. Written under the connection's lock, read without;
//! an entry never changes its object.

use crate::direct::{Direct, Found};
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
    direct: Direct,
}

static SOURCES: [Entry; SOURCES_MAX] = [const {
    Entry {
        object: AtomicU64::new(0),
        align: AtomicU32::new(0),
        may_write: AtomicU32::new(0),
        fd: helper::Slot::new(),
        direct: Direct::new(),
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
    /// Without a mount: `fd` is the program's own.
    own: Option<Own>,
}

/// How the file of a program's own descriptor is read.
#[derive(Debug, Clone, Copy)]
struct Own {
    what: Identity,
    direct: Option<(&'static Direct, Found)>,
}

/// The kernel knows RWF_DONTCACHE (Linux 6.14), as far as it has been asked.
static HAS_DONTCACHE: AtomicBool = AtomicBool::new(true);

impl Source {
    /// Without a mount: what is not read here is the kernel's read of the program's own descriptor.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Reads at `at`; bytes.
    ///
    /// # Safety
    /// The vectors must name memory that may be written.
    pub unsafe fn read(&self, iov: &[libc::iovec], at: u64) -> usize {
        // A number that came to mean another file, unseen, must not fill this one's pages.
        // SAFETY: the caller's promise.
        let (got, is_ours) = unsafe {
            match self.own {
                None => (sys::preadv(self.fd, iov, at), true),
                Some(Own { what, direct: Some((direct, found)) }) if !self.is_cached(iov, at) => {
                    (sys::preadv(found.fd, iov, at), direct.is_still(found, what))
                }
                Some(Own { what, .. }) => (self.read_uncached(iov, at), sys::is_still(self.fd, what)),
            }
        };
        usize::try_from(got).ok().filter(|_| is_ours).unwrap_or(0)
    }

    /// A page of the range is in the page cache, from which it comes sooner than from the device.
    fn is_cached(&self, iov: &[libc::iovec], at: u64) -> bool {
        sys::is_cached(self.fd, at, iov.iter().map(|piece| piece.iov_len as u64).sum())
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
    let what = Identity { dev: connection::mount_dev()?, ino: object };
    let direct = e.direct.get(fd, what).map(|found| (&e.direct, found));
    let align = if direct.is_some() { terrace_shm::PAGE_SIZE } else { align };
    Some(Source { fd, align, may_write, own: Some(Own { what, direct }) })
}

/// Without a mount: the program is about to close a descriptor of a file.
pub fn closes(object: u64) {
    if let Some(i) = find(object) {
        SOURCES[i].direct.close();
    }
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
