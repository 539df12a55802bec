//! `terrace run` of programs that write: files are read from memory meanwhile. With `--exclusive` there are no
//! other writers; guarded, opens of other programs are seen.
//!
//! The scripts in `announced/` run in a client.

use std::process::Command;
use std::time::Duration;

use terrace_tests::rng::{Rng, seed};
use terrace_tests::tools::{compile, need_library};
use terrace_tests::{Chaos, Fault, Side, TestMount, amount, process};

use crate::leased::{instance_at, kill_all, script};

/// The reason why no unseen program writes a served file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// The user's statement.
    Exclusive,
    /// terrace sees all opens. Not for users yet.
    Guarded,
}

const MODES: [Mode; 2] = [Mode::Exclusive, Mode::Guarded];

fn mount(test: &str, mode: Mode) -> TestMount {
    match mode {
        Mode::Exclusive => TestMount::with(test, Side::Leased, &["--memory", "64MiB", "--exclusive"]),
        Mode::Guarded => TestMount::with(test, Side::Guarded, &["--memory", "64MiB"]),
    }
}

fn stress(test: &str, mode: Mode, seed: u64, seconds: u64) -> (TestMount, Command) {
    let mount = mount(test, mode);
    let mut command = script(&mount, include_str!("announced/stress.py"));
    command.envs((mode == Mode::Guarded).then_some(("STRANGERS", "1")));
    command.env("STRESS_SECONDS", seconds.to_string()).env("STRESS_SEED", (seed % 100_000).to_string());
    (mount, command)
}

/// Every way to write: by descriptor, mapping, stream, child, redirection, killed child. No read is older than
/// a completed write, and most reads come from memory.
#[test]
fn reads_are_never_older_than_announced_writes() {
    let (seed, seconds) = (seed("announced"), amount("TERRACE_SECONDS", 6, 120));
    for mode in MODES {
        let (mount, mut command) = stress("announced", mode, seed, seconds);
        assert_eq!(process::run(&mut command, seconds + 120).expect_success(), "announced ok\n", "{mode:?}");
        let stat = mount.stats_of_runs().remove(0).cache;
        let announced = stat.announced.clone().expect("writes are announced");
        assert!(stat.preload.hits > 1000, "{mode:?}: {announced:?}, {:?}", stat.preload);
        assert!(mode == Mode::Exclusive || announced.strangers > 2, "{announced:?}");
        mount.finish();
    }
}

#[test]
fn announced_writes_are_seen_while_terraced_is_killed() {
    let (seed, seconds) = (seed("announced-kills"), amount("TERRACE_SECONDS", 6, 120));
    for mode in MODES {
        let (mount, mut command) = stress("announced-kills", mode, seed, seconds);
        let chaos = Chaos::start(&mount, Fault::Kill, seed, 400);
        let out = process::run(&mut command, seconds + 120).expect_success();
        println!("{mode:?}, disturbed {} times: {out}", chaos.stop());
        mount.finish();
    }
}

/// Writes by a ring of liburing are announced until they complete: the file is served in between.
#[test]
fn writes_of_a_ring_are_announced() {
    need_library("liburing.so", "liburing-dev");
    for mode in MODES {
        let mount = mount("announced-ring", mode);
        let program = mount.aside().join("ring_writes");
        compile("ring_writes", &program, &["-luring"]);
        // A file that a program creates is the kernel's while a process hides its descriptors from root.
        std::fs::write(mount.src().join("file"), vec![0; 1 << 20]).unwrap();
        let mut command = mount.command(&program);
        command.args(["file", "4000"]).arg((seed("announced-ring") % 100_000).to_string());
        process::run(&mut command, 120).expect_success();
        let stat = mount.stats_of_runs().remove(0).cache.preload;
        assert!(stat.hits > 10_000, "{mode:?}: {stat:?}");
        mount.finish();
    }
}

/// terraced and its supervisor are killed: all reads are the kernel's from then on, and the command continues.
#[test]
fn announced_writes_are_seen_after_all_is_killed() {
    let seed = seed("announced-all-killed");
    let mut rng = Rng::new(seed);
    for round in 0..amount("TERRACE_ROUNDS", 2, 30) {
        let mode = MODES[round as usize % 2];
        let (mount, mut command) = stress("announced-all-killed", mode, rng.below(100_000), 2);
        let killer = kill_all(&mount, Duration::from_millis(500 + rng.below(1200)));
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
    MODES.into_iter().for_each(|mode| stopped_once(mode, seed));
}

fn stopped_once(mode: Mode, seed: u64) {
    let (mount, mut command) = stress("announced-stopped", mode, seed, 4);
    let at = mount.at().to_owned();
    let stopper = std::thread::spawn(move || {
        instance_at(&at);
        std::thread::sleep(Duration::from_millis(900));
        let info = instance_at(&at);
        process::kill(info.terraced, libc::SIGSTOP);
        std::thread::sleep(Duration::from_secs(2));
        process::kill(info.terraced, libc::SIGCONT)
    });
    assert_eq!(process::run(&mut command, 60).expect_success(), "announced ok\n", "TERRACE_SEED={seed}");
    assert!(stopper.join().unwrap());
    mount.finish();
}

/// An open of a watched file waits for terraced, so a file that is opened again and again is the kernel's.
#[test]
fn a_file_that_is_opened_often_is_left_to_the_kernel() {
    let mount = mount("announced-often", Mode::Guarded);
    std::fs::write(mount.src().join("f"), vec![7; 1 << 20]).unwrap();
    let text = "import os, time
fd = os.open('f', os.O_RDWR); end = time.monotonic() + 4
while time.monotonic() < end: os.close(os.open('f', os.O_RDWR)); assert os.pread(fd, 9, 4096) == b'\\x07' * 9
print('ok')";
    assert_eq!(process::run(&mut script(&mount, text), 60).expect_success(), "ok\n");
    let stat = mount.stats_of_runs().remove(0).cache;
    assert_eq!(stat.announced.as_ref().map(|announced| announced.left), Some(1), "{stat:?}");
    mount.finish();
}

/// The user's statement is wrong: a program without the library writes. The change is found by the file's
/// times, and counted.
#[test]
fn a_change_without_an_announcement_is_found() {
    let mount = mount("announced-not", Mode::Exclusive);
    let mut command = script(&mount, include_str!("announced/unannounced.py"));
    assert_eq!(process::run(&mut command, 60).expect_success(), "seen\n");
    let announced = mount.stats_of_runs()[0].cache.announced.clone().unwrap();
    assert!(announced.unannounced >= 1, "{announced:?}");
    mount.finish();
}
