//! In the virtual machine: checks of `--numa auto`. Each returns its observation.

use super::super::command::{output, wrong};
use super::fixture::{self, Fixture, Load, MOUNT, mask, numa, terrace};
use super::words::REST;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io;
use std::process::Command;
use std::time::{Duration, Instant};
use terrace_api::numa::Numa;
use terrace_system::proc;
use terrace_testkit::wait::holds_within;

/// The observation of a check, or its failure.
type Seen = io::Result<String>;

/// Three periods with their windows, from any moment of a period.
const PERIODS_3: Duration = Duration::from_millis(4300);
const PERIODS_10: Duration = Duration::from_millis(10_500);

fn is_far(fixture: &Fixture, tid: u32) -> bool {
    proc::stat(tid).is_some_and(|stat| fixture.far_cpus().contains(&stat.cpu))
}

/// Waits until a thread runs on the far node.
fn follows(fixture: &Fixture, tid: u32) -> io::Result<Duration> {
    let begun = Instant::now();
    match holds_within(PERIODS_3, || is_far(fixture, tid)) {
        true => Ok(begun.elapsed()),
        false => {
            let why = format!(
                "after {PERIODS_3:?} it may use {:?}, and runs on {:?}",
                mask(tid),
                proc::stat(tid).map(|stat| stat.cpu)
            );
            Err(wrong(format!("{why}\n{}", told(&fixture.far_dir()))))
        }
    }
}

/// A thread that reads the far node's file moves there, and stays.
pub(super) fn thread_follows_its_data(fixture: &Fixture) -> Seen {
    let load = fixture.run(&fixture.load("run", 1, &[&format!("{}/large", fixture.far_dir())]), None)?;
    let after = follows(fixture, load.tids[0])?;
    let before = numa(&fixture.far_dir())?.moved;
    let looks = 20;
    let mut there = 0;
    for _ in 0..looks {
        std::thread::sleep(PERIODS_10 / looks);
        there += u32::from(is_far(fixture, load.tids[0]));
    }
    let more = numa(&fixture.far_dir())?.moved - before;
    let seen = format!(
        "there after {:.1} s; in the ten periods after {more} moves, and there {there} times of {looks}",
        after.as_secs_f64()
    );
    // A thread moved there by the kernel is not bound: the kernel may move it away once, for at most three
    // periods.
    expect(more <= 1 && there >= looks - 6, || format!("{seen}\n{}", told(&fixture.far_dir())))?;
    load.end()?;
    Ok(seen)
}

/// Writers with all data on one node are spread.
pub(super) fn contention_spreads_threads(fixture: &Fixture) -> Seen {
    let dir = fixture.far_dir();
    let load =
        fixture.run(&fixture.load("mix", 4, &[&format!("{dir}/own."), &format!("{dir}/out.")]), None)?;
    std::thread::sleep(PERIODS_10);
    let places = places(fixture, &load);
    let report = numa(&dir)?;
    let on_far = places.iter().filter(|&&node| node == Some(fixture.far())).count();
    let seen = format!("threads on nodes {places:?}, {} moves", report.moved);
    // Threads that never moved are not spread.
    let is_spread = on_far < 4 && report.moved > 0 && places.iter().all(Option::is_some);
    expect(is_spread, || format!("{seen}; {}", told(&dir)))?;
    load.end()?;
    Ok(seen)
}

/// Three threads that read one file, and together use less than one processor, run on one node.
pub(super) fn threads_that_share_stay_together(fixture: &Fixture) -> Seen {
    let dir = fixture.far_dir();
    let load = fixture.run(&fixture.load("nip", 3, &[&format!("{dir}/large")]), None)?;
    std::thread::sleep(PERIODS_10);
    // A thread on the right node from the start is not bound: the kernel may move it away until the next
    // period.
    let mut together = 0;
    for _ in 0..10 {
        std::thread::sleep(Duration::from_secs(1));
        let places = places(fixture, &load);
        together += u32::from(places.iter().all(|&place| place == places[0]));
    }
    let seen = format!("together in {together} of 10 samples, {} moves", numa(&dir)?.moved);
    expect(together >= 8, || format!("{seen}; {}", told(&dir)))?;
    load.end()?;
    Ok(seen)
}

/// The nodes where the threads run.
fn places(fixture: &Fixture, load: &Load) -> Vec<Option<usize>> {
    let node_of = |cpu: usize| fixture.nodes.iter().position(|cpus| cpus.contains(&cpu));
    load.tids.iter().map(|tid| proc::stat(tid).and_then(|stat| node_of(stat.cpu))).collect()
}

fn told(mnt: &str) -> String {
    output(&mut terrace(&["numa", mnt])).unwrap_or_default()
}

/// A load on a mount, bound to the far node by terrace. If the kernel moved it there itself, terrace has no
/// reason to: then another load is started.
fn moved(fixture: &Fixture) -> io::Result<Load> {
    fixture.mount()?;
    for _ in 0..5 {
        let words = fixture.load("run", 1, &[&format!("{MOUNT}/large")]);
        let load = Load::begin(Command::new(&words[0]).args(&words[1..]))?;
        if holds_within(PERIODS_3, || mask(load.tids[0]) == fixture.far_cpus()) {
            return Ok(load);
        }
        load.end()?;
    }
    Err(wrong(format!("no thread was moved\n{}", told(MOUNT))))
}

/// Checks that `end` restores the affinity of a bound thread.
fn is_restored_by(fixture: &Fixture, end: impl FnOnce(u32) -> io::Result<()>) -> io::Result<()> {
    let load = moved(fixture)?;
    let tid = load.tids[0];
    // This kernel cannot resend requests that terraced had at its death, so none may be under way.
    rest()?;
    end(tid)?;
    let restored = holds_within(Duration::from_secs(5), || mask(tid) == fixture.all_cpus());
    expect(restored, || format!("it may use {:?}", mask(tid)))?;
    load.end()
}

/// The end of a mount restores a thread's affinity.
pub(super) fn affinity_is_restored_at_the_end(fixture: &Fixture) -> Seen {
    is_restored_by(fixture, |_| output(&mut terrace(&["umount", MOUNT])).map(drop))?;
    Ok("after umount".into())
}

/// terraced is killed, is restarted, and ends.
pub(super) fn affinity_is_restored_after_a_crash(fixture: &Fixture) -> Seen {
    is_restored_by(fixture, |tid| {
        let daemon = pid_of_daemon()?;
        kill(daemon)?;
        let answers = holds_within(Duration::from_secs(20), || {
            numa(MOUNT).is_ok() && pid_of_daemon().is_ok_and(|now| now != daemon)
        });
        expect(answers, || "terraced was not restarted".into())?;
        std::thread::sleep(Duration::from_secs(2));
        expect(mask(tid) == fixture.far_cpus(), || "the thread lost its affinity".into())?;
        output(&mut terrace(&["umount", MOUNT])).map(drop)
    })?;
    Ok("after kill -9 of terraced and umount".into())
}

/// The whole instance is killed at once; the next command restores the affinity.
pub(super) fn affinity_is_restored_after_a_kill(fixture: &Fixture) -> Seen {
    is_restored_by(fixture, |_| {
        fixture::processes().into_iter().try_for_each(kill)?;
        expect(holds_within(Duration::from_secs(10), || fixture::processes().is_empty()), || {
            "processes are left".into()
        })?;
        let _ = output(&mut terrace(&["stat"]));
        let _ = output(&mut terrace(&["umount", MOUNT]));
        Ok(())
    })?;
    Ok("after kill -9 of all, by the next command".into())
}

/// In a control group of one node's processors no thread moves.
pub(super) fn cpuset_of_one_node_is_kept(fixture: &Fixture) -> Seen {
    let group = "/sys/fs/cgroup/one";
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+cpuset")?;
    fs::create_dir_all(group)?;
    let cpus: Vec<String> = fixture.nodes[0].iter().map(usize::to_string).collect();
    fs::write(format!("{group}/cpuset.cpus"), cpus.join(","))?;
    let load =
        fixture.run(&fixture.load("run", 1, &[&format!("{}/large", fixture.far_dir())]), Some(group))?;
    std::thread::sleep(PERIODS_3);
    let report = numa(&fixture.far_dir())?;
    expect(report.moved == 0 && mask(load.tids[0]) == fixture.nodes[0], || format!("{report:?}"))?;
    load.end()?;
    Ok(format!("no move, {} refused in the last period", report.moves.len()))
}

/// The far node's processors go offline while threads are bound to them, then its memory with its frames.
pub(super) fn node_that_goes_offline_does_no_harm(fixture: &Fixture) -> Seen {
    let dir = fixture.far_dir();
    let load = fixture.run(&fixture.load("run", 4, &[&format!("{dir}/large")]), None)?;
    std::thread::sleep(PERIODS_3);
    let bound = load.tids.iter().filter(|&&tid| mask(tid) == fixture.far_cpus()).count();
    expect(bound > 0, || format!("no thread was moved\n{}", told(&dir)))?;
    let frames = |report: &Numa| report.nodes[fixture.far()].frame_bytes >> 20;
    let before = numa(&dir)?;
    expect(frames(&before) > 0, || format!("no frames on the node\n{}", told(&dir)))?;
    let switch = |on: &str| {
        let write = |cpu: &usize| fs::write(format!("/sys/devices/system/cpu/cpu{cpu}/online"), on);
        fixture.far_cpus().iter().try_for_each(write)
    };
    switch("0")?;
    let (off, kept) = fixture.take_far_memory()?;
    std::thread::sleep(PERIODS_10);
    let after = numa(&dir)?;
    fixture.give_far_memory(&off)?;
    switch("1")?;
    let (more, block) = (after.moved - before.moved, fixture.block_mib()?);
    let seen = format!(
        "{bound} threads were bound to its processors, and {} MiB of frames on it; {} MiB of its memory went, {} MiB that the \
         kernel itself uses did not; {more} moves in ten periods without them, {} MiB of frames left there",
        frames(&before),
        off.len() as u64 * block,
        kept as u64 * block,
        frames(&after)
    );
    expect(more <= 4 && !off.is_empty(), || format!("{seen}\n{}", told(&dir)))?;
    load.end()?;
    Ok(seen)
}

/// Frames are allocated on the reading thread's node, and move when a thread elsewhere reads them.
pub(super) fn frames_lie_on_the_readers_node(fixture: &Fixture) -> Seen {
    fixture.mount()?;
    let mut seen = Vec::new();
    for node in [fixture.far(), 0] {
        let words = fixture.load("run", 1, &[&format!("{MOUNT}/small")]);
        let cpus: Vec<String> = fixture.nodes[node].iter().map(usize::to_string).collect();
        // Bound by taskset: the thread stays, and only frames can move.
        let load = Load::begin(Command::new("taskset").args(["-c", &cpus.join(",")]).args(&words))?;
        let begun = Instant::now();
        let mut share = 0.0;
        let lie_there = holds_within(Duration::from_secs(20), || {
            share = share_read_from(node, load.tids[0]);
            share > 0.95
        });
        seen.push(format!(
            "node {node}: {:.0} % read there after {:.1} s, {} MiB moved so far",
            share * 100.0,
            begun.elapsed().as_secs_f64(),
            numa(MOUNT)?.frame_bytes_moved >> 20
        ));
        expect(lie_there, || format!("{}\n{}", seen.join("; "), told(MOUNT)))?;
        load.end()?;
    }
    output(&mut terrace(&["umount", MOUNT]))?;
    Ok(seen.join("; "))
}

/// Share of a thread's reads from frames on a node, located by move_pages.
fn share_read_from(node: usize, tid: u32) -> f64 {
    let report = numa(MOUNT).unwrap_or_default();
    let Some(thread) = report.threads.iter().find(|thread| thread.tid == tid) else { return 0.0 };
    let all: f64 = thread.reads_bytes_s.iter().sum::<f64>() + thread.reads_elsewhere_bytes_s;
    if all > 0.0 { thread.reads_bytes_s[node] / all } else { 0.0 }
}

/// Of many threads with few reads each, every one moves at most once.
pub(super) fn thousand_threads_make_no_storm(fixture: &Fixture) -> Seen {
    let load = fixture.run(&fixture.load("sip", 1000, &[&format!("{}/large", fixture.far_dir())]), None)?;
    std::thread::sleep(PERIODS_10);
    let before = numa(&fixture.far_dir())?.moved;
    std::thread::sleep(PERIODS_10);
    let more = numa(&fixture.far_dir())?.moved - before;
    expect(before + more <= 1000, || format!("{before} moves, then {more}"))?;
    load.end()?;
    Ok(format!("{before} moves in ten periods, {more} in the ten after"))
}

/// A kernel without nodes, or a single node: no placement.
pub(super) fn one_node_is_told() -> Seen {
    fs::create_dir_all("/tmp/source")?;
    fs::write("/tmp/source/file", "content")?;
    output(&mut terrace(&["mount", "/tmp/source", MOUNT, "--numa", "auto", "--memory", fixture::MEMORY]))?;
    let said = told(MOUNT);
    expect(said == "one memory node: there is nothing to place\n", || said.clone())?;
    expect(fs::read(format!("{MOUNT}/file"))? == b"content", || "wrong content".into())?;
    output(&mut terrace(&["umount", MOUNT]))?;
    Ok(said.trim().to_owned())
}

fn rest() -> io::Result<()> {
    fs::write(REST, "")?;
    std::thread::sleep(Duration::from_millis(500));
    Ok(())
}

fn pid_of_daemon() -> io::Result<i32> {
    let named = |pid: &i32| proc::text(pid, "comm").is_ok_and(|comm| comm == "terraced\n");
    fixture::processes().into_iter().find(named).ok_or_else(|| wrong("no process is called terraced"))
}

fn kill(pid: i32) -> io::Result<()> {
    let pid = Pid::from_raw(pid).ok_or_else(|| wrong("no process"))?;
    match kill_process(pid, Signal::KILL) {
        Err(err) if err != rustix::io::Errno::SRCH => Err(err.into()),
        _ => Ok(()),
    }
}

fn expect(holds: bool, why: impl FnOnce() -> String) -> io::Result<()> {
    if holds { Ok(()) } else { Err(wrong(why())) }
}
