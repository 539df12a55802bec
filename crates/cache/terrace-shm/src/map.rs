//! Shared memory files, and the segment as one process maps it, with typed access to its content.

use crate::layout::{
    BUCKET_SLOTS, Branch, FANOUT, FANOUT_BITS, Geometry, HEIGHT_MAX, Header, Inner, LAYOUT_VERSION, Leaf,
    MAGIC, ObjectSlot, PAGE_SIZE, SMALL_NODE, SmallNode, WATCHED, ZSPAGE_SIZE,
};
use crate::mapping::Mapping;
use crate::part::{FirstItems, Part, Parts};
use crate::sync::{AtomicU8, Ordering};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A new shared memory file of `len` bytes (sparse), closed on exec. A seal fixes its size: a client that
/// shortened a mapped file would kill the daemon.
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

/// Walks of a tree before the page counts as not cached.
const WALKS_MAX: u32 = 4;

/// A walk that ends at a node that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WalkError {
    /// The number names no node of the expected kind.
    Number(u32),
    /// The node is not mapped in this process.
    Unmapped,
}

impl WalkError {
    #[cold]
    fn at(node: u32, max: u32) -> WalkError {
        if node < max { WalkError::Unmapped } else { WalkError::Number(node) }
    }
}

/// The segment as mapped by one process: the daemon maps all of it, a client the parts that it reads.
#[derive(Debug)]
pub struct Segment {
    geometry: Geometry,
    // Resolved once: the hot path adds an index to a base.
    header: Part<Header>,
    objects: Part<ObjectSlot>,
    inners: Part<Inner>,
    small_nodes: Part<SmallNode>,
    leaves: Part<Leaf>,
    frames: Part<[u8; PAGE_SIZE]>,
    zclasses: Part<AtomicU8>,
    zspages: Part<[u8; ZSPAGE_SIZE]>,
    /// The daemon's mapping of the whole segment.
    _map: Option<Mapping>,
}

/// A part of the segment cannot be mapped: read the content through the mount path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unmapped;

impl Segment {
    /// Daemon: creates a new segment in `fd`, which must be empty and of `geometry.segment_bytes()`.
    pub fn create(fd: impl AsFd, geometry: Geometry) -> io::Result<Segment> {
        let map = Mapping::new(fd.as_fd(), geometry.segment_bytes(), true, crate::layout::HUGE)?;
        let header = map.as_ptr().cast::<Header>();
        // SAFETY: the mapping is writable, page aligned, larger than a header, and not shared yet.
        unsafe {
            (*header).magic = MAGIC;
            (*header).version = LAYOUT_VERSION;
            (*header).geometry = geometry;
        }
        // SAFETY: the mapping is kept.
        let segment = unsafe { Segment::of(&map, geometry)? };
        Ok(Segment { _map: Some(map), ..segment })
    }

    /// Client: maps the segment read-only and validates its header.
    ///
    /// # Errors
    /// `InvalidData` if the file is not a terrace segment of this version; otherwise a limit on address
    /// space.
    pub fn attach(fd: impl AsFd) -> io::Result<Segment> {
        let fd = fd.as_fd();
        let bytes = rustix::fs::fstat(fd)?.st_size as usize;
        let geometry = geometry_in(fd, bytes)?;
        // SAFETY: no whole mapping.
        FirstItems::find(fd, bytes, false, |base| unsafe { Segment::of(base, geometry) })
    }

    /// # Safety
    /// As [`Parts::part`].
    unsafe fn of(parts: &impl Parts, geometry: Geometry) -> io::Result<Segment> {
        let g = &geometry;
        // SAFETY: the caller's promise.
        unsafe {
            Ok(Segment {
                geometry,
                header: parts.part(0, 1)?,
                objects: parts.part(g.objects_at(), g.objects_max)?,
                inners: parts.part(g.inners_at(), g.inners_max)?,
                small_nodes: parts.part(g.small_nodes_at(), g.small_nodes_max())?,
                leaves: parts.part(g.leaves_at(), g.leaves_max)?,
                frames: parts.part(g.frames_at(), g.frames_max)?,
                zclasses: parts.part(g.zclasses_at(), g.zspages_max)?,
                zspages: parts.part(g.zspages_at(), g.zspages_max)?,
                _map: None,
            })
        }
    }

    #[cfg(test)]
    pub(crate) fn mapped_bytes(&self) -> usize {
        let nodes = self.inners.bytes() + self.small_nodes.bytes() + self.leaves.bytes();
        let compressed = self.zclasses.bytes() + self.zspages.bytes();
        self.header.bytes() + self.objects.bytes() + nodes + self.frames.bytes() + compressed
    }

    /// Sizes of the tables.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }
    /// The header.
    #[inline]
    pub fn header(&self) -> &Header {
        // SAFETY: validated or written at creation, and mapped from the start. Only its atomics change.
        unsafe { self.header.first().as_ref() }
    }
    /// Object slot `i`. For the daemon, or for a slot that this process has mapped before.
    #[inline]
    pub fn object(&self, i: u32) -> &ObjectSlot {
        self.try_object(i).expect("an object slot")
    }
    /// Object slot `i`. None: not mapped here.
    #[inline]
    pub(crate) fn try_object(&self, i: u32) -> Option<&ObjectSlot> {
        // SAFETY: all fields are atomics.
        self.objects.get(i).map(|at| unsafe { at.as_ref() })
    }
    /// Inner node `i`. For the daemon.
    #[inline]
    pub(crate) fn inner(&self, i: u32) -> &Inner {
        self.try_inner(i).expect("an inner node")
    }
    #[inline]
    fn try_inner(&self, i: u32) -> Option<&Inner> {
        // SAFETY: all fields are atomics.
        self.inners.get(i).map(|at| unsafe { at.as_ref() })
    }
    /// Small node `i`. For the daemon.
    #[inline]
    pub(crate) fn small_node(&self, i: u32) -> &SmallNode {
        self.try_small_node(i).expect("a small node")
    }
    #[inline]
    fn try_small_node(&self, i: u32) -> Option<&SmallNode> {
        // SAFETY: all fields are atomics.
        self.small_nodes.get(i).map(|at| unsafe { at.as_ref() })
    }
    /// Leaf `i`. For the daemon.
    #[inline]
    pub(crate) fn leaf(&self, i: u32) -> &Leaf {
        self.try_leaf(i).expect("a leaf")
    }
    #[inline]
    pub(crate) fn try_leaf(&self, i: u32) -> Option<&Leaf> {
        // SAFETY: all fields are atomics.
        self.leaves.get(i).map(|at| unsafe { at.as_ref() })
    }
    /// Start of frame `i`. For the daemon, which alone may write through it.
    #[inline]
    pub fn frame(&self, i: u32) -> *mut u8 {
        self.try_frame(i).expect("a frame")
    }
    /// Start of frame `i`. Readers follow [`crate::protocol`]. None: not mapped here.
    #[inline]
    pub(crate) fn try_frame(&self, i: u32) -> Option<*mut u8> {
        self.frames.get(i).map(|at| at.as_ptr().cast())
    }
    /// Offset of frame `i` in the memory file, bytes.
    pub fn frame_offset(&self, i: u32) -> u64 {
        (self.geometry.frames_at() + i as usize * PAGE_SIZE) as u64
    }

    /// Size class of zspage `i` (0: unused). For the daemon.
    #[inline]
    pub fn zclass(&self, i: u32) -> &AtomicU8 {
        self.try_zclass(i).expect("a size class")
    }
    /// The same for readers, which may find any number. None: not mapped here.
    #[inline]
    pub(crate) fn try_zclass(&self, i: u32) -> Option<&AtomicU8> {
        // SAFETY: accessed as atomics only.
        self.zclasses.get(i).map(|at| unsafe { at.as_ref() })
    }
    /// Start of zspage `i`. For the daemon, which alone may write through it.
    #[inline]
    pub fn zspage(&self, i: u32) -> *mut u8 {
        self.try_zspage(i).expect("a zspage")
    }
    /// The same for readers, which follow [`crate::protocol`]. None: not mapped here.
    #[inline]
    pub(crate) fn try_zspage(&self, i: u32) -> Option<*mut u8> {
        self.zspages.get(i).map(|at| at.as_ptr().cast())
    }
    /// Daemon: returns the memory of zspages `[first, first + n)` to the system. They read as zeros then.
    ///
    /// # Errors
    /// Errors of madvise(2). The memory may then still be in use.
    pub(crate) fn discard_zspages(&self, first: u32, n: u32) -> io::Result<()> {
        assert!(first.checked_add(n).is_some_and(|end| end <= self.geometry.zspages_max));
        // SAFETY: in bounds, checked above.
        unsafe {
            let start = self.zspages.first().as_ptr().cast::<u8>().add(first as usize * ZSPAGE_SIZE);
            discard(start, n as usize * ZSPAGE_SIZE)
        }
    }
    /// Daemon: marks all zspages unused, with one system call. A store for each would touch a large table.
    ///
    /// # Errors
    /// As [`Segment::discard_zspages`].
    pub(crate) fn discard_zclasses(&self) -> io::Result<()> {
        // SAFETY: the region is whole pages.
        unsafe { discard(self.zclasses.first().as_ptr().cast(), self.geometry.zclasses_bytes()) }
    }

    /// The slot of a published object.
    pub fn find_object(&self, id: u64) -> Option<u32> {
        let levels = self.header().object_levels.load(Ordering::Acquire);
        (0..levels).find_map(|level| self.in_bucket(id, level, id))
    }
    /// Client: whether the daemon sees each open of a published object's file.
    pub fn is_watched(&self, id: u64) -> bool {
        self.find_object(id)
            .is_some_and(|n| self.object(n).times_known.load(Ordering::Acquire) & WATCHED != 0)
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
    /// Slots of the levels in use; others have no memory.
    pub fn slots_used(&self) -> u32 {
        match self.header().object_levels.load(Ordering::Relaxed) {
            0 => 0,
            levels => self.geometry.level(levels - 1).map_or(0, |(first, slots)| first + slots),
        }
    }
    fn in_bucket(&self, id: u64, level: u32, wanted: u64) -> Option<u32> {
        let first = self.geometry.bucket(id, level)?;
        let is_wanted = |slot: &ObjectSlot| slot.id.load(Ordering::Acquire) == wanted;
        (first..first + BUCKET_SLOTS).find(|&i| self.try_object(i).is_some_and(is_wanted))
    }

    /// The leaf that covers `run` of the object in `slot`, and its number, if there is one.
    ///
    /// # Errors
    /// A part of the tree cannot be mapped here: the page may be cached all the same.
    #[inline]
    pub(crate) fn find_leaf(&self, object: &ObjectSlot, run: u64) -> Result<Option<(u32, &Leaf)>, Unmapped> {
        let mut why = WalkError::Number(0);
        for _ in 0..WALKS_MAX {
            match self.walk(object, run) {
                Ok(found) => return Ok(found),
                Err(astray) => why = astray,
            }
        }
        // The tree changes faster than the walk. "Not cached" is harmless: the reader uses the daemon, or the
        // source and the clocks.
        if let WalkError::Unmapped = why { Err(Unmapped) } else { Ok(None) }
    }
    /// [`Segment::find_leaf`] in one walk. Without the lock, a node may be reused at another height
    /// meanwhile. The walk then finds numbers that name no node of the expected kind.
    ///
    /// # Errors
    /// Such a number. For the only writer it means a broken tree.
    #[inline]
    pub fn walk(&self, object: &ObjectSlot, run: u64) -> Result<Option<(u32, &Leaf)>, WalkError> {
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
            let Some(inner) = self.try_inner(node) else {
                return Err(WalkError::at(node, self.geometry.inners_max));
            };
            height -= 1;
            let child = (run >> (height * FANOUT_BITS)) as usize % FANOUT;
            let Some(below) = inner.0[child].load(Ordering::Acquire).checked_sub(1) else {
                return Ok(None);
            };
            node = below;
        }
        self.a_leaf(node)
    }
    #[inline]
    fn walk_small_node(&self, small_node: u32, run: u64) -> Result<Option<(u32, &Leaf)>, WalkError> {
        let Some(children) = self.try_small_node(small_node) else {
            return Err(WalkError::at(small_node, self.geometry.small_nodes_max()));
        };
        let child = usize::try_from(run).ok().and_then(|run| children.0.get(run));
        match child.and_then(|child| child.load(Ordering::Acquire).checked_sub(1)) {
            None => Ok(None),
            Some(node) => self.a_leaf(node),
        }
    }
    #[inline]
    fn a_leaf(&self, node: u32) -> Result<Option<(u32, &Leaf)>, WalkError> {
        match self.try_leaf(node) {
            Some(leaf) => Ok(Some((node, leaf))),
            None => Err(WalkError::at(node, self.geometry.leaves_max)),
        }
    }
}

fn geometry_in(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<Geometry> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("segment: {what}"));
    if bytes < PAGE_SIZE {
        return Err(bad("too small"));
    }
    let map = Mapping::new(fd, PAGE_SIZE, false, PAGE_SIZE)?;
    // SAFETY: the first page is mapped and a Header is plain old data.
    let header = unsafe { &*map.as_ptr().cast::<Header>() };
    if header.magic != MAGIC || header.version != LAYOUT_VERSION {
        return Err(bad("other version"));
    }
    let geometry = header.geometry;
    if !geometry.is_sane() || geometry.segment_bytes() > bytes {
        return Err(bad("bad geometry"));
    }
    Ok(geometry)
}

/// Punches a hole into the file behind a range of a writable mapping of the segment.
///
/// # Safety
/// `start` and `len` are whole pages of the mapping. Their content is no longer needed.
unsafe fn discard(start: *mut u8, len: usize) -> io::Result<()> {
    if len > 0 {
        // SAFETY: the caller's promise.
        unsafe { rustix::mm::madvise(start.cast(), len, rustix::mm::Advice::LinuxRemove)? };
    }
    Ok(())
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
        let start = format!("{:x}-", std::ptr::from_ref(seg.header()) as usize);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let ours = maps.lines().skip_while(|line| !line.starts_with(&start));
        let flags = ours.skip(1).find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
    }

    #[test]
    fn objects_find_room_and_use_memory_as_they_come() {
        let seg = table(1 << 20);
        // Inode numbers as file systems assign them: dense, and dense at some distance.
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
        // A freed slot is reused.
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
