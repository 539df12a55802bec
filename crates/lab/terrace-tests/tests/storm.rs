//! Storms: several programs at once on a mount while its instance is killed, stopped, or out of space. See
//! `terrace_tests::storm`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use terrace_testkit::wait::holds_within;
use terrace_tests::amount;
use terrace_tests::process::{self, Background, helper};
use terrace_tests::rng::{Rng, seed};
use terrace_tests::storm::{full, names};
use terrace_tests::{Chaos, Fault, Side, SmallDisk, TestMount};

fn seconds() -> u64 {
    amount("TERRACE_STORM_SECONDS", 4, 120)
}

/// The program `storm` in a role, on a test mount's access path.
fn storm(mount: &TestMount, role: &str, lasts: u64, seed: u64) -> Command {
    let mut command = mount.command(helper("storm"));
    command.arg(role).arg(format!("dir={}", mount.at().display()));
    command.args([format!("seconds={lasts}"), format!("seed={seed}"), "workers=4".into()]);
    command.stdin(Stdio::null());
    command
}

/// The same for names and data. On a plain directory, and where the kernel writes for `run`, direct writes
/// would need alignment.
fn names(mount: &TestMount, lasts: u64, seed: u64) -> Command {
    let mut command = storm(mount, "names", lasts, seed);
    let direct = u64::from(matches!(mount.side(), Side::Mount | Side::Preload));
    command.arg(format!("direct={direct}")).arg(format!("expected={}", expected(mount).display()));
    command
}

/// Directory of a storm's expected trees.
fn expected(mount: &TestMount) -> PathBuf {
    let dir = mount.aside().join("expected");
    std::fs::create_dir_all(&dir).expect("our own directory");
    dir
}

/// Compares a directory with the model of the storm of names, exactly.
#[track_caller]
fn same_tree(mount: &TestMount, dir: &Path) {
    for entry in std::fs::read_dir(expected(mount)).expect("our own directory") {
        let entry = entry.expect("an entry");
        let must = std::fs::read_to_string(entry.path()).expect("what the storm left");
        let worker = dir.join(entry.file_name());
        let is = names::tree(&worker).unwrap_or_else(|why| panic!("{}: {why}", worker.display()));
        let difference = is.lines().zip(must.lines()).find(|(is, must)| is != must);
        assert!(is == must, "{}: {difference:#?}", worker.display());
    }
}

/// Time limit beyond the storm's own time: on a busy machine a restart of terraced may take seconds.
const GRACE_S: u64 = 180;

#[track_caller]
fn names_under(test: &str, side: Side, trouble: Option<Fault>) {
    let seed = seed(test);
    let mount = TestMount::new(test, side, "16MiB");
    let chaos = trouble.map(|what| Chaos::start(&mount, what, seed, 200));
    let outcome = process::run(&mut names(&mount, seconds(), seed), seconds() + GRACE_S);
    println!("{}, disturbed {:?} times", outcome.expect_success().trim(), chaos.map(Chaos::stop));
    if side != Side::Run {
        same_tree(&mount, mount.at());
        mount.check();
    }
    mount.umount();
    same_tree(&mount, mount.src());
}

#[test]
fn names_on_a_plain_directory_agree_with_the_model() {
    names_under("storm-plain", Side::Plain, None);
}

/// The storm itself detects foreign changes.
#[test]
fn names_changed_by_others_fail_the_storm() {
    let seed = seed("storm-changed");
    let mount = TestMount::new("storm-changed", Side::Plain, "");
    let mut storm = Background::new(names(&mount, 60, seed).stdout(Stdio::null()));
    let found = holds_within(Duration::from_secs(GRACE_S), || {
        for entry in std::fs::read_dir(mount.at().join("w0")).into_iter().flatten().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
        storm.wait(Duration::ZERO).is_some_and(|status| !status.success())
    });
    assert!(found, "TERRACE_SEED={seed}: the storm missed that its files were removed");
}

#[test]
fn killed_terraced_changes_no_name_through_the_mount() {
    names_under("storm-mount", Side::Mount, Some(Fault::Signals));
}

#[test]
fn killed_terraced_changes_no_name_under_run() {
    names_under("storm-run", Side::Run, Some(Fault::Signals));
}

/// Acknowledged writes are in the source when supervisor and terraced are dead; the storm itself checks it.
#[test]
fn everything_killed_loses_nothing_acknowledged() {
    let seed = seed("storm-acked");
    let mut rng = Rng::new(seed);
    let mount = TestMount::new("storm-acked", Side::Mount, "16MiB");
    for round in 0..amount("TERRACE_STORM_ROUNDS", 5, 60) {
        let place = format!("round{round}");
        std::fs::create_dir(mount.at().join(&place)).expect("a directory on the mount");
        let mut command = Command::new(helper("storm"));
        if rng.chance(50) {
            mount.through_preload(&mut command);
        }
        command.arg("acked").arg(format!("dir={}", mount.at().join(&place).display()));
        command.arg(format!("src={}", mount.src().join(&place).display()));
        command.args([format!("seconds={GRACE_S}"), format!("seed={}", seed + round), "workers=4".into()]);
        let log = mount.aside().join("log");
        let out = std::fs::File::create(&log).expect("a log");
        command.stdin(Stdio::null()).stdout(out.try_clone().expect("a descriptor")).stderr(out);
        let mut storm = Background::new(&mut command);
        std::thread::sleep(Duration::from_millis(200 + rng.below(800)));
        // Sometimes while many writes are still suspect, and may have to be dropped from the kernel's page
        // cache.
        if rng.chance(60) {
            process::kill(mount.terraced(), process::DeadlySignals::default().pick(&mut rng));
            std::thread::sleep(Duration::from_millis(30 + rng.below(250)));
        }
        mount.kill_everything(&mut rng);
        let status = storm.wait(Duration::from_secs(GRACE_S));
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        let all_there = status.is_some_and(|status| status.success());
        assert!(all_there, "round {round}, TERRACE_SEED={seed}: {status:?}: {said}");
        println!("round {round}: {}", said.trim());
        mount.mount();
        mount.check();
        std::fs::remove_dir_all(mount.at().join(&place)).expect("what is there can be removed");
    }
    mount.finish();
}

/// A source that is full again and again, while terraced is killed.
#[test]
fn full_source_loses_no_answered_write_under_kills() {
    let test = "storm-full";
    let seed = seed(test);
    let Some(disk) = SmallDisk::new(test, 32) else { return };
    let src = disk.path().join("src");
    std::fs::create_dir(&src).expect("the disk is empty");
    let mount = TestMount::of(test, Side::Mount, &["--memory", "16MiB"], Some(&src), 0);
    let (ballast, expected) = (src.join("ballast"), mount.aside().join("expected"));
    for round in 0..amount("TERRACE_STORM_ROUNDS", 1, 6) {
        // Ballast, deleted when the last writes find no room.
        std::fs::write(&ballast, vec![b'x'; 8 << 20]).expect("there is room");
        let chaos = Chaos::start(&mount, Fault::Signals, seed + round, 1500);
        let mut command = storm(&mount, "full", amount("TERRACE_STORM_SECONDS", 4, 20), seed + round);
        let outcome = process::run(command.arg(format!("expected={}", expected.display())), GRACE_S);
        let kills = chaos.stop();
        println!("round {round}: {}, {kills} kills", outcome.expect_success().trim());
        mount.check();
        let first = mount.terrace("umount", &[]);
        std::fs::remove_file(&ballast).expect("it is there");
        if !first.status.success() {
            assert!(mount.mounted(), "umount failed, and the mount is gone: {first}");
            println!("umount is refused while there is no room: {}", first.stderr.trim());
            mount.terrace("umount", &[]).expect_success();
        }
        full::check(&src, &expected)
            .unwrap_or_else(|why| panic!("TERRACE_SEED={seed}, round {round}: {why}"));
        std::fs::remove_dir_all(&src).and_then(|()| std::fs::create_dir(&src)).expect("our own directory");
        mount.mount();
    }
    mount.finish();
}

/// Daemon and supervisor are stopped for a while, and killed in that state: programs wait, and continue.
#[test]
fn stopped_daemon_delays_programs_and_loses_nothing() {
    let test = "storm-stopped";
    let seed = seed(test);
    let mut rng = Rng::new(seed);
    let mount = TestMount::new(test, Side::Mount, "16MiB");
    let rounds = amount("TERRACE_STORM_ROUNDS", 1, 20);
    let mut storm = Background::new(&mut names(&mount, 4 * rounds + 2, seed));
    let mut pause = |most: u64| std::thread::sleep(Duration::from_millis(100 + rng.below(most)));
    for _ in 0..rounds {
        let (supervisor, first) = (mount.supervisor(), mount.terraced());
        process::kill(first, libc::SIGSTOP);
        pause(1500);
        process::kill(first, libc::SIGCONT);
        pause(500);
        process::kill(first, libc::SIGSTOP);
        pause(500);
        process::kill(first, libc::SIGKILL);
        let second = mount.next_terraced(first);
        pause(500);
        process::kill(supervisor, libc::SIGSTOP);
        process::kill(second, libc::SIGKILL);
        pause(1000);
        process::kill(supervisor, libc::SIGCONT);
        let third = mount.next_terraced(second);
        assert!(
            holds_within(Duration::from_secs(60), || mount.terraced() == third),
            "terraced {third} does not serve"
        );
    }
    // A terraced without its supervisor continues to serve once it knows that it is recorded.
    pause(500);
    let supervisor = mount.supervisor();
    process::kill(supervisor, libc::SIGKILL);
    let status = storm.wait(Duration::from_secs(4 * rounds + GRACE_S)).expect("the storm ends");
    assert!(status.success(), "TERRACE_SEED={seed}: the storm says why above");
    same_tree(&mount, mount.at());
    mount.finish();
}
