//! The device tier under mounts: crashes, restarts, changes in the source while unmounted, and a target that
//! loses its content. Every byte is compared with the source.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use terrace_api::stats::StatReport;
use terrace_api::tiers::{SERVING, TierKind, TierRow};
use terrace_testkit::wait::holds_within;
use terrace_tests::rng::{Rng, seed};
use terrace_tests::{Side, SmallDisk, TestDir, TestMount, amount, process, terrace};

const PAGE: u64 = 4096;
/// Pages of each file: one larger than memory, some that fit into one batch, one that ends within a page.
const FILES: [(&str, u64); 5] = [
    ("large", 8192 * PAGE),
    ("middle", 512 * PAGE),
    ("small", 16 * PAGE),
    ("odd", 15 * PAGE + 77),
    ("tiny", 9),
];

/// A test mount and its tier, which survives it. The mount is the first field, so it ends before its tier is
/// removed.
struct Fixture {
    mount: TestMount,
    tier: PathBuf,
    _dir: TestDir,
}

impl Fixture {
    fn new(test: &str, side: Side) -> Fixture {
        let dir = TestDir::new(&format!("{test}-tier"));
        let tier = dir.path().join("tier");
        Fixture::on(test, side, tier, dir)
    }

    /// The same with another place of the tier.
    fn on(test: &str, side: Side, tier: PathBuf, dir: TestDir) -> Fixture {
        Fixture::over(test, side, &[(tier, 64)], dir)
    }

    /// A test mount with several tiers of the given MiB.
    fn over(test: &str, side: Side, tiers: &[(PathBuf, u64)], dir: TestDir) -> Fixture {
        let mut options = vec!["--memory".to_owned(), "16MiB".to_owned()];
        for (path, mib) in tiers {
            options.extend(["--tier".to_owned(), format!("{}:{mib}MiB", path.display())]);
        }
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let mount = TestMount::with(test, side, &options);
        let mut rng = Rng::new(1);
        for (name, bytes) in FILES {
            let mut content = vec![0; bytes as usize];
            content
                .chunks_mut(8)
                .for_each(|c| c.copy_from_slice(&rng.below(u64::MAX).to_le_bytes()[..c.len()]));
            fs::write(mount.src().join(name), content).unwrap();
        }
        Fixture { mount, tier: tiers[0].0.clone(), _dir: dir }
    }

    /// Asserts that all files through the mount equal the source.
    #[track_caller]
    fn compare(&self, what: &str) {
        for (name, _) in FILES {
            let is =
                fs::read(self.mount.at().join(name)).unwrap_or_else(|why| panic!("{what}: {name}: {why}"));
            let must = fs::read(self.mount.src().join(name)).unwrap();
            assert_eq!(is.len(), must.len(), "{what}: length of {name}");
            let other = is.chunks(4096).zip(must.chunks(4096)).position(|(is, must)| is != must);
            assert_eq!(other, None, "{what}: a page of {name} is another");
        }
    }

    /// The same by a program that reads whole and partial pages in random order, with and without O_DIRECT,
    /// before and after a fork.
    #[track_caller]
    fn compare_by_program(&self, seed: u64) {
        let script = self.mount.aside().join("read.py");
        fs::write(&script, READ).unwrap();
        let line = format!("python3 {} {} {seed}", script.display(), self.mount.src().display());
        self.mount.shell(&line, 120);
    }

    /// Reads until the device has pages and has served some.
    #[track_caller]
    fn warm(&self) -> TierRow {
        let mut row = TierRow::default();
        for _ in 0..20 {
            self.compare("warming");
            self.compare_by_program(3);
            row = device(&self.mount.stat());
            if row.pages > 1000 && row.hits > 0 {
                return row;
            }
        }
        panic!("the device stays cold: {row:?}");
    }
}

#[track_caller]
fn device(stat: &StatReport) -> TierRow {
    devices(stat).next().unwrap_or_else(|| panic!("no tier on a device: {stat:?}")).clone()
}

/// Rows of the tiers on devices.
pub(crate) fn devices(stat: &StatReport) -> impl Iterator<Item = &TierRow> {
    stat.cache.tiers.iter().filter(|row| row.kind == TierKind::Device)
}

const READ: &str = r#"
import mmap, os, random, sys
source, seed = sys.argv[1], int(sys.argv[2])
child = os.fork()
random.seed(seed + (child == 0))
names = sorted(os.listdir(source))
mine = {n: os.open(n, os.O_RDONLY) for n in names}
direct = {n: os.open(n, os.O_RDONLY | os.O_DIRECT) for n in names}
theirs = {n: os.open(os.path.join(source, n), os.O_RDONLY) for n in names}
buffer = mmap.mmap(-1, 1 << 16)
for _ in range(6000):
    n = random.choice(names + ['large'] * 5)
    pages = os.fstat(theirs[n]).st_size // 4096
    at, skip = 4096 * random.randint(0, pages), random.choice((0, 0, 100))
    length = random.choice((4096, 4096, 1000, 20000))
    must = os.pread(theirs[n], length, at + skip)
    if random.random() < 0.2:
        view = memoryview(buffer)[random.choice((0, 1, 7)):]
        got = os.preadv(direct[n], [view[:length]], at + skip)
        is_ = bytes(view[:got])
    else:
        is_ = os.pread(mine[n], length, at + skip)
    if is_ != must:
        sys.exit(f'{n}: bytes from {at + skip} on are others')
if child == 0:
    os._exit(0)
if os.waitpid(child, 0)[1] != 0:
    sys.exit('the child found other bytes')
"#;

/// Changes some bytes of some files, each change within a page. Sizes stay the same.
fn change(dir: &Path, rng: &mut Rng, times: u64) {
    for _ in 0..times {
        let (name, bytes) = *rng.pick(&FILES);
        let at = rng.below(bytes);
        let file = File::options().write(true).open(dir.join(name)).unwrap();
        file.write_all_at(&rng.below(u64::MAX).to_le_bytes()[..8.min((bytes - at) as usize)], at).unwrap();
        if rng.chance(50) {
            file.sync_all().unwrap();
        }
    }
}

#[test]
fn device_stays_warm_when_terraced_is_killed() {
    let rounds = amount("TERRACE_DEVICE_KILLS", 50, 500);
    let mut rng = Rng::new(seed("device-killed"));
    let fixture = Fixture::new("device-killed", Side::Preload);
    fixture.warm();
    for round in 0..rounds {
        let (before, warm) = (fixture.mount.terraced(), device(&fixture.mount.stat()));
        process::kill(before, libc::SIGKILL);
        if round % 5 == 0 {
            fixture.compare_by_program(round);
        }
        let serves = || fixture.mount.terraced() != before && device(&fixture.mount.stat()).state == SERVING;
        assert!(holds_within(Duration::from_secs(60), serves), "round {round}: {:?}", fixture.mount.stat());
        let stat = fixture.mount.stat();
        let now = device(&stat);
        // A page in memory has no device copy any more: the record of its slot was dropped.
        let compressed = stat.cache.compressed.as_ref().map_or(0, |tier| tier.pages);
        let found = now.pages + stat.cache.memory.pages + compressed;
        assert!(found >= warm.pages / 10 * 9, "round {round}: {found} pages, {now:?} after {warm:?}");
        if rng.chance(30) {
            fixture.compare(&format!("round {round}"));
        }
        change(fixture.mount.at(), &mut rng, 20);
        fixture.mount.terrace("sync", &[]).expect_success();
        fixture.compare(&format!("round {round}, after changes"));
        fixture.mount.check();
    }
    fixture.mount.umount();
}

#[test]
fn changes_behind_a_sleeping_tier_are_seen() {
    let rounds = amount("TERRACE_DEVICE_ROUNDS", 100, 1000);
    let mut rng = Rng::new(seed("device-behind"));
    let fixture = Fixture::new("device-behind", Side::Mount);
    let mut warm = 0;
    for round in 0..rounds {
        if round > 0 {
            fixture.mount.mount();
        }
        fixture.compare(&format!("round {round}"));
        warm += u64::from(device(&fixture.mount.stat()).hits > 0);
        let times = rng.below(30);
        change(fixture.mount.at(), &mut rng, times);
        if rng.chance(50) {
            fixture.mount.terrace("sync", &[]).expect_success();
            fixture.compare(&format!("round {round}, after changes"));
        }
        fixture.mount.check();
        // Both kinds of an instance's end: after a kill, only orderly records are valid.
        if rng.chance(50) {
            fixture.mount.kill_everything(&mut rng);
        } else {
            fixture.mount.umount();
        }
        if rng.chance(60) {
            let times: Vec<_> =
                FILES.iter().map(|(name, _)| fs::metadata(fixture.mount.src().join(name)).unwrap()).collect();
            let changes = 1 + rng.below(10);
            change(fixture.mount.src(), &mut rng, changes);
            for ((name, _), was) in FILES.iter().zip(times) {
                let file = File::options().write(true).open(fixture.mount.src().join(name)).unwrap();
                file.set_modified(was.modified().unwrap()).unwrap();
            }
        }
    }
    println!("{warm} of {rounds} mounts had hits of the device");
    assert!(warm > 0, "no mount was warm");
}

#[test]
fn second_mount_reads_from_the_device() {
    let fixture = Fixture::new("device-warm", Side::Mount);
    // The tier does not trust files younger than two ticks of the clock.
    std::thread::sleep(std::time::Duration::from_millis(100));
    fixture.warm();
    fixture.mount.umount();
    fixture.mount.mount();
    let serves = || device(&fixture.mount.stat()).state == SERVING;
    assert!(holds_within(Duration::from_secs(60), serves), "{:?}", fixture.mount.stat());
    // Random pages first: in a sequential read the source also fills short gaps, and the kernel caches pages
    // already read.
    fixture.compare_by_program(3);
    fixture.compare("second mount");
    let row = device(&fixture.mount.stat());
    assert!(row.hits > 1000, "{row:?}");
    fixture.mount.check();
    fixture.mount.umount();
}

/// Each read verifies the content of the target.
#[test]
fn target_overwritten_or_cut_under_a_mount_shows_nothing() {
    for how in ["garbage", "zeros", "cut"] {
        let fixture = Fixture::new(&format!("device-{how}"), Side::Preload);
        fixture.warm();
        let target = File::options().write(true).open(&fixture.tier).unwrap();
        let bytes = target.metadata().unwrap().len();
        match how {
            "cut" => target.set_len(1 << 20).unwrap(),
            _ => {
                let byte = if how == "zeros" { 0 } else { 0xa5 };
                (0..bytes >> 20).for_each(|mib| target.write_all_at(&[byte; 1 << 20], mib << 20).unwrap());
            }
        }
        for round in 0..3 {
            fixture.compare_by_program(round);
            fixture.compare(how);
        }
        fixture.mount.check();
        fixture.mount.umount();
    }
}

#[test]
fn memory_resized_beside_a_tier_loses_nothing() {
    let fixture = Fixture::new("device-resize", Side::Preload);
    fixture.warm();
    for (round, size) in ["48MiB", "16MiB", "24MiB", "16MiB"].into_iter().enumerate() {
        fixture.mount.terrace("resize", &[size]).expect_success();
        fixture.compare_by_program(round as u64);
        fixture.mount.terrace("drop-caches", &[]).expect_success();
        fixture.compare(size);
        let memory = fixture.mount.stat().cache.memory;
        assert!(memory.used_bytes <= memory.limit_bytes, "{memory:?}");
        fixture.mount.check();
    }
    fixture.mount.umount();
}

/// A program without write permission also reads device pages through the preload path.
#[test]
fn reader_without_rights_gets_pages_of_the_device() {
    if !terrace_tests::is_root() {
        return;
    }
    let fixture = Fixture::new("device-reader", Side::Preload);
    fixture.warm();
    let script = fixture.mount.aside().join("read.py");
    let before = device(&fixture.mount.stat()).hits;
    for seed in 0..3 {
        let mut command = fixture.mount.command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3"]);
        command.arg(&script).arg(fixture.mount.src()).arg(seed.to_string());
        process::run(&mut command, 120).expect_success();
    }
    assert!(device(&fixture.mount.stat()).hits > before, "{:?}", fixture.mount.stat());
    fixture.mount.check();
    fixture.mount.umount();
}

/// Files with pages on the device are truncated, renamed over each other, linked, removed and recreated.
#[test]
fn names_and_sizes_change_while_pages_are_on_the_device() {
    let rounds = amount("TERRACE_DEVICE_NAMES", 3, 30);
    let mut rng = Rng::new(seed("device-names"));
    let fixture = Fixture::new("device-names", Side::Preload);
    let at = |name: &str| fixture.mount.at().join(name);
    for round in 0..rounds {
        fixture.warm();
        let file = File::options().write(true).open(at("large")).unwrap();
        let end = rng.below(FILES[0].1);
        file.set_len(end).unwrap();
        file.set_len(FILES[0].1).unwrap();
        drop(file);
        fs::hard_link(at("middle"), at("second")).unwrap();
        change(fixture.mount.at(), &mut rng, 10);
        fs::rename(at("second"), at("small")).unwrap();
        fixture.mount.terrace("sync", &[]).expect_success();
        fixture.compare(&format!("round {round}, renamed"));
        fixture.compare_by_program(round);
        fs::remove_file(at("odd")).unwrap();
        fs::write(at("odd"), vec![round as u8; FILES[3].1 as usize]).unwrap();
        fs::remove_file(at("small")).unwrap();
        fs::copy(at("odd"), at("small")).unwrap();
        fixture.mount.terrace("sync", &[]).expect_success();
        fixture.compare(&format!("round {round}, made again"));
        fixture.mount.check();
        // Every second round starts with the state after a restart.
        if round % 2 == 0 {
            fixture.mount.umount();
            fixture.mount.mount();
            fixture.compare(&format!("round {round}, mounted again"));
        }
    }
    fixture.mount.umount();
}

/// A tier must fit at its creation; a file system that fills up later does not affect it.
#[test]
fn full_file_system_of_a_tier_leaves_reads_right() {
    let Some(disk) = SmallDisk::new("device-full", 96) else { return };
    let tier = disk.path().join("tier");
    let fixture = Fixture::on("device-full", Side::Preload, tier, TestDir::new("device-full"));
    let filler = File::create(disk.path().join("filler")).unwrap();
    let mib = vec![1; 1 << 20];
    while (&filler).write_all(&mib).is_ok() {}
    let row = device(&fixture.mount.stat());
    for round in 0..4 {
        fixture.compare_by_program(round);
        fixture.compare("full");
    }
    println!("{row:?}, then {:?}", device(&fixture.mount.stat()));
    fixture.mount.check();
    fixture.mount.umount();
}

#[test]
fn two_tiers_serve_and_one_that_is_lost_is_left_out() {
    let mut rng = Rng::new(seed("device-two"));
    let dir = TestDir::new("device-two-tier");
    let [first, second] = ["first", "second"].map(|name| dir.path().join(name));
    let fixture = Fixture::over("device-two", Side::Preload, &[(first, 24), (second.clone(), 24)], dir);
    let both_serve = |wanted: u64| {
        let stat = fixture.mount.stat();
        let good = |row: &&TierRow| row.state == SERVING && row.pages >= wanted && row.hits >= wanted.min(1);
        devices(&stat).filter(good).count() == 2
    };
    let warm = (0..20).any(|_| {
        fixture.compare("warming");
        fixture.compare_by_program(3);
        both_serve(100)
    });
    assert!(warm, "{:?}", fixture.mount.stat().cache.tiers);
    fixture.mount.umount();
    fixture.mount.mount();
    fixture.compare("warm");
    let rows = fixture.mount.stat().cache.tiers;
    assert!(rows.iter().filter(|row| row.promoted > 50).count() == 2, "{rows:?}");
    // Killed, then unmounted: the tier must not serve the old content of changed pages.
    let before = fixture.mount.terraced();
    process::kill(before, libc::SIGKILL);
    assert!(holds_within(Duration::from_secs(60), || fixture.mount.terraced() != before && both_serve(0)));
    for what in ["killed", "changed"] {
        change(fixture.mount.at(), &mut rng, 20);
        fixture.mount.terrace("sync", &[]).expect_success();
        fixture.compare(what);
        fixture.compare_by_program(5);
        fixture.mount.check();
        fixture.mount.umount();
        fixture.mount.mount();
    }
    fixture.compare("mounted again");
    fixture.mount.umount();
    // The second target now belongs to other data.
    File::options().write(true).open(&second).unwrap().write_all_at(&[7; 8192], 0).unwrap();
    fixture.mount.mount();
    fixture.compare("one is lost");
    let stat = fixture.mount.stat();
    let states: Vec<_> =
        devices(&stat).map(|row| (row.name.as_str(), row.level, row.state.as_str())).collect();
    assert_eq!(states[0], ("device", Some(0), SERVING), "{states:?}");
    assert!(states.len() == 2 && states[1].0 == "device-2" && states[1].2.starts_with("off: "), "{states:?}");
    fixture.mount.check();
    fixture.mount.umount();
}

/// Whether the command was built with support for targets in stores.
pub(crate) fn has_stores() -> bool {
    let told = process::run(terrace(&["tier", "show", "fs:///no-such-store"]), 20);
    let has = !told.stderr.contains("built without");
    if !has {
        terrace_testkit::skipped!("this terrace was built without tiers in stores; `make remote` has them");
    }
    has
}

#[test]
fn target_in_a_store_outlives_mounts_and_daemons() {
    if !has_stores() {
        return;
    }
    let dir = TestDir::new("device-store-tier");
    let store = dir.path().join("store");
    let tier = PathBuf::from(format!("fs://{}", store.display()));
    let fixture = Fixture::over("device-store", Side::Preload, &[(tier.clone(), 64)], dir);
    fixture.warm();
    let before = fixture.mount.terraced();
    process::kill(before, libc::SIGKILL);
    let serves = || fixture.mount.terraced() != before && device(&fixture.mount.stat()).state == SERVING;
    assert!(holds_within(Duration::from_secs(60), serves));
    fixture.compare("killed");
    fixture.compare_by_program(7);
    fixture.mount.check();
    let tool = |args: &[&str]| process::run(terrace(&["tier"]).args(args).arg(&tier), 20);
    let at = fixture.mount.at().display().to_string();
    assert!(tool(&["list"]).expect_success().contains(&format!("in use by {at}")));
    assert!(tool(&["drop", "--yes"]).stderr.contains(&format!("in use by the mount of {at}")));
    // The store is inaccessible for a while.
    let aside = store.with_extension("aside");
    fs::rename(&store, &aside).unwrap();
    fs::write(&store, "").unwrap();
    fixture.compare("lost");
    assert!(holds_within(Duration::from_secs(60), || device(&fixture.mount.stat())
        .state
        .starts_with("off: ")));
    fs::remove_file(&store).unwrap();
    fs::rename(&aside, &store).unwrap();
    assert!(holds_within(Duration::from_secs(60), || device(&fixture.mount.stat()).state == SERVING));
    fixture.warm();
    fixture.mount.umount();
    fixture.mount.mount();
    fixture.compare("mounted again");
    let row = device(&fixture.mount.stat());
    assert!(row.promoted > 500, "{row:?}");
    fixture.mount.umount();
    assert!(tool(&["show"]).expect_success().contains("left clean"));
    tool(&["drop", "--yes"]).expect_success();
    assert!(tool(&["show"]).expect_success().contains("content      0 pages"));
}
