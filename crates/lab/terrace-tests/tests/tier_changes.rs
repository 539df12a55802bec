//! `terrace tier add`, `remove` and `resize` while programs read, and while terraced is killed: every byte is compared with the source.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use terrace_api::control::TierChange;
use terrace_api::tiers::{SERVING, TierKind, TierRow};
use terrace_testkit::wait::holds_within;
use terrace_tests::process::{self, Background, Outcome};
use terrace_tests::rng::{Rng, seed};
use terrace_tests::{Side, TestDir, TestMount, amount, terrace};

const MIB: usize = 1 << 20;
const FILES: [(&str, usize); 3] = [("large", 28 * MIB), ("middle", 3 * MIB), ("odd", 61_517)];

/// A mount with 16 MiB of memory and one target, in a directory with room for others.
struct Fixture {
    mount: TestMount,
    dir: TestDir,
}

impl Fixture {
    fn new(test: &str, side: Side) -> Fixture {
        let dir = TestDir::new(&format!("{test}-tiers"));
        let tier = format!("{}:24MiB", dir.path().join("first").display());
        let mount = TestMount::with(test, side, &["--memory", "16MiB", "--tier", &tier]);
        let mut rng = Rng::new(1);
        for (name, bytes) in FILES {
            let mut content = vec![0; bytes];
            content
                .chunks_mut(8)
                .for_each(|c| c.copy_from_slice(&rng.below(u64::MAX).to_le_bytes()[..c.len()]));
            fs::write(mount.src().join(name), content).unwrap();
        }
        Fixture { mount, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, what: &str, args: &[&str]) -> std::process::Command {
        let mut command = terrace(&["tier", what]);
        command.arg(self.mount.at()).args(args);
        command
    }

    fn tier(&self, what: &str, args: &[&str]) -> Outcome {
        process::run(self.command(what, args), 60)
    }

    #[track_caller]
    fn changed(&self, what: &str, args: &[&str]) -> TierChange {
        self.tier(what, &[args, &["--json"]].concat()).json()
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
        self.mount.stat().cache.tiers.into_iter().filter(|row| row.kind == TierKind::Device).collect()
    }

    fn names(&self) -> Vec<String> {
        self.rows().into_iter().map(|row| row.name).collect()
    }

    /// Whether a successor of `before` serves all targets.
    fn serves_after(&self, before: i32) -> bool {
        self.mount.terraced() != before && self.rows().iter().all(|row| row.state == SERVING)
    }

    /// Starts random readers; they run until stopped.
    fn readers(&self) -> Readers {
        let script = self.mount.aside().join("read.py");
        fs::write(&script, READ).unwrap();
        let stop = self.mount.aside().join("stop");
        let _ = fs::remove_file(&stop);
        let reader = |seed: u64| {
            let mut command = self.mount.command("python3");
            command.arg(&script).arg(self.mount.src()).arg(&stop).arg(seed.to_string());
            Background::new(&mut command)
        };
        Readers { readers: [1, 2].map(reader).into(), stop }
    }

    #[track_caller]
    fn compare(&self, what: &str) {
        for (name, _) in FILES {
            let is =
                fs::read(self.mount.at().join(name)).unwrap_or_else(|why| panic!("{what}: {name}: {why}"));
            assert!(is == fs::read(self.mount.src().join(name)).unwrap(), "{what}: {name}");
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
    let fixture = Fixture::new("tier-changes", Side::Preload);
    let readers = fixture.readers();
    let filled = |name: &str, pages: u64| {
        assert!(
            holds_within(Duration::from_secs(60), || use_of(&fixture.rows(), name).pages >= pages),
            "{name}: {:?}",
            fixture.rows()
        );
    };
    filled("device", 1000);
    let added = fixture.add("second", 32);
    assert!(added.bytes > 30 << 20 && added.name == "second", "{added:?}");
    filled("second", 500);
    let removed = fixture.changed("remove", &["device"]);
    assert!(removed.moved_pages > 200 && removed.file_removed, "{removed:?}");
    assert!(!fixture.path("first").exists() && fixture.names() == ["second"], "{:?}", fixture.names());
    let grown = fixture.changed("resize", &["second", "48MiB"]);
    assert_eq!((grown.dropped_pages, grown.bytes >> 20), (0, 48), "{grown:?}");
    filled("second", 4000);
    let cut = fixture.changed("resize", &[fixture.path("second").to_str().unwrap(), "12MiB"]);
    assert!(
        cut.dropped_pages > 100 && fs::metadata(fixture.path("second")).unwrap().len() <= 12 << 20,
        "{cut:?}"
    );
    filled("second", 1000);
    let list = fixture.tier("list", &[]).expect_success();
    assert!(list.contains("second") && !list.contains("first"), "{list}");
    // After a kill the next terraced has the changed set.
    let before = fixture.mount.terraced();
    process::kill(before, libc::SIGKILL);
    assert!(
        holds_within(Duration::from_secs(60), || fixture.serves_after(before))
            && fixture.names() == ["second"],
        "{:?}",
        fixture.rows()
    );
    let is_read = || use_of(&fixture.rows(), "second").hits > 100;
    assert!(holds_within(Duration::from_secs(60), is_read), "{:?}", fixture.rows());
    readers.end();
    fixture.compare("at the end");
    fixture.mount.check();
    fixture.mount.umount();
    assert!(fixture.path("second").exists(), "what is in use at the end stays for the next mount");
}

/// The second successor needs the state inherited by the first one, for initial and added targets.
#[test]
fn targets_outlive_two_deaths_of_terraced() {
    let fixture = Fixture::new("tier-twice", Side::Preload);
    let readers = fixture.readers();
    let _ = fixture.add("second", 16);
    for death in 1..=3 {
        let before = fixture.mount.terraced();
        process::kill(before, libc::SIGKILL);
        assert!(
            holds_within(Duration::from_secs(60), || fixture.serves_after(before)),
            "death {death}: {:?}",
            fixture.rows()
        );
        assert_eq!(fixture.names(), ["device", "second"], "death {death}");
    }
    readers.end();
    fixture.compare("at the end");
    fixture.mount.check();
    fixture.mount.umount();
}

/// Kills terraced at a random moment of each change. The next one must use the set of targets that it
/// reports.
#[test]
fn terraced_killed_amid_a_change_has_one_set_of_targets() {
    let mut rng = Rng::new(seed("tier-killed"));
    let fixture = Fixture::new("tier-killed", Side::Preload);
    let readers = fixture.readers();
    let second = format!("{}:16MiB", fixture.path("second").display());
    let _ = fixture.changed("add", &[&second, "--name", "second"]);
    for round in 0..amount("TERRACE_TIER_KILLS", 9, 200) {
        let (what, args) = match round % 3 {
            0 => ("resize", vec!["device", if round % 2 == 0 { "32MiB" } else { "12MiB" }]),
            1 => ("remove", vec!["second"]),
            _ => ("add", vec![&*second, "--name", "second"]),
        };
        let before = fixture.mount.terraced();
        let mut change = Background::new(fixture.command(what, &args).stdout(std::process::Stdio::null()));
        std::thread::sleep(Duration::from_micros(rng.below(80_000)));
        process::kill(before, libc::SIGKILL);
        let ended = change.wait(Duration::from_secs(60)).expect("the command ends");
        assert!(
            holds_within(Duration::from_secs(60), || fixture.serves_after(before)),
            "round {round}, {what}: {:?}",
            fixture.rows()
        );
        let names = fixture.names();
        let (has, must) = (names.contains(&"second".to_owned()), what == "add");
        assert!(!ended.success() || what == "resize" || has == must, "round {round}, {what}: {names:?}");
        if round % 3 != 0 && has != must {
            let _ = fixture.changed(what, &args);
            assert_eq!(fixture.names().len(), if must { 2 } else { 1 }, "round {round}");
        }
        fixture.mount.check();
    }
    readers.end();
    fixture.compare("at the end");
    fixture.mount.umount();
    fixture.mount.mount();
    fixture.compare("mounted again");
    fixture.mount.umount();
}

/// The lock in the store must outlive the terraced that took it, and a removed target must be free for
/// others.
#[test]
fn target_in_a_store_comes_and_goes() {
    if !crate::device::has_stores() {
        return;
    }
    let fixture = Fixture::new("tier-store", Side::Preload);
    let other = Fixture::new("tier-store-other", Side::Mount);
    let place = format!("fs://{}", fixture.path("store").display());
    let sized = format!("{place}:48MiB");
    let added = fixture.changed("add", &[&sized, "--name", "store"]);
    assert_eq!(added.path.to_str(), Some(&*place), "{added:?}");
    let readers = fixture.readers();
    assert!(
        holds_within(Duration::from_secs(60), || use_of(&fixture.rows(), "device").pages > 1000),
        "{:?}",
        fixture.rows()
    );
    fixture.changed("remove", &["device"]);
    assert!(
        holds_within(Duration::from_secs(60), || use_of(&fixture.rows(), "store").hits > 100),
        "{:?}",
        fixture.rows()
    );
    fixture.refused("resize", &["store", "64MiB"], "keeps its size");
    let before = fixture.mount.terraced();
    process::kill(before, libc::SIGKILL);
    assert!(
        holds_within(Duration::from_secs(60), || fixture.serves_after(before))
            && fixture.names() == ["store"],
        "{:?}",
        fixture.rows()
    );
    other.refused("add", &[&sized], "in use by the mount of");
    let told = fixture.tier("remove", &[&place, "--force"]).expect_success();
    assert!(told.contains("the place in the store is empty"), "{told}");
    assert!(fixture.names().is_empty(), "{:?}", fixture.names());
    readers.end();
    fixture.compare("removed");
    assert_eq!(fs::read_dir(fixture.path("store/r")).unwrap().count(), 0, "no region stays behind");
    other.refused("add", &[&sized], "the tier belongs to ");
    fixture.changed("add", &[&sized, "--name", "store"]);
    fixture.mount.check();
    fixture.mount.umount();
}

#[test]
fn changes_that_cannot_be_are_refused_with_a_reason() {
    let fixture = Fixture::new("tier-refused", Side::Mount);
    let other = Fixture::new("tier-other", Side::Mount);
    let sized = |path: &Path, size: &str| format!("{}:{size}", path.display());
    fixture.refused("remove", &["device"], "it is the last tier");
    fixture.refused("remove", &["third"], "there are: device");
    fixture.refused("resize", &["third", "1GiB"], "there are: device");
    fixture.refused("resize", &["device", "2MiB"], "too small");
    fixture.refused("resize", &["device", "9TiB"], "");
    fixture.refused("add", &[&sized(&fixture.path("first"), "24MiB")], "is the path of two tiers");
    fixture.refused("add", &[&sized(&other.path("first"), "24MiB")], "in use by the mount of");
    fixture.refused("add", &[fixture.path("new").to_str().unwrap()], "its size is not given");
    assert!(!fixture.path("new").exists());
    assert_eq!(fixture.names(), ["device"]);
    fixture.mount.check();
}
