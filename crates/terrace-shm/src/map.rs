//! Mappings of the shared memory files, and typed access to their content.

use crate::layout::{
    BUCKET_SLOTS, Branch, FANOUT, FANOUT_BITS, Geometry, HEIGHT_MAX, Header, Inner, LAYOUT_VERSION, Leaf,
    MAGIC, ObjectSlot, PAGE_SIZE, SMALL_NODE, SmallNode, ZSPAGE_SIZE, ZSPAGE_TOUCHES,
};
use crate::sync::{AtomicU8, Ordering};
use crate::zobject::Handle;
use rustix::mm::{Advice, MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

/// A shared mapping that is unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory; all shared access goes through atomics or the protocols of this crate.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of `fd` shared, writable or not, aligned to `align` (a power of two) so that huge pages can back it.
    pub fn new(fd: BorrowedFd<'_>, len: usize, writable: bool, align: usize) -> io::Result<Mapping> {
        // Reserve enough address space to place the real mapping on an aligned address.
        // SAFETY: a new private reservation touches no existing mapping.
        let area = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len + align,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        } as usize;
        let start = area.next_multiple_of(align);
        // SAFETY: [start, start + len) lies inside the reservation just made, which only we use.
        let mapped = unsafe { map_over(start, len, writable, fd) };
        let (head, tail) = (start - area, area + align - start);
        // SAFETY: the two slices and, on failure, the middle belong to the reservation and to nothing else.
        unsafe {
            if head > 0 {
                munmap(area as *mut _, head)?;
            }
            if tail > 0 {
                munmap((start + len) as *mut _, tail)?;
            }
            if mapped.is_err() {
                munmap(start as *mut _, len)?;
            }
        }
        Ok(Mapping { base: mapped?, len })
    }
    /// Maps another file in place of this one, writable.
    ///
    /// # Safety
    /// Whoever uses the mapping meanwhile can do with the content of either.
    pub unsafe fn replace(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: the mapping is ours; the rest is the caller's promise.
        unsafe { map_over(self.base.as_ptr() as usize, self.len, true, fd) }.map(|_| ())
    }
    /// Start of the mapping.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }
    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Never true: empty mappings do not exist.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Maps `fd` shared over what is at `start`.
///
/// # Safety
/// The range must be the caller's, as must be what is there.
unsafe fn map_over(start: usize, len: usize, writable: bool, fd: BorrowedFd<'_>) -> io::Result<NonNull<u8>> {
    let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller's promise.
    let base = unsafe { mmap(start as *mut _, len, prot, flags, fd, 0)? };
    // A core of the daemon, or of any client, would have the whole cache in it. A kernel that refuses serves as well.
    // SAFETY: the mapping is ours; only what a core holds of it changes.
    let _ = unsafe { rustix::mm::madvise(base, len, Advice::LinuxDontDump) };
    Ok(NonNull::new(base.cast()).expect("mmap returned null"))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing uses it after drop.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A new shared memory file of `len` bytes (sparse), closed on exec, of sealed size: a client that
/// shortened a file which the daemon has mapped would kill the daemon.
pub fn memfd(name: &str, len: usize) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags};
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// A read-only descriptor of the same memory file: a mapping made from it can never become writable.
pub fn read_only_twin(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;
    rustix::fs::fchmod(fd, rustix::fs::Mode::RUSR)?;
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    Ok(rustix::fs::open(
        path,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?)
}

/// Walks of a tree that a reader tries before the page counts as not cached.
const WALKS_MAX: u32 = 4;

/// A number in a tree that names no node of the kind that should be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Astray(pub u32);

/// The segment as one process maps it.
#[derive(Debug)]
pub struct Segment {
    map: Mapping,
    geometry: Geometry,
    // Resolved once: the hot path adds an index to a base.
    objects: *const ObjectSlot,
    inners: *const Inner,
    small_nodes: *const SmallNode,
    leaves: *const Leaf,
    frames: *mut u8,
    zclasses: *mut u8,
    zspages: *mut u8,
}

// SAFETY: the raw pointers point into `map`, which is Send + Sync and lives as long.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Daemon: lays out a new segment in `fd`, which must be empty and of `geometry.segment_bytes()`.
    pub fn create(fd: impl AsFd, geometry: Geometry) -> io::Result<Segment> {
        let map = Mapping::new(fd.as_fd(), geometry.segment_bytes(), true, crate::layout::HUGE)?;
        let header = map.as_ptr().cast::<Header>();
        // SAFETY: the mapping is writable, page aligned, larger than a header, and not shared yet.
        unsafe {
            (*header).magic = MAGIC;
            (*header).version = LAYOUT_VERSION;
            (*header).geometry = geometry;
        }
        Ok(Segment::over(map, geometry))
    }

    /// Client: maps the segment read-only and checks that it is one.
    ///
    /// # Errors
    /// `InvalidData` if the file is no terrace segment of this version.
    pub fn attach(fd: impl AsFd) -> io::Result<Segment> {
        let bytes = rustix::fs::fstat(fd.as_fd())?.st_size as usize;
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("segment: {what}"));
        if bytes < PAGE_SIZE {
            return Err(bad("too small"));
        }
        let map = Mapping::new(fd.as_fd(), bytes, false, crate::layout::HUGE)?;
        // SAFETY: the first page is mapped and a Header is plain old data.
        let header = unsafe { &*map.as_ptr().cast::<Header>() };
        if header.magic != MAGIC || header.version != LAYOUT_VERSION {
            return Err(bad("other version"));
        }
        let geometry = header.geometry;
        if !geometry.is_sane() || geometry.segment_bytes() > bytes {
            return Err(bad("bad geometry"));
        }
        Ok(Segment::over(map, geometry))
    }

    fn over(map: Mapping, geometry: Geometry) -> Segment {
        let base = map.as_ptr();
        // SAFETY: all offsets lie inside the mapping, whose length is at least geometry.segment_bytes().
        unsafe {
            Segment {
                objects: base.add(geometry.objects_at()).cast(),
                inners: base.add(geometry.inners_at()).cast(),
                small_nodes: base.add(geometry.twigs_at()).cast(),
                leaves: base.add(geometry.leaves_at()).cast(),
                frames: base.add(geometry.frames_at()),
                zclasses: base.add(geometry.zclasses_at()),
                zspages: base.add(geometry.zspages_at()),
                map,
                geometry,
            }
        }
    }

    /// Numbers of things.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }
    /// First page.
    #[inline]
    pub fn header(&self) -> &Header {
        // SAFETY: checked or written at creation; only atomics of it change.
        unsafe { &*self.map.as_ptr().cast::<Header>() }
    }
    /// Object slot `i`.
    #[inline]
    pub fn object(&self, i: u32) -> &ObjectSlot {
        assert!(i < self.geometry.objects_max);
        // SAFETY: in bounds; all fields are atomics.
        unsafe { &*self.objects.add(i as usize) }
    }
    /// Inner node `i`.
    #[inline]
    pub fn inner(&self, i: u32) -> &Inner {
        assert!(i < self.geometry.inners_max);
        // SAFETY: in bounds; all fields are atomics.
        unsafe { &*self.inners.add(i as usize) }
    }
    /// SmallNode `i`.
    #[inline]
    pub fn small_node(&self, i: u32) -> &SmallNode {
        assert!(i < self.geometry.twigs_max());
        // SAFETY: in bounds; all fields are atomics.
        unsafe { &*self.small_nodes.add(i as usize) }
    }
    /// Leaf `i`.
    #[inline]
    pub fn leaf(&self, i: u32) -> &Leaf {
        assert!(i < self.geometry.leaves_max);
        // SAFETY: in bounds; all fields are atomics.
        unsafe { &*self.leaves.add(i as usize) }
    }
    /// Start of frame `i`. Readers follow [`crate::protocol`]; only the daemon may write through it.
    #[inline]
    pub fn frame(&self, i: u32) -> *mut u8 {
        assert!(i < self.geometry.frames_max);
        // SAFETY: in bounds.
        unsafe { self.frames.add(i as usize * PAGE_SIZE) }
    }
    /// Offset of frame `i` in the memory file, bytes.
    pub fn frame_offset(&self, i: u32) -> u64 {
        (self.geometry.frames_at() + i as usize * PAGE_SIZE) as u64
    }

    /// Size class of zspage `i` (0: unused). A reader may meet any number.
    #[inline]
    pub fn zclass(&self, i: u32) -> &AtomicU8 {
        assert!(i < self.geometry.zspages_max);
        // SAFETY: in bounds; accessed as atomics only.
        unsafe { AtomicU8::from_ptr(self.zclasses.add(i as usize)) }
    }
    /// Start of zspage `i`. Readers follow [`crate::protocol`]; only the daemon may write through it.
    #[inline]
    pub fn zspage(&self, i: u32) -> *mut u8 {
        assert!(i < self.geometry.zspages_max);
        // SAFETY: in bounds.
        unsafe { self.zspages.add(i as usize * ZSPAGE_SIZE) }
    }
    /// Daemon: gives the memory of zspages `[first, first + n)` back to the machine. They read as zeros then.
    ///
    /// # Errors
    /// The system's; the memory may be there still.
    pub fn discard_zspages(&self, first: u32, n: u32) -> io::Result<()> {
        assert!(first.checked_add(n).is_some_and(|end| end <= self.geometry.zspages_max));
        // SAFETY: in bounds, checked above.
        unsafe { discard(self.zspages.add(first as usize * ZSPAGE_SIZE), n as usize * ZSPAGE_SIZE) }
    }
    /// Daemon: makes all zspages unused, with one system call where a store each would touch a large table.
    ///
    /// # Errors
    /// As [`Segment::discard_zspages`].
    pub fn discard_zclasses(&self) -> io::Result<()> {
        // SAFETY: the region is whole pages.
        unsafe { discard(self.zclasses, self.geometry.zclasses_bytes()) }
    }

    /// The slot of a published object.
    pub fn find_object(&self, id: u64) -> Option<u32> {
        let levels = self.header().object_levels.load(Ordering::Acquire);
        (0..levels).find_map(|level| self.in_bucket(id, level, id))
    }
    /// Daemon: a free slot for a new object. None if the table is full.
    pub fn free_slot(&self, id: u64) -> Option<u32> {
        let used = &self.header().object_levels;
        let levels = used.load(Ordering::Relaxed);
        if let Some(slot) = (0..levels).find_map(|level| self.in_bucket(id, level, 0)) {
            return Some(slot);
        }
        let slot = self.geometry.bucket(id, levels)?;
        used.store(levels + 1, Ordering::Release);
        Some(slot)
    }
    /// Slots of the levels in use: no others have memory.
    pub fn slots_used(&self) -> u32 {
        match self.header().object_levels.load(Ordering::Relaxed) {
            0 => 0,
            levels => self.geometry.level(levels - 1).map_or(0, |(first, slots)| first + slots),
        }
    }
    fn in_bucket(&self, id: u64, level: u32, wanted: u64) -> Option<u32> {
        let first = self.geometry.bucket(id, level)?;
        (first..first + BUCKET_SLOTS).find(|&i| self.object(i).id.load(Ordering::Acquire) == wanted)
    }

    /// The leaf that covers `run` of the object in `slot`, if there is one now.
    #[inline]
    pub fn find_leaf(&self, object: &ObjectSlot, run: u64) -> Option<u32> {
        for _ in 0..WALKS_MAX {
            if let Ok(found) = self.walk(object, run) {
                return found;
            }
        }
        // The tree changes faster than we walk. "Not cached" is the harmless answer: its reader asks the
        // daemon, or reads the source and checks the clocks.
        None
    }
    /// [`Segment::find_leaf`] in one walk. The nodes of a tree may be reused at other heights during a walk
    /// without the lock: the walk then meets numbers that name no node of the expected kind.
    ///
    /// # Errors
    /// Such a number. In a walk of the only writer it means a broken tree.
    #[inline]
    pub fn walk(&self, object: &ObjectSlot, run: u64) -> Result<Option<u32>, Astray> {
        let Some(Branch { mut height, mut node }) = Branch::of(object.root.load(Ordering::Acquire)) else {
            return Ok(None);
        };
        if height == SMALL_NODE {
            return self.walk_small_node(node, run);
        }
        if height > HEIGHT_MAX || run >> (height * FANOUT_BITS) != 0 {
            return Ok(None);
        }
        while height > 0 {
            if node >= self.geometry.inners_max {
                return Err(Astray(node));
            }
            height -= 1;
            let child = (run >> (height * FANOUT_BITS)) as usize % FANOUT;
            let Some(below) = self.inner(node).0[child].load(Ordering::Acquire).checked_sub(1) else {
                return Ok(None);
            };
            node = below;
        }
        self.a_leaf(node)
    }
    fn walk_small_node(&self, small_node: u32, run: u64) -> Result<Option<u32>, Astray> {
        if small_node >= self.geometry.twigs_max() {
            return Err(Astray(small_node));
        }
        let child = usize::try_from(run).ok().and_then(|run| self.small_node(small_node).0.get(run));
        match child.and_then(|child| child.load(Ordering::Acquire).checked_sub(1)) {
            None => Ok(None),
            Some(node) => self.a_leaf(node),
        }
    }
    #[inline]
    fn a_leaf(&self, node: u32) -> Result<Option<u32>, Astray> {
        if node < self.geometry.leaves_max { Ok(Some(node)) } else { Err(Astray(node)) }
    }
}

/// Punches a hole into the file behind a range of a writable mapping of the segment.
///
/// # Safety
/// Whole pages of the mapping, whose content is not needed any more.
unsafe fn discard(start: *mut u8, len: usize) -> io::Result<()> {
    if len > 0 {
        // SAFETY: the caller's promise.
        unsafe { rustix::mm::madvise(start.cast(), len, rustix::mm::Advice::LinuxRemove)? };
    }
    Ok(())
}

/// The touch table: one saturating count a frame and some for each zspage, bumped by clients with a plain store.
#[derive(Debug)]
pub struct TouchTable {
    map: Mapping,
    zspages_at: usize,
}

/// Where touch counts of frames stop.
pub const TOUCH_MAX: u8 = 3;
/// Where those of compressed pages stop.
pub const ZTOUCH_MAX: u8 = 64;

impl TouchTable {
    /// Maps the table.
    pub fn attach(fd: impl AsFd, geometry: &Geometry) -> io::Result<TouchTable> {
        let len = geometry.touch_bytes();
        if (rustix::fs::fstat(fd.as_fd())?.st_size as usize) < len {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "touch table: too small"));
        }
        let map = Mapping::new(fd.as_fd(), len, true, PAGE_SIZE)?;
        Ok(TouchTable { map, zspages_at: geometry.frame_table_bytes() })
    }
    /// The count of frame `i`.
    #[inline]
    pub fn count(&self, i: u32) -> &AtomicU8 {
        assert!((i as usize) < self.map.len());
        // SAFETY: in bounds; bytes shared with other processes are only accessed as atomics.
        unsafe { AtomicU8::from_ptr(self.map.as_ptr().add(i as usize)) }
    }
    /// Notes an access. Loads first: a saturated count costs no store, so hot lines stay shared between CPUs.
    #[inline]
    pub fn touch(&self, i: u32) {
        let c = self.count(i);
        let n = c.load(Ordering::Relaxed);
        if n < TOUCH_MAX {
            c.store(n + 1, Ordering::Relaxed);
        }
    }
    /// The count of a compressed page: a hint, for slots of small objects share it.
    pub fn zcount(&self, handle: Handle) -> &AtomicU8 {
        let at = handle.zspage() as usize * ZSPAGE_TOUCHES + handle.slot() as usize % ZSPAGE_TOUCHES;
        let at = self.zspages_at + at;
        assert!(at < self.map.len());
        // SAFETY: as in `count`.
        unsafe { AtomicU8::from_ptr(self.map.as_ptr().add(at)) }
    }
    /// Notes an access to a compressed page; how many had been noted before.
    pub fn ztouch(&self, handle: Handle) -> u8 {
        let c = self.zcount(handle);
        let n = c.load(Ordering::Relaxed);
        if n < ZTOUCH_MAX {
            c.store(n + 1, Ordering::Relaxed);
        }
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(objects_max: u32) -> Segment {
        let geometry = Geometry { objects_max, inners_max: 8, leaves_max: 8, frames_max: 8, zspages_max: 0 };
        let fd = memfd("terrace-test", geometry.segment_bytes()).unwrap();
        Segment::create(&fd, geometry).unwrap()
    }

    #[test]
    fn no_core_holds_the_cache() {
        let seg = table(8);
        let start = format!("{:x}-", seg.map.as_ptr() as usize);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let ours = maps.lines().skip_while(|line| !line.starts_with(&start));
        let flags = ours.skip(1).find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
    }

    #[test]
    fn objects_find_room_and_use_memory_as_they_come() {
        let seg = table(1 << 20);
        // Inode numbers as file systems give them: dense, and dense at some distance.
        let id = |i: u64| if i.is_multiple_of(2) { 12 + i } else { (1 << 33) + i * 32 };
        for i in 0..300_000 {
            let slot = seg.free_slot(id(i)).expect("room");
            assert_eq!(seg.object(slot).id.swap(id(i), Ordering::Relaxed), 0);
            if (i + 1).is_power_of_two() && i > 500 {
                let bytes = u64::from(seg.slots_used()) * 64;
                assert!(bytes <= (i + 1) * 270, "{bytes} bytes for {} objects", i + 1);
            }
        }
        assert!((0..300_000).all(|i| seg.find_object(id(i)).is_some()));
        assert_eq!(seg.find_object(5), None);
        // A slot that was freed is used again.
        seg.object(seg.find_object(id(9)).unwrap()).id.store(0, Ordering::Relaxed);
        assert!(seg.free_slot(id(9)).is_some());
    }

    #[test]
    fn a_full_object_table_says_so() {
        let seg = table(1 << 14);
        let taken = (1..).take_while(|&id| {
            let slot = seg.free_slot(id);
            slot.inspect(|&s| seg.object(s).id.store(id, Ordering::Relaxed)).is_some()
        });
        assert!(taken.count() > 1 << 13, "more than half of the table can be used");
    }
}
