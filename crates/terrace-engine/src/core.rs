//! What the core lock guards: the index, the policy, the frames and their owners.

use crate::dirt::Books;
use crate::frames::Frames;
use crate::lru::MinTtl;
use crate::object::{Object, ObjectId, ObjectRef};
use crate::sample::{Sampler, Watch};
use crate::segment::SegmentHandles;
use crate::segment::flag::{HELD, LEAVING, REUSED};
use crate::tier::{Compressed, Leaving, WAS_HERE};
use crate::trim::trim;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use terrace_policy::{Evict, Shadow, Slot, Touches, Victim, Why};
use terrace_shm::index::{Index, Place};
use terrace_shm::protocol::{NO_LEAF, publish, stamp, unaltered, withdraw};
use terrace_shm::{Entry, State};

/// The touch table as the policy sees it: the sample looks at some of the counts beside it. What the policy finds touched is noted
/// as used again: touches that it takes no notice of, because they come too soon after the first, do not count.
pub(crate) struct TouchView {
    watch: Arc<Watch>,
    handles: Arc<SegmentHandles>,
}

impl Touches for TouchView {
    fn peek(&self, slot: Slot) -> u8 {
        let count = self.watch.peek(slot);
        if count != 0 {
            self.handles.frame_flags(slot).fetch_or(REUSED, Ordering::Relaxed);
        }
        count
    }
    fn set(&mut self, slot: Slot, count: u8) {
        self.watch.set(slot, count);
    }
}

/// Counters with the kernel's stems, of what happens under the core lock.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counts {
    pub pgscan: u64,
    pub pgsteal: u64,
    pub refaults: u64,
    pub inserted: u64,
    pub passed_on: u64,
}

/// Everything that changes together.
#[derive(Debug)]
pub(crate) struct Core {
    pub handles: Arc<SegmentHandles>,
    pub index: Index,
    pub policy: Box<dyn Evict>,
    pub min_ttl: MinTtl,
    /// The policy counts by key.
    wants_keys: bool,
    pub sampler: Sampler,
    pub frames: Frames,
    /// Place + 1 of the page in each frame; 0 = none.
    pub owner: Vec<u32>,
    pub objects: HashMap<ObjectId, ObjectRef>,
    by_slot: HashMap<u32, ObjectRef>,
    /// Pages that some thread is reading from the source: (object slot, page).
    pub in_flight: HashSet<(u32, u64)>,
    /// Frames handed out that no entry names yet.
    pub claimed: u32,
    /// What the source does not have yet.
    pub dirt: Books,
    pub counts: Counts,
    /// Chunks (first frames) that came into use in a hurry, without huge pages: reclaim sees to them later.
    pub hasty_chunks: Vec<u32>,
    /// Chunks (first frames) that huge pages back.
    pub huge_chunks: BTreeSet<u32>,
    /// The compressed tier, if there is one.
    pub tier: Option<Compressed>,
    victims: Vec<Victim>,
}

/// The key of a page for policies and samples: the same for the same page, also after a restart, and hardly ever that of another.
pub(crate) fn key_of(object: ObjectId, page: u64) -> u64 {
    object.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(32) ^ page
}

/// What a page looked like before somebody read it from the source; see [`Core::untouched_since`].
pub(crate) use terrace_shm::protocol::Seen as Before;

impl Core {
    pub(crate) fn new(handles: Arc<SegmentHandles>, policy: Box<dyn Evict>, min_ttl: MinTtl) -> Core {
        let frames_max = handles.segment.geometry().frames_max as usize;
        Core {
            index: Index::new(handles.segment.clone()),
            wants_keys: policy.wants_keys(),
            policy,
            min_ttl,
            sampler: Sampler::new(handles.touches.clone(), frames_max),
            frames: Frames::new(frames_max as u32),
            owner: vec![0; frames_max],
            objects: HashMap::new(),
            by_slot: HashMap::new(),
            in_flight: HashSet::new(),
            claimed: 0,
            dirt: Books::default(),
            counts: Counts::default(),
            hasty_chunks: Vec::new(),
            huge_chunks: BTreeSet::new(),
            tier: None,
            victims: Vec::new(),
            handles,
        }
    }

    pub(crate) fn touches(&self) -> TouchView {
        TouchView { watch: self.sampler.watch.clone(), handles: self.handles.clone() }
    }

    // ---- objects -------------------------------------------------------------------------------------------------

    /// Publishes a new object: takes a slot, and says in it what readers need.
    pub(crate) fn add_object(
        &mut self,
        id: ObjectId,
        size: u64,
        make: impl FnOnce(u32) -> Object,
    ) -> Option<ObjectRef> {
        let seg = self.handles.segment.clone();
        let i = seg.free_slot(id)?;
        let slot = seg.object(i);
        slot.root.store(0, Ordering::Relaxed);
        slot.size.store(size, Ordering::Relaxed);
        slot.flags.store(0, Ordering::Relaxed);
        slot.times_known.store(0, Ordering::Relaxed);
        slot.write_clock.store(self.index.tick(), Ordering::Relaxed);
        slot.id.store(id, Ordering::Release);
        Some(self.adopt_object(make(i)))
    }
    /// Takes an object into the books whose slot is in order.
    pub(crate) fn adopt_object(&mut self, object: Object) -> ObjectRef {
        let object = Arc::new(object);
        self.objects.insert(object.id(), object.clone());
        self.by_slot.insert(object.slot_index(), object.clone());
        object
    }
    /// Takes an object out: all its pages go, dirty or not.
    pub(crate) fn remove_object(&mut self, o: &Object) {
        self.drop_pages(o, 0, u64::MAX);
        self.index.clear_object(o.slot_index());
        o.slot().id.store(0, Ordering::Release);
        self.objects.remove(&o.id());
        self.by_slot.remove(&o.slot_index());
        trim(&mut self.objects);
        trim(&mut self.by_slot);
    }
    /// False for an object that was forgotten: its slot may be another's by now.
    pub(crate) fn is_known(&self, o: &Object) -> bool {
        self.by_slot.get(&o.slot_index()).is_some_and(|now| std::ptr::eq(&**now, o))
    }
    pub(crate) fn object_in_slot(&self, slot: u32) -> Option<&ObjectRef> {
        self.by_slot.get(&slot)
    }

    // ---- versions ------------------------------------------------------------------------------------------------

    /// The content of the object changes. After entries were withdrawn, never before: see [`stamp`].
    pub(crate) fn note_change(&mut self, o: &Object) -> u64 {
        stamp(&self.handles.segment.header().clock, &o.slot().write_clock)
    }
    /// What the index says of a page; None unless it is absent.
    pub(crate) fn observe(&self, o: &Object, page: u64) -> Option<(Before, u32)> {
        let clock = self.handles.segment.header().clock.load(Ordering::Relaxed);
        match self.index.find(o.slot_index(), page) {
            None => Some((Before { identity: NO_LEAF, clock }, 0)),
            Some(place) => {
                let e = self.index.get(place);
                (e.state() == State::Absent).then(|| (Before { identity: e.identity(), clock }, e.shadow()))
            }
        }
    }
    /// True if the page is absent and its content in the source has not changed since `before`. Never for an object that
    /// was forgotten meanwhile.
    pub(crate) fn untouched_since(&self, o: &Object, page: u64, before: Before) -> bool {
        if !self.is_known(o) {
            return false;
        }
        self.observe(o, page).is_some_and(|(now, _)| unaltered(before, now.identity, &o.slot().write_clock))
    }

    // ---- frames --------------------------------------------------------------------------------------------------

    /// A free frame, evicting if need be; None if everything is dirty or in use.
    pub(crate) fn claim(&mut self) -> Option<u32> {
        // What makes room may do so above the limit of a pool that shrinks.
        while self.frames.free_count() == 0 {
            if !self.make_room() {
                return None;
            }
        }
        let frame = self.frames.alloc()?;
        self.claimed += 1;
        Some(frame)
    }
    /// `n` adjacent frames if the pool has them at hand.
    pub(crate) fn claim_run(&mut self, n: usize) -> Option<u32> {
        let first = self.frames.alloc_run(n)?;
        self.claimed += n as u32;
        Some(first)
    }
    /// Gives back a claimed frame that was not published.
    pub(crate) fn unclaim(&mut self, frame: u32) {
        self.claimed -= 1;
        self.frames.free(frame);
    }
    fn make_room(&mut self) -> bool {
        if self.frames.can_grow() {
            let chunk = self.grow_pool();
            self.hasty_chunks.push(chunk);
            return true;
        }
        self.relieve(32, None) > 0
    }

    /// The place at which a frame's page stands.
    pub(crate) fn place_of(&self, frame: u32) -> Option<Place> {
        self.owner[frame as usize].checked_sub(1).map(Place)
    }

    /// Publishes a claimed, filled frame as the page at `place`. True if it was a recent refault.
    pub(crate) fn insert(&mut self, place: Place, frame: u32, why: Why) -> bool {
        let shadow = self.index.get(place).shadow();
        self.own(place, frame);
        let clock = self.index.tick();
        publish(self.index.entry(place), Entry::present(frame, clock));
        self.enlist(frame, shadow, why)
    }
    /// Books a claimed frame as the one of `place`.
    pub(crate) fn own(&mut self, place: Place, frame: u32) {
        self.book_frame(place, frame);
        self.index.count_present(place, 1);
    }
    /// [`Core::own`] for a page that was present already, elsewhere.
    pub(crate) fn book_frame(&mut self, place: Place, frame: u32) {
        self.owner[frame as usize] = place.0 + 1;
        self.claimed -= 1;
    }
    /// Tells the policy of a page that has become resident, whose entry had this shadow.
    pub(crate) fn enlist(&mut self, frame: u32, shadow: u32, why: Why) -> bool {
        self.counts.inserted += 1;
        let came_back = shadow != 0;
        let shadow = NonZeroU32::new(shadow).filter(|_| shadow != WAS_HERE).map(Shadow);
        let refault = self.list(frame, shadow, why, why != Why::Readahead);
        if why == Why::Read && came_back {
            self.note_refault();
        }
        // Of the page before, which may have gone while it was being compressed.
        let flags = self.handles.frame_flags(frame);
        flags.fetch_and(!(REUSED | LEAVING), Ordering::Relaxed);
        if refault {
            flags.fetch_or(REUSED, Ordering::Relaxed);
        }
        self.counts.refaults += u64::from(refault);
        refault
    }
    /// Puts a frame that has an owner, untouched, into the policy's lists. `used`: a program asks for the page now. True if it was a
    /// recent refault.
    pub(crate) fn list(&mut self, frame: u32, shadow: Option<Shadow>, why: Why, used: bool) -> bool {
        let mut touches = self.touches();
        touches.set(frame, 0);
        self.sample_entry(frame, used);
        self.tell_key(frame);
        self.policy.insert(frame, shadow, why, &mut touches)
    }
    /// Tells a policy that counts by key whose page is in a frame that has an owner: right before `insert`.
    pub(crate) fn tell_key(&mut self, frame: u32) {
        if !self.wants_keys {
            return;
        }
        let key = self.key_in(frame).expect("an enlisted frame has an owner");
        self.policy.key(frame, key);
    }
    /// The key of the page in a frame that has an owner.
    pub(crate) fn key_in(&self, frame: u32) -> Option<u64> {
        let (slot, page) = self.index.whose(self.place_of(frame)?);
        Some(key_of(self.handles.segment.object(slot).id.load(Ordering::Relaxed), page))
    }
    /// Books a claimed frame as the one of `place` instead of another, which is free then.
    pub(crate) fn hand_over(&mut self, place: Place, from: u32, to: u32) {
        self.book_frame(place, to);
        self.free_owned(from);
    }
    /// Frees a frame that has an owner which the caller has dealt with.
    pub(crate) fn free_owned(&mut self, frame: u32) {
        self.sample_exit(frame);
        self.owner[frame as usize] = 0;
        self.frames.free(frame);
    }
    /// After a restart: takes over a page that the index names.
    pub(crate) fn recover_owner(&mut self, place: Place, frame: u32) -> bool {
        if self.owner[frame as usize] != 0 {
            return false;
        }
        self.owner[frame as usize] = place.0 + 1;
        true
    }

    /// [`Core::evict`] under pressure: not while even the oldest pages are younger than `min_ttl`.
    pub(crate) fn relieve(&mut self, want: usize, leaving: Option<&mut Vec<Leaving>>) -> usize {
        if self.min_ttl.holds(&*self.policy) {
            return 0;
        }
        self.evict(want, leaving)
    }
    /// Frees up to `want` frames of pages that the policy gives up. Dirty pages and pages in use go back to it. Pages that are worth
    /// compressing are put into `leaving`, if there is one, and stay until they are compressed. Frames freed, and to be freed.
    pub(crate) fn evict(&mut self, want: usize, mut leaving: Option<&mut Vec<Leaving>>) -> usize {
        let mut touches = self.touches();
        let mut victims = std::mem::take(&mut self.victims);
        let mut freed = 0;
        // Dirty pages come back: look at a bounded number before giving up.
        let mut rounds = 8;
        while freed < want && rounds > 0 {
            rounds -= 1;
            victims.clear();
            self.policy.victims(want - freed, &mut touches, &mut victims);
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

    /// The place of a page that the policy gives up, unless it is dirty, in use, or being compressed.
    fn clean_place(&self, v: &Victim) -> Option<Place> {
        let place = self.place_of(v.slot).expect("policy named a frame without a page");
        let busy = self.index.get(place).state() != State::Present;
        let held = self.handles.frame_flags(v.slot).load(Ordering::Relaxed) & (HELD | LEAVING) != 0;
        (!busy && !held).then_some(place)
    }
    /// [`Core::evict`] of one page; false if it stays.
    pub(crate) fn evict_one(&mut self, v: &Victim, leaving: Option<&mut Vec<Leaving>>) -> bool {
        let Some(place) = self.clean_place(v) else {
            self.policy.restore(v.slot);
            return false;
        };
        if let Some(leaving) = leaving
            && let Some(page) = self.leaves_for_tier(v, place)
        {
            leaving.push(page);
            return true;
        }
        self.release(place, v.slot, self.trace_of(v.shadow));
        self.counts.pgsteal += 1;
        true
    }

    /// Withdraws a page that the policy does not list (any more), and frees its frame.
    pub(crate) fn release(&mut self, place: Place, frame: u32, shadow: u32) {
        self.make_absent(place, shadow);
        self.free_owned(frame);
    }

    /// The entry of a page that was somewhere in memory names nothing any longer.
    pub(crate) fn make_absent(&mut self, place: Place, shadow: u32) {
        let clock = self.index.tick();
        withdraw(self.index.entry(place), Entry::absent(shadow, clock));
        self.index.count_present(place, -1);
    }

    /// Drops a resident page, dirty or not, without a shadow.
    pub(crate) fn drop_page(&mut self, o: &Object, page: u64, place: Place, frame: u32) {
        self.clean(o, page, frame);
        self.policy.remove(frame);
        self.release(place, frame, 0);
    }
    /// Drops all pages `[first, last]` of an object, and gives every absent entry there a new version, so that nobody
    /// who read the source before can publish what it read.
    pub(crate) fn drop_pages(&mut self, o: &Object, first: u64, last: u64) {
        let mut places = Vec::new();
        self.index.for_range(o.slot_index(), first, last, |page, place| places.push((page, place)));
        for (page, place) in places {
            match self.index.get(place).frame() {
                Some(frame) => self.drop_page(o, page, place, frame),
                None => {
                    self.expel(place);
                    let clock = self.index.tick();
                    publish(self.index.entry(place), Entry::absent(0, clock));
                }
            }
        }
        self.note_change(o);
    }
}

#[cfg(test)]
mod tests {
    use super::{Before, NO_LEAF, REUSED, key_of};
    use crate::io::{BlockingIo, Faults, Io, NullIo, SimIo};
    use crate::{Door, Engine, EngineConfig, SegmentHandles, SystemClock};
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use terrace_shm::layout::CHUNK_FRAMES;

    fn engine(bytes: u64) -> (Arc<Engine>, Arc<SegmentHandles>, EngineConfig) {
        engine_on(bytes, Arc::new(NullIo))
    }

    fn engine_on(bytes: u64, io: Arc<dyn Io>) -> (Arc<Engine>, Arc<SegmentHandles>, EngineConfig) {
        let config =
            EngineConfig { memory_bytes: bytes, memory_max_bytes: Some(64 << 20), ..EngineConfig::default() };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let engine = Engine::start(config.clone(), handles.clone(), Arc::new(SystemClock), io).unwrap();
        (engine, handles, config)
    }

    #[test]
    fn a_policy_that_counts_by_key_is_told_the_keys_of_all_pages_and_others_are_not_asked() {
        let (engine, handles, config) = engine(16 << 20);
        assert!(!engine.core.lock().wants_keys, "the default does without");
        drop(engine);
        let config = EngineConfig { policy: "w-tinylfu".into(), ..config };
        let engine = Engine::start(config, handles, Arc::new(SystemClock), Arc::new(NullIo)).unwrap();
        let file = tempfile::tempfile().unwrap();
        let o = engine.object(7, file.as_raw_fd(), 0).unwrap();
        engine.write(&o, 0, &[1; 3 * 4096]).unwrap();
        let policy = format!("{:?}", engine.core.lock().policy);
        for page in 0..3 {
            assert!(policy.contains(&key_of(7, page).to_string()), "page {page}");
        }
        assert!(!policy.contains(&key_of(7, 3).to_string()));
        assert_ne!(key_of(7, 1), key_of(8, 0));
    }

    #[test]
    fn a_page_read_for_a_forgotten_object_is_not_published_for_its_successor() {
        let (engine, ..) = engine(16 << 20);
        let file = tempfile::tempfile().unwrap();
        let old = engine.object(7, file.as_raw_fd(), 4096).unwrap();
        let (before, _) = engine.core.lock().observe(&old, 0).unwrap();
        assert!(engine.core.lock().untouched_since(&old, 0, before));
        engine.forget_object(7).unwrap();
        assert!(!engine.core.lock().untouched_since(&old, 0, before));
        let new = engine.object(7, file.as_raw_fd(), 4096).unwrap();
        assert_eq!(new.slot_index(), old.slot_index());
        assert!(!engine.core.lock().untouched_since(&old, 0, before));
    }

    /// A client loads the clock while a large write is being prepared, finds the last page of it without a leaf, reads the old
    /// source, and donates long after the write has come and gone.
    #[test]
    fn who_looked_while_a_write_was_prepared_looked_before_it() {
        let (engine, ..) = engine(16 << 20);
        let file = tempfile::tempfile().unwrap();
        let o = engine.object(7, file.as_raw_fd(), 0).unwrap();
        let start = engine.handles.segment.header().clock.load(Ordering::Relaxed);
        engine.write(&o, 0, &[1; 64 * 4096]).unwrap();
        engine.flush_all(false).unwrap();
        engine.drop_clean();
        let core = engine.core.lock();
        // Ticks of the preparation: a page each and some more; then the same again for publishing.
        for clock in start..start + 64 {
            let before = Before { identity: NO_LEAF, clock };
            assert!(!core.untouched_since(&o, 63, before), "clock {} of {start}", clock);
        }
        let (now, _) = core.observe(&o, 63).unwrap();
        let unwritten = Before { identity: now.identity ^ 1 << 40, clock: u64::MAX };
        assert!(!core.untouched_since(&o, 63, unwritten), "another entry, whatever the clock says");
    }

    #[test]
    fn a_restart_keeps_limit_and_pool() {
        let (engine, handles, config) = engine(48 << 20);
        let file = tempfile::tempfile().unwrap();
        let o = engine.object(7, file.as_raw_fd(), 40 << 20).unwrap();
        let mut buf = vec![0; 1 << 20];
        for mib in 0..40 {
            engine.read(&o, mib << 20, &mut buf, Door::Library).unwrap();
        }
        engine.drop_clean();
        let populated = engine.core.lock().frames.populated();
        assert!(populated > 16 * CHUNK_FRAMES as u32);
        engine.resize(32 << 20).unwrap();
        let populated = engine.core.lock().frames.populated();
        // The dead daemon had begun to back one more chunk.
        let begun = handles.segment.frame(populated + CHUNK_FRAMES as u32);
        // SAFETY: a frame of the segment, which nobody uses.
        unsafe { begun.write(1) };
        engine.halt();
        drop(engine);
        let (clock, io) = (Arc::new(SystemClock), Arc::new(NullIo));
        let engine = Engine::start(config, handles.clone(), clock, io).unwrap();
        engine.recover_pages();
        let m = engine.stats().memory;
        assert_eq!(m.limit_bytes, 32 << 20);
        assert_eq!(m.frames_bytes, u64::from(populated) * 4096, "empty chunks have memory all the same");
        // SAFETY: as above.
        assert_eq!(unsafe { begun.read() }, 0, "memory that belongs to no chunk went back");
        assert_eq!(engine.core.lock().hasty_chunks.len() * CHUNK_FRAMES, populated as usize);
    }

    #[test]
    fn a_pool_that_shrinks_keeps_what_is_used() {
        let (engine, ..) = engine_on(48 << 20, Arc::new(BlockingIo::default()));
        let mut file = tempfile::tempfile().unwrap();
        (0..40u8).for_each(|mib| file.write_all(&vec![mib; 1 << 20]).unwrap());
        let o = engine.object(7, file.as_raw_fd(), 40 << 20).unwrap();
        let mut buf = vec![0; 1 << 20];
        let mut read = |mib: u64| {
            engine.read(&o, mib << 20, &mut buf, Door::Library).unwrap();
            assert!(buf.iter().all(|&b| u64::from(b) == mib));
        };
        (0..40).for_each(&mut read);
        // Those that came last stand in the top chunks.
        (0..4).for_each(|_| (36..40).for_each(&mut read));
        let frame_of = |page: u64| {
            let core = engine.core.lock();
            core.index.get(core.index.find(o.slot_index(), page).unwrap()).frame().unwrap()
        };
        let pages = 36 * 256..40 * 256;
        let before: Vec<u32> = pages.clone().map(frame_of).collect();
        engine.resize(24 << 20).unwrap();
        let mut used_again = 0;
        for (page, before) in pages.zip(before) {
            let frame = frame_of(page);
            let reused = engine.handles.frame_flags(frame).load(Ordering::Relaxed) & REUSED != 0;
            assert!(engine.core.lock().sampler.watch.is_watched(frame), "page {page} is sampled");
            used_again += usize::from(reused && frame != before);
        }
        assert!(used_again > 100, "pages that were used again have moved as such: {used_again}");
        let misses = engine.stats().main_door.misses;
        (36..40).for_each(&mut read);
        assert_eq!(engine.stats().main_door.misses, misses);
        assert_eq!(engine.check(), Vec::<String>::new());
    }

    #[test]
    fn a_resize_that_fails_leaves_the_limit_as_it_was() {
        let faults = Faults { write_eio: 1000, ..Faults::default() };
        let device = Arc::new(SimIo::new(NullIo, 1, faults));
        let (engine, ..) = engine_on(64 << 20, device.clone());
        let file = tempfile::tempfile().unwrap();
        let o = engine.object(7, file.as_raw_fd(), 0).unwrap();
        let mut pages = 0u64;
        // Dirty pages in a chunk that a pool of 16 MiB does not have.
        while engine.core.lock().frames.populated() <= 8 * CHUNK_FRAMES as u32 {
            engine.core.lock().claim().unwrap();
        }
        while pages < 600 {
            engine.write(&o, pages * 4096, &[3; 4096]).unwrap();
            pages += 1;
        }
        let error = engine.resize(16 << 20).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(5));
        let limit = engine.stats().memory.limit_bytes;
        assert_eq!(limit, 64 << 20);
        assert_eq!(engine.handles.segment.header().limit_bytes.load(Ordering::Relaxed), 64 << 20);
    }

    #[test]
    fn what_others_keep_counts_and_rings_have_their_share() {
        let (engine, ..) = engine(32 << 20);
        let before = engine.pool_frames();
        engine.count_also(|| 8 << 20);
        engine.adjust_pool();
        assert!(engine.pool_frames() + (6 << 20 >> 12) <= before);
        assert!(engine.admits_client_ring());
        engine.memory.store(2 << 20, Ordering::Relaxed);
        assert!(!engine.admits_client_ring(), "a ring is more than an eighth of 2 MiB");
    }

    /// A chunk that leaves the pool and comes back at once must not lose what is put into it.
    #[test]
    fn no_page_is_lost_while_the_pool_shrinks_and_grows() {
        let (engine, ..) = engine(64 << 20);
        engine.serve().unwrap();
        let file = tempfile::tempfile().unwrap();
        let o = engine.object(7, file.as_raw_fd(), 0).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            for shift in 0..2 {
                let (engine, stop) = (&engine, &stop);
                s.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        engine.resize((16 + 40 * shift) << 20).unwrap();
                    }
                });
            }
            let mut back = vec![0; 64 << 10];
            for round in 1..20u8 {
                for at in (0..8 << 20).step_by(back.len()) {
                    engine.write(&o, at, &vec![round; back.len()]).unwrap();
                    engine.read(&o, at, &mut back, Door::Library).unwrap();
                    // The device forgets everything (`NullIo`), so only what is still dirty can be compared.
                    let dirty = o.dirt.lock().dirty.clone();
                    for (i, page) in back.chunks(4096).enumerate() {
                        let known = dirty.contains(&(at / 4096 + i as u64));
                        assert!(!known || page.iter().all(|&b| b == round), "zeros at {at} in round {round}");
                    }
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(engine.check(), Vec::<String>::new());
        engine.halt();
    }
}
