//! The hit of a client or the daemon. It looks a page up, copies it, checks its entry again, and counts the
//! touch.

use crate::codec::Unpack;
use crate::copy;
use crate::entry::{Entry, State};
use crate::index::Place;
use crate::layout::{BLOCK_PAGES, Leaf, ObjectSlot, PAGE_SIZE};
use crate::map::Segment;
use crate::protocol::{look, same_epoch, unchanged};
use crate::sync::{AtomicU64, Ordering};
use crate::touch::TouchTable;
use crate::zread::{CompressedRead, ReadOutcome};

/// Result of a read without the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All of it: bytes delivered (short at the end of the file).
    Done(usize),
    /// `done` bytes delivered; the next page is absent, or on a device.
    Miss {
        /// Bytes delivered before the miss.
        done: usize,
    },
    /// `done` bytes delivered; the rest needs the mount path.
    MountPath {
        /// Bytes delivered before.
        done: usize,
    },
}

/// Tries to copy a page before the reader uses the mount path.
const TRIES_MAX: u32 = 4;

enum Step {
    Copied(usize),
    Absent,
    Unstable,
}

/// Reads resident pages of a segment, and counts their touches.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    /// The segment.
    pub seg: &'a Segment,
    /// Its touch table.
    pub touches: &'a TouchTable,
}

impl Reader<'_> {
    /// Reads `[offset, offset + len)` of the object in `slot` into `out`, as far as frames and the compressed
    /// pool have it. For clients: stops where the kernel's page cache may have newer content. `unpack` has
    /// the caller's codecs beyond LZ4, and gets a call for each page from the pool.
    ///
    /// # Safety
    /// `out` must be valid for writes of `len` bytes. The caller has the file open, so that the slot stays the
    /// object's.
    #[inline]
    pub unsafe fn read(
        self,
        slot: &ObjectSlot,
        offset: u64,
        out: *mut u8,
        len: usize,
        unpack: &mut dyn Unpack,
    ) -> Outcome {
        if slot.flags.load(Ordering::Acquire) != 0 {
            return Outcome::MountPath { done: 0 };
        }
        // SAFETY: the caller's promise.
        let outcome = unsafe { self.read_resident(slot, offset, out, len, unpack) };
        // A mapping of the file may have become writable during the copy.
        if slot.flags.load(Ordering::Relaxed) != 0 {
            return Outcome::MountPath { done: 0 };
        }
        outcome
    }

    /// [`Reader::read`] for the daemon, which is the mount path itself: the slow flag does not matter.
    ///
    /// # Safety
    /// As [`Reader::read`].
    #[inline]
    pub unsafe fn read_resident(
        self,
        slot: &ObjectSlot,
        offset: u64,
        out: *mut u8,
        len: usize,
        unpack: &mut dyn Unpack,
    ) -> Outcome {
        let size = slot.size.load(Ordering::Acquire);
        let Some(left) = size.checked_sub(offset).filter(|&n| n > 0) else { return Outcome::Done(0) };
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut done = 0;
        while done < len {
            // SAFETY: done < len, so out + done is inside the caller's buffer.
            let step =
                unsafe { self.copy_run(slot, offset + done as u64, out.add(done), len - done, unpack) };
            match step {
                Step::Copied(n) => done += n,
                Step::Absent => return Outcome::Miss { done },
                Step::Unstable => return Outcome::MountPath { done },
            }
        }
        Outcome::Done(done)
    }

    /// Copies a piece that lies in one run of pages and in adjacent frames.
    ///
    /// # Safety
    /// As [`Reader::read`]; `len > 0`.
    #[inline]
    unsafe fn copy_run(
        self,
        slot: &ObjectSlot,
        offset: u64,
        out: *mut u8,
        len: usize,
        unpack: &mut dyn Unpack,
    ) -> Step {
        let page = offset / PAGE_SIZE as u64;
        let in_page = offset as usize % PAGE_SIZE;
        let at = (page % BLOCK_PAGES as u64) as usize;
        let pages = (in_page + len).div_ceil(PAGE_SIZE).min(BLOCK_PAGES - at);
        for _ in 0..TRIES_MAX {
            let epoch = self.seg.header().epoch.load(Ordering::Acquire);
            let found = self.seg.find_leaf(slot, page / BLOCK_PAGES as u64);
            let Ok(found) = found else { return Step::Unstable };
            let Some((leaf, Leaf(entries))) = found else { return Step::Absent };
            let first = look(&entries[at]);
            match first.state() {
                State::Present => {}
                State::Absent => {
                    // An absent entry proves nothing if its node was reused meanwhile.
                    if same_epoch(&self.seg.header().epoch, epoch) {
                        return Step::Absent;
                    }
                    continue;
                }
                State::Busy => return Step::Unstable,
                State::Below => {
                    // A page on a device is read there, as a miss is read from the source.
                    let Some(handle) = first.handle() else { return Step::Absent };
                    let (place, entry) = (Place::new(leaf, at), &entries[at]);
                    let (seg, touches, seen) = (self.seg, self.touches, first);
                    let look = CompressedRead { seg, touches, entry, seen, handle, place, epoch, page };
                    let bytes = (PAGE_SIZE - in_page).min(len);
                    // SAFETY: bytes <= len.
                    match unsafe { look.read(in_page, out, bytes, unpack) } {
                        ReadOutcome::Content => return Step::Copied(bytes),
                        ReadOutcome::Moved => continue,
                        ReadOutcome::Unreadable => return Step::Unstable,
                    }
                }
            }
            // SAFETY: `len` bytes at `out` are the caller's buffer.
            let copied = unsafe { self.copy_frames(&entries[at..at + pages], first, in_page, out, len) };
            if let Some(n) = copied
                && same_epoch(&self.seg.header().epoch, epoch)
            {
                return Step::Copied(n);
            }
        }
        Step::Unstable
    }

    /// Copies as many of the pages as are in adjacent frames, in one copy. None: a page moved.
    ///
    /// # Safety
    /// `out` takes `len` bytes.
    #[inline]
    unsafe fn copy_frames(
        self,
        entries: &[AtomicU64],
        first: Entry,
        in_page: usize,
        out: *mut u8,
        len: usize,
    ) -> Option<usize> {
        let mut seen = [first; BLOCK_PAGES];
        let mut pages = 1;
        while pages < entries.len() {
            let next = look(&entries[pages]);
            if next.state() != State::Present || next.payload() != first.payload() + pages as u32 {
                break;
            }
            seen[pages] = next;
            pages += 1;
        }
        let bytes = (pages * PAGE_SIZE - in_page).min(len);
        if pages > 1 {
            // The first frame is mapped if the last one is.
            self.seg.try_frame(first.payload() + (pages as u32 - 1))?;
        }
        let frame = self.seg.try_frame(first.payload())?;
        // SAFETY: the frames are adjacent and in bounds. The copy may race with the daemon: a changed entry
        // discards it.
        unsafe { copy::out_of_frames(frame.add(in_page), out, bytes) };
        let seen = &seen[..pages];
        if !entries.iter().zip(seen).all(|(entry, &before)| unchanged(entry, before)) {
            return None;
        }
        seen.iter().for_each(|page| self.touches.touch(page.payload()));
        Some(bytes)
    }
}

/// Prefetches `len` bytes at `offset` into the processor's cache, as far as they lie in one frame. Does
/// nothing for a page without a frame.
#[inline]
pub fn prefetch(seg: &Segment, slot: &ObjectSlot, offset: u64, len: usize) {
    let (page, in_page) = (offset / PAGE_SIZE as u64, offset as usize % PAGE_SIZE);
    let Ok(Some((_, leaf))) = seg.find_leaf(slot, page / BLOCK_PAGES as u64) else { return };
    let seen = look(&leaf.0[(page % BLOCK_PAGES as u64) as usize]);
    // The frame's content does not matter: the read checks the entry again.
    if seen.state() == State::Present
        && let Some(frame) = seg.try_frame(seen.payload())
    {
        copy::prefetch(frame.wrapping_add(in_page), len.min(PAGE_SIZE - in_page));
    }
}
