//! Additions, removals and resizes of targets under readers, with kills of the daemon.

use super::testing::{
    FILES, Fixture, PAGE, PAGES, Troubled, all, content, device_config, device_pages, target,
    without_compression,
};
use crate::{Engine, SegmentHandles};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use terrace_io::BlockingIo;
use terrace_policy::device::log::REGIONS_MIN;
use terrace_shm::layout::Header;
use terrace_testkit::rng::Rng;
use terrace_testkit::wait::wait_until;
use terrace_tier::DeviceConfig;
use terrace_tier::TargetTable;
use terrace_tier::{FileMedium, Geometry, Superblock, superblock};

const MIB: u64 = 1 << 20;
/// Distance of the targets' region numbers, which leaves room for growth.
const APART: u32 = 1000;

fn levels(engine: &Engine, more: Option<(usize, u8)>) -> Vec<(usize, u8)> {
    let of = |device: &crate::state::device::Device| (device.config.number, device.config.level);
    all(engine).iter().map(of).chain(more).collect()
}

/// Adds target number `n` of the fixture to its tier.
fn add(w: &Fixture, engine: &Engine, n: usize) {
    let config = device_config(n, &w.targets[n], n as u32 * APART);
    let table = Arc::new(TargetTable::create(&config).unwrap());
    engine.add_target(config.clone(), table, &levels(engine, Some((n, config.level)))).unwrap();
    w.scanned(engine);
}

fn remove(engine: &Engine, n: usize) {
    let left: Vec<_> = levels(engine, None).into_iter().filter(|(number, _)| *number != n).collect();
    engine.remove_target(n, &left).unwrap();
}

fn superblock_of(file: &File) -> Superblock {
    let medium = FileMedium::new(file.as_raw_fd(), Arc::new(BlockingIo::default()), MIB);
    match superblock::find(&medium).unwrap() {
        superblock::Found::Ours(found) => found,
        other => panic!("{other:?}"),
    }
}

fn config_of(engine: &Engine, n: usize) -> DeviceConfig {
    all(engine).iter().find(|device| device.config.number == n).unwrap().config.clone()
}

fn resize(w: &Fixture, engine: &Engine, n: usize, regions: u32) {
    let before = config_of(engine, n);
    let geometry = Geometry::new(before.region_bytes as u32, regions).unwrap();
    let file = &w.targets[n].0;
    if regions > before.regions {
        file.set_len(geometry.bytes()).unwrap();
    }
    let config = DeviceConfig { regions, bytes: geometry.bytes(), ..before };
    engine.resize_target(&config).unwrap();
    file.set_len(geometry.bytes()).unwrap();
    assert_eq!(superblock_of(file).geometry, geometry);
}

fn agrees(engine: &Engine) {
    assert_eq!(engine.check(), Vec::<String>::new());
}

fn world(targets: &[(u64, u8)]) -> Fixture {
    Fixture::with(without_compression(), targets)
}

/// Creates further targets of the fixture, which the engine does not start with.
fn later(w: &mut Fixture, targets: &[(u64, u8)]) {
    w.targets.extend(targets.iter().map(|(bytes, level)| (target(*bytes), *level)));
}

#[test]
fn targets_come_and_go_under_readers() {
    let mut w = world(&[(12 * MIB, 0)]);
    let (engine, objects) = w.start_on(Troubled::of(&w));
    later(&mut w, &[(10 * MIB, 0), (24 * MIB, 1)]);
    let mut rng = Rng::new(21);
    for round in 0..4 {
        w.work(&engine, &objects, &mut rng, 2_000, 10);
        let (done, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let (w, engine, objects, done, reads) = (&w, &engine, &objects, &done, &reads);
                scope.spawn(move || {
                    let mut rng = Rng::new(100 * round + seed);
                    while !done.load(Ordering::Relaxed) {
                        w.read(engine, objects, rng.below(FILES), rng.below(PAGES / 3));
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let read_on = |more: u64| {
                let until = reads.load(Ordering::Relaxed) + more;
                wait_until("readers", || reads.load(Ordering::Relaxed) >= until);
            };
            add(&w, &engine, 1);
            read_on(2_000);
            add(&w, &engine, 2);
            read_on(2_000);
            let regions = config_of(&engine, 1).regions;
            resize(&w, &engine, 1, regions + 7);
            read_on(2_000);
            resize(&w, &engine, 1, REGIONS_MIN + 1);
            read_on(1_000);
            resize(&w, &engine, 1, regions);
            read_on(1_000);
            remove(&engine, 1);
            read_on(500);
            remove(&engine, 2);
            read_on(500);
            done.store(true, Ordering::Relaxed);
        });
        agrees(&engine);
        assert_eq!(all(&engine).len(), 1);
    }
    assert!(device_pages(&engine) > 1_000, "{}", device_pages(&engine));
    // Removes the last target, too.
    remove(&engine, 0);
    w.work(&engine, &objects, &mut rng, 3_000, 10);
    assert!(all(&engine).is_empty());
    agrees(&engine);
    add(&w, &engine, 0);
    w.work(&engine, &objects, &mut rng, 3_000, 10);
    agrees(&engine);
    engine.shutdown().unwrap();
}

#[test]
fn removed_target_gives_its_pages_to_others() {
    let mut w = world(&[(16 * MIB, 0)]);
    let (engine, objects) = w.start_on(Troubled::of(&w));
    w.read_all(&engine, &objects);
    w.work(&engine, &objects, &mut Rng::new(22), 4_000, 0);
    let before = device_pages(&engine);
    later(&mut w, &[(48 * MIB, 1)]);
    add(&w, &engine, 1);
    let source_reads = engine.stats().fuse.misses + engine.stats().preload.misses;
    remove(&engine, 0);
    let row = engine.stats().tiers.pop().unwrap();
    assert!(row.pages * 10 > before * 8, "{} of {before}: {row:?}", row.pages);
    assert!(row.demoted >= row.pages && before > 2_000, "{before} {row:?}");
    w.work(&engine, &objects, &mut Rng::new(22), 2_000, 0);
    assert!(engine.stats().tiers.pop().unwrap().hits > 100, "{source_reads}");
    agrees(&engine);
    engine.shutdown().unwrap();
}

#[test]
fn resized_target_keeps_its_pages_over_a_restart() {
    let mut w = world(&[(24 * MIB, 0)]);
    let (engine, objects) = w.start_on(Troubled::of(&w));
    w.read_all(&engine, &objects);
    let (before, regions) = (device_pages(&engine), config_of(&engine, 0).regions);
    resize(&w, &engine, 0, regions + 20);
    assert_eq!(device_pages(&engine), before, "nothing is lost");
    w.read_all(&engine, &objects);
    w.read_all(&engine, &objects);
    let grown = device_pages(&engine);
    assert!(grown > before + 10 * 200, "{grown} after {before}");
    std::thread::sleep(Duration::from_millis(30));
    engine.shutdown().unwrap();
    let (engine, objects) = w.start_on(Troubled::of(&w));
    wait_until("parked pages", || all(&engine).iter().all(|device| device.parked.is_empty()));
    let found = device_pages(&engine);
    assert!(found * 10 >= grown * 9, "{found} of {grown}");
    resize(&w, &engine, 0, regions / 2);
    assert!(device_pages(&engine) <= u64::from(regions / 2) * 256);
    w.work(&engine, &objects, &mut Rng::new(23), 3_000, 10);
    agrees(&engine);
    engine.flush_all(true).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    engine.shutdown().unwrap();
    let (engine, objects) = w.start_on(Troubled::of(&w));
    w.read_all(&engine, &objects);
    agrees(&engine);
    engine.shutdown().unwrap();
}

/// Kills at a random moment of each kind of change. The next engine follows the superblocks, and a target
/// under removal is gone.
#[test]
fn daemon_killed_amid_a_change_leaves_no_wrong_page() {
    for (n, killed_amid) in ["removal", "growth", "cut"].into_iter().enumerate() {
        let mut w = world(&[(12 * MIB, 0), (16 * MIB, 0)]);
        let mut config = w.config();
        config.devices[1].first_region = APART;
        let handles = Arc::new(SegmentHandles::create(&config).unwrap());
        let mut rng = Rng::new(24 + n as u64);
        let (engine, objects) = w.start_on_files(config.clone(), handles.clone());
        w.work(&engine, &objects, &mut rng, 5_000, 10);
        let (first, tables) = (config.devices[0].clone(), handles.tables());
        let regions = match killed_amid {
            "growth" => first.regions + 6,
            _ => first.regions / 2,
        };
        let geometry = Geometry::new(first.region_bytes as u32, regions).unwrap();
        std::thread::scope(|scope| {
            let engine = &engine;
            let change = scope.spawn(|| match killed_amid {
                "removal" => engine.remove_target(0, &[(1, 0)]).map(drop),
                _ => {
                    let file = &w.targets[0].0;
                    file.set_len(geometry.bytes().max(first.bytes)).unwrap();
                    let config = DeviceConfig { regions, bytes: geometry.bytes(), ..first.clone() };
                    engine.resize_target(&config).map(drop)
                }
            });
            std::thread::sleep(Duration::from_micros(rng.below(3_000)));
            engine.cx.stopping.store(true, Ordering::Release);
            drop(change.join().unwrap());
        });
        engine.halt();
        drop((objects, engine));
        let mut config = w.config();
        config.devices[1].first_region = APART;
        if killed_amid == "removal" {
            config.devices.remove(0);
            handles.set_tables(vec![tables[1].clone()]);
        } else {
            let table = |(config, table): (&DeviceConfig, &Arc<TargetTable>)| {
                let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
                TargetTable::take_over(config, copy(table.fd()), copy(table.read_only()))
                    .map(Arc::new)
                    .unwrap()
            };
            handles.set_tables(config.devices.iter().zip(&tables).map(table).collect());
        }
        let header: &Header = handles.segment.header();
        let changes = header.targets.load(Ordering::Relaxed);
        let (engine, objects) = w.start_after_a_kill(config, handles.clone());
        assert!(header.targets.load(Ordering::Relaxed) > changes, "clients ask again");
        w.read_all(&engine, &objects);
        w.work(&engine, &objects, &mut rng, 2_000, 10);
        agrees(&engine);
        engine.shutdown().unwrap();
    }
}

/// Memory has pages from before the change: no target may keep them under the file's new identity.
#[test]
fn file_changed_while_no_daemon_runs_is_read_anew() {
    let w = world(&[(8 * MIB, 0)]);
    let config = w.config();
    let handles = Arc::new(SegmentHandles::create(&config).unwrap());
    let (engine, objects) = w.start_on_files(config.clone(), handles.clone());
    (0..8).for_each(|page| (0..2).for_each(|file| w.read(&engine, &objects, file, page)));
    engine.cx.stopping.store(true, Ordering::Release);
    engine.halt();
    drop((objects, engine));
    w.sources[0].write_all_at(b"changed", 0).unwrap();
    std::thread::sleep(crate::file::identity::SETTLES);
    let (engine, objects) = w.start_after_a_kill(config, handles);
    let believed = |file: usize| crate::tier::park::valid_identity(&engine.cx, &objects[file]).is_some();
    assert!(!believed(0) && believed(1));
}

#[test]
fn parked_pages_go_down_with_their_region() {
    let w = world(&[(8 * MIB, 0), (64 * MIB, 1)]);
    let (engine, mut objects) = w.start_on(Troubled::of(&w));
    (0..PAGES / 4).for_each(|page| w.read(&engine, &objects, 2, page));
    (0..PAGES).for_each(|page| w.read(&engine, &objects, 0, page));
    (0..PAGES / 4).for_each(|page| w.read(&engine, &objects, 2, page));
    std::thread::sleep(Duration::from_millis(30));
    engine.forget_object(objects[2].id()).unwrap();
    let parked_on = |level: u8| -> usize {
        let all = all(&engine);
        let parked = all
            .iter()
            .filter(|device| device.config.level == level)
            .flat_map(|device| device.parked.values());
        parked.map(|parked| parked.pages.len()).sum()
    };
    let (above, below) = (parked_on(0), parked_on(1));
    assert!(above > 50, "{above} {below}");
    for _ in 0..3 {
        (0..2).for_each(|file| (0..PAGES).for_each(|page| w.read(&engine, &objects, file, page)));
    }
    let now = (parked_on(0), parked_on(1));
    assert!(now.0 < above / 2 && now.1 > below + above / 4, "{now:?} after {above}, {below}");
    agrees(&engine);
    // A later publication of the file finds them with the right content.
    objects[2] = engine.object(102, w.sources[2].as_raw_fd(), PAGES * PAGE as u64).unwrap();
    wait_until("parked pages", || all(&engine).iter().all(|device| device.parked.is_empty()));
    (0..PAGES).for_each(|page| w.read(&engine, &objects, 2, page));
    assert!(content(2, 0, 0) != content(2, 1, 0));
    agrees(&engine);
    engine.shutdown().unwrap();
}
