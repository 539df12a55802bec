//! Hints: prefetched pages, pinned pages, and clean pages that programs no longer need.
//!
//! The policy lists prefetched pages like readahead: on probation. The unused ones may have a sixteenth of
//! the pool, so that useless hints displace little.

use crate::file::object::Object;
use crate::segment::flag::{HELD, LEAVING, REUSED, USED};
use crate::state::lru::TouchView;
use crate::state::{Leaving, State};
use std::sync::atomic::Ordering;
use terrace_shm::State as EntryState;

impl State {
    /// Whether a program has used the page in a mapped frame since its fault.
    fn is_used(&self, touches: &TouchView, frame: u32) -> bool {
        touches.is_touched(frame) || self.pages.flags(frame).load(Ordering::Relaxed) & (REUSED | USED) != 0
    }

    /// Whether a program has used this page, which must be resident.
    pub(crate) fn is_page_used(&self, o: &Object, page: u64) -> bool {
        let touches = self.lru.touches();
        self.pages.frame_of(o, page).is_some_and(|frame| self.is_used(&touches, frame))
    }

    /// Number of further pages that may be prefetched into a pool of `pool` frames, if `wanted` are
    /// requested.
    pub(crate) fn room_ahead(&mut self, pool: u32, wanted: usize) -> usize {
        let mut ahead = std::mem::take(&mut self.ahead);
        let touches = self.lru.touches();
        let room = ahead
            .room(pool, wanted, |frame| self.lru.policy.contains(frame) && !self.is_used(&touches, frame));
        self.ahead = ahead;
        room
    }

    /// Pins the resident pages `[first, last]` of an object, as far as a pool of `pool` frames allows.
    /// Returns their number.
    pub(crate) fn pin(&mut self, o: &Object, first: u64, last: u64, until_ns: u64, pool: u32) -> u64 {
        if !self.objects.is_known(o) {
            return 0;
        }
        let mut frames = Vec::new();
        let pages = &mut self.pages;
        pages.index.for_range(o.slot_index(), first, last, |_, place| frames.push(place));
        let frames = frames.into_iter().filter_map(|place| pages.index.get(place).frame());
        frames.filter(|&frame| self.pins.add(frame, until_ns, pool)).count() as u64
    }

    /// Frees up to `want` frames of pages that the policy evicts. Dirty pages and pages in use go back to it.
    /// Pages worth keeping below DRAM are put into `leaving`, if given, and stay resident until they are
    /// stored there. Returns the number of frames freed, or to be freed.
    pub(crate) fn evict(&mut self, want: usize, mut leaving: Option<&mut Leaving>) -> usize {
        self.pins.look();
        let freed = self.evict_rounds(want, leaving.as_deref_mut());
        if freed > 0 || self.pins.len() == 0 {
            return freed;
        }
        self.pins.set_give_way(true);
        let freed = self.evict_rounds(want, leaving);
        self.pins.set_give_way(false);
        freed
    }

    /// Evicts the clean pages `[first, last]` of an object; copies below DRAM stay. Returns their number.
    pub(crate) fn drop_clean(&mut self, o: &Object, first: u64, last: u64) -> u64 {
        if !self.objects.is_known(o) {
            return 0;
        }
        let mut places = Vec::new();
        self.pages.index.for_range(o.slot_index(), first, last, |_, place| places.push(place));
        let mut dropped = 0;
        for place in places {
            let entry = self.pages.index.get(place);
            let Some(frame) = entry.frame().filter(|_| entry.state() == EntryState::Present) else {
                continue;
            };
            let held = self.pages.flags(frame).load(Ordering::Relaxed) & (HELD | LEAVING) != 0;
            if held || !self.lru.policy.contains(frame) {
                continue;
            }
            self.lru.policy.remove(frame);
            if !self.return_to_copy(place, frame) {
                self.release(place, frame, 0);
            }
            dropped += 1;
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use crate::clock::ManualClock;
    use crate::io::testing::NullIo;
    use crate::testing::{sparse_object, started};
    use crate::{AccessPath, Engine, EngineConfig, ObjectRef};
    use std::fs::File;
    use std::sync::Arc;
    use std::time::Duration;

    const PAGES: u64 = 20_000;

    fn world(policy: &str) -> (Arc<Engine>, Arc<ManualClock>, ObjectRef, File) {
        let config = EngineConfig {
            memory_bytes: 16 << 20,
            memory_max_bytes: Some(16 << 20),
            readahead_max_bytes: 0,
            policy: policy.into(),
            ..EngineConfig::default()
        };
        let clock = Arc::new(ManualClock::default());
        let engine = started(config, clock.clone(), NullIo);
        let (o, file) = sparse_object(&engine, 1, PAGES * 4096);
        (engine, clock, o, file)
    }

    /// Number of misses of reads of these pages.
    fn reads(engine: &Engine, o: &ObjectRef, pages: impl Iterator<Item = u64>) -> u64 {
        let before = engine.stats().fuse.misses;
        let mut buf = [0; 4096];
        for page in pages {
            engine.read(o, page * 4096, &mut buf, AccessPath::FuseDirect).unwrap();
        }
        engine.stats().fuse.misses - before
    }

    #[test]
    fn pinned_pages_outlive_pressure_until_their_time() {
        for policy in ["strata", "lru"] {
            let (engine, clock, o, _file) = world(policy);
            reads(&engine, &o, 0..1000);
            assert_eq!(engine.pin(&o, 0, 1000, Duration::from_secs(60)), 1000);
            // Other pages are used more often, and more recently.
            for _ in 0..3 {
                reads(&engine, &o, 2000..PAGES);
            }
            assert_eq!(reads(&engine, &o, 0..1000), 0, "{policy}: they stay");
            clock.advance(Duration::from_secs(61));
            for _ in 0..3 {
                reads(&engine, &o, 2000..PAGES);
            }
            let gone = reads(&engine, &o, 0..1000);
            assert!(gone > 500, "{policy}: only {gone} of 1000 have gone after their time");
            assert_eq!(engine.cx.state.lock().pins.len(), 0);
            assert_eq!(engine.check(), Vec::<String>::new());
        }
    }

    #[test]
    fn pins_hold_half_of_the_pool_and_give_way() {
        let (engine, _clock, o, _file) = world("strata");
        reads(&engine, &o, 0..PAGES);
        let half = u64::from(engine.cx.pool_frames() / 2);
        assert_eq!(engine.pin(&o, 0, PAGES, Duration::from_secs(60)), half);
        // The rest of the pool is evicted first, then the pinned pages.
        let pages = engine.stats().memory.pages;
        assert_eq!(engine.drop_clean(), pages);
        assert_eq!(engine.cx.state.lock().pins.len(), 0, "what has left is not pinned");
        reads(&engine, &o, 0..100);
        engine.pin(&o, 0, 100, Duration::from_secs(60));
        assert_eq!(engine.drop_pages(&o, 50, 100), 50, "an explicit drop ignores pins");
        assert_eq!(reads(&engine, &o, 0..100), 50);
    }
}
