//! The compressed pool: pages in compressed form, without frames.
//!
//! *Picture*: zcache (B. Liu, "zcache: a compressed file page cache", 2013) without its buddies and trees.
//! The index names an object by its handle, as it names a frame. An object's head names its place in the
//! index. Slots of sizes 64 bytes apart lie in zspages of 64 KiB ([`crate::zobject`]). Eviction is CLOCK over
//! objects of all sizes (F. J. Corbató, 1968): first in, first out, with a second chance for touched ones.
//! Compaction runs on demand.
//!
//! All methods need the engine's state lock. Readers need none ([`crate::zread`]), so objects follow the rules
//! of frames:
//!
//! | to | first | then |
//! |---|---|---|
//! | put a page in | [`ZPool::store`] | `publish` the entry, naming the handle |
//! | take one out | `withdraw` the entry | [`ZPool::remove`], [`ZPool::evict`] |
//! | let [`ZPool::compact`] move one | (it has copied) `replace` the entry in the callback | (it frees the old slot) |
//!
//! When the pool is full, [`ZPool::store`] returns None. The caller evicts some of [`ZPool::coldest`],
//! compacts and retries. [`ZPool::trim`] releases the memory of unused zspages, with a system call each.

use crate::codec::{Coded, Page, Unpack};
use crate::index::Place;
use crate::layout::{ZSPAGE_SIZE, ZSPAGE_TOUCHES};
use crate::map::Segment;
use crate::sync::Ordering;
use crate::touch::TouchTable;
use crate::zobject::{CLASS_MAX, HEAD_BYTES, Handle, Head, class_for, slot_bytes, slots_of};
use crate::zspages::Zspages;
use std::io;
use std::sync::Arc;

/// The bytes of an object differ from those stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Corrupt;

/// Event counts of a pool since its creation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages stored.
    pub stored_pages: u64,
    /// Pages decoded by [`ZPool::load`], without those of readers outside the lock.
    pub(crate) loaded_pages: u64,
    /// Pages evicted to make room.
    pub evicted: u64,
    /// Pages refused because the pool was full.
    pub reject_alloc_fail: u64,
    /// Pages moved by compaction.
    pub moved_pages: u64,
    /// Bytes of these, with heads.
    pub moved_bytes: u64,
    /// Zspages emptied by compaction.
    pub compacted_zspages: u64,
}

/// The pool.
#[derive(Debug)]
pub struct ZPool {
    seg: Arc<Segment>,
    touches: Arc<TouchTable>,
    zspages: Zspages,
    limit: u32,
    live_bytes: u64,
    slot_bytes: u64,
    counts: Counts,
    /// The hand of [`ZPool::age`].
    aged: u32,
}

impl ZPool {
    /// The pool of a segment: empty, with limit 0. Releases the memory of an earlier daemon's pool, so no
    /// entry may name a handle. (A reader with an old handle finds no object of that length.)
    ///
    /// # Errors
    /// Memory cannot be given back.
    pub fn new(seg: Arc<Segment>, touches: Arc<TouchTable>) -> io::Result<ZPool> {
        let max = seg.geometry().zspages_max;
        seg.discard_zclasses()?;
        seg.discard_zspages(0, max)?;
        Ok(ZPool {
            zspages: Zspages::new(max),
            seg,
            touches,
            limit: 0,
            live_bytes: 0,
            slot_bytes: 0,
            counts: Counts::default(),
            aged: 0,
        })
    }

    /// Limit of [`ZPool::bytes`], rounded down to zspages. Above it the pool adds no zspage until
    /// [`ZPool::compact`] and [`ZPool::trim`] have reduced them.
    pub fn set_limit(&mut self, bytes: u64) {
        let zspages = bytes / ZSPAGE_SIZE as u64;
        self.limit = u32::try_from(zspages).unwrap_or(u32::MAX).min(self.seg.geometry().zspages_max);
    }
    /// The limit, bytes.
    pub fn limit(&self) -> u64 {
        u64::from(self.limit) * ZSPAGE_SIZE as u64
    }
    /// Memory held in the segment, bytes: zspages in use, and unused ones not yet trimmed.
    pub fn bytes(&self) -> u64 {
        u64::from(self.zspages.held()) * ZSPAGE_SIZE as u64
    }
    /// Of these, bytes of unused zspages.
    pub fn idle_bytes(&self) -> u64 {
        u64::from(self.zspages.idle()) * ZSPAGE_SIZE as u64
    }
    /// Bytes of objects, with their heads.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }
    /// Bytes of their slots: about the size that compaction can reach.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }
    /// Memory of the tables outside the segment, bytes: 8 a slot, live or free, and 32 a zspage.
    pub fn metadata_bytes(&self) -> u64 {
        self.zspages.bytes() as u64
    }
    /// Pages in the pool.
    pub fn stored_pages(&self) -> u64 {
        self.zspages.live() as u64
    }
    /// Counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Stores a compressed page of `place`. None: the pool is full.
    ///
    /// # Panics
    /// If it has more than [`crate::zobject::STORED_MAX`] bytes.
    pub fn store(&mut self, page: Coded<'_>, place: Place) -> Option<Handle> {
        let class = class_for(page.bytes.len()).expect("the codec refuses what is larger");
        let Some(handle) = self.slot(class) else {
            self.counts.reject_alloc_fail += 1;
            return None;
        };
        let head = Head::new(page.codec, place.0, page.bytes);
        let at = self.address(handle);
        // SAFETY: a slot of this size, named by no entry. Readers with an old handle detect the reuse by
        // their entry.
        unsafe {
            at.cast::<u64>().write(head.0);
            std::ptr::copy_nonoverlapping(page.bytes.as_ptr(), at.add(HEAD_BYTES), page.bytes.len());
        }
        self.touches.zcount(handle).store(0, Ordering::Relaxed);
        self.zspages.add_newest(handle);
        self.live_bytes += (HEAD_BYTES + page.bytes.len()) as u64;
        self.slot_bytes += self.slot_size(handle) as u64;
        self.counts.stored_pages += 1;
        Some(handle)
    }

    /// A free slot for `class`. At the limit a larger one is used, up to a quarter too large.
    fn slot(&mut self, class: u8) -> Option<Handle> {
        if let Some(handle) = self.zspages.take(class) {
            return Some(handle);
        }
        let (held, limit) = (self.zspages.held(), self.limit);
        let opened = if held > limit { None } else { self.zspages.open(class, held < limit) };
        if let Some(zspage) = opened {
            self.seg.zclass(zspage).store(class, Ordering::Release);
            return self.zspages.take(class);
        }
        let largest = (class + class / 4).min(CLASS_MAX);
        (class + 1..=largest).find_map(|larger| self.zspages.take(larger))
    }

    fn slot_size(&self, handle: Handle) -> usize {
        slot_bytes(self.zspages.class(handle.zspage()))
    }
    fn address(&self, handle: Handle) -> *mut u8 {
        let at = handle.slot() as usize * self.slot_size(handle);
        assert!(at < ZSPAGE_SIZE);
        // SAFETY: inside the zspage.
        unsafe { self.seg.zspage(handle.zspage()).add(at) }
    }
    fn head(&self, handle: Handle) -> Head {
        assert!(self.zspages.is_live(handle), "{handle:?} is no object");
        // SAFETY: the head of a live object, written by `store`; only the holder of the lock writes.
        Head(unsafe { self.address(handle).cast::<u64>().read() })
    }
    fn coded(&self, handle: Handle) -> Option<(Head, Coded<'_>)> {
        let head = self.head(handle);
        if head.len() + HEAD_BYTES > self.slot_size(handle) {
            return None;
        }
        // SAFETY: inside the slot, and nothing writes while the lock is held.
        let bytes = unsafe { std::slice::from_raw_parts(self.address(handle).add(HEAD_BYTES), head.len()) };
        Some((head, Coded { codec: head.codec()?, bytes })).filter(|_| head.fits(bytes))
    }

    /// Decodes the page at `handle`, under the lock. Readers without the lock use [`crate::zread::PageCopy`].
    ///
    /// # Errors
    /// The bytes differ from those stored, or need zstd and `unpack` has none.
    pub fn load(&mut self, handle: Handle, unpack: &mut dyn Unpack, out: &mut Page) -> Result<(), Corrupt> {
        let (_, page) = self.coded(handle).ok_or(Corrupt)?;
        if !page.decode(out, unpack) {
            return Err(Corrupt);
        }
        self.counts.loaded_pages += 1;
        Ok(())
    }
    /// The place in the index of the page at `handle`.
    pub fn place(&self, handle: Handle) -> Place {
        Place(self.head(handle).place())
    }
    /// True if there is a page at `handle`.
    pub fn is_live(&self, handle: Handle) -> bool {
        self.zspages.is_live(handle)
    }

    /// Removes the page at `handle`. Its entry was withdrawn before.
    pub fn remove(&mut self, handle: Handle) {
        // Bounded by the slot: a damaged head may have any length.
        let bytes = (self.head(handle).len() + HEAD_BYTES).min(self.slot_size(handle));
        self.live_bytes = self.live_bytes.saturating_sub(bytes as u64);
        self.slot_bytes -= self.slot_size(handle) as u64;
        self.zspages.remove(handle);
        self.close_if_empty(handle.zspage());
    }
    /// [`ZPool::remove`] of a page to make room.
    pub fn evict(&mut self, handle: Handle) {
        self.remove(handle);
        self.counts.evicted += 1;
    }
    fn close_if_empty(&self, zspage: u32) {
        if self.zspages.class(zspage) == 0 {
            self.seg.zclass(zspage).store(0, Ordering::Release);
        }
    }

    /// Up to `want` pages untouched since their last check, oldest first. They stay until the caller evicts
    /// them. Touched pages become newest. A call checks a bounded number to keep the lock short. It may find
    /// fewer, even none if all are touched; the next call goes on.
    pub fn coldest(&mut self, want: usize, out: &mut Vec<(Handle, Place)>) {
        let mut next = self.zspages.oldest();
        let mut looks = self.zspages.live().min(LOOKS_PER_VICTIM * want + LOOKS_MIN);
        let end = out.len() + want;
        while let Some(handle) = next.filter(|_| out.len() < end && looks > 0) {
            looks -= 1;
            next = self.zspages.newer(handle);
            let count = self.touches.zcount(handle);
            if count.load(Ordering::Relaxed) > 0 {
                count.store(0, Ordering::Relaxed);
                self.zspages.make_newest(handle);
            } else {
                out.push((handle, self.place(handle)));
            }
        }
    }

    /// Halves the touch counts of about `pages` pages, round robin, so that they count recent reads. A
    /// touched page stays touched until [`ZPool::coldest`] has checked it.
    pub fn age(&mut self, pages: usize) {
        let mut left = pages.min(self.zspages.live());
        while left > 0 {
            let zspage = self.aged;
            self.aged = if zspage + 1 < self.zspages.zspages() { zspage + 1 } else { 0 };
            let slots = slots_of(self.zspages.class(zspage)).min(ZSPAGE_TOUCHES as u32);
            for slot in 0..slots {
                let count = self.touches.zcount(Handle::new(zspage, slot));
                let n = count.load(Ordering::Relaxed);
                if n > 1 {
                    count.store(n / 2, Ordering::Relaxed);
                }
            }
            left = left.saturating_sub(self.zspages.live_in(zspage));
        }
    }

    /// Moves pages from sparse zspages to others of their class, to free zspages. Stops after `budget` bytes
    /// (with the present zspage empty), or without further gain. Returns the bytes moved.
    ///
    /// Calls `moved(place, old, new)` once the copy at `new` is complete. That must make the entry name `new`
    /// with [`crate::protocol::replace`]. Readers may use `old` until then: it is not
    /// overwritten before.
    pub fn compact(&mut self, budget: usize, mut moved: impl FnMut(Place, Handle, Handle)) -> usize {
        let mut bytes = 0;
        while bytes < budget {
            let Some(zspage) = self.zspages.begin_emptying() else { break };
            let mut slot = 0;
            while let Some((from, to)) = self.zspages.next_move(zspage, slot) {
                bytes += self.move_object(from, to);
                moved(self.place(from), from, to);
                self.zspages.renumber(from, to);
                slot = from.slot() + 1;
            }
            self.close_if_empty(zspage);
            self.counts.compacted_zspages += 1;
        }
        self.counts.moved_bytes += bytes as u64;
        bytes
    }
    /// Copies an object. Returns its bytes.
    fn move_object(&mut self, from: Handle, to: Handle) -> usize {
        let bytes = (self.head(from).len() + HEAD_BYTES).min(self.slot_size(from));
        // SAFETY: a live object, and another slot of the same class that no entry names.
        unsafe { std::ptr::copy_nonoverlapping(self.address(from), self.address(to), bytes) };
        let count = self.touches.zcount(from).load(Ordering::Relaxed);
        self.touches.zcount(to).store(count, Ordering::Relaxed);
        self.counts.moved_pages += 1;
        bytes
    }

    /// Releases memory of unused zspages down to `keep` bytes, and all of it above the limit. Returns the
    /// bytes released.
    ///
    /// # Errors
    /// Errors of the system call: memory that was not released still counts as held.
    pub fn trim(&mut self, keep: u64) -> io::Result<u64> {
        let before = self.bytes();
        let too_many = |pool: &ZPool| pool.idle_bytes() > keep || pool.zspages.held() > pool.limit;
        while let Some(zspage) = self.zspages.first_idle().filter(|_| too_many(self)) {
            self.seg.discard_zspages(zspage, 1)?;
            self.zspages.note_memory_released(zspage);
        }
        Ok(before - self.bytes())
    }

    /// Reports inconsistencies in the pool: slots, heads, sums.
    pub fn check(&self) -> Result<(), String> {
        self.zspages.check()?;
        let (mut live, mut slots, mut next) = (0, 0, self.zspages.oldest());
        while let Some(handle) = next {
            let Some((head, _)) = self.coded(handle) else {
                return Err(format!("{handle:?}: damaged ({:x})", self.head(handle).0));
            };
            let (class, recorded) = (
                self.zspages.class(handle.zspage()),
                self.seg.zclass(handle.zspage()).load(Ordering::Relaxed),
            );
            if class != recorded {
                return Err(format!("{handle:?}: class {class}, readers see {recorded}"));
            }
            live += (head.len() + HEAD_BYTES) as u64;
            slots += slot_bytes(class) as u64;
            next = self.zspages.newer(handle);
        }
        if (live, slots) != (self.live_bytes, self.slot_bytes) {
            let recorded = (self.live_bytes, self.slot_bytes);
            return Err(format!(
                "bytes of objects and slots: {recorded:?} counted, {:?} found",
                (live, slots)
            ));
        }
        Ok(())
    }
}

/// Pages that [`ZPool::coldest`] checks for each wanted one, and in addition.
const LOOKS_PER_VICTIM: usize = 8;
const LOOKS_MIN: usize = 64;
