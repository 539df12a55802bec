//! Eviction: the policy names victims, and the state withdraws their pages or passes them below DRAM.

use crate::file::object::Object;
use crate::segment::flag::{LEAVING, UNSYNCED};
use crate::state::compressed::Compressed;
use crate::state::{Leaving, State};
use std::sync::atomic::Ordering;
use terrace_policy::{Shadow, Victim};
use terrace_shm::State as EntryState;
use terrace_shm::index::Place;

impl State {
    /// Frees up to `want` frames of pages that the policy evicts. Dirty pages and pages in use go back to it.
    /// Pages for tiers below DRAM go into `leaving`, if given, and stay resident until they are stored.
    /// Returns the number of frames freed, or to be freed.
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

    /// [`State::evict`] under pressure: no eviction while even the oldest pages are younger than `min_ttl`.
    pub(crate) fn reclaim(&mut self, want: usize, leaving: Option<&mut Leaving>) -> usize {
        if self.lru.min_ttl_holds() {
            return 0;
        }
        self.evict(want, leaving)
    }

    /// [`State::evict`] without the fallback to pinned pages.
    fn evict_rounds(&mut self, want: usize, mut leaving: Option<&mut Leaving>) -> usize {
        let mut touches = self.lru.touches();
        let mut victims = std::mem::take(&mut self.victims);
        let mut freed = 0;
        // Dirty and pinned pages go back to the policy, so the number of rounds is bounded.
        let mut rounds = if self.pins.len() == 0 { 8 } else { 64 };
        while freed < want && rounds > 0 {
            rounds -= 1;
            victims.clear();
            self.lru.policy.victims(want - freed, &mut touches, &mut victims);
            self.counts.pgscan += victims.len() as u64;
            for v in &victims {
                freed += usize::from(self.evict_one(v, leaving.as_deref_mut()));
            }
            if victims.is_empty() {
                break;
            }
        }
        self.victims = victims;
        freed
    }

    /// Evicts up to `want` pages of generations up to `seq`. Returns the number of pages evicted, and of
    /// pages that had to stay. None: there are no more.
    pub(crate) fn evict_until(&mut self, seq: u64, want: usize) -> Option<(u64, u64)> {
        let (mut touches, mut victims) = (self.lru.touches(), Vec::new());
        self.lru.policy.victims_until(seq, want, &mut touches, &mut victims);
        self.counts.pgscan += victims.len() as u64;
        let evicted = victims.iter().filter(|v| self.evict_one(v, None)).count() as u64;
        (!victims.is_empty()).then_some((evicted, victims.len() as u64 - evicted))
    }

    /// The place of a victim's page, unless the page is dirty, in use, pinned, or being compressed.
    fn clean_place(&self, v: &Victim) -> Option<Place> {
        let place = self.pages.place_of(v.slot).expect("policy named a frame without a page");
        let busy = self.pages.index.get(place).state() != EntryState::Present;
        let is_needed = self.pages.flags(v.slot).load(Ordering::Relaxed) & (UNSYNCED | LEAVING) != 0;
        (!busy && !is_needed && !self.pins.is_pinned(v.slot)).then_some(place)
    }

    /// [`State::evict`] for one page. False: it stays.
    fn evict_one(&mut self, v: &Victim, leaving: Option<&mut Leaving>) -> bool {
        let Some(place) = self.clean_place(v) else {
            self.lru.policy.restore(v.slot);
            return false;
        };
        if let Some(leaving) = leaving {
            if let Some(page) = self.should_demote(v, place, leaving.now_ns) {
                leaving.to_device.push(page);
                return true;
            }
            if let Some(page) = leaving.compresses.then(|| self.should_compress(v, place)).flatten() {
                leaving.to_compressed.push(page);
                return true;
            }
        }
        if !self.return_to_copy(place, v.slot) {
            self.release(place, v.slot, self.shadow_of(v.shadow));
        }
        self.counts.pgsteal += 1;
        true
    }

    /// The shadow for the entry of an evicted page, given the policy's own.
    pub(super) fn shadow_of(&self, shadow: Option<Shadow>) -> u32 {
        let default_shadow = self.compressed.as_ref().map_or(0, Compressed::shadow_without_ghost);
        shadow.map_or(default_shadow, |shadow| shadow.0.get())
    }

    /// Withdraws a page that the policy does not list, and frees its frame.
    pub(crate) fn release(&mut self, place: Place, frame: u32, shadow: u32) {
        self.pages.make_absent(place, shadow);
        self.free_mapped(frame);
    }

    /// Evicts the clean pages `[first, last]` of an object; copies below DRAM stay. Returns their number.
    pub(crate) fn drop_clean(&mut self, o: &Object, first: u64, last: u64) -> u64 {
        if !self.objects.is_known(o) {
            return 0;
        }
        let mut dropped = 0;
        for (_, place) in self.places(o, first, last) {
            let entry = self.pages.index.get(place);
            let Some(frame) = entry.frame().filter(|_| entry.state() == EntryState::Present) else {
                continue;
            };
            let is_needed = self.pages.flags(frame).load(Ordering::Relaxed) & (UNSYNCED | LEAVING) != 0;
            if is_needed || !self.lru.policy.contains(frame) {
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
    use crate::testing::{sparse_object, started};
    use crate::{AccessPath, Engine, EngineConfig, ObjectRef};
    use std::fs::File;
    use std::sync::Arc;
    use std::time::Duration;
    use terrace_io::testing::NullIo;

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
