//! Ends terraced, clients, or the whole instance at random moments under verifying writers and readers: by
//! kill -9, and by the signals of crashes.

use std::time::Duration;
use terrace_testkit::wait::{asking_every, holds_within};
use terrace_tests::rng::{Rng, seed};
use terrace_tests::stress::Stress;
use terrace_tests::{Side, TestMount, amount, leftovers, process};

fn rounds() -> u64 {
    amount("TERRACE_CRASH_ROUNDS", 10, 80)
}

fn pause(rng: &mut Rng, most_ms: u64) -> Duration {
    Duration::from_millis(1 + rng.below(most_ms))
}

/// Signals of a panic, a bad address and a fault of mapped memory.
const CRASHES: [i32; 3] = [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS];

/// Minimum interval between crashes of terraced: the supervisor gives up after five in ten seconds.
const CRASH_EVERY: Duration = Duration::from_secs(3);

/// No acknowledged write is lost and no program gets an error.
#[test]
fn terraced_killed() {
    terraced_dies("crash-terraced", seed("crash-terraced"), Duration::ZERO, rounds(), |_| libc::SIGKILL);
}

/// The same for crashes.
#[test]
fn terraced_crashed() {
    let rounds = rounds().div_ceil(3);
    terraced_dies("crash-signals", seed("crash-signals"), CRASH_EVERY, rounds, |rng| *rng.pick(&CRASHES));
}

/// Rounds of work, each ended by a signal to terraced, at least `apart` after the last.
fn terraced_dies(test: &str, seed: u64, apart: Duration, rounds: u64, signal: impl Fn(&mut Rng) -> i32) {
    let mut rng = Rng::new(seed);
    let mount = TestMount::new(test, Side::Mount, "16MiB");
    let mut stress = Stress::new(&mount, 4, 2048, 2, seed);
    stress.start("write", 0, true, &["sync=1"]);
    stress.start("write", 1, false, &["sync=1", "torn=ok"]);
    stress.start("read", 0, true, &["torn=ok"]);
    stress.start("read", 1, false, &["torn=ok"]);
    for round in 0..rounds {
        stress.work(apart + pause(&mut rng, 400));
        let before = mount.terraced();
        let signal = signal(&mut rng);
        println!("round {round}: signal {signal}");
        assert!(process::kill(before, signal), "round {round}: terraced {before} was not there");
        let again = holds_within(Duration::from_secs(20), || {
            // Without a real fault, Rust's handlers for SIGSEGV and SIGBUS return once and wait for the fault
            // to repeat.
            if process::alive(before) {
                process::kill(before, signal);
            }
            mount.terraced() != before && process::alive(mount.terraced())
        });
        assert!(again, "round {round}: no new terraced after 20 s");
        let seen = stress.versions.writes().load(std::sync::atomic::Ordering::SeqCst);
        let moves = holds_within(Duration::from_secs(20), || {
            stress.expect_all_running();
            stress.versions.writes().load(std::sync::atomic::Ordering::SeqCst) > seen + 20
        });
        assert!(moves, "round {round}: writers stand still after the restart");
        if round % 10 == 9 {
            mount.check();
        }
    }
    stress.settle(&mount);
}

/// Kills the restarted terraced during recovery. It is found as the supervisor's child at once, and killed
/// some microseconds later, mostly before info.json names it.
#[test]
fn terraced_killed_in_recovery() {
    let seed = seed("crash-recovery");
    let mut rng = Rng::new(seed);
    let mount = TestMount::new("crash-recovery", Side::Mount, "16MiB");
    let mut stress = Stress::new(&mount, 4, 2048, 2, seed);
    stress.start("write", 0, true, &[]);
    stress.start("write", 1, false, &["torn=ok"]);
    stress.start("read", 0, true, &["torn=ok"]);
    let (mut kills, mut early) = (0, 0);
    // On a busy machine the kill may come too late repeatedly.
    for round in 0..5 * rounds() {
        if round >= rounds() && early > 0 {
            break;
        }
        stress.work(pause(&mut rng, 200));
        let mut now = mount.next_terraced(0);
        assert!(process::kill(now, libc::SIGKILL), "round {round}: terraced {now} was not there");
        for _ in 0..1 + rng.below(3) {
            now = mount.next_terraced(now);
            std::thread::sleep(Duration::from_micros(rng.below(6000)));
            process::kill(now, libc::SIGKILL);
            kills += 1;
            early += u64::from(mount.terraced() != now);
        }
    }
    println!("{kills} killed again, {early} of them before they served");
    assert!(early > 0, "none of {kills} kills came before the new terraced served");
    stress.work(Duration::from_millis(500));
    stress.settle(&mount);
}

/// Other programs see no effect, and acknowledged data stay.
#[test]
fn clients_killed() {
    let seed = seed("crash-clients");
    let mut rng = Rng::new(seed);
    let mount = TestMount::new("crash-clients", Side::Mount, "16MiB");
    let mut stress = Stress::new(&mount, 4, 2048, 3, seed);
    stress.start("write", 0, true, &["torn=ok"]);
    stress.start("write", 1, false, &["torn=ok"]);
    stress.start("read", 0, true, &["torn=ok"]);
    stress.start("read", 1, true, &["torn=ok"]);
    stress.start("mapwrite", 2, true, &["torn=ok"]);
    for round in 0..rounds() {
        stress.work(pause(&mut rng, 300));
        for _ in 0..1 + rng.below(2) {
            let victim = rng.below(stress.len() as u64) as usize;
            stress.replace(victim, &["torn=ok"]);
        }
        if round % 10 == 9 {
            mount.check();
        }
    }
    stress.settle(&mount);
}

/// Kills supervisor and terraced: all data acknowledged by fsync are in the source, and one command mounts
/// again.
#[test]
fn everything_killed() {
    let seed = seed("crash-all");
    let mut rng = Rng::new(seed);
    let mount = TestMount::new("crash-all", Side::Mount, "16MiB");
    let mut stress = Stress::new(&mount, 3, 1024, 2, seed);
    for _ in 0..rounds() {
        stress.start("write", 0, true, &["sync=1", "torn=ok"]);
        stress.start("write", 1, false, &["sync=1", "torn=ok"]);
        stress.start("read", 0, true, &["torn=ok"]);
        stress.work(pause(&mut rng, 600));
        mount.kill_everything(&mut rng);
        stress.kill_all();
        stress.verify(None, "synced");
        mount.mount();
        stress.verify(Some(false), "synced");
        stress.verify(Some(true), "synced");
        mount.check();
        accept_losses(&stress, &mount);
    }
    mount.finish();
}

/// A terraced missing in info.json ends with its supervisor: the mount counts as dead, and the next instance
/// must not start while it still writes.
#[test]
fn unrecorded_terraced_ends_with_its_supervisor() {
    let mut rng = Rng::new(seed("crash-unrecorded"));
    let mount = TestMount::new("crash-unrecorded", Side::Mount, "16MiB");
    let unrecorded = (0..200).find_map(|_| unrecorded_terraced(&mount, &mut rng));
    let terraced =
        unrecorded.expect("in one of 200 starts the supervisor was stopped between let-go and record");
    process::kill(mount.supervisor(), libc::SIGKILL);
    let ended = holds_within(Duration::from_secs(10), || !process::alive(terraced));
    assert!(ended, "terraced {terraced} lives on, and info.json names {}", mount.terraced());
    mount.mount();
    mount.finish();
}

/// Kills terraced, and stops the supervisor at a random moment of the restart. Returns the new terraced if it
/// serves and is not yet recorded.
fn unrecorded_terraced(mount: &TestMount, rng: &mut Rng) -> Option<i32> {
    let (supervisor, last) = (mount.supervisor(), mount.terraced());
    process::kill(last, libc::SIGKILL);
    let new = mount.next_terraced(last);
    std::thread::sleep(Duration::from_micros(rng.below(20_000)));
    process::kill(supervisor, libc::SIGSTOP);
    let serves =
        asking_every(Duration::from_millis(5), Duration::from_secs(1), || has_thread(new, "control"));
    if serves && mount.terraced() != new {
        return Some(new);
    }
    process::kill(supervisor, libc::SIGCONT);
    assert!(
        holds_within(Duration::from_secs(20), || mount.terraced() == new),
        "terraced {new} does not serve"
    );
    None
}

fn has_thread(pid: i32, name: &str) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let comms = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    comms.into_iter().any(|comm| comm.trim() == name)
}

/// Acknowledged writes without a sync may be lost: sets the version table to the files' current content.
fn accept_losses(stress: &Stress, mount: &TestMount) {
    use std::sync::atomic::Ordering::SeqCst;
    let pages = stress.versions.pages() / 3;
    for file in 0..3 {
        let data = std::fs::read(mount.at().join(format!("f{file}"))).expect("the file is there");
        for (i, page) in data.chunks(4096).enumerate() {
            let number = file * pages + i as u64;
            let now = terrace_tests::pages::version(page, number).expect("verified just before");
            stress.versions.acked(number).store(now, SeqCst);
        }
    }
}

/// The end of a run goes on: no data are lost, and the command's exit code stays.
#[test]
fn terraced_killed_during_a_stop_ends_the_run() {
    let seed = seed("crash-stop");
    let mut rng = Rng::new(seed);
    let mut kills = 0;
    for side in [Side::Run, Side::Guarded] {
        let mount = TestMount::new("crash-stop", side, "16MiB");
        for round in 0..2 * rounds() {
            let file = mount.src().join(format!("file{round}"));
            let written = format!("echo {round} > {}", file.display());
            let mut run = process::Background::new(mount.command("sh").args(["-c", &written]));
            let is_written =
                holds_within(Duration::from_secs(60), || file.metadata().is_ok_and(|meta| meta.len() > 0));
            assert!(is_written, "TERRACE_SEED={seed}, round {round}: the command did not write");
            std::thread::sleep(Duration::from_micros(rng.below(20_000)));
            for _ in 0..3 {
                let serving = leftovers::instances().into_iter().find(|(_, info)| info.mnt == mount.src());
                if let Some((dir, info)) = serving {
                    let stops = dir.join("stopping").exists();
                    kills += u32::from(process::kill(info.terraced, libc::SIGKILL) && stops);
                }
                std::thread::sleep(Duration::from_micros(rng.below(10_000)));
            }
            let status = run.wait(Duration::from_secs(120));
            assert!(
                status.is_some_and(|status| status.success()),
                "TERRACE_SEED={seed}, round {round}: {status:?}"
            );
            assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{round}\n"), "TERRACE_SEED={seed}");
        }
        mount.umount();
    }
    assert!(kills > 0, "no stop was under way at a kill");
}
