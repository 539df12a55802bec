//! The pool of compressed pages against a model: its content, the memory that it releases, the objects that
//! it moves.

use crate::fixture::{Fixture, fetch, fixture};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use terrace_shm::PAGE_SIZE;
use terrace_shm::codec::{Coded, Encoding, Plain};
use terrace_shm::index::Place;
use terrace_shm::layout::ZSPAGE_SIZE;
use terrace_shm::touch::ZTOUCH_MAX;
use terrace_shm::zobject::{HEAD_BYTES, Handle, STORED_MAX, slot_bytes};
use terrace_shm::zpool::ZPool;
use terrace_testkit::rng::Rng;

/// `len` bytes that identify place and life.
fn bytes_of(place: u32, life: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(place | 1) >> 3 ^ life ^ i) as u8).collect()
}

#[derive(Debug, Clone)]
enum Step {
    Store(u32, usize),
    Remove(u32),
    Touch(u32),
    Evict(usize),
    Compact(usize),
    Trim(u64),
    Limit(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = 0_u32..300;
    let len = prop_oneof![Just(8_usize), 1_usize..300, 300..STORED_MAX, Just(STORED_MAX)];
    let step = prop_oneof![
        12 => (place.clone(), len).prop_map(|(p, n)| Step::Store(p, n)),
        4 => place.clone().prop_map(Step::Remove),
        2 => place.prop_map(Step::Touch),
        1 => (1_usize..20).prop_map(Step::Evict),
        1 => (1_usize..200_000).prop_map(Step::Compact),
        1 => (0_u64..300_000).prop_map(Step::Trim),
        1 => (0_u32..14).prop_map(Step::Limit),
    ];
    prop::collection::vec(step, 1..600)
}

/// A page of the model: its handle, the number of its store, its length.
#[derive(Debug, Clone, PartialEq)]
struct Page {
    handle: Handle,
    life: u32,
    len: usize,
}

struct Model {
    pages: BTreeMap<u32, Page>,
    /// Places, oldest first.
    order: Vec<u32>,
    life: u32,
}

impl Model {
    fn forget(&mut self, place: u32) -> Option<Handle> {
        self.order.retain(|&p| p != place);
        self.pages.remove(&place).map(|page| page.handle)
    }
    fn verify(&self, fixture: &mut Fixture) {
        fixture.pool.check().unwrap();
        let bytes: usize = self.pages.values().map(|p| p.len + HEAD_BYTES).sum();
        assert_eq!(fixture.pool.live_bytes(), bytes as u64);
        assert_eq!(fixture.pool.stored_pages(), self.pages.len() as u64);
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for (&place, page) in &self.pages {
            assert_eq!(fixture.pool.place(page.handle), Place(place));
            let found = fetch(&fixture.seg, page.handle, place).expect("a page that is there");
            assert_eq!(found, bytes_of(place, page.life, page.len));
            assert_eq!(fetch(&fixture.seg, page.handle, place + 1), None, "another page's place");
            let class = fixture.seg.zclass(page.handle.zspage()).load(Ordering::Relaxed);
            let start =
                page.handle.zspage() as usize * ZSPAGE_SIZE + page.handle.slot() as usize * slot_bytes(class);
            ranges.push((start, start + page.len + HEAD_BYTES));
        }
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|w| w[0].1 <= w[1].0), "objects overlap");
    }
    fn apply(&mut self, fixture: &mut Fixture, step: &Step) {
        match *step {
            Step::Store(place, len) => self.store(fixture, place, len),
            Step::Remove(place) => {
                if let Some(handle) = self.forget(place) {
                    fixture.pool.remove(handle);
                    assert!(!fixture.pool.is_live(handle));
                }
            }
            Step::Touch(place) => {
                if let Some(page) = self.pages.get(&place) {
                    fixture.touches.ztouch(page.handle);
                }
            }
            Step::Evict(want) => self.evict(fixture, want),
            Step::Compact(budget) => self.compact(fixture, budget),
            Step::Trim(keep) => {
                let (held, idle) = (fixture.pool.bytes(), fixture.pool.idle_bytes());
                let back = fixture.pool.trim(keep).unwrap();
                assert_eq!(fixture.pool.bytes() + back, held);
                assert!(back <= idle && fixture.pool.idle_bytes() <= keep);
                assert!(resident(fixture) <= fixture.pool.bytes(), "memory that is not counted");
            }
            Step::Limit(zspages) => fixture.pool.set_limit(u64::from(zspages) * ZSPAGE_SIZE as u64),
        }
    }
    fn store(&mut self, fixture: &mut Fixture, place: u32, len: usize) {
        if let Some(handle) = self.forget(place) {
            fixture.pool.remove(handle);
        }
        self.life += 1;
        let (held, life) = (fixture.pool.bytes(), self.life);
        let bytes = bytes_of(place, life, len);
        let stored = fixture.pool.store(Coded { codec: Encoding::Lz4, bytes: &bytes }, Place(place));
        assert!(fixture.pool.bytes() <= fixture.pool.limit().max(held), "over the limit");
        match stored {
            Some(handle) => {
                self.pages.insert(place, Page { handle, life, len });
                self.order.push(place);
            }
            None => assert!(held + ZSPAGE_SIZE as u64 > fixture.pool.limit(), "refused with room to spare"),
        }
    }
    fn evict(&mut self, fixture: &mut Fixture, want: usize) {
        let mut victims = Vec::new();
        let touched = |fixture: &Fixture, handle| fixture.touches.zcount(handle).load(Ordering::Relaxed) > 0;
        let (mut expected, mut young) = (Vec::new(), Vec::new());
        // Slots of small objects share counts: one object may use up another's second chance.
        let mut spent = std::collections::HashSet::new();
        for &place in &self.order {
            let handle = self.pages[&place].handle;
            if expected.len() == want {
                break;
            }
            let shared = (handle.zspage(), handle.slot() % 128);
            match touched(fixture, handle) && spent.insert(shared) {
                true => young.push(place),
                false => expected.push((handle, Place(place))),
            }
        }
        fixture.pool.coldest(want, &mut victims);
        assert_eq!(victims, expected);
        self.order.retain(|place| !young.contains(place));
        self.order.extend(young);
        for (handle, place) in victims {
            assert_eq!(self.forget(place.0), Some(handle));
            fixture.pool.evict(handle);
        }
    }
    fn compact(&mut self, fixture: &mut Fixture, budget: usize) {
        let (held, idle) = (fixture.pool.bytes(), fixture.pool.idle_bytes());
        let freed = fixture.pool.counts().compacted_zspages;
        let seg = fixture.seg.clone();
        fixture.pool.compact(budget, |place, old, new| {
            let page = self.pages.get_mut(&place.0).expect("only pages that are there move");
            assert_eq!(page.handle, old);
            let wanted = bytes_of(place.0, page.life, page.len);
            assert_eq!(fetch(&seg, old, place.0).as_ref(), Some(&wanted), "readers of the old copy");
            assert_eq!(fetch(&seg, new, place.0).as_ref(), Some(&wanted), "readers of the new copy");
            page.handle = new;
        });
        let freed = fixture.pool.counts().compacted_zspages - freed;
        assert_eq!(fixture.pool.bytes(), held, "compaction takes no memory");
        assert_eq!(fixture.pool.idle_bytes(), idle + freed * ZSPAGE_SIZE as u64);
    }
}

/// Memory of the segment as counted by the kernel, bytes, without its header page.
fn resident(fixture: &Fixture) -> u64 {
    let blocks = rustix::fs::fstat(&fixture.fd).unwrap().st_blocks as u64 * 512;
    let table = 2 * PAGE_SIZE as u64;
    blocks.saturating_sub(table)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn the_pool_does_what_a_model_does(steps in steps()) {
        let mut fixture = fixture(12, 12);
        let mut model = Model { pages: BTreeMap::new(), order: Vec::new(), life: 0 };
        for (i, step) in steps.iter().enumerate() {
            model.apply(&mut fixture, step);
            if i % 16 == 0 || !matches!(step, Step::Store(..) | Step::Remove(_) | Step::Touch(_)) {
                model.verify(&mut fixture);
            }
        }
        model.verify(&mut fixture);
    }
}

#[test]
fn memory_goes_back_and_a_new_pool_is_empty() {
    let mut fixture = fixture(32, 32);
    let bytes = bytes_of(1, 1, 2000);
    let mut handles = Vec::new();
    while let Some(handle) = fixture.pool.store(Coded { codec: Encoding::Lz4, bytes: &bytes }, Place(1)) {
        handles.push(handle);
    }
    assert_eq!((fixture.pool.bytes(), fixture.pool.limit()), (32 << 16, 32 << 16));
    assert!(resident(&fixture) >= 31 << 16);
    assert_eq!(fixture.pool.metadata_bytes(), 32 * 32 + 32 * 32 * 8);
    // Three of four are removed; the rest fits a quarter of the zspages.
    for (i, &handle) in handles.iter().enumerate() {
        if i % 4 != 0 {
            fixture.pool.remove(handle);
        }
    }
    assert_eq!(fixture.pool.idle_bytes(), 0);
    let moved = fixture.pool.compact(usize::MAX, |_, _, _| ());
    assert_eq!((moved as u64, fixture.pool.idle_bytes()), (24 * 8 * 2008, 24 << 16));
    assert_eq!(fixture.pool.trim(1 << 16).unwrap(), 23 << 16);
    assert_eq!(fixture.pool.bytes(), 9 << 16);
    assert!(resident(&fixture) <= 9 << 16, "{} bytes", resident(&fixture));
    fixture.pool.check().unwrap();
    // A restarted daemon.
    let (seg, touches) = (fixture.seg.clone(), fixture.touches.clone());
    fixture.pool = ZPool::new(seg, touches).unwrap();
    assert_eq!((fixture.pool.bytes(), fixture.pool.stored_pages(), resident(&fixture)), (0, 0, 0));
    assert!(handles.iter().all(|&handle| fetch(&fixture.seg, handle, 1).is_none()));
}

#[test]
fn damage_is_noticed_and_harmless() {
    let mut fixture = fixture(2, 2);
    let bytes = [0, 0, 0, 0, 0, 0, 0, 0];
    let same = Coded { codec: Encoding::Same, bytes: &bytes };
    let handle = fixture.pool.store(same, Place(5)).unwrap();
    let mut out = [1; PAGE_SIZE];
    assert_eq!(fixture.pool.load(handle, &mut Plain, &mut out), Ok(()));
    assert_eq!(out, [0; PAGE_SIZE]);
    for byte in 0..16 {
        // SAFETY: the object's own bytes; the segment has no other user.
        unsafe { *fixture.seg.zspage(handle.zspage()).add(handle.slot() as usize * 64 + byte) ^= 0x10 };
        assert!(fixture.pool.load(handle, &mut Plain, &mut out).is_err(), "byte {byte}");
        assert!(fixture.pool.check().is_err());
        assert_eq!(fetch(&fixture.seg, handle, 5), None);
        // SAFETY: as above.
        unsafe { *fixture.seg.zspage(handle.zspage()).add(handle.slot() as usize * 64 + byte) ^= 0x10 };
    }
    fixture.pool.check().unwrap();
}

#[test]
fn coldest_looks_at_a_bounded_number() {
    let mut fixture = fixture(64, 64);
    let handles: Vec<Handle> = (0..2000)
        .map(|i| fixture.pool.store(Coded { codec: Encoding::Lz4, bytes: &[7; 900] }, Place(i)).unwrap())
        .collect();
    handles.iter().for_each(|&h| {
        fixture.touches.ztouch(h);
    });
    let (mut victims, mut rounds) = (Vec::new(), 0);
    while victims.is_empty() {
        fixture.pool.coldest(1, &mut victims);
        rounds += 1;
    }
    assert!((2000 / 72..=2000 / 72 + 1).contains(&rounds), "{rounds} rounds");
    assert_eq!(victims, [(handles[0], Place(0))]);
}

#[test]
fn touches_age_a_round_at_a_time_and_none_is_forgotten() {
    let mut fixture = fixture(64, 64);
    let page = Coded { codec: Encoding::Lz4, bytes: &[7; 900] };
    let handles: Vec<Handle> = (0..2000).map(|i| fixture.pool.store(page, Place(i)).unwrap()).collect();
    for (i, &h) in handles.iter().enumerate() {
        (0..i % 101).for_each(|_| assert!(fixture.touches.ztouch(h) <= ZTOUCH_MAX));
    }
    let counts = |fixture: &Fixture| -> Vec<u8> {
        handles.iter().map(|&h| fixture.touches.zcount(h).load(Ordering::Relaxed)).collect()
    };
    let before = counts(&fixture);
    assert!((0..2000).all(|i| before[i] as usize == (i % 101).min(ZTOUCH_MAX.into())));
    let halved = |n: u8| if n > 1 { n / 2 } else { n };
    fixture.pool.age(700);
    let after = counts(&fixture);
    let aged = before.iter().zip(&after).filter(|&(&b, &a)| b > 1 && a == halved(b)).count();
    let kept = before.iter().zip(&after).filter(|&(&b, &a)| b > 1 && a == b).count();
    assert!((650..=850).contains(&(aged * 101 / 99)) && kept > 1000, "{aged} aged, {kept} kept");
    // The rest of the round, and at most one round however many pages are requested.
    (0..3).for_each(|_| fixture.pool.age(430));
    assert!(counts(&fixture).iter().zip(&before).all(|(&a, &b)| a <= halved(b) && (b == 0) == (a == 0)));
    let before = counts(&fixture);
    fixture.pool.age(usize::MAX);
    assert!(counts(&fixture).iter().zip(&before).all(|(&a, &b)| a == halved(b)));
}

/// Sizes as of real files: few small, most between a quarter and three quarters of a page. The pool is
/// filled, thinned out and compacted.
#[test]
fn little_is_lost_between_objects() {
    let mut fixture = fixture(1200, 1200);
    let (mut rng, mut stored) = (Rng::new(1), 0_usize);
    let mut sizes =
        std::iter::repeat_with(|| if rng.below(16) == 0 { rng.index(1024) } else { 1024 + rng.index(2040) });
    let mut handles = Vec::new();
    for place in 0..30_000 {
        let bytes = vec![1; sizes.next().unwrap()];
        stored += bytes.len();
        handles
            .push(fixture.pool.store(Coded { codec: Encoding::Lz4, bytes: &bytes }, Place(place)).unwrap());
    }
    let density = |pool: &ZPool, stored: usize| stored as f64 / pool.bytes() as f64;
    let filled = density(&fixture.pool, stored);
    assert!(filled > 0.935, "{filled} of ideal");
    let metadata = fixture.pool.metadata_bytes() as f64 / fixture.pool.stored_pages() as f64;
    assert!(metadata < 10.0, "{metadata} bytes of metadata a page");
    for (place, &handle) in handles.iter().enumerate() {
        if place % 2 == 1 {
            fixture.pool.remove(handle);
        }
    }
    fixture.pool.compact(usize::MAX, |_, _, _| ());
    fixture.pool.trim(0).unwrap();
    let left = fixture.pool.live_bytes() as usize - handles.len() / 2 * HEAD_BYTES;
    let thinned = density(&fixture.pool, left);
    assert!(thinned > 0.9, "{thinned} of ideal");
}
