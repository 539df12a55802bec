//! Recovery: a restarted daemon takes over the segment of its predecessor.
//!
//! 1. The engine's user, which has the inodes, calls [`reattach_object`] for each regular file.
//! 2. [`recover_pages`] walks their trees. A Present page stays. A Busy page stays if it is dirty: the kernel
//!    sends the unanswered write again. A clean Busy page is dropped: the source has its content. Unstable
//!    pages are written again, unless another program has changed the file since.
//! 3. Pages beyond the end of a file are dropped: the old daemon may have died in a truncate.
//! 4. Slots of objects that were not reattached are emptied.
//!
//! The daemon may be killed after each step; the next one starts over.

use crate::context::Context;
use crate::file::object::{Object, ObjectId, ObjectRef};
use crate::file::source::{PathFd, SourceFile};
use crate::path::resize;
use crate::segment::flag::{UNSTABLE, UNSYNCED};
use crate::state::State as CacheState;
use crate::tier::park;
use std::cell::LazyCell;
use std::sync::atomic::Ordering;
use terrace_shm::index::Place;
use terrace_shm::{Below, Entry, State};

/// The result of a recovery.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    pub objects: usize,
    pub(crate) pages: usize,
    pub(crate) dirty: usize,
    /// Pages dropped in the middle of a change. The source has their content.
    pub(crate) dropped: usize,
}

/// Takes over the object `id` if the dead daemon had published it.
pub(crate) fn reattach_object(cx: &Context, id: ObjectId, path_fd: PathFd) -> Option<ObjectRef> {
    let mut state = cx.state.lock();
    if let Some(o) = state.objects.get(&id) {
        return Some(o.clone());
    }
    let seg = cx.handles.segment.clone();
    let slot = seg.find_object(id)?;
    let object = Object::new(id, slot, seg.clone(), SourceFile::new(path_fd));
    let known = park::identity_of(cx, object.source().as_path());
    object.take_over_identity(known.identity);
    // The dead daemon may have left unsynced changes.
    object.unsynced.store(true, Ordering::Relaxed);
    // The flags stay, because clients obey them; the owner of the open handles sets them again. The dead
    // daemon may have extended the source before it published the size.
    if let Ok(st) = object.source().stat() {
        seg.object(slot).size.store(st.st_size as u64, Ordering::Release);
    }
    Some(state.objects.adopt(object))
}

/// Takes over all pages of the reattached objects. Empties the slots of all others.
pub(crate) fn recover_pages(cx: &Context) -> Recovered {
    let mut state = cx.state.lock();
    empty_unclaimed_slots(cx, &state);
    let objects: Vec<ObjectRef> = state.objects.values().cloned().collect();
    let slots: Vec<u32> = objects.iter().map(|o| o.slot_index()).collect();
    state.pages.index.recover(&slots);
    let mut found = Recovered { objects: objects.len(), ..Recovered::default() };
    // Written back at once: their age is unknown, and other programs may change the files.
    let since = cx.clock.now_ns().saturating_sub(cx.config.dirty_expire.as_nanos() as u64);
    let mut kept = Vec::new();
    for (o, pages) in resident_pages(&mut state, &objects) {
        let changed = LazyCell::new(|| o.source().stat().is_ok_and(|stat| o.is_changed_behind(&stat)));
        for page in pages {
            if take_over(cx, &mut state, &o, &page, &changed, since, &mut found) {
                kept.push(page.frame);
            }
        }
    }
    found.pages = kept.len();
    state.recover_frames(&kept);
    for frame in kept {
        state.lru_adopt(frame);
    }
    for o in &objects {
        state.drop_beyond(o, o.size());
    }
    drop(state);
    for o in &objects {
        match o.dirty_pages() {
            0 => o.restore_times(),
            _ => o.note_second_writeback(),
        }
    }
    resize::adjust_pool(cx);
    found
}

fn empty_unclaimed_slots(cx: &Context, state: &CacheState) {
    let seg = &cx.handles.segment;
    for i in 0..seg.slots_used() {
        let slot = seg.object(i);
        if slot.id.load(Ordering::Relaxed) != 0 && state.objects.in_slot(i).is_none() {
            slot.root.store(0, Ordering::Release);
            slot.id.store(0, Ordering::Release);
        }
    }
}

/// A page with a frame, by the index.
struct Resident {
    page: u64,
    place: Place,
    frame: u32,
    entry: Entry,
}

/// The resident pages of each object. Compressed pages become absent: this daemon's pool is empty.
fn resident_pages(state: &mut CacheState, objects: &[ObjectRef]) -> Vec<(ObjectRef, Vec<Resident>)> {
    let mut below = Vec::new();
    // Entries with slots stay: the scan of their target checks them (`State::install`). A target may be gone.
    let is_known = |slot| state.targets.as_ref().is_some_and(|targets| targets.of(slot).is_some());
    let of_object = |o: &ObjectRef| {
        let mut pages = Vec::new();
        state.pages.index.for_range(o.slot_index(), 0, u64::MAX, |page, place| {
            let entry = state.pages.index.get(place);
            if let Some(frame) = entry.frame() {
                pages.push(Resident { page, place, frame, entry });
            } else if match entry.below() {
                Some(Below::Device(slot)) => !is_known(slot),
                other => other.is_some(),
            } {
                below.push(place);
            }
        });
        (o.clone(), pages)
    };
    let found = objects.iter().map(of_object).collect();
    for place in below {
        state.pages.make_absent(place, 0);
    }
    found
}

/// Takes over one page. False: it is dropped. `changed`: another program has changed the file since. `since`:
/// age of dirty pages.
fn take_over(
    cx: &Context,
    state: &mut CacheState,
    o: &ObjectRef,
    at: &Resident,
    changed: &LazyCell<bool, impl FnOnce() -> bool>,
    since: u64,
    found: &mut Recovered,
) -> bool {
    let flags = cx.handles.frame_flags(at.frame);
    let unsynced = flags.load(Ordering::Acquire) & UNSYNCED;
    let busy = at.entry.state() != State::Present;
    if (busy && unsynced == 0) || !state.pages.adopt_rmap(at.place, at.frame) {
        state.pages.make_absent(at.place, 0);
        found.dropped += 1;
        return false;
    }
    match unsynced {
        0 => flags.store(0, Ordering::Release),
        UNSTABLE if !busy && **changed => state.dirty.adopt_unstable(flags, o, at.page, since),
        _ => {
            state.dirty.adopt(flags, o, at.page, since);
            found.dirty += 1;
        }
    }
    if busy {
        state.pages.publish_present(at.place, at.frame);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Engine;
    use crate::clock::SystemClock;
    use crate::config::EngineConfig;
    use crate::segment::SegmentHandles;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use terrace_io::testing::NullIo;

    const PAGES: u64 = 1024;

    fn begin(config: &EngineConfig, handles: &Arc<SegmentHandles>) -> Arc<Engine> {
        Engine::start(config.clone(), handles.clone(), Arc::new(SystemClock), Arc::new(NullIo)).unwrap()
    }

    /// A daemon killed during recovery leaves its progress to the next one, here a thread.
    #[test]
    fn a_dirty_page_is_one_at_every_moment_of_a_recovery() {
        let config = EngineConfig { memory_bytes: 48 << 20, ..EngineConfig::default() };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let file = tempfile::tempfile().unwrap();
        file.set_len(PAGES * 4096).unwrap();
        let engine = begin(&config, &handles);
        let o = engine.object(7, file.as_raw_fd(), 0).unwrap();
        engine.write(&o, 0, &vec![1; PAGES as usize * 4096]).unwrap();
        let frames: Vec<u32> = {
            let state = engine.cx.state.lock();
            let frame = |page| {
                state.pages.index.get(state.pages.index.find(o.slot_index(), page).unwrap()).frame().unwrap()
            };
            (0..PAGES).map(frame).collect()
        };
        drop((o, engine));
        for round in 0..20 {
            let (began, ended) = (AtomicBool::new(false), AtomicBool::new(false));
            let lost = std::thread::scope(|scope| {
                let watcher = scope.spawn(|| {
                    began.store(true, Ordering::Release);
                    let unsynced =
                        |frame: &u32| handles.frame_flags(*frame).load(Ordering::Relaxed) & UNSYNCED != 0;
                    let mut lost = 0;
                    while !ended.load(Ordering::Acquire) {
                        lost += frames.iter().filter(|frame| !unsynced(frame)).count();
                    }
                    lost
                });
                while !began.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
                let engine = begin(&config, &handles);
                engine.reattach_object(7, file.as_raw_fd()).unwrap();
                let found = engine.recover_pages();
                assert_eq!((found.pages, found.dirty), (PAGES as usize, PAGES as usize));
                ended.store(true, Ordering::Release);
                watcher.join().unwrap()
            });
            assert_eq!(lost, 0, "in round {round} a page seemed clean");
        }
    }

    /// Killed between a writeback and the restoring of the source's mtime, without a dirty page.
    #[test]
    fn the_time_of_a_write_is_put_right_by_the_next_daemon() {
        let config = EngineConfig { memory_bytes: 16 << 20, ..EngineConfig::default() };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let file = tempfile::tempfile().unwrap();
        let engine = begin(&config, &handles);
        let o = engine.object(7, file.as_raw_fd(), 0).unwrap();
        let written = 1_000_000_000_000_000_000;
        o.note_write(written);
        drop((o, engine));
        let engine = begin(&config, &handles);
        let o = engine.reattach_object(7, file.as_raw_fd()).unwrap();
        assert_ne!(o.source().times().unwrap().0, written);
        engine.recover_pages();
        assert_eq!(o.source().times().unwrap().0, written);
    }
}
