//! Readers of compressed pages: they take no lock of the writer, and each page is as it was at one moment.

use crate::codec::pages;
use crate::fixture::{Fixture, fixture};
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use terrace_shm::codec::{Coded, Encoding, Page, Plain, Unpack, same_word};
use terrace_shm::index::{Index, Place};
use terrace_shm::protocol::{publish, replace, withdraw};
use terrace_shm::reader::{Outcome, Reader};
use terrace_shm::zobject::{Handle, STORED_MAX};
use terrace_shm::{DeviceSlot, Entry, PAGE_SIZE};
use terrace_testkit::rng::Rng;

pub(crate) const OBJECT: u32 = 3;

/// Recorded calls of `served`.
#[derive(Default)]
struct Reports(Vec<(u64, u8)>);
impl Unpack for Reports {
    fn served(&mut self, page: u64, before: u8) {
        self.0.push((page, before));
    }
}

/// The page compressed for the pool; None if it is too large.
fn encode(page: &Page) -> Option<(Encoding, Vec<u8>)> {
    if let Some(word) = same_word(page) {
        return Some((Encoding::Same, word.to_le_bytes().to_vec()));
    }
    let mut out = vec![0; lz4_flex::block::get_maximum_output_size(PAGE_SIZE)];
    let n = lz4_flex::block::compress_into(page, &mut out).unwrap();
    out.truncate(n);
    (n <= STORED_MAX).then_some((Encoding::Lz4, out))
}

/// The writer: an object of some pages.
pub(crate) struct Writer {
    pub fixture: Fixture,
    index: Index,
}

impl Writer {
    pub(crate) fn new(pages: u64, zspages: u32) -> Writer {
        let fixture = fixture(zspages, zspages);
        let mut index = Index::new(fixture.seg.clone());
        (0..pages).for_each(|page| {
            index.ensure(OBJECT, page).unwrap();
        });
        let slot = fixture.seg.object(OBJECT);
        slot.id.store(99, Ordering::Release);
        slot.size.store(pages * PAGE_SIZE as u64, Ordering::Release);
        Writer { fixture, index }
    }
    fn place(&self, page: u64) -> Place {
        self.index.find(OBJECT, page).unwrap()
    }
    pub(crate) fn put(&mut self, page: u64, codec: Encoding, bytes: &[u8]) -> Option<Handle> {
        let place = self.place(page);
        let handle = self.fixture.pool.store(Coded { codec, bytes }, place)?;
        let clock = self.index.tick();
        publish(self.index.entry(place), Entry::compressed(handle, clock));
        Some(handle)
    }
    pub(crate) fn drop_page(&mut self, page: u64) -> Option<Handle> {
        let place = self.place(page);
        let handle = self.index.get(place).handle()?;
        let clock = self.index.tick();
        withdraw(self.index.entry(place), Entry::absent(0, clock));
        self.fixture.pool.remove(handle);
        Some(handle)
    }
    fn compact(&mut self, budget: usize) {
        let index = &self.index;
        self.fixture.pool.compact(budget, |place, old, new| {
            assert_eq!(index.get(place).handle(), Some(old));
            replace(index.entry(place), Entry::compressed(new, index.tick()));
        });
    }
    pub(crate) fn read(&self, offset: u64, out: &mut [u8], unpack: &mut dyn Unpack) -> Outcome {
        let (seg, touches) = (&self.fixture.seg, &self.fixture.touches);
        // SAFETY: `out` is valid for its length; the object stays.
        unsafe {
            Reader { seg, touches }.read(seg.object(OBJECT), offset, out.as_mut_ptr(), out.len(), unpack)
        }
    }
}

#[test]
fn whole_pages_parts_and_neighbours_in_frames() {
    let mut w = Writer::new(40, 4);
    let content: Vec<u8> = (0..40 * PAGE_SIZE).map(|i| ((i >> 3) ^ (i >> 10)) as u8).collect();
    for (page, bytes) in (0..).zip(content.as_chunks::<PAGE_SIZE>().0) {
        // Every fifth page lies in a frame.
        if page % 5 == 4 {
            let frame = page as u32 / 5;
            // SAFETY: an unused frame of this segment.
            unsafe { w.fixture.seg.frame(frame).copy_from(bytes.as_ptr(), PAGE_SIZE) };
            publish(w.index.entry(w.place(page)), Entry::present(frame, w.index.tick()));
        } else {
            let (codec, coded) = encode(bytes).unwrap();
            w.put(page, codec, &coded).unwrap();
        }
    }
    let mut reports = Reports::default();
    for (offset, n) in [(0, 4096), (1, 4095), (100, 50), (4000, 200), (3 * 4096 + 7, 60_000), (0, 40 * 4096)]
    {
        let mut got = vec![0; n];
        assert_eq!(w.read(offset as u64, &mut got, &mut reports), Outcome::Done(n));
        assert!(got == content[offset..offset + n], "{n} bytes at {offset}");
    }
    let of_page_0: Vec<u8> =
        reports.0.iter().filter(|(page, _)| *page == 0).map(|&(_, before)| before).collect();
    assert_eq!(of_page_0, [0, 1, 2, 3, 4], "a touch a read");
    assert!(reports.0.iter().all(|(page, _)| page % 5 != 4));
    // The end of the file in the middle of a page.
    w.fixture.seg.object(OBJECT).size.store(2 * 4096 + 10, Ordering::Release);
    let mut got = vec![0; 4096];
    assert_eq!(w.read(2 * 4096, &mut got, &mut Plain), Outcome::Done(10));
    assert_eq!(got[..10], content[8192..8202]);
}

#[test]
fn unreadable_pages_go_to_the_mount_path() {
    let mut w = Writer::new(4, 2);
    let mut out = [7; PAGE_SIZE];
    w.put(0, Encoding::Zstd, &[0; 100]).unwrap();
    assert_eq!(w.read(0, &mut out, &mut Plain), Outcome::MountPath { done: 0 });
    struct Daemon;
    impl Unpack for Daemon {
        fn zstd(&mut self, bytes: &[u8], out: &mut Page) -> bool {
            out.fill(bytes.len() as u8);
            true
        }
    }
    assert_eq!(w.read(0, &mut out, &mut Daemon), Outcome::Done(PAGE_SIZE));
    assert_eq!(out, [100; PAGE_SIZE]);
    // Entries that name no object, or another page's.
    let of_page_0 = w.index.get(w.place(0)).payload();
    for handle in [of_page_0, of_page_0 + 1, 5, 1 << 10, 2 << 10, u32::MAX >> 1] {
        publish(w.index.entry(w.place(1)), Entry::compressed(Handle(handle), w.index.tick()));
        assert_eq!(w.read(4096, &mut out, &mut Daemon), Outcome::MountPath { done: 0 }, "handle {handle:#x}");
    }
    // Pages on a device are read there, as a miss is read from the source.
    for slot in [DeviceSlot::new(0, 0), DeviceSlot::new(DeviceSlot::REGIONS_MAX - 1, 4095)] {
        publish(w.index.entry(w.place(1)), Entry::device(slot, w.index.tick()));
        assert_eq!(w.read(4096, &mut out, &mut Daemon), Outcome::Miss { done: 0 }, "{slot:?}");
    }
    for class in 0..=u8::MAX {
        w.fixture.seg.zclass(0).store(class, Ordering::Relaxed);
        for slot in [0, 1, 20, 500, 1023] {
            publish(w.index.entry(w.place(1)), Entry::compressed(Handle(slot), w.index.tick()));
            assert_eq!(w.read(4096, &mut out, &mut Plain), Outcome::MountPath { done: 0 });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    /// Fitting heads over arbitrary bytes, which pass every check and reach the decoder.
    #[test]
    fn made_up_objects_do_no_harm(
        bytes in prop::collection::vec(any::<u8>(), 0..STORED_MAX),
        page in pages(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        in_page in 0_usize..PAGE_SIZE,
    ) {
        let mut w = Writer::new(2, 2);
        let mut mutated = encode(&page).map_or(vec![1], |(_, coded)| coded);
        let n = mutated.len();
        flips.iter().for_each(|(at, b)| mutated[at.index(n)] ^= b);
        for bytes in [bytes, mutated] {
            w.drop_page(0);
            w.put(0, Encoding::Lz4, &bytes).unwrap();
            let mut out = vec![0x5a; PAGE_SIZE + 64];
            for (from, n) in [(0, PAGE_SIZE), (in_page, PAGE_SIZE - in_page)] {
                let outcome = w.read(from as u64, &mut out[32..32 + n], &mut Plain);
                let fine = [Outcome::Done(n), Outcome::MountPath { done: 0 }];
                prop_assert!(fine.contains(&outcome));
                prop_assert!(out[..32].iter().chain(&out[32 + PAGE_SIZE..]).all(|&b| b == 0x5a));
            }
        }
    }
}

/// Content of a version of a page: every piece of it identifies page and version, and its compressibility
/// varies.
fn content(page: u64, version: u64, out: &mut Page) {
    let noisy = (page * 7 + version * 13) % 4 * 14;
    let mut rng = Rng::new(page << 32 | version);
    for (i, words) in out.as_chunks_mut::<64>().0.iter_mut().enumerate() {
        for (j, word) in words.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let noise = (i as u64) < noisy && j > 0;
            *word = if noise { rng.next_u64() } else { page << 32 | version }.to_le_bytes();
        }
    }
}

fn seconds() -> Duration {
    Duration::from_secs(if std::env::var_os("TERRACE_SOAK").is_some() { 40 } else { 3 })
}

/// One writer stores, drops, rewrites, compacts and releases memory. Concurrent readers check each page.
#[test]
fn readers_never_see_anything_but_a_page_as_it_was() {
    const PAGES: u64 = 800;
    let mut w = Writer::new(PAGES, 9);
    let (stop, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    let (seg, touches) = (w.fixture.seg.clone(), w.fixture.touches.clone());
    std::thread::scope(|s| {
        for reader in 0..3_u64 {
            let (seg, touches, stop, seen) = (&*seg, &*touches, &stop, &seen);
            s.spawn(move || {
                let (mut rng, mut newest) = (Rng::new(reader), vec![0_u64; PAGES as usize]);
                let (mut got, mut wanted) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
                while !stop.load(Ordering::Relaxed) {
                    let page = rng.below(PAGES);
                    let from = if rng.chance(50) { 0 } else { rng.index(PAGE_SIZE / 8) * 8 };
                    let n = PAGE_SIZE - from;
                    // SAFETY: `got` takes n bytes; the object stays.
                    let outcome = unsafe {
                        let at = page * PAGE_SIZE as u64 + from as u64;
                        Reader { seg, touches }.read(seg.object(OBJECT), at, got.as_mut_ptr(), n, &mut Plain)
                    };
                    match outcome {
                        Outcome::Done(k) => assert_eq!(k, n),
                        Outcome::Miss { done } => {
                            assert_eq!(done, 0);
                            continue;
                        }
                        // All four copies moved meanwhile: possible, but rare.
                        Outcome::MountPath { .. } => continue,
                    }
                    // The first whole line begins with the version.
                    let line = from.next_multiple_of(64) - from;
                    if line + 8 <= n {
                        let word = u64::from_le_bytes(got[line..line + 8].try_into().unwrap());
                        let version = word & 0xffff_ffff;
                        assert_eq!(word >> 32, page, "another page's content");
                        content(page, version, &mut wanted);
                        assert!(got[..n] == wanted[from..], "page {page} from {from}: torn");
                        let before = std::mem::replace(&mut newest[page as usize], version);
                        assert!(version >= before, "page {page}: version {version} after {before}");
                        seen.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let enough = |w: &Writer| {
            let c = w.fixture.pool.counts();
            seen.load(Ordering::Relaxed) > 1000 && c.moved_pages > 100 && c.evicted > 100
        };
        // On a slow machine: until all kinds of events have occurred.
        let end = Instant::now() + Duration::from_secs(60);
        write_for(&mut w, PAGES, seconds());
        while !enough(&w) && Instant::now() < end {
            write_for(&mut w, PAGES, seconds());
        }
        assert!(enough(&w), "{:?}", w.fixture.pool.counts());
        stop.store(true, Ordering::Relaxed);
    });
    w.fixture.pool.check().unwrap();
}

fn write_for(w: &mut Writer, pages: u64, time: Duration) {
    // Versions ascend over the calls.
    let mut version = w.index.tick();
    let (end, mut rng) = (Instant::now() + time, Rng::new(version));
    let (mut page_now, mut victims) = ([0; PAGE_SIZE], Vec::new());
    while Instant::now() < end {
        let page = rng.below(pages);
        match rng.below(256) {
            // Many drops at once leave sparse zspages.
            0..2 => (page..pages.min(page + 400)).filter(|p| p % 4 > 0).for_each(|page| {
                w.drop_page(page);
            }),
            2..20 => w.compact(rng.index(100_000)),
            20..30 => {
                w.fixture.pool.trim(rng.below(0x2_0000)).unwrap();
            }
            _ => {
                version += 1;
                content(page, version, &mut page_now);
                w.drop_page(page);
                let Some((codec, bytes)) = encode(&page_now) else { continue };
                while w.put(page, codec, &bytes).is_none() {
                    victims.clear();
                    w.fixture.pool.coldest(8, &mut victims);
                    for &(handle, place) in &victims {
                        let clock = w.index.tick();
                        withdraw(w.index.entry(place), Entry::absent(0, clock));
                        w.fixture.pool.evict(handle);
                    }
                    w.compact(1 << 20);
                }
            }
        }
    }
}
