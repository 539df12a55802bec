//! `terrace tier add`, `remove` and `resize` while programs read, and while terraced is killed: every byte is compared with the source.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use terrace_api::control::TierChange;
use terrace_api::tiers::{SERVING, TierKind, TierRow};
use terrace_tests::process::{self, Background, Outcome};
use terrace_tests::rig::{Side, TestDir, TestMount, product};
use terrace_tests::rng::{Rng, seed};
use terrace_tests::{amount, process::wait_until};

const MIB: usize = 1 << 20;
const FILES: [(&str, usize); 3] = [("large", 28 * MIB), ("middle", 3 * MIB), ("odd", 61_517)];

/// A mount with 16 MiB of memory and one target, in a directory with room for others.
struct Fixture {
    rig: TestMount,
    dir: TestDir,
}

impl Fixture {
    fn new(test: &str, side: Side) -> Fixture {
        let dir = TestDir::new(&format!("{test}-tiers"));
        let tier = format!("{}:24MiB", dir.path().join("first").display());
        let rig = TestMount::with(test, side, &["--memory", "16MiB", "--tier", &tier]);
        let mut rng = Rng::new(1);
        for (name, bytes) in FILES {
            let mut content = vec![0; bytes];
            content
                .chunks_mut(8)
                .for_each(|c| c.copy_from_slice(&rng.below(u64::MAX).to_le_bytes()[..c.len()]));
            fs::write(rig.src().join(name), content).unwrap();
        }
        Fixture { rig, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, what: &str, args: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(product("terrace"));
        command.args(["tier", what]).arg(self.rig.at()).args(args);
        command
    }

    fn tier(&self, what: &str, args: &[&str]) -> Outcome {
        process::run(&mut self.command(what, args), 60)
    }

    #[track_caller]
    fn changed(&self, what: &str, args: &[&str]) -> TierChange {
        let args = [args, &["--json"]].concat();
        serde_json::from_str(&self.tier(what, &args).expect_success()).unwrap()
    }

    #[track_caller]
    fn refused(&self, what: &str, args: &[&str], because: &str) {
        let outcome = self.tier(what, args);
        assert!(!outcome.status.success() && outcome.stderr.contains(because), "{because}: {outcome}");
    }

    fn add(&self, name: &str, mib: usize) -> TierChange {
        self.changed("add", &[&format!("{}:{mib}MiB", self.path(name).display()), "--name", name])
    }

    fn rows(&self) -> Vec<TierRow> {
        self.rig.stat().cache.tiers.into_iter().filter(|row| row.kind == TierKind::Device).collect()
    }

    fn names(&self) -> Vec<String> {
        self.rows().into_iter().map(|row| row.name).collect()
    }

    /// Whether a successor of `before` serves all targets.
    fn serves_after(&self, before: i32) -> bool {
        self.rig.terraced() != before && self.rows().iter().all(|row| row.state == SERVING)
    }

    /// Starts random readers; they run until stopped.
    fn readers(&self) -> Readers {
        let script = self.rig.aside().join("read.py");
        fs::write(&script, READ).unwrap();
        let stop = self.rig.aside().join("stop");
        let _ = fs::remove_file(&stop);
        let reader = |seed: u64| {
            let mut command = self.rig.command("python3");
            command.arg(&script).arg(self.rig.src()).arg(&stop).arg(seed.to_string());
            Background::new(&mut command)
        };
        Readers { readers: [1, 2].map(reader).into(), stop }
    }

    #[track_caller]
    fn compare(&self, what: &str) {
        for (name, _) in FILES {
            let is = fs::read(self.rig.at().join(name)).unwrap_or_else(|why| panic!("{what}: {name}: {why}"));
            assert!(is == fs::read(self.rig.src().join(name)).unwrap(), "{what}: {name}");
        }
    }
}

struct Readers {
    readers: Vec<Background>,
    stop: PathBuf,
}

impl Readers {
    #[track_caller]
    fn end(mut self) {
        fs::write(&self.stop, "").unwrap();
        for reader in &mut self.readers {
            let ended = reader.wait(Duration::from_secs(60)).expect("a reader ends");
            assert!(ended.success(), "a reader found other bytes, or none: {ended}");
        }
    }
}

const READ: &str = r#"
import os, random, sys
source, stop, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
random.seed(seed)
names = sorted(os.listdir(source))
mine = {n: os.open(n, os.O_RDONLY) for n in names}
theirs = {n: open(os.path.join(source, n), 'rb').read() for n in names}
reads = 0
while reads < 300 or reads % 100 or not os.path.exists(stop):
    n = random.choice(names + ['large'] * 9)
    at = 4096 * random.randrange(1 + len(theirs[n]) // 4096) + random.choice((0, 0, 0, 100))
    length = random.choice((4096, 4096, 4096, 1000, 70000))
    if os.pread(mine[n], length, at) != theirs[n][at:at + length]:
        sys.exit(f'{n}: bytes from {at} on are others')
    reads += 1
"#;

fn use_of(rows: &[TierRow], name: &str) -> TierRow {
    rows.iter().find(|row| row.name == name).unwrap_or_else(|| panic!("no {name} in {rows:?}")).clone()
}

#[test]
fn targets_come_and_go_under_verified_reads() {
    let world = Fixture::new("tier-changes", Side::Preload);
    let readers = world.readers();
    let filled = |name: &str, pages: u64| {
        assert!(wait_until(60, || use_of(&world.rows(), name).pages >= pages), "{name}: {:?}", world.rows());
    };
    filled("device", 1000);
    let added = world.add("second", 32);
    assert!(added.bytes > 30 << 20 && added.name == "second", "{added:?}");
    filled("second", 500);
    let removed = world.changed("remove", &["device"]);
    assert!(removed.moved_pages > 200 && removed.file_removed, "{removed:?}");
    assert!(!world.path("first").exists() && world.names() == ["second"], "{:?}", world.names());
    let grown = world.changed("resize", &["second", "48MiB"]);
    assert_eq!((grown.dropped_pages, grown.bytes >> 20), (0, 48), "{grown:?}");
    filled("second", 4000);
    let cut = world.changed("resize", &[world.path("second").to_str().unwrap(), "12MiB"]);
    assert!(
        cut.dropped_pages > 100 && fs::metadata(world.path("second")).unwrap().len() <= 12 << 20,
        "{cut:?}"
    );
    filled("second", 1000);
    let list = world.tier("list", &[]).expect_success();
    assert!(list.contains("second") && !list.contains("first"), "{list}");
    // After a kill the next terraced has the changed set.
    let before = world.rig.terraced();
    process::kill(before, libc::SIGKILL);
    assert!(
        wait_until(60, || world.serves_after(before)) && world.names() == ["second"],
        "{:?}",
        world.rows()
    );
    let is_read = || use_of(&world.rows(), "second").hits > 100;
    assert!(wait_until(60, is_read), "{:?}", world.rows());
    readers.end();
    world.compare("at the end");
    world.rig.check();
    world.rig.umount();
    assert!(world.path("second").exists(), "what is in use at the end stays for the next mount");
}

/// The second successor needs the state inherited by the first one, for initial and added targets.
#[test]
fn targets_outlive_two_deaths_of_terraced() {
    let world = Fixture::new("tier-twice", Side::Preload);
    let readers = world.readers();
    let _ = world.add("second", 16);
    for death in 1..=3 {
        let before = world.rig.terraced();
        process::kill(before, libc::SIGKILL);
        assert!(wait_until(60, || world.serves_after(before)), "death {death}: {:?}", world.rows());
        assert_eq!(world.names(), ["device", "second"], "death {death}");
    }
    readers.end();
    world.compare("at the end");
    world.rig.check();
    world.rig.umount();
}

/// Kills terraced at a random moment of each change. The next one must use the set of targets that it
/// reports.
#[test]
fn terraced_killed_amid_a_change_has_one_set_of_targets() {
    let mut rng = Rng::new(seed("tier-killed"));
    let world = Fixture::new("tier-killed", Side::Preload);
    let readers = world.readers();
    let second = format!("{}:16MiB", world.path("second").display());
    let _ = world.changed("add", &[&second, "--name", "second"]);
    for round in 0..amount("TERRACE_TIER_KILLS", 9, 200) {
        let (what, args) = match round % 3 {
            0 => ("resize", vec!["device", if round % 2 == 0 { "32MiB" } else { "12MiB" }]),
            1 => ("remove", vec!["second"]),
            _ => ("add", vec![&*second, "--name", "second"]),
        };
        let before = world.rig.terraced();
        let mut change = Background::new(world.command(what, &args).stdout(std::process::Stdio::null()));
        std::thread::sleep(Duration::from_micros(rng.below(80_000)));
        process::kill(before, libc::SIGKILL);
        let ended = change.wait(Duration::from_secs(60)).expect("the command ends");
        assert!(wait_until(60, || world.serves_after(before)), "round {round}, {what}: {:?}", world.rows());
        let names = world.names();
        let (has, must) = (names.contains(&"second".to_owned()), what == "add");
        assert!(!ended.success() || what == "resize" || has == must, "round {round}, {what}: {names:?}");
        if round % 3 != 0 && has != must {
            let _ = world.changed(what, &args);
            assert_eq!(world.names().len(), if must { 2 } else { 1 }, "round {round}");
        }
        world.rig.check();
    }
    readers.end();
    world.compare("at the end");
    world.rig.umount();
    world.rig.mount();
    world.compare("mounted again");
    world.rig.umount();
}

/// The lock in the store must outlive the terraced that took it, and a removed target must be free for
/// others.
#[test]
fn target_in_a_store_comes_and_goes() {
    if !crate::device::has_stores() {
        return;
    }
    let world = Fixture::new("tier-store", Side::Preload);
    let other = Fixture::new("tier-store-other", Side::Mount);
    let place = format!("fs://{}", world.path("store").display());
    let sized = format!("{place}:48MiB");
    let added = world.changed("add", &[&sized, "--name", "store"]);
    assert_eq!(added.path.to_str(), Some(&*place), "{added:?}");
    let readers = world.readers();
    assert!(wait_until(60, || use_of(&world.rows(), "device").pages > 1000), "{:?}", world.rows());
    world.changed("remove", &["device"]);
    assert!(wait_until(60, || use_of(&world.rows(), "store").hits > 100), "{:?}", world.rows());
    world.refused("resize", &["store", "64MiB"], "keeps its size");
    let before = world.rig.terraced();
    process::kill(before, libc::SIGKILL);
    assert!(
        wait_until(60, || world.serves_after(before)) && world.names() == ["store"],
        "{:?}",
        world.rows()
    );
    other.refused("add", &[&sized], "in use by the mount of");
    let told = world.tier("remove", &[&place, "--force"]).expect_success();
    assert!(told.contains("the place in the store is empty"), "{told}");
    assert!(world.names().is_empty(), "{:?}", world.names());
    readers.end();
    world.compare("removed");
    assert_eq!(fs::read_dir(world.path("store/r")).unwrap().count(), 0, "no region stays behind");
    other.refused("add", &[&sized], "the tier belongs to ");
    world.changed("add", &[&sized, "--name", "store"]);
    world.rig.check();
    world.rig.umount();
}

#[test]
fn changes_that_cannot_be_are_refused_with_a_reason() {
    let world = Fixture::new("tier-refused", Side::Mount);
    let other = Fixture::new("tier-other", Side::Mount);
    let sized = |path: &Path, size: &str| format!("{}:{size}", path.display());
    world.refused("remove", &["device"], "it is the last target");
    world.refused("remove", &["third"], "there are: device");
    world.refused("resize", &["third", "1GiB"], "there are: device");
    world.refused("resize", &["device", "2MiB"], "too small");
    world.refused("resize", &["device", "9TiB"], "");
    world.refused("add", &[&sized(&world.path("first"), "24MiB")], "is named twice");
    world.refused("add", &[&sized(&other.path("first"), "24MiB")], "in use by the mount of");
    world.refused("add", &[world.path("new").to_str().unwrap()], "its size is not given");
    assert!(!world.path("new").exists());
    assert_eq!(world.names(), ["device"]);
    world.rig.check();
}
