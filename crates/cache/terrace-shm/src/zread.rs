//! A client reads a compressed page without the daemon, and the daemon reads it without its lock. The reader
//! copies the bytes, checks the entry again, and decodes the copy.
//!
//! It decodes the bytes only after the check: torn bytes never reach the decoder, another page's content
//! never the caller. Decoder and lengths are still bounded, so that the pool need not be trusted.

use crate::codec::{Coded, Page, Unpack};
use crate::copy;
use crate::entry::Entry;
use crate::index::Place;
use crate::layout::PAGE_SIZE;
use crate::map::Segment;
use crate::protocol::{same_epoch, unchanged};
use crate::scratch::Scratch;
use crate::sync::{AtomicU64, Ordering};
use crate::touch::TouchTable;
use crate::zobject::{HEAD_BYTES, Handle, Head, OBJECT_MAX, slot_bytes, slots_of};
use std::mem::MaybeUninit;

/// An object copied out of the pool. Valid only if its entry has not changed since.
#[derive(Debug)]
pub struct PageCopy<'a> {
    object: &'a mut MaybeUninit<Page>,
    head: Head,
}

const _: () = assert!(OBJECT_MAX <= PAGE_SIZE);

impl<'a> PageCopy<'a> {
    /// A buffer for an object, in `room`.
    #[inline]
    pub fn new(room: &'a mut MaybeUninit<Page>) -> PageCopy<'a> {
        PageCopy { object: room, head: Head(0) }
    }
    /// Copies the object at `handle`. False: no object of that length.
    pub fn fetch(&mut self, seg: &Segment, handle: Handle) -> bool {
        let zspage = handle.zspage();
        self.head = Head(0);
        let (Some(class), Some(start)) = (seg.try_zclass(zspage), seg.try_zspage(zspage)) else {
            return false;
        };
        let class = class.load(Ordering::Relaxed);
        if handle.slot() >= slots_of(class) {
            return false;
        }
        // Copies the whole slot, whatever the head's length: a wait for the head would cost another latency.
        let (slot, to) = (slot_bytes(class), self.object.as_mut_ptr().cast::<u8>());
        let size = slot.min(OBJECT_MAX);
        // SAFETY: the slot number is less than slots_of(class), so the slot lies in the zspage. The copy may
        // race with the daemon: the caller checks the entry before it uses the copy.
        unsafe {
            let from = start.add(handle.slot() as usize * slot);
            copy::out_of_frames(from, to, size);
            self.head = Head(to.cast::<u64>().read_unaligned());
        }
        if self.head.len() + HEAD_BYTES > size {
            self.head = Head(0);
        }
        self.head.codec().is_some()
    }
    /// The object's bytes, if it is the page of `place` and intact.
    pub fn coded(&self, place: Place) -> Option<Coded<'_>> {
        let codec = self.head.codec()?;
        // SAFETY: with a codec, `fetch` has copied at least that many bytes.
        let bytes = unsafe {
            let start = self.object.as_ptr().cast::<u8>().add(HEAD_BYTES);
            std::slice::from_raw_parts(start, self.head.len())
        };
        (self.head.place() == place.0 && self.head.fits(bytes)).then_some(Coded { codec, bytes })
    }
}

pub(crate) struct CompressedRead<'a> {
    pub(crate) seg: &'a Segment,
    pub(crate) touches: &'a TouchTable,
    /// The entry, its value, the handle in it, and its place.
    pub(crate) entry: &'a AtomicU64,
    pub(crate) seen: Entry,
    pub(crate) handle: Handle,
    pub(crate) place: Place,
    /// Reuse epoch before the walk.
    pub(crate) epoch: u64,
    pub(crate) page: u64,
}

/// Result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOutcome {
    /// The caller has the bytes.
    Content,
    /// The page has moved meanwhile: repeat the read.
    Moved,
    /// Only the mount path can read it.
    Unreadable,
}

impl CompressedRead<'_> {
    /// Reads `bytes` of the page from `in_page` on.
    ///
    /// # Safety
    /// `out` is valid for writes of `bytes`, which lie in one page.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn read(
        &self,
        in_page: usize,
        out: *mut u8,
        bytes: usize,
        unpack: &mut dyn Unpack,
    ) -> ReadOutcome {
        let handle = self.handle;
        let Some(mut scratch) = Scratch::take() else { return ReadOutcome::Unreadable };
        let (room, page) = scratch.pages();
        let mut copied = PageCopy::new(room);
        let fetched = copied.fetch(self.seg, handle);
        if !unchanged(self.entry, self.seen) || !same_epoch(&self.seg.header().epoch, self.epoch) {
            return ReadOutcome::Moved;
        }
        let Some(coded) = copied.coded(self.place).filter(|_| fetched) else {
            return ReadOutcome::Unreadable;
        };
        // SAFETY: the caller's promise. A whole page is decoded in place, without a copy.
        let decoded = unsafe {
            match bytes {
                PAGE_SIZE => coded.decode(&mut *out.cast::<Page>(), unpack),
                _ => decode_part(coded, page, in_page, out, bytes, unpack),
            }
        };
        if !decoded {
            return ReadOutcome::Unreadable;
        }
        unpack.served(self.page, self.touches.ztouch(handle));
        ReadOutcome::Content
    }
}

/// Decodes a whole compressed page for the daemon, without its lock. `seen`: the entry of `place`, read under
/// the lock. An unchanged entry is still the page's, without a check of the epoch: a version never comes
/// back.
pub fn load(
    seg: &Segment,
    place: Place,
    seen: Entry,
    unpack: &mut dyn Unpack,
    out: &mut Page,
) -> ReadOutcome {
    let Some(handle) = seen.handle() else { return ReadOutcome::Moved };
    let mut room = MaybeUninit::uninit();
    let mut copied = PageCopy::new(&mut room);
    let fetched = copied.fetch(seg, handle);
    if !unchanged(&seg.leaf(place.leaf()).0[place.at()], seen) {
        return ReadOutcome::Moved;
    }
    match copied.coded(place).filter(|_| fetched) {
        Some(coded) if coded.decode(out, unpack) => ReadOutcome::Content,
        _ => ReadOutcome::Unreadable,
    }
}

/// Decodes to `page` and copies a part.
///
/// # Safety
/// As [`CompressedRead::read`].
unsafe fn decode_part(
    coded: Coded<'_>,
    page: &mut Page,
    in_page: usize,
    out: *mut u8,
    bytes: usize,
    unpack: &mut dyn Unpack,
) -> bool {
    let decoded = coded.decode(page, unpack);
    if decoded {
        let part = &page[in_page..in_page + bytes];
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), out, bytes) };
    }
    decoded
}
