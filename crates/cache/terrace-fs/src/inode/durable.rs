//! The tables that outlive a crash of the daemon.
//!
//! The supervisor owns a sparse region of shared memory and the descriptor table. A killed daemon leaves both
//! behind. Its successor reads here the descriptors of inodes, the open handles and the half-done requests.
//! Every field is an atomic, and one word of each record makes it valid. Stores are ordered: fields first,
//! that word last (Release). A kill between any two instructions therefore leaves the record before or the
//! record after, never a mixture. A release goes the other way: the word first, then the descriptor is
//! closed. So no record ever names a closed descriptor.

use std::collections::HashSet;
use std::mem::size_of;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use terrace_sync::Mutex;

use crate::error::{Error, Result};

const MAGIC: u64 = u64::from_le_bytes(*b"trcname6");
const HEADER_BYTES: usize = 4096;

/// Capacities of a region's tables.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DurableLayout {
    /// Inodes that the kernel may know at one time.
    pub inodes_max: u32,
    /// Handles that may be open at one time.
    pub handles_max: u32,
    /// Requests that may be under way or waiting for their resend.
    pub journal_max: u32,
}

impl Default for DurableLayout {
    fn default() -> Self {
        Self { inodes_max: 1 << 20, handles_max: 1 << 16, journal_max: JOURNAL_MAX as u32 }
    }
}

impl DurableLayout {
    /// Bytes of the region; sparse, since untouched records cost nothing.
    pub const fn bytes(&self) -> usize {
        let bytes = self.journal_offset() + self.journal_max as usize * size_of::<JournalRecord>();
        bytes.next_multiple_of(4096)
    }

    const fn handles_offset(&self) -> usize {
        HEADER_BYTES + self.inodes_max as usize * size_of::<InodeRecord>()
    }

    const fn journal_offset(&self) -> usize {
        self.handles_offset() + self.handles_max as usize * size_of::<HandleRecord>()
    }
}

/// Journal slots: each kill leaves at most one stale slot a thread, until the resend ends.
pub(crate) const JOURNAL_MAX: usize = 256;

/// Shared memory from its owner, the supervisor.
#[derive(Clone, Copy, Debug)]
pub struct DurableRegion {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the region is only reached through the atomics of `Durable`; the pointer itself is never written.
unsafe impl Send for DurableRegion {}
// SAFETY: as above.
unsafe impl Sync for DurableRegion {}

impl DurableRegion {
    /// Describes `bytes` bytes at `base`.
    ///
    /// # Safety
    /// The memory must be page-aligned, readable, writable, and mapped until the process ends. One
    /// [`crate::Namespace`] at a time uses it alone. It is all zeros, or an earlier namespace has left it.
    pub unsafe fn new(base: NonNull<u8>, bytes: usize) -> Self {
        assert_eq!(base.as_ptr() as usize % 4096, 0, "the durable region must be page-aligned");
        Self { base, bytes }
    }
}

#[repr(C)]
pub(crate) struct Header {
    magic: AtomicU64,
    inodes_max: AtomicU32,
    handles_max: AtomicU32,
    journal_max: AtomicU32,
    /// Records below these were used at some time; those above were never touched.
    inodes_high: AtomicU32,
    handles_high: AtomicU32,
    /// Makes file handles unique over the life of the mount.
    pub(crate) handle_generation: AtomicU32,
    /// Inode numbers for files on other devices than the source root's.
    pub(crate) foreign_next: AtomicU64,
    /// Whether the INIT of the connection is answered.
    pub(crate) initialised: AtomicU64,
    /// Whether that answer agreed on passthrough.
    pub(crate) passthrough: AtomicU64,
    /// Whether this mount no longer changes its source.
    pub(crate) given_up: AtomicU64,
    _pad: [u64; 504],
}

/// One inode that the kernel knows. Slot 0 is the root.
#[repr(C)]
pub(crate) struct InodeRecord {
    /// `FREE` or `USED`; the word that makes the record valid.
    pub(crate) state: AtomicU32,
    pub(crate) fd: AtomicI32,
    pub(crate) nodeid: AtomicU64,
    pub(crate) dev: AtomicU64,
    pub(crate) ino: AtomicU64,
    /// References that the kernel holds. This is the only count, not a copy.
    pub(crate) nlookup: AtomicU64,
    /// Type bits of the mode.
    pub(crate) mode: AtomicU32,
    /// Whether the page cache has an object of the inode.
    pub(crate) has_object: AtomicU32,
    /// The descriptor that writes the source, -1 for none. The file's mode may keep a later daemon from
    /// opening another.
    pub(crate) writer: AtomicI32,
    /// Id of the backing file (passthrough), 0 for none. It belongs to the connection and outlives a daemon.
    pub(crate) backing: AtomicU32,
    /// See `Inode::look`.
    pub(crate) seen: AtomicU64,
    /// Hash of the last name by which the inode was found, and of its directory; 0 for none.
    pub(crate) place: AtomicU64,
    /// Node id of that directory.
    pub(crate) parent: AtomicU64,
}

/// One open file or directory.
#[repr(C)]
pub(crate) struct HandleRecord {
    /// `FREE` or `USED`; the word that makes the record valid.
    pub(crate) state: AtomicU32,
    /// The descriptor of a directory stream, -1 for files.
    pub(crate) fd: AtomicI32,
    pub(crate) nodeid: AtomicU64,
    /// The request that opened it. The resent request gets this handle again.
    pub(crate) unique: AtomicU64,
    pub(crate) generation: AtomicU32,
    pub(crate) flags: AtomicU32,
    /// The access path of the answer: 1 past the kernel's page cache, 0 through it.
    pub(crate) access: AtomicU32,
    pub(crate) _pad: u32,
}

/// One request that must not be done twice.
#[repr(C)]
pub(crate) struct JournalRecord {
    /// The request, 0 when the slot is free; the word that makes the record valid.
    pub(crate) unique: AtomicU64,
    /// The inode the name had before (remove, rename); 0 where there was none.
    pub(crate) before: AtomicU64,
    /// The inode that got a reference by this request; 0 for none yet. In a listing: the number of counted
    /// entries.
    pub(crate) counted: AtomicU64,
}

pub(crate) const FREE: u32 = 0;
pub(crate) const USED: u32 = 1;

const _: () = assert!(size_of::<Header>() == HEADER_BYTES);
const _: () = assert!(size_of::<InodeRecord>() == 80);
const _: () = assert!(size_of::<HandleRecord>() == 40);
const _: () = assert!(size_of::<JournalRecord>() == 24);

/// The region, split into its tables.
pub(crate) struct Durable {
    pub(crate) header: &'static Header,
    pub(crate) inodes: &'static [InodeRecord],
    pub(crate) handles: &'static [HandleRecord],
    pub(crate) journal: &'static [JournalRecord],
    pub(crate) inode_slots: Arc<Slots>,
    pub(crate) handle_slots: Arc<Slots>,
}

impl std::fmt::Debug for Durable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Durable").field("inodes", &self.inodes.len()).finish_non_exhaustive()
    }
}

/// All descriptors named by the tables of a region, which are those of a dead daemon's namespace. Call this
/// before a namespace recovers: recovery may close some of them, and their numbers are soon reused.
pub fn descriptors_named(region: DurableRegion, layout: DurableLayout) -> Result<HashSet<RawFd>> {
    let durable = Durable::open(region, layout)?;
    let is_used = |state: &AtomicU32| state.load(Ordering::Acquire) == USED;
    let inodes = durable.inodes_used().iter().filter(|record| is_used(&record.state));
    // A writer is taken over with its object.
    let inodes = inodes.flat_map(|record| {
        let has_object = record.has_object.load(Ordering::Acquire) != 0;
        let writer = if has_object { record.writer.load(Ordering::Acquire) } else { -1 };
        [record.fd.load(Ordering::Relaxed), writer]
    });
    let handles = durable.handles_used().iter().filter(|record| is_used(&record.state));
    let handles = handles.map(|record| record.fd.load(Ordering::Relaxed));
    Ok(inodes.chain(handles).filter(|&fd| fd >= 0).collect())
}

impl Durable {
    /// Takes a zeroed region into use.
    pub(crate) fn create(region: DurableRegion, layout: DurableLayout) -> Result<Self> {
        let durable = Self::attach(region, layout)?;
        let header = durable.header;
        if header.magic.load(Ordering::Acquire) != 0 {
            return Err(Error::Cache(std::io::Error::other("the durable region is in use already")));
        }
        header.inodes_max.store(layout.inodes_max, Ordering::Relaxed);
        header.handles_max.store(layout.handles_max, Ordering::Relaxed);
        header.journal_max.store(layout.journal_max, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(durable)
    }

    /// Opens a region that an earlier daemon left.
    pub(crate) fn open(region: DurableRegion, layout: DurableLayout) -> Result<Self> {
        let durable = Self::attach(region, layout)?;
        let header = durable.header;
        let found = DurableLayout {
            inodes_max: header.inodes_max.load(Ordering::Acquire),
            handles_max: header.handles_max.load(Ordering::Acquire),
            journal_max: header.journal_max.load(Ordering::Acquire),
        };
        if header.magic.load(Ordering::Acquire) != MAGIC || found != layout {
            return Err(Error::Cache(std::io::Error::other("the durable region is not of this layout")));
        }
        Ok(durable)
    }

    fn attach(region: DurableRegion, layout: DurableLayout) -> Result<Self> {
        if region.bytes < layout.bytes() || layout.journal_max as usize > JOURNAL_MAX {
            return Err(Error::Cache(std::io::Error::other("the durable region does not fit its layout")));
        }
        let base = region.base;
        // SAFETY: `DurableRegion::new` promises page-aligned memory of this size until the process ends. All
        // record types consist of atomics (and padding never read): any bytes are valid, and shared
        // references suffice.
        unsafe {
            let header = base.cast::<Header>().as_ref();
            Ok(Self {
                header,
                inodes: table(base, HEADER_BYTES, layout.inodes_max),
                handles: table(base, layout.handles_offset(), layout.handles_max),
                journal: table(base, layout.journal_offset(), layout.journal_max),
                inode_slots: Arc::new(Slots::new(&header.inodes_high, layout.inodes_max, "inode")),
                handle_slots: Arc::new(Slots::new(&header.handles_high, layout.handles_max, "handle")),
            })
        }
    }

    /// Bytes of the region that have memory: all records ever used.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.inodes_used()) + size_of_val(self.handles_used()) + HEADER_BYTES
    }

    pub(crate) fn inodes_used(&self) -> &'static [InodeRecord] {
        &self.inodes[..self.inode_slots.high()]
    }

    pub(crate) fn handles_used(&self) -> &'static [HandleRecord] {
        &self.handles[..self.handle_slots.high()]
    }
}

/// # Safety
/// `count` records of `T` must lie at `base + offset`, aligned, for the rest of the process's life.
unsafe fn table<T>(base: NonNull<u8>, offset: usize, count: u32) -> &'static [T] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(base.as_ptr().add(offset).cast::<T>(), count as usize) }
}

/// Free slots of a table. Only the high-water mark is durable; the record states give the rest.
#[derive(Debug)]
pub(crate) struct Slots {
    free: Mutex<Vec<u32>>,
    high: &'static AtomicU32,
    max: u32,
    name: &'static str,
}

/// A slot in use, freed once, by drop. Code that may still write to the slot's record holds the slot, which
/// prevents reuse of the record.
pub(crate) struct Slot {
    index: u32,
    slots: Arc<Slots>,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} slot {}", self.slots.name, self.index)
    }
}

impl Slot {
    pub(crate) fn index(&self) -> usize {
        self.index as usize
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.free.lock().push(self.index);
    }
}

impl Slots {
    fn new(high: &'static AtomicU32, max: u32, name: &'static str) -> Self {
        Self { free: Mutex::new(Vec::new()), high, max, name }
    }

    fn high(&self) -> usize {
        self.high.load(Ordering::Acquire).min(self.max) as usize
    }

    /// Returns the slots that an earlier daemon used; the others are free. Called once, before any slot is
    /// taken.
    pub(crate) fn recover(self: &Arc<Self>, used: impl Fn(usize) -> bool) -> Vec<Slot> {
        let (taken, free) = (0..self.high()).rev().partition(|&slot| used(slot));
        let _: &Vec<usize> = &free;
        *self.free.lock() = free.into_iter().map(|slot| slot as u32).collect();
        taken.into_iter().rev().map(|slot| Slot { index: slot as u32, slots: self.clone() }).collect()
    }

    /// Takes a free slot. The caller fills its record and then publishes it.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Slot> {
        let mut free = self.free.lock();
        let index = match free.pop() {
            Some(index) => index,
            None => {
                let index = self.high.load(Ordering::Relaxed);
                if index >= self.max {
                    return Err(Error::TableFull(self.name));
                }
                self.high.store(index + 1, Ordering::Release);
                index
            }
        };
        Ok(Slot { index, slots: self.clone() })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A zeroed region that lives as long as the process.
    pub(crate) fn region(layout: DurableLayout) -> DurableRegion {
        let bytes = layout.bytes();
        // SAFETY: a fresh anonymous mapping, never unmapped, handed to one user.
        unsafe {
            let base = rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::SHARED,
            )
            .unwrap();
            DurableRegion::new(NonNull::new(base.cast()).unwrap(), bytes)
        }
    }

    #[test]
    fn slots_come_back_after_a_restart() {
        let layout = DurableLayout { inodes_max: 3, handles_max: 2, journal_max: 4 };
        let region = region(layout);
        let durable = Durable::create(region, layout).unwrap();
        assert!(Durable::create(region, layout).is_err(), "a used region is not created again");
        let mut taken: Vec<_> = (0..3).map(|_| durable.inode_slots.take().unwrap()).collect();
        assert!(taken.iter().map(Slot::index).eq(0..3));
        assert!(matches!(durable.inode_slots.take(), Err(Error::TableFull("inode"))));
        durable.inodes[1].state.store(USED, Ordering::Release);

        let again = Durable::open(region, layout).unwrap();
        let is_used = |slot: usize| again.inodes[slot].state.load(Ordering::Acquire) == USED;
        let mut recovered = again.inode_slots.recover(is_used);
        assert!(recovered.iter().map(Slot::index).eq([1]));
        recovered.extend([again.inode_slots.take().unwrap(), again.inode_slots.take().unwrap()]);
        assert!(recovered.iter().map(Slot::index).eq([1, 0, 2]));
        assert!(again.inode_slots.take().is_err());
        recovered.remove(1);
        assert_eq!(again.inode_slots.take().unwrap().index(), 0, "free when it was dropped");
        taken.clear();
        assert!(Durable::open(region, DurableLayout { inodes_max: 2, ..layout }).is_err());
    }
}
