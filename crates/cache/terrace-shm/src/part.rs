//! Parts of a mapped memory file: arrays of one type. A client maps as many items as it reads.
//!
//! The file is as large as the machine's memory. A mapping of all of it would exceed a client's limit on
//! address space, and mlockall(2) would populate it. So a client's part begins small and grows in place, far
//! from other mappings. The daemon, which allocates the items, maps all.

use crate::layout::HUGE;
use crate::mapping::Mapping;
use crate::sync::{AtomicU32, Ordering};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;

/// A client's share of a limit on address space, for all memory files: one part in this many.
const SHARE: usize = 8;
/// A client's part grows to an eighth more than needed.
const GROWTH_PART: usize = 8;
/// Addresses of client mappings: above sanitizers' shadow memory, below mappings without a stack limit.
const PLACES_FROM: usize = 0x1100_0000_0000;
const PLACES_TO: usize = 0x2000_0000_0000;
/// Addresses that are tried.
const PLACES_MAX: usize = 16;

/// Bytes that all clients of this process have mapped.
static CLIENTS_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Adjacent items of a memory file, from a page's start on.
#[derive(Debug)]
pub(crate) struct Part<T> {
    start: NonNull<T>,
    max: u32,
    /// Items that are mapped now.
    mapped: AtomicU32,
    /// The same in bytes, whole pages; 0: part of another object's mapping.
    bytes: AtomicUsize,
}

// SAFETY: a part is plain memory; all shared access goes through atomics or the protocols of this crate.
unsafe impl<T> Send for Part<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Part<T> {}

impl<T> Part<T> {
    /// Maps the first items of a part of `fd`, at the same distance from `base` as from the file's start.
    fn begin(fd: BorrowedFd<'_>, base: usize, at: usize, max: u32, writable: bool) -> io::Result<Part<T>> {
        let bytes = rounded(size_of::<T>() * max as usize).min(HUGE);
        may_take(bytes)?;
        let start = match bytes {
            0 => NonNull::dangling(),
            _ => map_new(fd, base + at, at, bytes, writable)?,
        };
        CLIENTS_BYTES.fetch_add(bytes, Ordering::Relaxed);
        let mapped = AtomicU32::new(((bytes / size_of::<T>()) as u32).min(max));
        Ok(Part { start: start.cast(), max, mapped, bytes: AtomicUsize::new(bytes) })
    }

    /// Item `i`. None: it does not exist, or cannot be mapped here.
    #[inline]
    pub(crate) fn get(&self, i: u32) -> Option<NonNull<T>> {
        if i >= self.mapped.load(Ordering::Relaxed) && !self.map_to(i) {
            return None;
        }
        // SAFETY: within the mapped items.
        Some(unsafe { self.start.add(i as usize) })
    }

    /// The first item, which is mapped if it exists.
    #[inline]
    pub(crate) fn first(&self) -> NonNull<T> {
        self.start
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Maps the part up to item `i`. No thread waits: concurrent threads grow the part as well.
    #[cold]
    #[inline(never)]
    fn map_to(&self, i: u32) -> bool {
        let size = size_of::<T>();
        let (needed, all) = ((i as usize + 1) * size, rounded(self.max as usize * size));
        if i >= self.max {
            return false;
        }
        let wanted = (needed + needed / GROWTH_PART).next_multiple_of(HUGE).min(all);
        loop {
            let before = self.bytes.load(Ordering::Acquire);
            if before >= needed {
                return true;
            }
            if before == 0 || may_take(wanted - before).is_err() {
                return false;
            }
            // SAFETY: the part's own mapping, which stays where it is.
            let grown = unsafe {
                rustix::mm::mremap(self.start.as_ptr().cast(), before, wanted, MremapFlags::empty())
            };
            if grown.is_ok() && self.bytes.fetch_max(wanted, Ordering::AcqRel) < wanted {
                CLIENTS_BYTES.fetch_add(wanted - before, Ordering::Relaxed);
                self.mapped.fetch_max(((wanted / size) as u32).min(self.max), Ordering::AcqRel);
            } else if grown.is_err() && self.bytes.load(Ordering::Acquire) == before {
                return false;
            }
        }
    }
}

impl<T> Drop for Part<T> {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        if bytes > 0 {
            CLIENTS_BYTES.fetch_sub(bytes, Ordering::Relaxed);
            // SAFETY: the mapping is this object's and has no user after drop.
            let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), bytes) };
        }
    }
}

fn rounded(bytes: usize) -> usize {
    bytes.next_multiple_of(crate::layout::PAGE_SIZE)
}

/// Checks the client's share: the program must keep address space below its limit.
fn may_take(bytes: usize) -> io::Result<()> {
    let limit = getrlimit(Resource::As).current.map_or(usize::MAX, |limit| limit as usize);
    let taken = CLIENTS_BYTES.load(Ordering::Relaxed).saturating_add(bytes);
    if taken <= limit / SHARE { Ok(()) } else { Err(Errno::NOMEM.into()) }
}

/// A new mapping at an unused address, never locked in memory.
fn map_new(fd: BorrowedFd<'_>, to: usize, at: usize, len: usize, writable: bool) -> io::Result<NonNull<u8>> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: replaces no mapping.
    let start = unsafe { rustix::mm::mmap(to as *mut _, len, ProtFlags::empty(), flags, fd, at as u64)? };
    let start = NonNull::new(start.cast::<u8>()).expect("mmap returned null");
    // SAFETY: the mapping just made, known only here.
    let opened = unsafe { crate::mapping::open(start, len, writable) };
    // Kernels before 4.17 treat the address as a hint.
    if opened.is_ok() && start.as_ptr() as usize == to {
        return Ok(start);
    }
    // SAFETY: as above.
    unsafe { rustix::mm::munmap(start.as_ptr().cast(), len)? };
    Err(opened.err().unwrap_or(Errno::EXIST).into())
}

/// Maps the first items of all parts of a file at one address, far from other mappings.
pub(crate) struct FirstItems<'a> {
    fd: BorrowedFd<'a>,
    base: usize,
    writable: bool,
}

impl<'a> FirstItems<'a> {
    /// Runs `parts` at candidate addresses until all parts can be mapped at one.
    pub(crate) fn find<P>(
        fd: BorrowedFd<'a>,
        len: usize,
        writable: bool,
        parts: impl Fn(&FirstItems<'a>) -> io::Result<P>,
    ) -> io::Result<P> {
        let mut why = Errno::NOMEM.into();
        for place in places().take(PLACES_MAX) {
            let base = FirstItems { fd, base: place, writable };
            match is_free(place, len).and_then(|()| parts(&base)) {
                Ok(parts) => return Ok(parts),
                Err(err) if err.raw_os_error() == Some(Errno::EXIST.raw_os_error()) => why = err,
                Err(err) => return Err(err),
            }
        }
        Err(why)
    }
}

/// The origin of a file's parts: its whole mapping, or a client's [`FirstItems`].
pub(crate) trait Parts {
    /// The part of `max` items from byte `at` of the file on.
    ///
    /// # Safety
    /// A whole mapping must outlive its parts.
    unsafe fn part<T>(&self, at: usize, max: u32) -> io::Result<Part<T>>;
}

impl Parts for Mapping {
    unsafe fn part<T>(&self, at: usize, max: u32) -> io::Result<Part<T>> {
        assert!(at + size_of::<T>() * max as usize <= self.len(), "a part within its file");
        let start = NonNull::new(self.as_ptr().wrapping_add(at)).expect("mapping is not null").cast();
        Ok(Part { start, max, mapped: AtomicU32::new(max), bytes: AtomicUsize::new(0) })
    }
}

impl Parts for FirstItems<'_> {
    unsafe fn part<T>(&self, at: usize, max: u32) -> io::Result<Part<T>> {
        Part::begin(self.fd, self.base, at, max, self.writable)
    }
}

/// Aligned candidate addresses, different for each process and call.
fn places() -> impl Iterator<Item = usize> {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    // The address of a static is random in most programs (ASLR).
    let mut x = CALLS.fetch_add(1, Ordering::Relaxed) << 32 ^ (&raw const CALLS as usize);
    std::iter::repeat_with(move || {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        PLACES_FROM + (x >> 16) % ((PLACES_TO - PLACES_FROM) / HUGE) * HUGE
    })
}

/// Checks by a short reservation that the range is unused. A refusal by a limit shows it, too: the kernel
/// first looks for other mappings.
fn is_free(place: usize, len: usize) -> io::Result<()> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: replaces no mapping. The reservation is local and unused.
    unsafe {
        match rustix::mm::mmap_anonymous(place as *mut _, len, ProtFlags::empty(), flags) {
            Ok(start) => {
                rustix::mm::munmap(start, len)?;
                if start as usize == place { Ok(()) } else { Err(Errno::EXIST.into()) }
            }
            Err(Errno::EXIST) => Err(Errno::EXIST.into()),
            Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Geometry, PAGE_SIZE};
    use crate::map::{Segment, memfd};
    use crate::touch::TouchTable;
    use std::sync::Arc;

    fn segment() -> (std::os::fd::OwnedFd, Segment, Geometry) {
        let geometry = Geometry::for_frames(1 << 20).with_slots(1 << 16);
        let fd = memfd("terrace-test", geometry.segment_bytes()).unwrap();
        let daemon = Segment::create(&fd, geometry).unwrap();
        (fd, daemon, geometry)
    }

    #[test]
    fn a_client_maps_what_it_reads() {
        let (fd, daemon, geometry) = segment();
        let client = Segment::attach(&fd).unwrap();
        assert!(client.mapped_bytes() <= 8 * HUGE, "{} bytes at the start", client.mapped_bytes());
        let far = geometry.frames_max / 8;
        // SAFETY: a frame of the daemon, which alone writes.
        unsafe { daemon.frame(far).write(7) };
        daemon.leaf(geometry.leaves_max / 8).0[3].store(9, Ordering::Relaxed);
        daemon.object(geometry.objects_max / 8).size.store(11, Ordering::Relaxed);
        // SAFETY: a frame that is mapped.
        assert_eq!(unsafe { client.try_frame(far).unwrap().read() }, 7);
        assert_eq!(client.try_leaf(geometry.leaves_max / 8).unwrap().0[3].load(Ordering::Relaxed), 9);
        assert_eq!(client.object(geometry.objects_max / 8).size.load(Ordering::Relaxed), 11);
        let requested_bytes =
            far as usize * PAGE_SIZE + geometry.objects_at() + (geometry.objects_max as usize / 8) * 64;
        assert!(
            client.mapped_bytes() > requested_bytes && client.mapped_bytes() < geometry.segment_bytes() / 4
        );
        assert!(client.try_frame(geometry.frames_max).is_none() && client.try_leaf(u32::MAX).is_none());
        // The last item of each can be mapped, too.
        for i in [geometry.frames_max - 1, 0] {
            assert!(client.try_frame(i).is_some());
        }
        assert!(client.try_zspage(geometry.zspages_max - 1).is_some());
    }

    #[test]
    fn threads_that_grow_one_part_see_the_same_frames() {
        let (fd, daemon, geometry) = segment();
        let frames: Vec<u32> = (0..64).map(|i| i * (geometry.frames_max / 64)).collect();
        for (n, &frame) in frames.iter().enumerate() {
            // SAFETY: a frame of the daemon, which alone writes.
            unsafe { daemon.frame(frame).write(n as u8 + 1) };
        }
        let client = Arc::new(Segment::attach(&fd).unwrap());
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let (client, frames) = (client.clone(), frames.clone());
                std::thread::spawn(move || {
                    for (n, &frame) in frames.iter().enumerate() {
                        // A thread that comes second may find it unmapped once.
                        let at = (0..1000).find_map(|_| client.try_frame(frame)).expect("mapped in the end");
                        // SAFETY: a frame that is mapped.
                        assert_eq!(unsafe { at.read() }, n as u8 + 1);
                    }
                })
            })
            .collect();
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    }

    /// Runs in a process of its own, which limits itself.
    #[test]
    fn a_limit_on_address_space_leaves_room() {
        const LIMITED: &str = "TERRACE_TEST_LIMITED";
        if std::env::var_os(LIMITED).is_none() {
            let mut limited = std::process::Command::new(std::env::current_exe().unwrap());
            limited.args(["--exact", "part::tests::a_limit_on_address_space_leaves_room"]);
            assert!(limited.env(LIMITED, "1").status().unwrap().success());
            return;
        }
        let (fd, daemon, geometry) = segment();
        let limit = 2 * geometry.segment_bytes() as u64;
        let limits = rustix::process::Rlimit { current: Some(limit), maximum: Some(limit) };
        rustix::process::setrlimit(Resource::As, limits).unwrap();
        let client = Segment::attach(&fd).unwrap();
        assert!(client.try_frame(10_000).is_some());
        assert!(client.try_frame(geometry.frames_max - 1).is_none(), "more than the client's share");
        assert!(client.try_zspage(geometry.zspages_max - 1).is_none());
        // Mapped items stay, and the program can use the rest.
        assert!(client.try_frame(10_000).is_some() && client.mapped_bytes() <= limit as usize / SHARE);
        assert_eq!(vec![1_u8; 100 << 20].iter().map(|&byte| usize::from(byte)).sum::<usize>(), 100 << 20);
        drop(daemon);
    }

    #[test]
    fn clients_of_one_process_do_not_meet() {
        let (fd, daemon, geometry) = segment();
        let touch = memfd("terrace-test", geometry.touch_bytes()).unwrap();
        let table = TouchTable::create(&touch, &geometry).unwrap();
        let clients: Vec<_> = (0..20).map(|_| Segment::attach(&fd).unwrap()).collect();
        let counts: Vec<_> = (0..20).map(|_| TouchTable::attach(&touch, &geometry).unwrap()).collect();
        daemon.header().tracing.store(5, Ordering::Relaxed);
        for (client, counts) in clients.iter().zip(&counts) {
            assert!(client.try_frame(geometry.frames_max - 1).is_some());
            assert_eq!(client.header().tracing.load(Ordering::Relaxed), 5);
            counts.touch(geometry.frames_max - 1);
        }
        assert_eq!(table.count(geometry.frames_max - 1).load(Ordering::Relaxed), crate::touch::TOUCH_MAX);
    }
}
