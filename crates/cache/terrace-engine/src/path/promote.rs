//! Promotion of compressed pages to DRAM. It claims a frame under the state lock, decompresses without the
//! lock, and publishes under the lock. A changed entry cancels the promotion.

use crate::context::Context;
use crate::file::object::Object;
use crate::path::decompress::CompressedReader;
use crate::state::{NotPromoted, Promotion};
use std::sync::atomic::Ordering;
use terrace_shm::codec::Page;
use terrace_shm::zread::{ReadOutcome, load};

/// Attempts of a promotion: compaction may move the page meanwhile, and only one read requests it.
const TRIES_MAX: usize = 3;

pub(crate) fn promote_page(cx: &Context, o: &Object, page: u64) -> Result<(), NotPromoted> {
    let tries = (0..TRIES_MAX).map(|_| try_to_promote(cx, o, page));
    // A retry fails before the decompression if the page is no longer compressed.
    tries.into_iter().find(|tried| *tried != Err(NotPromoted::Gone)).unwrap_or(Err(NotPromoted::Gone))
}

fn try_to_promote(cx: &Context, o: &Object, page: u64) -> Result<(), NotPromoted> {
    let promotion = {
        let mut state = cx.state.lock();
        let known = state.objects.is_known(o);
        let place = state.pages.index.find(o.slot_index(), page).filter(|_| known);
        state.begin_promotion(place.ok_or(NotPromoted::Gone)?)?
    };
    let found = decompress(cx, &promotion);
    cx.state.lock().finish_promotion(&promotion, found == ReadOutcome::Content)
}

/// Decompresses a page into its claimed frame, without the state lock.
fn decompress(cx: &Context, promotion: &Promotion) -> ReadOutcome {
    #[cfg(test)]
    tests::before_decompression(cx);
    let seg = &cx.handles.segment;
    let frame = seg.frame(promotion.frame).cast::<Page>();
    // SAFETY: a claimed frame is used by this thread only, and in bounds.
    let out = unsafe { &mut *frame };
    load(seg, promotion.place, promotion.seen, &mut CompressedReader::new(&cx.handles), out)
}

/// Promotes frequently read pages, except pages that move meanwhile or find no free frame.
pub(crate) fn promote_pages<'a>(cx: &Context, pages: impl IntoIterator<Item = (&'a Object, u64)>) {
    for (o, page) in pages {
        let _ = promote_page(cx, o, page);
    }
}

/// After a read: counts hits of compressed pages, and promotes those read often enough.
pub(crate) fn finish_read(cx: &Context, o: &Object, reader: CompressedReader) {
    if reader.served == 0 {
        return;
    }
    cx.counters.compressed_hits.fetch_add(reader.served, Ordering::Relaxed);
    promote_pages(cx, reader.worthy.iter().map(|&page| (o, page)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::resize;
    use crate::state::compressed::tests::{Fixture, PAGES, content};
    use crate::{AccessPath, Engine, ObjectRef};
    use std::cell::{Cell, RefCell};
    use std::sync::Arc;
    use terrace_shm::compress::CompressionMode;
    use terrace_shm::{Entry, PAGE_SIZE, State as EntryState};

    type Interruption = Box<dyn FnOnce()>;

    thread_local! {
        /// Runs once between the two phases of this thread's next promotion.
        static INTERRUPTION: RefCell<Option<Interruption>> = const { RefCell::new(None) };
        static DECOMPRESSED: Cell<u64> = const { Cell::new(0) };
    }

    /// Called before each decompression: no thread has a reason to hold the state lock.
    pub(super) fn before_decompression(cx: &Context) {
        assert!(cx.state.try_lock().is_some(), "decompression under the state lock");
        DECOMPRESSED.set(DECOMPRESSED.get() + 1);
        if let Some(interruption) = INTERRUPTION.take() {
            interruption();
        }
    }

    #[test]
    fn promotion_decompresses_without_the_state_lock() {
        let s = Fixture::new(CompressionMode::Mixed);
        DECOMPRESSED.set(0);
        for page in 0..PAGES / 2 {
            assert_eq!(promote_page(&s.engine.cx, &s.o, page), Ok(()));
        }
        for page in PAGES / 2..PAGES {
            s.engine.write(&s.o, page * PAGE_SIZE as u64 + 10, b"!!!!").unwrap();
            let mut expected = content(page);
            expected[10..14].copy_from_slice(b"!!!!");
            assert_eq!(s.read(page), expected);
        }
        assert_eq!(DECOMPRESSED.get(), PAGES, "each page once, by read or by write");
        assert_eq!((s.stats().pgpromote_success, s.stats().pages), (PAGES, 0));
        s.agrees();
    }

    /// Promotes page 3 while `happens` changes it. The page then reads as `expected`, if it is resident.
    fn promoted_while(what: &str, expected: Option<Vec<u8>>, happens: fn(&Arc<Engine>, &ObjectRef)) {
        for codec in [CompressionMode::Lz4, CompressionMode::Dense] {
            let s = Fixture::new(codec);
            let (engine, o) = (s.engine.clone(), s.o.clone());
            INTERRUPTION.set(Some(Box::new(move || happens(&engine, &o))));
            assert_eq!(promote_page(&s.engine.cx, &s.o, 3), Err(NotPromoted::Gone), "{what}");
            assert!(INTERRUPTION.take().is_none());
            assert_eq!(s.engine.cx.state.lock().claimed, 0, "{what}: the frame is free again");
            s.agrees();
            if let Some(expected) = &expected {
                assert!(s.read(3) == *expected, "{what}");
                (0..3)
                    .chain(4..PAGES)
                    .for_each(|page| assert!(s.read(page) == content(page), "{what}: {page}"));
            }
            s.agrees();
        }
    }

    #[test]
    fn promotion_gives_way_to_a_write() {
        promoted_while("a write of the page", Some(vec![9; PAGE_SIZE]), |engine, o| {
            engine.write(o, 3 * PAGE_SIZE as u64, &[9; PAGE_SIZE]).unwrap();
        });
        let mut third = content(3);
        third[..4].copy_from_slice(b"????");
        promoted_while("a write of some of it", Some(third), |engine, o| {
            engine.write(o, 3 * PAGE_SIZE as u64, b"????").unwrap();
        });
    }

    #[test]
    fn promotion_gives_way_to_invalidation() {
        promoted_while("a truncate", None, |engine, o| engine.truncate(o, 2 * PAGE_SIZE as u64).unwrap());
        promoted_while("an object that is forgotten", None, |engine, o| {
            engine.forget_object(o.id()).unwrap()
        });
        promoted_while("a change of the source", Some(content(3)), |engine, o| {
            engine.with_source(o, 0..u64::MAX, |_| Ok(())).unwrap();
        });
    }

    #[test]
    fn promotion_gives_way_to_eviction() {
        promoted_while("an eviction", Some(content(3)), |engine, _| {
            assert_eq!(resize::empty_compressed(&engine.cx), PAGES);
        });
        promoted_while("an eviction and a read from the source", Some(content(3)), |engine, o| {
            resize::empty_compressed(&engine.cx);
            let mut buf = [0; PAGE_SIZE];
            engine.read(o, 3 * PAGE_SIZE as u64, &mut buf, AccessPath::Preload).unwrap();
        });
        promoted_while("another promotion", Some(content(3)), |engine, o| {
            assert_eq!(promote_page(&engine.cx, o, 3), Ok(()));
        });
    }

    #[test]
    fn promotion_follows_a_page_that_compaction_moves() {
        let s = Fixture::new(CompressionMode::Lz4);
        let (engine, o) = (s.engine.clone(), s.o.clone());
        INTERRUPTION.set(Some(Box::new(move || {
            // As in a compaction, the page's entry changes.
            let state = engine.cx.state.lock();
            let index = &state.pages.index;
            let place = index.find(o.slot_index(), 3).unwrap();
            let handle = index.get(place).handle().unwrap();
            terrace_shm::protocol::replace(index.entry(place), Entry::compressed(handle, index.tick()));
        })));
        assert_eq!(promote_page(&s.engine.cx, &s.o, 3), Ok(()));
        assert!(INTERRUPTION.take().is_none());
        assert_eq!((s.state(3), s.stats().pgpromote_success), (EntryState::Present, 1));
        assert!(s.read(3) == content(3));
        s.agrees();
    }

    /// Before a device is served, pages on it are read from the source, and written as usual.
    #[test]
    fn page_of_an_unserved_device_is_read_from_the_source() {
        let s = Fixture::new(CompressionMode::Lz4);
        for page in [3, 4, 5] {
            let mut state = s.engine.cx.state.lock();
            let place = state.pages.index.find(s.o.slot_index(), page).unwrap();
            let handle = state.pages.index.get(place).handle().unwrap();
            let slot = terrace_shm::entry::DeviceSlot::new(0, page as u32);
            let entry = Entry::device(slot, state.pages.index.tick());
            terrace_shm::protocol::replace(state.pages.index.entry(place), entry);
            state.compressed.as_mut().unwrap().pool.remove(handle);
        }
        assert!(s.read(3) == content(3));
        s.engine.write(&s.o, 4 * PAGE_SIZE as u64 + 7, b"!").unwrap();
        s.engine.write(&s.o, 5 * PAGE_SIZE as u64, &[9; PAGE_SIZE]).unwrap();
        let mut fourth = content(4);
        fourth[7] = b'!';
        assert!(s.read(4) == fourth && s.read(5) == [9; PAGE_SIZE]);
        s.agrees();
    }

    #[test]
    fn damaged_page_is_dropped_not_promoted() {
        let s = Fixture::new(CompressionMode::Mixed);
        s.damage();
        let gone = (0..PAGES).filter(|&page| promote_page(&s.engine.cx, &s.o, page).is_err());
        let gone: Vec<u64> = gone.collect();
        assert!(!gone.is_empty());
        let absent = |page: &u64| s.state(*page) == EntryState::Absent;
        assert!(gone.iter().all(absent), "the source has them");
        (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
        s.agrees();
    }
}
