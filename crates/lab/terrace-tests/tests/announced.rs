//! `terrace run --exclusive`: files are read from memory while programs of the run write them.
//!
//! The scripts in `announced/` run in a client.

use std::process::Command;
use std::time::Duration;

use terrace_testkit::wait::holds_within;
use terrace_tests::rng::{Rng, seed};
use terrace_tests::{Chaos, Fault, Side, TestMount, amount, leftovers, process};

fn mount(test: &str) -> TestMount {
    TestMount::with(test, Side::Leased, &["--memory", "64MiB", "--exclusive"])
}

/// Python with a script, under its own `terrace run`.
fn script(mount: &TestMount, text: &str) -> Command {
    let path = mount.aside().join("script.py");
    std::fs::write(&path, text).unwrap();
    let mut command = mount.command("python3");
    command.arg(path).env("BOARD", mount.aside().join("board"));
    command
}

fn stress(test: &str, seed: u64, seconds: u64) -> (TestMount, Command) {
    let mount = mount(test);
    let mut command = script(&mount, include_str!("announced/stress.py"));
    command.env("STRESS_SECONDS", seconds.to_string()).env("STRESS_SEED", (seed % 100_000).to_string());
    (mount, command)
}

/// Every way to write: by descriptor, mapping, stream, child, redirection, killed child. No read is older than
/// a completed write, and most reads come from memory.
#[test]
fn reads_are_never_older_than_announced_writes() {
    let (seed, seconds) = (seed("announced"), amount("TERRACE_SECONDS", 6, 120));
    let (mount, mut command) = stress("announced", seed, seconds);
    assert_eq!(process::run(&mut command, seconds + 120).expect_success(), "announced ok\n");
    let stat = mount.stats_of_runs().remove(0);
    let announced = stat.cache.announced.clone().expect("writes are announced");
    assert!(
        announced.served > 0 && stat.cache.preload.hits > 1000,
        "{announced:?}, {:?}",
        stat.cache.preload
    );
    mount.finish();
}

#[test]
fn announced_writes_are_seen_while_terraced_is_killed() {
    let (seed, seconds) = (seed("announced-kills"), amount("TERRACE_SECONDS", 6, 120));
    let (mount, mut command) = stress("announced-kills", seed, seconds);
    let chaos = Chaos::start(&mount, Fault::Kill, seed, 400);
    let said = process::run(&mut command, seconds + 120).expect_success();
    println!("disturbed {} times: {said}", chaos.stop());
    mount.finish();
}

/// terraced and its supervisor are killed: all reads are the kernel's from then on, and the command continues.
#[test]
fn announced_writes_are_seen_after_all_is_killed() {
    let seed = seed("announced-all-killed");
    let mut rng = Rng::new(seed);
    for _ in 0..amount("TERRACE_ROUNDS", 2, 30) {
        let (mount, mut command) = stress("announced-all-killed", rng.below(100_000), 2);
        let killer = std::thread::spawn({
            let (at, pause) = (mount.at().to_owned(), 500 + rng.below(1200));
            move || {
                let find = || leftovers::instances().into_iter().find(|(_, info)| info.mnt == at);
                assert!(holds_within(Duration::from_secs(60), || find().is_some()));
                std::thread::sleep(Duration::from_millis(pause));
                let (_, info) = find().unwrap();
                // A stopped supervisor cannot restart terraced.
                process::kill(info.pid, libc::SIGSTOP);
                [info.terraced, info.pid].map(|pid| process::kill(pid, libc::SIGKILL))
            }
        });
        let said = process::run(&mut command, 120);
        assert!(said.stdout == "announced ok\n", "TERRACE_SEED={seed}: {said}");
        assert_eq!(killer.join().unwrap(), [true, true]);
        mount.finish();
    }
}

/// A stopped terraced delays no reader and no writer.
#[test]
fn a_stopped_terraced_delays_no_announced_write() {
    let seed = seed("announced-stopped");
    let (mount, mut command) = stress("announced-stopped", seed, 4);
    let at = mount.at().to_owned();
    let stopper = std::thread::spawn(move || {
        let find = || leftovers::instances().into_iter().find(|(_, info)| info.mnt == at);
        assert!(holds_within(Duration::from_secs(60), || find().is_some()));
        std::thread::sleep(Duration::from_millis(900));
        let (_, info) = find().unwrap();
        process::kill(info.terraced, libc::SIGSTOP);
        std::thread::sleep(Duration::from_secs(2));
        process::kill(info.terraced, libc::SIGCONT)
    });
    assert_eq!(process::run(&mut command, 60).expect_success(), "announced ok\n", "TERRACE_SEED={seed}");
    assert!(stopper.join().unwrap());
    mount.finish();
}

/// The user's statement is wrong: a program without the library writes. The change is found by the file's
/// times, and counted.
#[test]
fn a_change_without_an_announcement_is_found() {
    let mount = mount("announced-not");
    let mut command = script(&mount, include_str!("announced/unannounced.py"));
    assert_eq!(process::run(&mut command, 60).expect_success(), "seen\n");
    let announced = mount.stats_of_runs()[0].cache.announced.clone().unwrap();
    assert!(announced.unannounced >= 1, "{announced:?}");
    mount.finish();
}
