//! Faults of the burst buffer: failing, full or unreadable targets, clock jumps, changes by other programs,
//! terraceds killed during conflicts.

use super::*;
use crate::Clock;
use std::sync::atomic::AtomicI64;

/// A clock with an offset in ns.
#[derive(Debug, Default)]
pub(super) struct Shifted(pub AtomicI64);

impl Clock for Shifted {
    fn now_ns(&self) -> u64 {
        SystemClock.now_ns()
    }
    fn wall_ns(&self) -> i64 {
        SystemClock.wall_ns() + self.0.load(Ordering::Relaxed)
    }
}

const SECOND: i64 = 1_000_000_000;

fn version(page: u32, times: u32) -> u32 {
    page + times * PAGES as u32
}

/// A terraced stops between its write intent and the write, and changes the source too late. This is a
/// conflict, and acknowledged data stay. If it continues, the source acknowledges later fsyncs, durably.
#[test]
fn write_after_the_end_of_its_intent_is_a_conflict() {
    for goes_on in [false, true] {
        let mut world = with_undestaged_page();
        // The clock ends write intents a second before their writes.
        world.clock.0.store(-6 * SECOND, Ordering::Relaxed);
        world.engine.flush(&world.objects[0], 0..u64::MAX).unwrap();
        if goes_on {
            world.write(0, 3, 1);
            world.fsync(0);
            assert_eq!(world.target_fsyncs, 1, "the source has answered");
        }
        world.engine.halt();
        world.medium.power_cut(&mut Rng::new(3));
        world.io.power_cut(&mut Rng::new(3));
        world.clock.0.store(0, Ordering::Relaxed);
        let kept = if goes_on { vec![] } else { vec![Conflict::Changed] };
        assert_eq!(world.restart(Some(2)), (0, kept), "goes on: {goes_on}");
        if !goes_on {
            assert_eq!(world.replay(world.objects[0].id(), Decision::Write), Replayed::Written(1));
        }
        world.look("after the stop");
    }
}

/// Write intents use this machine's clock, files the source's. If they differ, the source answers fsyncs.
#[test]
fn source_with_another_clock_answers_itself() {
    for shift in [-10 * SECOND, 10 * SECOND] {
        let mut world = Fixture::new(8);
        world.clock.0.store(shift, Ordering::Relaxed);
        for _ in 0..3 {
            world.write(0, 0, 1);
            world.fsync(0);
        }
        assert_eq!((world.target_fsyncs, world.dirty(0)), (0, 0), "{shift}");
        world.clock.0.store(0, Ordering::Relaxed);
        world.write(0, 0, 1);
        world.fsync(0);
        world.write(0, 0, 1);
        world.fsync(0);
        assert_eq!(world.target_fsyncs, 1, "the clock is right");
    }
}

/// Changes of metadata through the mount are no conflict.
#[test]
fn change_of_mode_by_the_run_is_no_conflict() {
    use std::os::unix::fs::PermissionsExt;
    for announced in [true, false] {
        let mut world = with_undestaged_page();
        if announced {
            world.engine.change_metadata(&world.objects[0]);
        }
        world.io.file(0).set_permissions(std::fs::Permissions::from_mode(0o640)).unwrap();
        let (written, conflicts) = world.power_cut(&mut Rng::new(4));
        match announced {
            true => assert_eq!((written, conflicts), (1, vec![])),
            false => assert_eq!((written, conflicts), (0, vec![Conflict::Changed])),
        }
        if announced {
            world.look("after the cut");
        }
    }
}

/// Pages kept at a start stay kept by later terraceds of the mount, also while the file is open.
#[test]
fn conflict_outlives_a_killed_terraced() {
    let mut world = with_undestaged_page();
    world.engine.halt();
    world.medium.power_cut(&mut Rng::new(1));
    world.io.file(0).write_all_at(&content(77), 0).unwrap();
    assert_eq!(world.restart(Some(2)), (0, vec![Conflict::Changed]));
    let id = world.objects[0].id();
    world.write(0, 3, 1);
    world.write(1, 0, 1);
    world.fsync(1);
    world.write(1, 0, 1);
    world.fsync(1);
    assert_eq!(world.target_fsyncs, 2, "of the other file");
    world.next_terraced();
    let undestaged = world.engine.undestaged().unwrap();
    assert_eq!(
        undestaged.iter().map(|undestaged| (undestaged.file, undestaged.pages)).collect::<Vec<_>>(),
        [(id, 1)]
    );
    assert!(matches!(world.replay(id, Decision::Keep), Replayed::Kept(_)));
    world.fsync(0);
    world.engine.shutdown().unwrap();
    assert_eq!(world.restart(Some(3)), (0, vec![Conflict::Changed]));
    assert_eq!(world.replay(id, Decision::Write), Replayed::Written(1));
    assert!(source_page(&world) == content(version(1, 1)));
}

/// The next terraced writes back dirty pages at once, after the target's scan and a write intent.
#[test]
fn next_terraced_writes_nothing_without_an_intent() {
    for seed in 0..4 {
        let mut world = with_undestaged_page();
        world.medium.set_hook(|call| {
            if matches!(call, SimCall::Read { .. }) {
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        });
        world.next_terraced();
        wait_until("the source has all", || world.dirty(0) == 0);
        world.medium.clear_hook();
        assert_eq!(world.power_cut(&mut Rng::new(seed)).1, []);
        world.look("after the cut");
    }
}

/// While a conflict waits for a decision the log fills up behind it. Programs are not blocked.
#[test]
fn unresolved_conflict_stops_no_file() {
    let mut world = Fixture::new(5);
    for _ in 0..2 {
        world.write(0, 0, 1);
        world.fsync(0);
    }
    world.engine.halt();
    world.medium.power_cut(&mut Rng::new(1));
    world.io.file(0).write_all_at(&content(77), 0).unwrap();
    assert_eq!(world.restart(Some(2)), (0, vec![Conflict::Changed]));
    (world.now[0][0], world.may_be[0][0]) = (77, [77].into());
    let rounds = 30;
    for _ in 0..rounds {
        for file in 0..FILES {
            world.write(file, 0, PAGES);
            world.fsync(file);
        }
    }
    world.check();
    assert!((1..rounds).contains(&world.target_fsyncs), "{}", world.target_fsyncs);
    let (_, conflicts) = world.power_cut(&mut Rng::new(2));
    assert_eq!(conflicts, [Conflict::Changed]);
    world.look("after the cut");
    assert_eq!(world.replay(world.objects[0].id(), Decision::Discard), Replayed::Dropped);
}

/// The source has acknowledged newer pages, and the target has no room for the destage-complete record.
/// Before that record the target gets no undestaged page of the file.
#[test]
fn target_without_room_gives_back_no_old_page() {
    let mut world = Fixture::new(40);
    // In more regions than one call reclaims.
    for _ in 0..8 {
        world.write(0, 0, PAGES);
        world.fsync(0);
    }
    let target_fsyncs = world.target_fsyncs;
    let exhaust = |of: &mut crate::state::device::Device| {
        let pages = of.log.region_pages();
        while of.log.reserve(1, pages, pages - 1).is_some() {}
    };
    on_target(&mut world.engine.cx.state.lock(), 0, exhaust);
    world.write(0, 0, PAGES);
    world.fsync(0);
    assert_eq!((world.target_fsyncs, world.dirty(0)), (target_fsyncs, 0), "the source has answered");
    wait_until("the target takes pages again", || {
        world.write(0, 3, 1);
        world.fsync(0);
        world.target_fsyncs > target_fsyncs
    });
    let (_, conflicts) = world.power_cut(&mut Rng::new(6));
    assert_eq!(conflicts, []);
    world.look("after the cut");
}

/// The daily write budget of a target includes undestaged pages: beyond it the source answers.
#[test]
fn write_budget_bounds_undestaged_pages() {
    // A page per second; up to a minute's budget is saved.
    let mut world = Fixture::with(40, |config| config.devices[0].write_budget = Some(86_400 * PAGE as u64));
    for _ in 0..20 {
        world.write(0, 0, PAGES);
        world.fsync(0);
    }
    assert!((1..=6).contains(&world.target_fsyncs), "{} times 12 pages", world.target_fsyncs);
    world.check();
}

#[test]
fn unreadable_target_that_may_have_undestaged_is_reported() {
    for has_undestaged in [true, false] {
        let mut world = with_undestaged_page();
        if !has_undestaged {
            world.engine.shutdown().unwrap();
        }
        world.engine.halt();
        let superblocks = 2 * PAGE as u64;
        world.medium.set_hook(move |call| match call {
            SimCall::Read { at, .. } if at >= superblocks => Err(io::Error::from_raw_os_error(libc::EIO)),
            _ => Ok(()),
        });
        assert_eq!(world.restart(Some(2)), (0, vec![]));
        assert_eq!(world.engine.undestaged().is_err(), has_undestaged);
    }
}

/// A caller that waits for a shared flush gets its failure, even if the next flush succeeds.
#[test]
fn flush_that_fails_fails_for_all() {
    let world = Fixture::new(8);
    let device = world.engine.cx.devices.get(0).unwrap();
    let (fails, entered) = (AtomicBool::new(true), Arc::new(AtomicBool::new(false)));
    let inside = entered.clone();
    world.medium.set_hook(move |call| match call {
        SimCall::Flush if fails.swap(false, Ordering::Relaxed) => {
            inside.store(true, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(50));
            Err(io::Error::from_raw_os_error(libc::EIO))
        }
        _ => Ok(()),
    });
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| device.flush().is_err());
        wait_until("the flush", || entered.load(Ordering::Relaxed));
        (scope.spawn(|| device.flush().is_err()).join().unwrap(), first.join().unwrap())
    });
    assert!(first && second && device.flush().is_err());
}

/// Lives with changes by other programs right after the power cut. All changes stay, and a start reports the
/// files with undestaged pages and keeps the pages.
#[test]
fn changes_after_random_power_cuts_stay_and_nothing_is_lost() {
    let first = seed("changes_after_random_power_cuts_stay_and_nothing_is_lost");
    let rounds = if std::env::var_os("TERRACE_SOAK").is_some() { 200 } else { 10 };
    let mut kept = 0;
    for round in 0..rounds {
        kept += changed_after_a_cut(first + round);
    }
    assert!(kept > rounds / 10, "{kept} conflicts");
}

fn changed_after_a_cut(seed: u64) -> u64 {
    let rng = &mut Rng::new(seed);
    let mut world = Fixture::new(*rng.pick(&[5, 8, 40]));
    for _ in 0..10 + rng.below(50) {
        world.step(rng);
    }
    for _ in 0..rng.below(4) {
        world.write(0, rng.index(PAGES), 3);
        world.fsync(0);
    }
    if rng.chance(30) {
        world.engine.flush(&world.objects[0], 0..u64::MAX).unwrap();
    }
    world.check();
    world.engine.halt();
    world.medium.power_cut(rng);
    world.io.power_cut(rng);
    // File times have the resolution of the kernel's ticks.
    std::thread::sleep(Duration::from_millis(10));
    world.boots = SystemClock.wall_ns();
    std::thread::sleep(Duration::from_millis(10));
    let words = |world: &Fixture| {
        let mut all = vec![0; PAGES * PAGE];
        world.io.file(0).read_exact_at(&mut all, 0).unwrap();
        all.chunks(PAGE).map(|page| u32::from_le_bytes(page[..4].try_into().unwrap())).collect::<Vec<u32>>()
    };
    let (before, theirs) = (words(&world), u32::MAX);
    world.io.file(0).write_all_at(&content(theirs).repeat(PAGES), 0).unwrap();
    let (_, conflicts) = world.restart(Some(2));
    if world.began.elapsed() > LIFE_MAX {
        return 0;
    }
    let (id, undestaged) = (world.objects[0].id(), world.engine.undestaged().unwrap());
    assert!(undestaged.iter().all(|undestaged| undestaged.file == id), "seed {seed}: {undestaged:?}");
    assert_eq!(conflicts, vec![Conflict::Changed; undestaged.len()], "seed {seed}");
    assert_eq!(words(&world), [theirs; PAGES], "seed {seed}: overwritten");
    if !undestaged.is_empty() {
        assert!(matches!(world.replay(id, Decision::Write), Replayed::Written(_)), "seed {seed}");
    }
    // Acknowledged data are in the source or on the target.
    for (page, (after, before)) in words(&world).into_iter().zip(before).enumerate() {
        let version = if after == theirs { before } else { after };
        let may_be = &world.may_be[0][page];
        assert!(may_be.contains(&version), "seed {seed}: page {page} is {version}, not of {may_be:?}");
        world.may_be[0][page] = [after].into();
    }
    world.look(&format!("seed {seed}"));
    undestaged.len() as u64
}

/// Pages on a failed target do not overwrite data that the source has acknowledged since.
#[test]
fn target_that_fails_gives_back_no_old_page() {
    let permitted =
        if std::env::var_os("TERRACE_SOAK").is_some() { [false, true].as_slice() } else { &[false] };
    for fails in [SimCall::Flush, SimCall::Write { at: 0, len: 0 }] {
        for permitted in permitted {
            let mut world = with_undestaged_page();
            if *permitted {
                world.engine.flush(&world.objects[0], 0..u64::MAX).unwrap();
            }
            let kind = std::mem::discriminant(&fails);
            world.medium.set_hook(move |call| match std::mem::discriminant(&call) == kind {
                true => Err(io::Error::from_raw_os_error(libc::EIO)),
                false => Ok(()),
            });
            world.write(0, 0, 2);
            world.fsync(0);
            assert_eq!(world.target_fsyncs, 1, "{fails:?}: the source has answered");
            assert!(source_page(&world) == content(world.now[0][0]));
            world.engine.halt();
            world.medium.clear_hook();
            let (written, conflicts) = world.power_cut(&mut Rng::new(5));
            assert_eq!(
                (written, conflicts),
                (0, vec![Conflict::Changed]),
                "{fails:?}, permitted: {permitted}"
            );
            world.look("after the failure");
        }
    }
}

/// The undestaged pages of a failed target are written to the source at once.
#[test]
fn failed_target_has_no_undestaged_pages_soon() {
    let mut world = with_undestaged_page();
    world.medium.set_hook(|call| match call {
        SimCall::Read { .. } => Ok(()),
        _ => Err(io::Error::from_raw_os_error(libc::EIO)),
    });
    for _ in 0..2 {
        world.write(1, 0, 1);
        world.fsync(1);
    }
    wait_until("the source has all", || world.dirty(0) == 0);
    assert!(source_page(&world) == content(version(1, 1)));
}

/// More pages are synced than the target has room for, faster than writeback destages them.
#[test]
fn full_target_has_the_source_answer() {
    let mut world = Fixture::new(5);
    let rounds = 30;
    for _ in 0..rounds {
        world.write(0, 0, PAGES);
        world.fsync(0);
    }
    assert!((2..rounds).contains(&world.target_fsyncs), "{} of {rounds}", world.target_fsyncs);
    world.check();
    let (_, conflicts) = world.power_cut(&mut Rng::new(3));
    assert_eq!(conflicts, []);
    world.look("after the cut");
}

/// A deleted file stays undestaged until the deletion is durable in its file system.
#[test]
fn deleted_file_stays_undestaged_until_the_source_is_synced() {
    let world = with_undestaged_page();
    let id = world.objects[0].id();
    world.engine.discard_object(id);
    let device = world.engine.cx.devices.get(0).unwrap();
    destage_due(&world.engine.cx, &device);
    let has_undestaged =
        || on_target(&mut world.engine.cx.state.lock(), 0, |of| of.undestaged.has(id)).unwrap();
    assert!(has_undestaged(), "the source's root is not known");
    let dir = File::open("/var/tmp").unwrap();
    world.engine.set_source_root(std::os::fd::AsFd::as_fd(&dir)).unwrap();
    destage_due(&world.engine.cx, &device);
    assert!(!has_undestaged());
}
