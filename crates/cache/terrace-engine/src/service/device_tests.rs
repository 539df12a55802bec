//! The engine with a tier on a device: contents, restarts, failures.

use super::testing::{
    FAILS, Fixture, HANGS, NONE, PAGE, PAGES, SHORT, SLOW, TIER_BYTES, Troubled, all, content, device_pages,
    without_compression,
};
use crate::segment::flag::REUSED;
use crate::state::State;
use crate::state::compressed::{WAS_HERE, WAS_READ};
use crate::{AccessPath, CompressedConfig};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;
use terrace_policy::prefetch::Span;
use terrace_shm::Below;
use terrace_shm::writes::Span as WriteSpan;
use terrace_testkit::rng::Rng;
use terrace_testkit::wait::wait_until;

#[test]
fn pages_that_leave_memory_are_read_from_the_device() {
    let mut w = Fixture::new(without_compression());
    let (engine, objects) = w.start();
    let mut rng = Rng::new(1);
    // On a busy machine pages leave memory faster than the device takes them: some are dropped.
    wait_until("a third of all pages is on the device", || {
        w.read_all(&engine, &objects);
        device_pages(&engine) > PAGES
    });
    w.work(&engine, &objects, &mut rng, 20_000, 0);
    let device = engine.stats().tiers.pop().unwrap();
    assert!(device.hits > 2_000 && device.promoted > 2_000, "{device:?}");
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

#[test]
fn written_page_is_never_read_from_an_old_slot() {
    for compressed in [without_compression(), CompressedConfig::default()] {
        let mut w = Fixture::new(compressed);
        let (engine, objects) = w.start();
        let mut rng = Rng::new(2);
        w.work(&engine, &objects, &mut rng, 40_000, 5);
        w.cut(&engine, &objects);
        (0..PAGES).for_each(|page| w.read(&engine, &objects, 1, page));
        assert_eq!(engine.check(), Vec::<String>::new());
        let row = engine.stats().tiers.pop().unwrap();
        assert!(row.reinserted * 4 <= row.demoted, "one page in five is written again: {row:?}");
        engine.shutdown().unwrap();
    }
}

#[test]
fn page_read_often_is_remembered_when_its_slot_goes() {
    let w = Fixture::new(without_compression());
    let (engine, objects) = w.start();
    w.read_all(&engine, &objects);
    let slot_of = |state: &State, page| {
        let place = state.pages.index.find(objects[0].slot_index(), page)?;
        let Some(Below::Device(slot)) = state.pages.index.get(place).below() else { return None };
        Some((place, slot))
    };
    let [often, seldom] = {
        let state = engine.cx.state.lock();
        let mut there = (0..PAGES).filter(|page| slot_of(&state, *page).is_some());
        [there.next().unwrap(), there.next_back().unwrap()]
    };
    let drop_slot_of = |(page, hits)| {
        let mut state = engine.cx.state.lock();
        let (place, slot) = slot_of(&state, page).unwrap();
        (0..hits).for_each(|_| _ = state.targets.as_mut().unwrap().note_hit(slot));
        state.drop_slot(slot, objects[0].id(), page);
        state.pages.index.get(place).shadow()
    };
    assert_eq!([(often, 4), (seldom, 3)].map(drop_slot_of), [WAS_READ, WAS_HERE]);
    let is_reused = |page| {
        w.read(&engine, &objects, 0, page);
        let state = engine.cx.state.lock();
        let place = state.pages.index.find(objects[0].slot_index(), page).unwrap();
        let frame = state.pages.index.get(place).frame().unwrap();
        state.pages.flags(frame).load(Ordering::Relaxed) & REUSED != 0
    };
    assert_eq!([often, seldom].map(is_reused), [true, false], "worth a write when it leaves memory");
    engine.shutdown().unwrap();
}

#[test]
fn restart_begins_warm_and_reads_no_source() {
    let mut w = Fixture::new(without_compression());
    let (engine, objects) = w.start();
    let mut rng = Rng::new(3);
    w.work(&engine, &objects, &mut rng, 20_000, 50);
    w.read_all(&engine, &objects);
    engine.flush_all(true).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    engine.shutdown().unwrap();
    let before = device_pages(&engine);
    drop((engine, objects));
    let (engine, objects) = w.start();
    wait_until("parked pages", || all(&engine)[0].parked.is_empty());
    let found = device_pages(&engine);
    assert!(found * 10 >= before * 9 && found > 2 * PAGES, "{found} of {before} pages");
    w.read_all(&engine, &objects);
    let row = engine.stats().tiers.pop().unwrap();
    // Pages read ahead count, too.
    assert!(row.promoted * 10 >= found * 9, "{} of {found} pages", row.promoted);
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

/// After a power cut a file may have newer content and its old times: recorded identities are void, also for
/// later runs.
#[test]
fn a_reboot_in_the_middle_of_a_run_makes_the_tier_cold() {
    let mut w = Fixture::new(without_compression());
    let found = [1, 1, 2, 2].map(|boot| {
        w.boot = Some((boot, 0));
        let (engine, objects) = w.start();
        wait_until("parked pages", || all(&engine)[0].parked.is_empty());
        let found = device_pages(&engine);
        // On a busy machine pages leave memory faster than the device takes them: some are dropped.
        wait_until("a third of all pages is on the device", || {
            w.read_all(&engine, &objects);
            device_pages(&engine) > PAGES
        });
        engine.record_identities();
        engine.halt();
        found
    });
    // Pages in the last batch were not durable.
    assert!(found[0] == 0 && found[1] > PAGES / 2 && found[2] == 0 && found[3] > PAGES / 2, "{found:?}");
}

/// A file gets its identity anew once its announced writes are applied, and not before.
#[test]
fn file_with_announced_writes_is_warm_once_they_are_applied() {
    let mut w = Fixture::new(without_compression());
    w.announced_writes = true;
    let span = Span { first: 0, pages: PAGES };
    let mut found = [true, false, true].map(|renews| {
        let (engine, objects) = w.start();
        wait_until("parked pages", || all(&engine)[0].parked.is_empty());
        let found = engine.cx.state.lock().on_devices(&objects[0], span);
        let renew = || engine.renew_identity(&objects[0], || true);
        wait_until("the first repair, and an identity", || {
            engine.clients.writers.as_ref().unwrap().drain(&engine.cx);
            renew()
        });
        wait_until("half of the file is on the device", || {
            w.read_all(&engine, &objects);
            engine.cx.state.lock().on_devices(&objects[0], span) > PAGES / 2
        });
        engine.record_identities();
        let writes = engine.handles().writes.as_ref().unwrap().writes.clone();
        assert!(writes.begin(None, WriteSpan::of(objects[0].id(), 5 * PAGE as u64, PAGE as u64)).is_none());
        w.contents[0][5] += 1;
        w.sources[0].write_all_at(&content(0, 5, w.contents[0][5]), 5 * PAGE as u64).unwrap();
        std::thread::sleep(2 * crate::file::identity::SETTLES);
        assert!(!renew(), "the write is under way");
        engine.record_identities();
        writes.finish_bare(None);
        if renews {
            wait_until("an identity", || {
                engine.clients.writers.as_ref().unwrap().drain(&engine.cx);
                renew()
            });
            w.read(&engine, &objects, 0, 5);
        }
        engine.record_identities();
        engine.halt();
        found
    });
    // The first run begins with an empty tier.
    found.rotate_left(1);
    assert!(found[0] > PAGES / 4 && found[1] == 0, "{found:?}");
}

#[test]
fn file_changed_meanwhile_is_cold() {
    let mut w = Fixture::new(without_compression());
    let (engine, objects) = w.start();
    w.read_all(&engine, &objects);
    std::thread::sleep(Duration::from_millis(30));
    engine.shutdown().unwrap();
    drop((engine, objects));
    // With the old mtime, as a careful forger would set it.
    let mtime = w.sources[1].metadata().unwrap().modified().unwrap();
    w.sources[1].write_all_at(&content(1, 7, 1), 7 * PAGE as u64).unwrap();
    w.contents[1][7] = 1;
    w.sources[1].set_modified(mtime).unwrap();
    let (engine, objects) = w.start();
    w.read_all(&engine, &objects);
    let row = engine.stats().tiers.pop().unwrap();
    assert!(row.promoted > PAGES && row.promoted <= 2 * PAGES, "{} pages: of two files", row.promoted);
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

#[test]
fn file_that_is_forgotten_comes_back_with_its_pages() {
    let mut w = Fixture::new(without_compression());
    let (engine, mut objects) = w.start();
    w.work(&engine, &objects, &mut Rng::new(4), 5_000, 20);
    w.read_all(&engine, &objects);
    engine.flush_all(true).unwrap();
    std::thread::sleep(Duration::from_millis(60));
    let before = device_pages(&engine);
    engine.forget_object(objects[2].id()).unwrap();
    assert_eq!(engine.check(), Vec::<String>::new());
    let parked = all(&engine)[0].parked.len();
    assert_eq!(parked, 1, "{before} pages before");
    objects[2] = engine.object(102, w.sources[2].as_raw_fd(), PAGES * PAGE as u64).unwrap();
    wait_until("parked pages", || all(&engine)[0].parked.is_empty());
    w.read_all(&engine, &objects);
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

#[test]
fn device_that_fails_leaves_the_cache_serving() {
    let mut w = Fixture::new(without_compression());
    let (engine, objects) = w.start();
    w.work(&engine, &objects, &mut Rng::new(5), 5_000, 0);
    w.failing.store(true, Ordering::Relaxed);
    w.work(&engine, &objects, &mut Rng::new(6), 10_000, 0);
    let row = engine.stats().tiers.pop().unwrap();
    assert!(row.state.starts_with("off: "), "{}", row.state);
    w.failing.store(false, Ordering::Relaxed);
    w.work(&engine, &objects, &mut Rng::new(7), 10_000, 5);
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

/// One read of the source covers a run of pages with a few on the device.
#[test]
fn short_gaps_on_the_device_are_read_from_the_source() {
    let mut w = Fixture::new(without_compression());
    let (engine, objects) = w.start();
    w.work(&engine, &objects, &mut Rng::new(9), 20_000, 0);
    // Every fourth page is removed from the device, and remains in the source only.
    let mut cut = Vec::new();
    let mut state = engine.cx.state.lock();
    for page in 0..PAGES {
        let place = state.pages.index.find(objects[0].slot_index(), page);
        let below = place.and_then(|place| state.pages.index.get(place).below());
        if let (Some(Below::Device(slot)), Some(place), true) = (below, place, page % 4 == 0) {
            state.pages.make_absent(place, 0);
            let device = &mut state.targets.as_mut().unwrap().all[0];
            device.kill(slot);
            device.queue_tombstone(objects[0].id(), page, page);
        }
        cut.push(below.is_some());
    }
    drop(state);
    // From one absent page to the next, with no page in memory between them.
    let first =
        (0..PAGES as usize - 5).step_by(4).find(|at| cut[*at..at + 5].iter().all(|there| *there)).unwrap();
    let before = w.source_reads.load(Ordering::Relaxed);
    let mut buf = vec![0; 5 * PAGE];
    engine.read(&objects[0], (first * PAGE) as u64, &mut buf, AccessPath::Preload).unwrap();
    assert_eq!(w.source_reads.load(Ordering::Relaxed) - before, 1);
    for (i, is) in buf.chunks(PAGE).enumerate() {
        assert!(is == content(0, (first + i) as u64, 0), "page {i}");
    }
    assert_eq!(engine.check(), Vec::<String>::new());
    w.work(&engine, &objects, &mut Rng::new(10), 10_000, 5);
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

/// A miss of a long run reads pages from the device and from the source.
#[test]
fn long_run_is_read_from_both_places_at_once() {
    let w = Fixture::new(without_compression());
    let (engine, objects) = w.start();
    w.read_all(&engine, &objects);
    const RUN: usize = 48;
    let o = &objects[0];
    let mut state = engine.cx.state.lock();
    let places: Vec<_> = (0..PAGES).map(|page| state.pages.index.find(o.slot_index(), page)).collect();
    let slot =
        |state: &State, page: usize| match places[page].and_then(|at| state.pages.index.get(at).below()) {
            Some(Below::Device(slot)) => Some(slot),
            _ => None,
        };
    let all_there = |at: &usize| (*at..at + RUN).all(|page| slot(&state, page).is_some());
    let first = (1..PAGES as usize - RUN).find(all_there).expect("a long run is on the device");
    // The first and the last quarter: more than a short gap lies between them.
    for page in (first..first + 12).chain(first + RUN - 12..first + RUN) {
        let slot = slot(&state, page).unwrap();
        state.pages.make_absent(places[page].unwrap(), 0);
        let device = &mut state.targets.as_mut().unwrap().all[0];
        device.kill(slot);
        device.queue_tombstone(o.id(), page as u64, page as u64);
    }
    drop(state);
    let hits = || engine.stats().tiers.pop().unwrap().hits;
    let before = hits();
    let mut buf = vec![0; RUN * PAGE];
    engine.read(o, (first * PAGE) as u64, &mut buf, AccessPath::Preload).unwrap();
    for (i, is) in buf.chunks(PAGE).enumerate() {
        assert!(is == content(0, (first + i) as u64, 0), "page {i}");
    }
    assert_eq!(hits() - before, RUN as u64 - 24, "pages that the device gave");
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}

#[test]
fn device_with_failing_short_or_slow_calls_shows_no_wrong_page() {
    let mut w = Fixture::new(without_compression());
    let io = Troubled::of(&w);
    let (engine, objects) = w.start_on(io.clone());
    let mut rng = Rng::new(8);
    w.read_all(&engine, &objects);
    for trouble in [FAILS, SHORT, SLOW] {
        w.work(&engine, &objects, &mut rng, 10_000, 0);
        assert!(device_pages(&engine) > 1000, "trouble {trouble}: {}", device_pages(&engine));
        let hits = engine.stats().tiers.pop().unwrap().hits;
        io.set(trouble);
        w.work(&engine, &objects, &mut rng, 2_000, 5);
        io.set(NONE);
        let during = engine.stats().tiers.pop().unwrap().hits - hits;
        assert_eq!(during > 0, trouble == SLOW, "trouble {trouble}: {during} hits");
        w.work(&engine, &objects, &mut rng, 5_000, 5);
        assert_eq!(engine.check(), Vec::<String>::new());
    }
    engine.shutdown().unwrap();
}

/// Neither the state lock nor an object's lock is held during a read of the device.
#[test]
fn hanging_read_of_the_device_delays_no_other_read() {
    let mut w = Fixture::new(without_compression());
    let io = Troubled::of(&w);
    let (engine, objects) = w.start_on(io.clone());
    w.read_all(&engine, &objects);
    let on_device = |page: &u64| {
        let state = engine.cx.state.lock();
        let place = state.pages.index.find(objects[0].slot_index(), *page);
        place.is_some_and(|place| matches!(state.pages.index.get(place).below(), Some(Below::Device(_))))
    };
    let page = (0..PAGES).find(on_device).unwrap();
    w.read(&engine, &objects, 1, 7);
    io.set(HANGS);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut buf = vec![0; PAGE];
            engine.read(&objects[0], page * PAGE as u64, &mut buf, AccessPath::Preload).unwrap();
            buf
        });
        wait_until("the read", || io.hanging.load(Ordering::Acquire));
        w.read(&engine, &objects, 1, 7);
        w.write(&engine, &objects, 1, 7);
        w.read(&engine, &objects, 1, 7);
        assert!(!reader.is_finished());
        io.set(NONE);
        assert!(reader.join().unwrap() == content(0, page, 0));
    });
    engine.shutdown().unwrap();
}

#[test]
fn damaged_slot_is_read_from_the_source() {
    let w = Fixture::new(without_compression());
    let (engine, objects) = w.start();
    w.read_all(&engine, &objects);
    let noise = content(9, 9, 9);
    for at in (1 << 20..TIER_BYTES).step_by(3 * PAGE) {
        w.targets[0].0.write_all_at(&noise, at).unwrap();
    }
    w.read_all(&engine, &objects);
    assert_eq!(engine.check(), Vec::<String>::new());
    assert!(all(&engine)[0].events.damaged > 0);
    engine.shutdown().unwrap();
}

#[test]
fn check_finds_a_key_that_nothing_names() {
    let w = Fixture::new(without_compression());
    let (engine, objects) = w.start();
    w.read_all(&engine, &objects);
    assert_eq!(engine.check(), Vec::<String>::new());
    let mut state = engine.cx.state.lock();
    let on_device = |page| {
        let place = state.pages.index.find(objects[0].slot_index(), page)?;
        let Some(Below::Device(slot)) = state.pages.index.get(place).below() else { return None };
        Some((page, place, slot))
    };
    let (page, place, slot) = (0..PAGES).find_map(on_device).unwrap();
    // Simulates a change of the page without a tombstone.
    state.pages.make_absent(place, 0);
    state.targets.as_mut().unwrap().all[0].kill(slot);
    drop(state);
    let bad = engine.check();
    assert!(bad.len() == 1 && bad[0].contains(&format!("page {page}: nothing names")), "{bad:?}");
    all(&engine)[0].queue_tombstone(objects[0].id(), page, page);
    assert_eq!(engine.check(), Vec::<String>::new());
    engine.shutdown().unwrap();
}
