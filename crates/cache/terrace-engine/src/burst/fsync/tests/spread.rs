//! Bursts of dirty pages at an fsync, shared between the target and the source.

use super::*;
use crate::config::SourceShare;
use crate::tier::append::Content;
use std::sync::atomic::Ordering;

/// In half of the runs the source takes all that it may, of bursts of a few pages.
pub(super) fn often(config: &mut EngineConfig, seed: u64) {
    if seed.is_multiple_of(2) {
        (config.source_share, config.tier_ahead_min, config.tier_fsync_min) = (SourceShare::Half, 2, 1);
    }
}

/// A fixture with half of the possible pages for the source.
fn half() -> Fixture {
    Fixture::with(8, |config| (config.source_share, config.tier_fsync_min) = (SourceShare::Half, 1))
}

fn written(world: &Fixture) -> u64 {
    world.io.written.load(Ordering::Relaxed) / PAGE as u64
}

/// Simulates growth: the base version is void, and a commit is due.
fn change(world: &Fixture) {
    change_metadata(&world.engine.cx, &world.objects[0]);
}

/// A fixture with a page on its target and a due commit.
fn half_due() -> Fixture {
    let mut world = half();
    world.write(0, 0, 1);
    world.fsync(0);
    change(&world);
    world
}

/// After a power cut, an older version of a page on the target would overwrite the source's.
#[test]
fn source_gets_only_pages_that_the_target_has_never_had() {
    let mut world = half();
    world.write(0, 0, 6);
    world.fsync(0);
    assert_eq!((world.target_fsyncs, written(&world)), (1, 0));
    change(&world);
    world.write(0, 0, PAGES);
    put_ahead(&world.engine.cx, &world.objects[0]);
    assert_eq!(written(&world), 3, "half of the six that are new to it");
    assert_eq!(world.dirty(0), PAGES as u64 - 3);
    world.fsync(0);
    assert_eq!((world.target_fsyncs, written(&world)), (2, 3));
    let (pages, conflicts) = world.power_cut(&mut Rng::new(4));
    assert_eq!((pages, conflicts), (PAGES as u64 - 3, vec![]));
    world.look("after the cut");
}

/// Fsyncs of such a file need no commit of the source. The death of all processes leaves no conflict.
#[test]
fn file_with_a_base_is_not_shared() {
    let mut world = half();
    world.write(0, 0, 1);
    world.fsync(0);
    world.write(0, 4, 8);
    put_ahead(&world.engine.cx, &world.objects[0]);
    assert_eq!((written(&world), world.dirty(0)), (0, 9));
    assert!(world.objects[0].burst.lock().base_version.is_some());
}

/// The page was rewritten during its write to the target, so the target has an older version of it, too.
#[test]
fn page_written_during_its_way_to_the_target_is_not_the_sources() {
    let mut world = with_undestaged_page();
    let (cx, o) = (&world.engine.cx, world.objects[0].clone());
    let engine = world.engine.clone();
    let device = cx.devices.get(0).unwrap();
    engine.write(&o, 3 * PAGE as u64, &content(50)).unwrap();
    let in_flight = writeback::take_still_dirty(cx, &o, &[3]);
    engine.write(&o, 3 * PAGE as u64, &content(51)).unwrap();
    let from = cx.handles.segment.frame(in_flight[0].frame);
    let taken = intent::append_undestaged(cx, &device, &[Content { object: o.id(), page: 3, from }], &[]);
    assert_eq!(taken, Some(1));
    cx.state.lock().end_target_write(&o, 3, in_flight[0].frame, true, 0);
    assert!(o.dirty.lock().superseded.contains(&3));
    world.may_be[0][3].extend([50, 51]);
    world.now[0][3] = 51;
    world.fsync(0);
    assert!(o.dirty.lock().superseded.is_empty(), "it has the newest");
    drop(o);
    world.power_cut(&mut Rng::new(4));
    world.look("after the cut");
}

/// The target takes the pages that the source failed to take. No error is reported.
#[test]
fn share_that_the_source_does_not_take_is_the_targets() {
    let mut world = half_due();
    world.write(0, 4, 8);
    world.io.failing.store(true, Ordering::Relaxed);
    put_ahead(&world.engine.cx, &world.objects[0]);
    assert_eq!(world.dirty(0), 9);
    world.fsync(0);
    assert_eq!((world.target_fsyncs, world.dirty(0)), (2, 9));
    world.io.failing.store(false, Ordering::Relaxed);
    world.check();
    assert_eq!(world.power_cut(&mut Rng::new(4)), (9, vec![]));
    world.look("after the cut");
}

/// The target fails meanwhile: all pages go to the source.
#[test]
fn target_that_fails_beside_a_share_loses_nothing() {
    let mut world = half_due();
    world.write(0, 0, PAGES);
    world.medium.set_hook(|call| match call {
        SimCall::Write { .. } => Err(io::Error::from_raw_os_error(libc::EIO)),
        _ => Ok(()),
    });
    put_ahead(&world.engine.cx, &world.objects[0]);
    world.fsync(0);
    assert_eq!((world.target_fsyncs, world.dirty(0)), (1, 0));
    world.check();
}

#[test]
fn source_takes_a_part_if_it_is_fast_enough() {
    const PAGES: usize = 600;
    for (source_ns, shares) in [(1_000, true), (100_000_000, false)] {
        let world =
            Fixture::with(64, |config| (config.dirty_background_ratio, config.dirty_ratio) = (70, 80));
        let (engine, o) = (&world.engine, &world.objects[0]);
        engine.truncate(o, (PAGES * PAGE) as u64).unwrap();
        // A base version, and a page on the target.
        let sync = |data: u8, pages: usize| {
            engine.write(o, 0, &vec![data; pages * PAGE]).unwrap();
            engine.fsync(o, false, &o.error_cursor()).unwrap();
        };
        sync(1, 1);
        sync(2, 1);
        change(&world);
        let before = written(&world);
        let (speeds, now) = (&engine.cx.speeds, engine.cx.clock.now_ns());
        speeds.note_target(1, 1_000_000);
        speeds.note_source(256, 256 * source_ns, now);
        speeds.note_commit(1);
        engine.write(o, 0, &vec![3; PAGES * PAGE]).unwrap();
        put_ahead(&engine.cx, o);
        assert_eq!(written(&world) > before, shares, "{source_ns} ns a page");
        engine.fsync(o, false, &o.error_cursor()).unwrap();
        assert_eq!(engine.cx.state.lock().dirty.totals.dirty + written(&world) - before, PAGES as u64);
    }
}
