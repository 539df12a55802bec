//! The layout of the segment, verified at compile time.
//!
//! ```text
//! 0        header (1 page)
//! objects  ObjectSlot x objects_max      hashed by object id, level by level
//! inners   [u32; 256] x inners_max       radix nodes: child number + 1, 0 = none
//! small nodes    [u32; 32] x small_nodes_max         a small inner node: the root of a file of 2 to 32 runs
//! leaves   [u64; 16] x leaves_max        one leaf = one 64 KiB run of a file = two cache lines
//! classes  u8 x zspages_max              size class of each zspage, 0 = unused
//! frames   4 KiB x frames_max            2 MiB aligned
//! zspages  64 KiB x zspages_max          compressed pages, 2 MiB aligned
//! ```
//! The file is sparse: only written parts have memory. Each region begins at a page, so that a client can map
//! it alone ([`crate::part`]).

use crate::sync::{AtomicU32, AtomicU64};

/// Bytes of a page and of a frame.
pub const PAGE_SIZE: usize = 4096;
/// Pages of a block (64 KiB; `run` in names): covered by one leaf, and filled into adjacent frames.
pub const BLOCK_PAGES: usize = 16;
pub(crate) const FANOUT: usize = 256;
pub(crate) const SMALL_NODE_FANOUT: usize = 32;
/// Maximum number of object slots.
pub(crate) const OBJECTS_MAX: u32 = 1 << 24;
/// Maximum number of leaves: a place (leaf and entry in it) plus one fits 32 bits.
pub(crate) const LEAVES_MAX: u32 = (1 << 28) - 1;
/// Maximum number of frames (1 TiB): a policy's links take eight bytes a frame.
pub const FRAMES_MAX: u32 = (1 << 28) - CHUNK_FRAMES as u32;
/// Bytes of a zspage: slots of one size for compressed pages.
pub const ZSPAGE_SIZE: usize = 64 << 10;
/// Maximum number of zspages (128 GiB): a [`crate::zobject::Handle`] fits 31 bits, because the top bit marks
/// a page on a device.
pub(crate) const ZSPAGES_MAX: u32 = (1 << 21) - 1;
/// Touch counts of a zspage. With more slots, some share a count: the counts are hints.
pub(crate) const ZSPAGE_TOUCHES: usize = 128;
/// log2 of FANOUT.
pub(crate) const FANOUT_BITS: u32 = 8;
/// Maximum number of levels of inner nodes above the leaves: 32 bits of run number.
pub(crate) const HEIGHT_MAX: u32 = 4;
/// Alignment of the frames, so that huge pages can back them.
pub const HUGE: usize = 2 << 20;
/// Frames of a huge page.
pub const CHUNK_FRAMES: usize = HUGE / PAGE_SIZE;

const PAGES_PER_ZSPAGE: u32 = (ZSPAGE_SIZE / PAGE_SIZE) as u32;

/// "terrace1", little endian.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"terrace1");
/// Incremented with every change of layout or protocol. Client and daemon must agree.
pub const LAYOUT_VERSION: u32 = 13;

/// First page of the segment.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`].
    pub(crate) magic: u64,
    /// [`LAYOUT_VERSION`].
    pub(crate) version: u32,
    /// 1 while a daemon serves, 0 before and after: clients then use hits, but send no page fills. After a
    /// crash it stays 1, and page fills wait in the rings for the next daemon.
    pub serving: AtomicU32,
    /// Sizes from which all offsets follow.
    pub(crate) geometry: Geometry,
    /// st_dev of the mount, as stat reports it; 0 before it is mounted.
    pub mount_dev: AtomicU64,
    _pad0: [u64; 2],
    /// Reuse epoch of index nodes (own cache line: each hit reads it).
    pub(crate) epoch: AtomicU64,
    /// 1 during a trace: clients record their reads in the lanes of their rings. Rarely changed, on a cache
    /// line that each hit loads.
    pub tracing: AtomicU32,
    /// Number of touches after which a compressed page is worth a frame.
    pub promote_at: AtomicU32,
    /// Futex word of the lease holder, without a mount: its thread's number, with [`NO_LEASES`] once leases
    /// may be gone. 0: a mount serves. On the cache line of the epoch, which each hit reads.
    pub leases: AtomicU32,
    _pad1: [u32; 11],
    /// Event clock: moves with every change of an entry.
    pub clock: AtomicU64,
    /// 1 while the drainer sleeps: a client with a half full ring then sends [`crate::proto::RING`].
    pub drainer_sleeps: AtomicU32,
    /// Frames that have memory, for a restarted daemon.
    pub populated: AtomicU32,
    /// Levels of the object table in use: see [`Geometry::level`].
    pub(crate) object_levels: AtomicU32,
    /// Memory limit in force, for a restarted daemon (bytes; 0: none yet).
    pub limit_bytes: AtomicU64,
    /// 1 if the limit was chosen automatically, for a restarted daemon.
    pub limit_is_auto: AtomicU32,
    /// Incremented after each addition, resize or removal of a target: clients then request the targets
    /// again. Entries name slots of a new target only after that.
    pub targets: AtomicU32,
    _pad2: [u32; 6],
    _rest: [u64; (PAGE_SIZE - 192) / 8],
}

/// Bits of [`Header::leases`]; with any of them clients read the source. FUTEX_OWNER_DIED: set by the kernel
/// at the thread's end, before it closes a descriptor and ends a lease (kernel/futex/core.c,
/// `handle_futex_death`). FUTEX_WAITERS: the leases are suspended.
pub const NO_LEASES: u32 = LEASES_LOST | LEASES_SUSPENDED;
/// FUTEX_OWNER_DIED.
pub const LEASES_LOST: u32 = 0x4000_0000;
/// FUTEX_WAITERS.
pub const LEASES_SUSPENDED: u32 = 0x8000_0000;

/// Sizes of the segment's tables.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Object slots (power of two).
    pub objects_max: u32,
    /// Inner nodes.
    pub inners_max: u32,
    /// Leaves.
    pub leaves_max: u32,
    /// Frames.
    pub frames_max: u32,
    /// Zspages (0: no compressed pages).
    pub zspages_max: u32,
}

/// One published object (regular file).
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ObjectSlot {
    /// Object id; 0 = free.
    pub id: AtomicU64,
    /// The root of the tree: [`Branch::word`]; 0 = nothing cached.
    pub root: AtomicU64,
    /// Size of the file in bytes.
    pub size: AtomicU64,
    /// Event clock of the last write, truncate or other change of content.
    pub write_clock: AtomicU64,
    /// [`FLAG_SLOW`], [`FLAG_MAPPED`]: either one sends clients to the mount path, because the kernel's page
    /// cache may have newer content.
    pub flags: AtomicU32,
    /// [`TIMES_KNOWN`], [`TIMES_RESTORE`], and for clients [`WATCHED`]. From here on the fields are for the daemon
    /// alone.
    pub times_known: AtomicU32,
    /// mtime of the program's last write or utimensat, ns since 1970 (two's complement).
    pub mtime: AtomicU64,
    /// ctime, ns since 1970 (two's complement).
    pub ctime: AtomicU64,
    /// 1: a target may have pages of the object that the source lacks, written in the life of this segment.
    pub has_undestaged: AtomicU32,
    /// Low bits of the identity of the file when it was published; 0: not known.
    pub identity: AtomicU32,
}

/// The daemon's mtime and ctime are newer than the source's, because writeback is later than the write.
pub const TIMES_KNOWN: u32 = 1;
/// The source's mtime must be corrected after the next writeback.
pub const TIMES_RESTORE: u32 = 2;

/// The daemon sees each open of the file.
pub const WATCHED: u32 = 4;

/// A writer has the file open and may map it without an announcement.
pub const FLAG_SLOW: u32 = 1;
/// A client has announced a shared writable mapping.
pub const FLAG_MAPPED: u32 = 2;

/// Index entries of one run.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Leaf(pub [AtomicU64; BLOCK_PAGES]);

/// A radix node: child number + 1, 0 = none.
#[repr(C, align(1024))]
#[derive(Debug)]
pub(crate) struct Inner(pub [AtomicU32; FANOUT]);

/// An inner node for the first runs of a file, right above their leaves. A full inner node would take more
/// memory than all leaves of a file of 100 KiB.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct SmallNode(pub [AtomicU32; SMALL_NODE_FANOUT]);

/// A node of a tree, and its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Branch {
    /// Levels of nodes below: 0 for a leaf. [`SMALL_NODE`] for a small node.
    pub(crate) height: u32,
    /// Number of the node among the leaves, small nodes or inner nodes.
    pub(crate) node: u32,
}

/// The height in the root word for a small node, which distinguishes it from an inner node of height 1.
pub(crate) const SMALL_NODE: u32 = HEIGHT_MAX + 1;

impl Branch {
    /// The content of a root word, if there is a root.
    #[inline]
    pub(crate) fn of(word: u64) -> Option<Branch> {
        (word != 0).then_some(Branch { height: (word >> 32) as u32, node: (word as u32).wrapping_sub(1) })
    }
    /// The root word: `height << 32 | (node + 1)`.
    pub(crate) fn word(self) -> u64 {
        u64::from(self.height) << 32 | u64::from(self.node + 1)
    }
}

const _: () = assert!(size_of::<Header>() == PAGE_SIZE);
const _: () = assert!(size_of::<ObjectSlot>() == 64);
const _: () = assert!(size_of::<Leaf>() == 128);
const _: () = assert!(size_of::<Inner>() == 1024);
const _: () = assert!(size_of::<SmallNode>() == 128);
const _: () = assert!(std::mem::offset_of!(Header, epoch) % 64 == 0);
const _: () = assert!(std::mem::offset_of!(Header, tracing) < std::mem::offset_of!(Header, epoch) + 64);
const _: () = assert!(std::mem::offset_of!(Header, clock) == std::mem::offset_of!(Header, epoch) + 64);
const _: () = assert!(FANOUT == 1 << FANOUT_BITS);
const _: () = assert!(FRAMES_MAX.is_multiple_of(CHUNK_FRAMES as u32));
const _: () = assert!(ZSPAGE_SIZE.is_multiple_of(PAGE_SIZE) && HUGE.is_multiple_of(ZSPAGE_SIZE));
const _: () = assert!(std::mem::offset_of!(Header, epoch) == 64);
const _: () = assert!(LEAVES_MAX as u64 * BLOCK_PAGES as u64 <= u32::MAX as u64);

impl Geometry {
    /// A geometry that can cache `frames_max` pages, however sparse their files are.
    pub fn for_frames(frames_max: u32) -> Geometry {
        let frames_max =
            frames_max.clamp(CHUNK_FRAMES as u32, FRAMES_MAX).next_multiple_of(CHUNK_FRAMES as u32);
        Geometry {
            objects_max: 1 << 23,
            inners_max: (frames_max / 4).max(4096),
            leaves_max: (frames_max + frames_max / 4).min(LEAVES_MAX),
            frames_max,
            zspages_max: (frames_max / PAGES_PER_ZSPAGE).min(ZSPAGES_MAX),
        }
    }
    /// The same with nodes for this many pages on devices as well.
    pub fn with_slots(self, slots: u32) -> Geometry {
        Geometry {
            inners_max: self.inners_max.saturating_add(slots / 64),
            leaves_max: self.leaves_max.saturating_add(slots).min(LEAVES_MAX),
            ..self
        }
    }
    /// Level `i` of the object table: its first slot and its number of slots. Each level doubles the table,
    /// for objects with full buckets on all earlier levels. So few objects touch little memory. Objects never
    /// move, because clients and handles identify them by slot.
    pub(crate) fn level(&self, i: u32) -> Option<(u32, u32)> {
        let first = LEVEL_SLOTS.min(self.objects_max);
        match i {
            0 => Some((0, first)),
            _ => first.checked_shl(i - 1).filter(|&n| n < self.objects_max).map(|n| (n, n)),
        }
    }
    /// The bucket of an object on a level: its first slot.
    pub(crate) fn bucket(&self, id: u64, level: u32) -> Option<u32> {
        let (first, slots) = self.level(level)?;
        // The finalizer of splitmix64: objects that share a bucket on one level rarely share one on the next.
        let mut x = id.wrapping_add(u64::from(level + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(first + ((x ^ x >> 31) as u32 & (slots - 1) & !(BUCKET_SLOTS - 1)))
    }
    pub(crate) fn objects_at(&self) -> usize {
        PAGE_SIZE
    }
    pub(crate) fn inners_at(&self) -> usize {
        (self.objects_at() + self.objects_max as usize * size_of::<ObjectSlot>()).next_multiple_of(PAGE_SIZE)
    }
    /// Number of small nodes. Files that find none left use an inner node.
    pub(crate) fn small_nodes_max(&self) -> u32 {
        self.leaves_max / 2
    }
    pub(crate) fn small_nodes_at(&self) -> usize {
        (self.inners_at() + self.inners_max as usize * size_of::<Inner>()).next_multiple_of(PAGE_SIZE)
    }
    pub(crate) fn leaves_at(&self) -> usize {
        (self.small_nodes_at() + self.small_nodes_max() as usize * size_of::<SmallNode>())
            .next_multiple_of(PAGE_SIZE)
    }
    /// Byte offset of the size classes of zspages, which have their pages to themselves.
    pub(crate) fn zclasses_at(&self) -> usize {
        (self.leaves_at() + self.leaves_max as usize * size_of::<Leaf>()).next_multiple_of(PAGE_SIZE)
    }
    pub(crate) fn zclasses_bytes(&self) -> usize {
        (self.zspages_max as usize).next_multiple_of(PAGE_SIZE)
    }
    pub(crate) fn frames_at(&self) -> usize {
        (self.zclasses_at() + self.zclasses_bytes()).next_multiple_of(HUGE)
    }
    pub(crate) fn zspages_at(&self) -> usize {
        (self.frames_at() + self.frames_max as usize * PAGE_SIZE).next_multiple_of(HUGE)
    }
    /// Bytes of the segment.
    pub fn segment_bytes(&self) -> usize {
        self.zspages_at() + self.zspages_max as usize * ZSPAGE_SIZE
    }
    /// Bytes of a table of one byte a frame.
    pub fn frame_table_bytes(&self) -> usize {
        (self.frames_max as usize).next_multiple_of(PAGE_SIZE)
    }
    /// Bytes of the touch table: the counts of frames, then those of zspages.
    pub fn touch_bytes(&self) -> usize {
        let zspages = self.zspages_max as usize * ZSPAGE_TOUCHES;
        self.frame_table_bytes() + zspages.next_multiple_of(PAGE_SIZE)
    }
    /// True if a client may use these numbers: a mapping of this size can be indexed without overflow.
    pub(crate) fn is_sane(&self) -> bool {
        self.objects_max.is_power_of_two()
            && (BUCKET_SLOTS..=OBJECTS_MAX).contains(&self.objects_max)
            && self.frames_max > 0
            && self.frames_max <= FRAMES_MAX
            && self.leaves_max <= LEAVES_MAX
            && self.inners_max <= 1 << 29
            && self.zspages_max <= ZSPAGES_MAX
    }
}

/// Spreads object ids over a table.
pub fn object_hash(id: u64) -> u64 {
    // Fibonacci hashing spreads inode numbers, which are small and dense.
    id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// Slots of the first two levels of the object table.
pub(crate) const LEVEL_SLOTS: u32 = 1024;
/// Slots of a level for one object.
pub(crate) const BUCKET_SLOTS: u32 = 16;
