//! The engine with several targets: contents, restarts, a failing target, moves between tiers.

use super::testing::{
    FAILS, FILES, Fixture, NONE, PAGE, PAGES, Troubled, all, content, device_pages, without_compression,
};
use crate::file::object::ObjectRef;
use crate::segment::SegmentHandles;
use crate::{CompressedConfig, Engine};
use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;
use terrace_api::tiers::{TierKind, TierRow};
use terrace_io::BlockingIo;
use terrace_testkit::rng::Rng;
use terrace_testkit::wait::wait_until;
use terrace_tier::{FileMedium, superblock};

const MIB: u64 = 1 << 20;

fn rows(engine: &Engine) -> Vec<TierRow> {
    engine.stats().tiers.into_iter().filter(|row| row.kind == TierKind::Device).collect()
}

/// The tier that holds a page, also as a copy of a page in memory.
fn level_of(engine: &Engine, o: &ObjectRef, page: u64) -> Option<u8> {
    let state = engine.cx.state.lock();
    let place = state.pages.index.find(o.slot_index(), page)?;
    let targets = state.targets.as_ref()?;
    let slot = targets.slot_of(place, state.pages.index.get(place))?;
    Some(targets.of(slot)?.config.level)
}

#[test]
fn pages_are_spread_over_targets_and_read_from_each() {
    for placement in terrace_policy::placement::NAMES {
        let mut w =
            Fixture { placement, ..Fixture::with(without_compression(), &[(40 * MIB, 0), (24 * MIB, 0)]) };
        let (engine, objects) = w.start_on(Troubled::of(&w));
        // A placement engine that fills the targets in turn may not reach the second one.
        let wanted = if *placement == "min-io-sum" { 1 } else { 2 };
        let is_used = |row: &TierRow| row.pages > PAGES / 4 && row.hits > 100;
        let spread = (0..10).any(|turn| {
            w.read_all(&engine, &objects);
            w.work(&engine, &objects, &mut Rng::new(1 + turn), 2_000, 20);
            rows(&engine).iter().filter(|row| is_used(row)).count() >= wanted
        });
        let rows = rows(&engine);
        assert!(spread, "{placement}: {rows:?}");
        assert_eq!(rows.iter().map(|row| row.level).collect::<Vec<_>>(), [Some(0), Some(0)]);
        assert_eq!(engine.check(), Vec::<String>::new());
        engine.shutdown().unwrap();
    }
}

#[test]
fn changed_page_is_read_from_no_old_slot_of_any_target() {
    for compressed in [without_compression(), CompressedConfig::default()] {
        let mut w = Fixture::with(compressed, &[(9 * MIB, 0), (8 * MIB, 0), (10 * MIB, 1), (16 * MIB, 2)]);
        let (engine, objects) = w.start_on(Troubled::of(&w));
        w.work(&engine, &objects, &mut Rng::new(2), 15_000, 6);
        w.cut(&engine, &objects);
        (1000..PAGES).for_each(|page| w.write(&engine, &objects, 0, page));
        w.work(&engine, &objects, &mut Rng::new(3), 3_000, 0);
        assert_eq!(engine.check(), Vec::<String>::new());
        engine.shutdown().unwrap();
    }
}

#[test]
fn what_a_tier_gives_up_goes_to_the_next_one() {
    let mut w = Fixture::with(without_compression(), &[(16 * MIB, 0), (48 * MIB, 1)]);
    let (engine, objects) = w.start_on(Troubled::of(&w));
    w.read_all(&engine, &objects);
    w.work(&engine, &objects, &mut Rng::new(4), 20_000, 0);
    let [fast, slow] = &rows(&engine)[..] else { panic!("two rows") };
    assert!(fast.moved_down > 100 && slow.demoted >= fast.moved_down, "{fast:?} {slow:?}");
    assert!(slow.hits > 500 && slow.promoted > 500, "{slow:?}");
    // Together the targets hold more than the first one could.
    assert!(device_pages(&engine) > 2 * 16 * MIB / PAGE as u64, "{}", device_pages(&engine));
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

#[test]
fn page_read_twice_in_a_lower_tier_rises() {
    let w = Fixture::with(without_compression(), &[(16 * MIB, 0), (48 * MIB, 1)]);
    let (engine, objects) = w.start_on(Troubled::of(&w));
    w.read_all(&engine, &objects);
    let level_of = |page| level_of(&engine, &objects[0], page);
    let low = (0..PAGES).find(|page| level_of(*page) == Some(1)).unwrap();
    // The page is read repeatedly, with enough other pages between that it leaves memory each time.
    let rose = (0..6).any(|_| {
        w.read(&engine, &objects, 0, low);
        (0..PAGES).for_each(|page| w.read(&engine, &objects, 1, page));
        level_of(low) == Some(0)
    });
    assert!(rose, "page {low} is on {:?}", level_of(low));
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

#[test]
fn restart_finds_the_pages_of_all_targets() {
    let mut w = Fixture::with(without_compression(), &[(12 * MIB, 0), (12 * MIB, 0), (40 * MIB, 1)]);
    let mut rng = Rng::new(5);
    let mut before = 0;
    for turn in 0..2 {
        let (engine, objects) = w.start_on(Troubled::of(&w));
        wait_until("parked pages", || all(&engine).iter().all(|device| device.parked.is_empty()));
        let found = device_pages(&engine);
        assert!(found * 10 >= before * 9, "turn {turn}: {found} of {before} pages");
        w.work(&engine, &objects, &mut rng, 3_000, 30);
        w.read_all(&engine, &objects);
        assert_eq!(engine.check(), Vec::<String>::new());
        if turn > 0 {
            assert!(rows(&engine).iter().all(|row| row.promoted > 200), "{:?}", rows(&engine));
        }
        // Changes just before the end are found on each target, too.
        (0..FILES).for_each(|file| w.write(&engine, &objects, file, turn));
        engine.shutdown().unwrap();
        before = device_pages(&engine);
    }
    assert!(before > 2 * PAGES, "{before}");
}

/// Killed without a flush or clean superblocks: the recorded identities count.
#[test]
fn restart_after_a_kill_shows_no_wrong_page() {
    let mut w = Fixture::with(without_compression(), &[(10 * MIB, 0), (8 * MIB, 0), (20 * MIB, 1)]);
    let mut rng = Rng::new(6);
    for turn in 0..3 {
        let (engine, objects) = w.start_on(Troubled::of(&w));
        w.work(&engine, &objects, &mut rng, 4_000, 15);
        engine.flush_all(true).unwrap();
        std::thread::sleep(Duration::from_millis(30));
        engine.record_identities();
        w.work(&engine, &objects, &mut rng, 1_500, if turn % 2 == 0 { 0 } else { 10 });
        engine.flush_all(true).unwrap();
        assert_eq!(engine.check(), Vec::<String>::new());
        engine.halt();
    }
}

/// Files without a recorded identity: pages with entries stay, the others get tombstones.
#[test]
fn pages_kept_after_a_kill_are_there_after_the_next() {
    // The log never fills: the reclaim of a region would drop pages.
    let mut w = Fixture::with(without_compression(), &[(96 * MIB, 0)]);
    let config = w.config();
    let handles = Arc::new(SegmentHandles::create(&config).unwrap());
    let (engine, objects) = w.start_on_files(config.clone(), handles.clone());
    w.read_all(&engine, &objects);
    w.work(&engine, &objects, &mut Rng::new(8), 4_000, 20);
    // Queued tombstones are lost with the daemon: the next one finds keys without an entry.
    engine.truncate(&objects[0], 1000 * PAGE as u64).unwrap();
    engine.truncate(&objects[0], PAGES * PAGE as u64).unwrap();
    engine.halt();
    let mut before = None;
    for turn in 0..3 {
        let (engine, objects) = w.start_after_a_kill(config.clone(), handles.clone());
        let found = device_pages(&engine);
        assert!(
            found > PAGES / 4 && found >= before.unwrap_or(0),
            "turn {turn}: {found} of {before:?} pages"
        );
        before = Some(found);
        super::device_loop::record_identities(&engine.cx, &engine.cx.devices.get(0).unwrap());
        assert_eq!(engine.check(), Vec::<String>::new());
        if turn == 2 {
            (0..1000).for_each(|page| w.read(&engine, &objects, 0, page));
        }
        engine.halt();
    }
}

#[test]
fn target_that_fails_goes_cold_alone() {
    let mut w = Fixture::with(without_compression(), &[(24 * MIB, 0), (24 * MIB, 0)]);
    let io = Troubled::of(&w);
    let (engine, objects) = w.start_on(io.clone());
    let mut rng = Rng::new(7);
    w.work(&engine, &objects, &mut rng, 8_000, 0);
    io.set(FAILS);
    let error = std::io::Error::from(rustix::io::Errno::IO);
    crate::tier::append::give_up(&engine.cx, 0, &error);
    let before = rows(&engine);
    w.work(&engine, &objects, &mut rng, 8_000, 5);
    let after = rows(&engine);
    assert!(after[0].state.starts_with("off: ") && after[1].state == "serving", "{after:?}");
    assert_eq!(after[0].demoted, before[0].demoted, "nothing is written to it");
    assert!(after[1].demoted > before[1].demoted + 200 && after[1].hits > before[1].hits + 200, "{after:?}");
    io.set(NONE);
    w.work(&engine, &objects, &mut rng, 2_000, 5);
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
    // The failed target is not clean, and its recorded identities count: the next start scans it.
    let (engine, objects) = w.start_on(Troubled::of(&w));
    w.read_all(&engine, &objects);
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

#[test]
fn target_whose_writes_fail_is_off_and_others_take_its_pages() {
    let mut w = Fixture::with(without_compression(), &[(24 * MIB, 0), (32 * MIB, 1)]);
    let (engine, objects) = w.start_on(Troubled::of(&w));
    w.work(&engine, &objects, &mut Rng::new(8), 3_000, 0);
    // Overwrites all content, as if the file had been replaced.
    let noise = content(9, 9, 9);
    let bytes = w.targets[0].0.metadata().unwrap().len();
    for at in (MIB..bytes).step_by(PAGE) {
        w.targets[0].0.write_all_at(&noise, at).unwrap();
    }
    crate::tier::append::give_up(&engine.cx, 0, &std::io::Error::other("test"));
    w.work(&engine, &objects, &mut Rng::new(9), 8_000, 10);
    assert!(rows(&engine)[1].demoted > 500, "{:?}", rows(&engine));
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
    let medium = FileMedium::new(w.targets[1].0.as_raw_fd(), Arc::new(BlockingIo::default()), 32 * MIB);
    let superblock::Found::Ours(second) = superblock::find(&medium).unwrap() else { panic!("no superblock") };
    assert!(second.clean, "the other ends in order");
}

#[test]
fn file_forgotten_comes_back_with_its_pages_of_all_targets() {
    let mut w = Fixture::with(without_compression(), &[(16 * MIB, 0), (48 * MIB, 1)]);
    let (engine, mut objects) = w.start_on(Troubled::of(&w));
    // On a busy machine a late reclaim drops the region's pages instead of moving them down.
    let on_both = || {
        let levels: HashSet<u8> =
            (0..PAGES).filter_map(|page| level_of(&engine, &objects[2], page)).collect();
        levels.len() == 2
    };
    let spread = (0..20).any(|turn| {
        w.read_all(&engine, &objects);
        w.work(&engine, &objects, &mut Rng::new(10 + turn), 3_000, 20);
        on_both()
    });
    assert!(spread, "{:?}", rows(&engine));
    engine.flush_all(true).unwrap();
    std::thread::sleep(Duration::from_millis(60));
    engine.forget_object(objects[2].id()).unwrap();
    assert_eq!(engine.check(), Vec::<String>::new());
    let parked = all(&engine).iter().map(|device| device.parked.len()).sum::<usize>();
    assert_eq!(parked, 2, "on both");
    objects[2] = engine.object(102, w.sources[2].as_raw_fd(), PAGES * PAGE as u64).unwrap();
    wait_until("parked pages", || all(&engine).iter().all(|device| device.parked.is_empty()));
    w.read_all(&engine, &objects);
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}
