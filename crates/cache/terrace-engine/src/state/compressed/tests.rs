//! The compressed pages of an engine. The test acts as the reclaim thread.

use super::*;
use crate::file::object::ObjectRef;
use crate::path::resize;
use crate::reclaim::balance::{self, BalanceClock};
use crate::reclaim::compress;
use crate::state::Leaving;
use crate::{AccessPath, Engine, EngineConfig, SystemClock};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use terrace_io::BlockingIo;
use terrace_shm::State as EntryState;
use terrace_shm::compress::{CompressionMode, Compressor};
use terrace_testkit::rng::Rng;

pub(crate) const PAGES: u64 = 256;

/// A file of pages that contain their number, all read and then compressed. There is no reclaim thread.
pub(crate) struct Fixture {
    pub(crate) engine: Arc<Engine>,
    compressor: Compressor,
    pub(crate) o: ObjectRef,
    _file: tempfile::NamedTempFile,
}

/// A quarter of noise, the rest text.
pub(crate) fn content(page: u64) -> Vec<u8> {
    let mut bytes = Rng::new(page).bytes(PAGE_SIZE / 4);
    bytes.extend(format!("page {page} of a file that compresses well; ").repeat(200).into_bytes());
    bytes.truncate(PAGE_SIZE);
    bytes
}

impl Fixture {
    pub(crate) fn new(codec: CompressionMode) -> Fixture {
        Fixture::under("strata", codec)
    }
    fn under(policy: &str, codec: CompressionMode) -> Fixture {
        let mut s = Fixture::not_yet(policy, codec);
        s.compress_all();
        s
    }
    fn not_yet(policy: &str, codec: CompressionMode) -> Fixture {
        let compressed = CompressedConfig {
            codec: Some(codec),
            min_percent: 25,
            admit: Admit::All,
            ..CompressedConfig::default()
        };
        let policy = policy.to_owned();
        let config = EngineConfig { memory_bytes: 32 << 20, policy, compressed, ..EngineConfig::default() };
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let engine =
            Engine::start(config, handles, Arc::new(SystemClock), Arc::new(BlockingIo::default())).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, (0..PAGES).flat_map(content).collect::<Vec<u8>>()).unwrap();
        let o = engine.object(7, file.as_raw_fd(), PAGES * PAGE_SIZE as u64).unwrap();
        let compressor = compress::compressor(&engine.cx).unwrap();
        let s = Fixture { engine, compressor, o, _file: file };
        (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
        s
    }
    fn compress_all(&mut self) {
        let mut leaving = Leaving { compresses: true, ..Leaving::default() };
        self.engine.cx.state.lock().reclaim(PAGES as usize, Some(&mut leaving));
        compress::compress(&self.engine.cx, &leaving.to_compressed, &mut self.compressor);
    }
    pub(crate) fn read(&self, page: u64) -> Vec<u8> {
        let mut buf = vec![0; PAGE_SIZE];
        let n = self.engine.read(&self.o, page * PAGE_SIZE as u64, &mut buf, AccessPath::Preload).unwrap();
        buf.truncate(n);
        buf
    }
    pub(crate) fn damage(&self) {
        let seg = &self.engine.cx.handles.segment;
        for zspage in 0..2 {
            // SAFETY: memory of the segment, which only this thread uses.
            unsafe { seg.zspage(zspage).write_bytes(0xa5, terrace_shm::layout::ZSPAGE_SIZE) };
        }
    }
    pub(crate) fn stats(&self) -> CompressedTier {
        let stats = self.engine.stats();
        assert!(stats.memory.used_bytes <= stats.memory.limit_bytes, "{:?}", stats.memory);
        stats.compressed.unwrap()
    }
    pub(crate) fn state(&self, page: u64) -> EntryState {
        let state = self.engine.cx.state.lock();
        state.pages.index.get(state.pages.index.find(self.o.slot_index(), page).unwrap()).state()
    }
    fn is_watched(&self, page: u64) -> bool {
        let state = self.engine.cx.state.lock();
        let place = state.pages.index.find(self.o.slot_index(), page).unwrap();
        state.pages.index.get(place).frame().is_some_and(|frame| state.sampler.watch.is_watched(frame))
    }
    pub(crate) fn agrees(&self) {
        assert_eq!(self.engine.check(), Vec::<String>::new());
    }
}

#[test]
fn while_processors_are_busy_the_tier_fills_slowly() {
    let may = 50;
    for idle in [1.0, 0.0] {
        let mut s = Fixture::not_yet("strata", CompressionMode::Lz4);
        {
            let mut state = s.engine.cx.state.lock();
            let tier = state.compressed.as_mut().unwrap();
            (tier.admit, tier.balancer.idle) = (Admit::Reused, idle);
            tier.balancer.set_limits(0..=8, 16);
            let each = tier.balancer.costs.compress as f64 / 2.0 / FILLING_BUSY;
            tier.set_fill_budget((each * (may as f64 + 0.5)) as u64, 2);
        }
        s.compress_all();
        let filled = s.engine.cx.state.lock().compressed.as_ref().unwrap().counts.filling;
        assert!(if idle > 0.0 { filled > may } else { filled == may }, "idle: {idle}, {filled}");
        let fill_limited = s.engine.cx.state.lock().compressed.as_ref().unwrap().is_fill_limited();
        assert_eq!(fill_limited, idle == 0.0, "the rest of its memory is no use to anybody");
        s.agrees();
    }
}

#[test]
fn busy_machine_gets_a_fill_limit() {
    for idle in [1.0, 0.0] {
        let s = Fixture::new(CompressionMode::Lz4);
        s.engine.cx.state.lock().compressed.as_mut().unwrap().balancer.idle = idle;
        let mut clock = BalanceClock::new();
        clock.processors = 2;
        s.engine.cx.state.lock().compressed.as_mut().unwrap().balancer.set_limits(0..=8, 16);
        balance::rebalance(&s.engine.cx, &mut clock);
        let state = s.engine.cx.state.lock();
        let tier = state.compressed.as_ref().unwrap();
        assert_eq!(tier.balancer.idle, idle, "no result of the first sample");
        let slowly = FILLING_PAST_MAX.as_nanos() as f64 * 2.0 * FILLING_BUSY;
        let may = slowly as u64 / tier.balancer.costs.compress;
        assert_eq!(tier.fill_budget, if idle > 0.0 { u64::MAX } else { may }, "idle: {idle}");
        assert!(tier.counts.compressed >= PAGES, "the cost is measured");
    }
}

#[test]
fn page_outside_dram_is_read_from_less_of_it() {
    for codec in [CompressionMode::Lz4, CompressionMode::Mixed, CompressionMode::Dense] {
        let s = Fixture::new(codec);
        s.agrees();
        let before = s.stats();
        assert_eq!(before.pages, PAGES, "{before:?}");
        assert!(before.live_bytes * 3 < PAGES * PAGE_SIZE as u64, "{before:?}");
        let misses = s.engine.stats().fuse.misses;
        (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
        let after = s.stats();
        assert_eq!(
            (after.hits, after.pgpromote_success, after.pages),
            (PAGES, 0, PAGES),
            "at first they stay"
        );
        for _ in 2..PROMOTE_AT {
            (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
        }
        assert_eq!(s.stats().pgpromote_success, 0);
        (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
        let after = s.stats();
        assert_eq!((after.pgpromote_success, after.pages), (PAGES, 0), "often enough, and they come back");
        assert_eq!(s.engine.stats().fuse.misses, misses, "nothing was read from the source");
        let mrc = s.engine.mrc();
        // One in nine of the reads came before, for pages read ahead.
        let measured = mrc.measured_hit_ratio.unwrap();
        assert!(measured < 0.12, "DRAM alone would have missed them: {mrc:?}");
        assert!((0..PAGES).all(|page| s.is_watched(page)), "promoted, they are sampled as others are");
        s.agrees();
    }
}

#[test]
fn eviction_skips_pages_that_are_being_compressed() {
    let mut s = Fixture::new(CompressionMode::Lz4);
    // Promotes the pages.
    (0..u64::from(PROMOTE_AT) * PAGES).for_each(|i| assert_eq!(s.read(i % PAGES), content(i % PAGES)));
    let mut leaving = Leaving { compresses: true, ..Leaving::default() };
    s.engine.cx.state.lock().reclaim(PAGES as usize / 2, Some(&mut leaving));
    assert_eq!(leaving.to_compressed.len(), PAGES as usize / 2);
    s.engine.cx.state.lock().reclaim(PAGES as usize, None);
    compress::compress(&s.engine.cx, &leaving.to_compressed, &mut s.compressor);
    assert_eq!((s.stats().store_raced, s.stats().pages), (0, PAGES / 2));
    // The mark is gone.
    s.engine.drop_clean();
    assert_eq!((s.stats().pages, s.engine.stats().memory.pages), (0, 0));
    s.agrees();
}

/// Two concurrent compressors would cause this. With one, the test delays a batch.
#[test]
fn duplicate_page_is_counted_and_present_one_stays() {
    let mut s = Fixture::new(CompressionMode::Lz4);
    s.engine.drop_clean();
    (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
    let mut late = Leaving { compresses: true, ..Leaving::default() };
    s.engine.cx.state.lock().reclaim(PAGES as usize, Some(&mut late));
    assert_eq!(late.to_compressed.len() as u64, PAGES);
    // Dropped as by a truncate, and read again: in other frames, without the mark for compression.
    (0..PAGES).for_each(|page| s.engine.cx.state.lock().drop_pages(&s.o, page, page));
    (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
    s.compress_all();
    let before = s.stats();
    assert_eq!((before.pages, before.duplicate_entry), (PAGES, 0));
    compress::compress(&s.engine.cx, &late.to_compressed, &mut s.compressor);
    let after = s.stats();
    assert_eq!((after.duplicate_entry, after.store_raced), (PAGES, before.store_raced));
    assert_eq!((after.pages, after.stored_pages), (PAGES, before.stored_pages));
    (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
    s.agrees();
}

#[test]
fn writes_and_cuts_find_compressed_pages() {
    let mut s = Fixture::new(CompressionMode::Mixed);
    let at = |page: u64| page * PAGE_SIZE as u64;
    s.engine.write(&s.o, at(3) + 10, b"!!!!").unwrap();
    s.engine.write(&s.o, at(4), &vec![9; PAGE_SIZE]).unwrap();
    let mut third = content(3);
    third[10..14].copy_from_slice(b"!!!!");
    assert_eq!((s.read(3), s.read(4)), (third.clone(), vec![9; PAGE_SIZE]));
    // Dirty pages stay; after writeback they may be compressed.
    s.compress_all();
    assert_eq!((s.state(3), s.state(4)), (EntryState::Present, EntryState::Present));
    s.agrees();
    s.engine.flush_all(false).unwrap();
    for _ in 0..4 {
        s.compress_all();
    }
    assert_eq!((s.state(3), s.state(4)), (EntryState::Below, EntryState::Below));
    assert_eq!((s.read(3), s.read(4)), (third, vec![9; PAGE_SIZE]));
    s.engine.truncate(&s.o, at(5) + 100).unwrap();
    assert_eq!(s.read(5), content(5)[..100]);
    s.engine.truncate(&s.o, at(8)).unwrap();
    assert_eq!(s.read(5), [&content(5)[..100], &[0; PAGE_SIZE - 100]].concat());
    assert_eq!(s.read(6), [0; PAGE_SIZE]);
    s.agrees();
    s.engine.drop_clean();
    assert_eq!(s.stats().pages, 0);
    s.agrees();
}

#[test]
fn a_damaged_page_is_read_from_the_source() {
    let s = Fixture::new(CompressionMode::Mixed);
    let misses = s.engine.stats().fuse.misses;
    s.damage();
    (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
    assert!(s.engine.stats().fuse.misses > misses, "some were damaged");
}

#[test]
fn damaged_page_is_read_from_source_without_a_free_frame() {
    let s = Fixture::new(CompressionMode::Mixed);
    s.damage();
    let claimed: Vec<u32> = std::iter::from_fn(|| s.engine.cx.state.lock().claim()).collect();
    (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
    claimed.iter().for_each(|&frame| s.engine.cx.state.lock().unclaim(frame));
}

#[test]
fn one_page_that_took_long_says_nothing_of_others() {
    let s = Fixture::new(CompressionMode::Lz4);
    let mut state = s.engine.cx.state.lock();
    let tier = state.compressed.as_mut().unwrap();
    let decompress = |tier: &Compressed| tier.balancer.costs.decompress;
    let before = decompress(tier);
    tier.note_unpacking(5_000_000);
    assert!(decompress(tier) < before + before / 10, "{} instead of {before}", decompress(tier));
    (0..1000).for_each(|_| tier.note_unpacking(20_000));
    assert!((21_000..=22_000).contains(&decompress(tier)), "{}: all take so long", decompress(tier));
}

#[test]
fn miss_cost_is_the_time_of_reads() {
    let s = Fixture::new(CompressionMode::Lz4);
    let mut state = s.engine.cx.state.lock();
    let tier = state.compressed.as_mut().unwrap();
    tier.note_reads([10, 10, 1]);
    assert_eq!(tier.balancer.costs.read, 60_000, "too few to tell");
    // Four pages per read: 20 us, and the work of one read, which they share.
    (1..200).for_each(|i| tier.note_reads([4, 1, 20_000].map(|each| i * READS_MIN * each)));
    let Costs { read, work, .. } = tier.balancer.costs;
    assert!((4_900..=5_100).contains(&read), "{read}");
    assert!((6_000..=6_200).contains(&work), "{work}");
    // Incredible counters of a client are bounded, and fade.
    tier.note_reads([u64::MAX / 2, u64::MAX, u64::MAX]);
    tier.note_reads([1, 1, 0]);
    tier.note_reads([u64::MAX, u64::MAX, u64::MAX]);
    assert!(tier.balancer.costs.work <= READ_WORK_NS + PAGE_WORK_NS);
    assert!(tier.balancer.costs.read < 200_000_000);
}

#[test]
fn refault_reads_update_miss_cost_and_first_reads_do_not() {
    let s = Fixture::under("strata", CompressionMode::Lz4);
    let read = |s: &Fixture| s.engine.cx.state.lock().compressed.as_ref().unwrap().source_read;
    assert_eq!(read(&s), [0; 3], "all was new");
    assert!(resize::empty_compressed(&s.engine.cx) > 0);
    let mut buf = vec![0; 16 * PAGE_SIZE];
    for page in (0..PAGES).step_by(16) {
        s.engine.read(&s.o, page * PAGE_SIZE as u64, &mut buf, AccessPath::Fuse).unwrap();
        assert_eq!(buf[..PAGE_SIZE], content(page));
    }
    let [pages, reads, ns] = read(&s);
    assert_eq!((pages, reads), (PAGES, PAGES / 16));
    assert!(ns > 0);
    let mut state = s.engine.cx.state.lock();
    let tier = state.compressed.as_mut().unwrap();
    (tier.read_at, tier.source_read) = ([0; 3], [1000, 10, 4_000_000]);
    (0..100).for_each(|i| tier.note_reads([i * 1000, i * 10, i * 4_000_000]));
    let Costs { read, work, .. } = tier.balancer.costs;
    assert!((3_900..=4_100).contains(&read) && work < 3_000, "read in pieces of 100 pages: {read}, {work}");
}

#[test]
fn refault_is_counted_where_the_policy_keeps_no_shadows() {
    for policy in ["lru", "strata"] {
        let s = Fixture::under(policy, CompressionMode::Lz4);
        assert!(resize::empty_compressed(&s.engine.cx) > 0);
        (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
        s.engine.cx.state.lock().reclaim(PAGES as usize, None);
        let before = s.engine.cx.state.lock().compressed.as_ref().unwrap().refaults;
        // In random order: pages read ahead do not count, nor the reads that they save.
        let jump = |i| i * 37 % PAGES;
        (0..PAGES).map(jump).for_each(|page| assert_eq!(s.read(page), content(page)));
        let refaults = s.engine.cx.state.lock().compressed.as_ref().unwrap().refaults - before;
        assert!((PAGES / 2..=PAGES).contains(&refaults), "{policy}: {refaults}");
        s.agrees();
    }
}

#[test]
fn the_tier_has_a_limit_and_shrinks() {
    let mut s = Fixture::new(CompressionMode::Lz4);
    // All pages were touched.
    (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
    s.engine.cx.state.lock().compressed.as_mut().unwrap().pool.set_limit(128 << 10);
    resize::shrink_compressed(&s.engine.cx);
    let small = s.stats();
    assert!(small.pool_bytes <= 128 << 10 && small.pages < PAGES && small.evicted > 0, "{small:?}");
    s.agrees();
    (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
    s.compress_all();
    assert!(s.stats().pool_bytes <= 128 << 10);
    s.agrees();
    (0..PAGES).for_each(|page| assert_eq!(s.read(page), content(page)));
}
