//! `terrace run` without a mount: clients read large files from memory. By leases alone no process may have
//! such a file open for writing; guarded, opens of other programs are seen, and programs of the run may write.
//!
//! The scripts in `leased/` run in a client.

use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use terrace_api::instance::Info;
use terrace_testkit::wait::holds_within;
use terrace_tests::rng::{Rng, seed};
use terrace_tests::tools::{compile, need};
use terrace_tests::{Chaos, Fault, Side, TestMount, amount, is_root, leftovers, process, product};

/// Python with a script, under its own `terrace run`.
pub(crate) fn script(mount: &TestMount, text: &str) -> Command {
    let path = mount.aside().join("script.py");
    std::fs::write(&path, text).unwrap();
    let mut command = mount.command("python3");
    command.arg(path).env("BOARD", mount.aside().join("board")).env("TERRACE", product("terrace"));
    command
}

const SIDES: [Side; 2] = [Side::Leased, Side::Guarded];

fn mount(test: &str, side: Side) -> TestMount {
    TestMount::with(test, side, &["--memory", "16MiB"])
}

fn hits(mount: &TestMount) -> u64 {
    mount.stats_of_runs().iter().map(|stat| stat.cache.preload.hits).sum()
}

#[test]
fn each_change_is_seen_by_readers_from_memory() {
    for side in SIDES {
        let mount = mount("leased-changes", side);
        let said = process::run(&mut script(&mount, include_str!("leased/changes.py")), 120).expect_success();
        assert_eq!(said, "changes ok\n");
        let stat = mount.stats_of_runs().remove(0).cache;
        let broken = stat.leases.as_ref().expect("served by leases").broken;
        let strangers = stat.announced.as_ref().map_or(0, |announced| announced.strangers);
        assert_eq!(stat.announced.is_some(), side == Side::Guarded);
        // Half of the changes are by programs of the run: those end no lease if they are announced.
        assert!(broken + strangers >= 10 && hits(&mount) > 1000, "{stat:?}");
        mount.finish();
    }
}

/// Large files in the directory are served, without a mount; locks, devices and free space are as without
/// terrace.
#[test]
fn leases_serve_large_files_of_the_directory() {
    for side in SIDES {
        let mount = TestMount::with("leased-serves", side, &["--memory", "16MiB", "--except", "logs"]);
        std::fs::create_dir(mount.src().join("logs")).unwrap();
        let mut command = script(&mount, include_str!("leased/serves.py"));
        command.arg(mount.at());
        assert_eq!(process::run(&mut command, 120).expect_success(), "serves ok\n", "{side:?}");
        mount.finish();
    }
}

/// Reads with O_DIRECT are served, without writers and beside announced writes.
#[test]
fn direct_reads_are_served_from_memory() {
    for (side, options) in [(Side::Leased, &[][..]), (Side::Guarded, &[]), (Side::Leased, &["--exclusive"])] {
        let mount = TestMount::with("leased-direct", side, &[&["--memory", "64MiB"], options].concat());
        let mut command = script(&mount, include_str!("leased/direct.py"));
        let writes = (side == Side::Guarded || !options.is_empty()).then_some("writes");
        command.env("SEED", seed("leased-direct").to_string()).args(writes);
        assert_eq!(process::run(&mut command, 120).expect_success(), "direct ok\n");
        assert!(hits(&mount) > 5000, "{side:?} {options:?}: {} hits", hits(&mount));
        mount.finish();
    }
}

fn stress(test: &str, side: Side, seed: u64, seconds: u64) -> (TestMount, Command) {
    let mount = mount(test, side);
    let mut command = script(&mount, include_str!("leased/stress.py"));
    command.env("STRESS_SECONDS", seconds.to_string()).env("STRESS_SEED", (seed % 100_000).to_string());
    (mount, command)
}

/// Reads are never older than writes that completed before them, while terraced is killed.
#[test]
fn leased_reads_are_never_old_while_terraced_is_killed() {
    let (seed, seconds) = (seed("leased-stress"), amount("TERRACE_SECONDS", 6, 60));
    for side in SIDES {
        let (mount, mut command) = stress("leased-calm", side, seed, 2);
        assert_eq!(process::run(&mut command, 120).expect_success(), "stress ok\n");
        assert!(hits(&mount) > 100, "{} hits", hits(&mount));
        mount.finish();
        let (mount, mut command) = stress("leased-stress", side, seed, seconds);
        let chaos = Chaos::start(&mount, Fault::Kill, seed, 400);
        let said = process::run(&mut command, seconds + 120).expect_success();
        println!("disturbed {} times: {said}", chaos.stop());
        mount.finish();
    }
}

/// The instance of a mount point, once it is there.
pub(crate) fn instance_at(at: &Path) -> Info {
    let find = || leftovers::instances().into_iter().find(|(_, info)| info.mnt == at);
    assert!(holds_within(Duration::from_secs(60), || find().is_some()));
    find().unwrap().1
}

/// Kills terraced and its supervisor, some time after they have begun. The thread returns whether both lived.
pub(crate) fn kill_all(mount: &TestMount, pause: Duration) -> JoinHandle<[bool; 2]> {
    let at = mount.at().to_owned();
    std::thread::spawn(move || {
        instance_at(&at);
        std::thread::sleep(pause);
        let info = instance_at(&at);
        // A stopped supervisor cannot restart terraced.
        process::kill(info.pid, libc::SIGSTOP);
        [info.terraced, info.pid].map(|pid| process::kill(pid, libc::SIGKILL))
    })
}

/// The same when all of terrace is killed: the kernel notifies the clients before it breaks a lease. The
/// command continues.
#[test]
fn leased_reads_are_never_old_after_all_is_killed() {
    let seed = seed("leased-all-killed");
    let mut rng = Rng::new(seed);
    for round in 0..amount("TERRACE_ROUNDS", 3, 50) {
        let side = SIDES[round as usize % 2];
        let (mount, mut command) = stress("leased-all-killed", side, rng.below(100_000), 2);
        let killer = kill_all(&mount, Duration::from_millis(500 + rng.below(1200)));
        let said = process::run(&mut command, 120);
        // Only the statistics are lost.
        let told = said.stderr.contains("went on without it") && said.stderr.contains("no statistics");
        assert!(told && said.stdout == "stress ok\n", "TERRACE_SEED={seed}: {said}");
        assert_eq!(killer.join().unwrap(), [true, true]);
        mount.finish();
    }
}

/// The kernel breaks the lease of an unresponsive daemon. (lease-break-time is global: the test restores it.)
#[test]
fn stopped_terraced_lets_nobody_read_old_content() {
    const LEASE_BREAK_TIME: &str = "/proc/sys/fs/lease-break-time";
    let Ok(before) = std::fs::read_to_string(LEASE_BREAK_TIME) else { return };
    if !is_root() || std::fs::write(LEASE_BREAK_TIME, "2").is_err() {
        return;
    }
    let sides = SIDES.map(|side| {
        let mount = mount("leased-stopped", side);
        let outcome = process::run(&mut script(&mount, include_str!("leased/stopped.py")), 120);
        (mount, outcome)
    });
    std::fs::write(LEASE_BREAK_TIME, before).unwrap();
    for (mount, outcome) in sides {
        assert_eq!(outcome.expect_success(), "stopped ok\n");
        mount.finish();
    }
}

/// An unprivileged user may hold leases on his own files: no namespace, /dev/fuse or passthrough is needed.
#[test]
fn ordinary_user_is_served_by_leases() {
    if !is_root() {
        return;
    }
    let mount = mount("leased-user", Side::Guarded);
    let file = mount.src().join("file");
    std::fs::write(&file, vec![7; 300_000]).unwrap();
    // Long enough for the daemon, which may wait for a processor, to serve the file meanwhile.
    let read = "import os, random, time
fd = os.open('file', os.O_RDONLY); end = time.monotonic() + 2
while time.monotonic() < end: assert os.pread(fd, 9, random.randrange(70) * 4096) == b'\\x07' * 9
print('ok')";
    let run = script(&mount, read);
    let owned = [mount.src(), &file, &mount.dir().join("stats")];
    assert!(Command::new("chown").arg("nobody").args(owned).status().is_ok_and(|status| status.success()));
    let mut command = Command::new("setpriv");
    command.args(["--reuid=nobody", "--clear-groups", "--"]).arg(run.get_program()).args(run.get_args());
    command.current_dir(mount.at()).env("TERRACE_LARGE_FILE", "0");
    // The default runtime directory: paths of sockets are short.
    command.env_remove("XDG_RUNTIME_DIR");
    assert_eq!(process::run(&mut command, 60).expect_success(), "ok\n");
    assert!(hits(&mount) > 20, "{} hits", hits(&mount));
    mount.finish();
}

/// Readers faster than the daemon's page fills, with unaligned buffers: the kernel's page cache must not fill
/// the memory that terrace's cache has not taken.
#[test]
fn full_ring_sends_no_reader_to_the_page_cache() {
    need("fio", "fio");
    let mount = mount("leased-full", Side::Leased);
    let fio = "--name=a --filename=file --rw=randread --bs=4k --size=128M --ioengine=psync --numjobs=16 --thread --time_based --runtime=2 --norandommap --invalidate=0";
    process::run(mount.command("fio").args(fio.split(' ')), 120).expect_success();
    let read = mount.stats_of_runs()[0].cache.preload.clone();
    assert!(read.misses > 1000 && read.fallbacks < (read.misses / 100).max(100), "{read:?}");
    mount.finish();
}

/// With few descriptors, files that clients have open are dropped, and their slots are reused for other
/// files.
#[test]
fn given_up_files_are_read_from_the_source() {
    let mount = mount("leased-given-up", Side::Leased);
    let read = "import os, random
def content(n): return bytes([n]) * (200_000 + 7000 * n)
for n in range(90):
    with open(f'f{n}', 'wb') as f: f.write(content(n))
random.seed(1); fds = {}
for _ in range(20_000):
    n = random.randrange(90)
    if n in fds and random.random() < .01: os.close(fds.pop(n))
    if n not in fds: fds[n] = os.open(f'f{n}', os.O_RDONLY)
    bytes_at = random.choice([100, 100, 9000, 30_000]); at = random.randrange(200) * 4096
    got = os.pread(fds[n], bytes_at, at); assert got == content(n)[at:at + bytes_at], (n, at, bytes_at, len(got))
print('ok')";
    let run = script(&mount, read);
    let mut command = Command::new("prlimit");
    command.arg("--nofile=300:300").arg(run.get_program()).args(run.get_args()).current_dir(mount.at());
    command.env("TERRACE_LARGE_FILE", "0");
    assert_eq!(process::run(&mut command, 120).expect_success(), "ok\n");
    let leases = mount.stats_of_runs()[0].cache.leases.clone().expect("served by leases");
    assert!(leases.held < 80 && hits(&mount) > 1000, "{leases:?}, {} hits", hits(&mount));
    mount.finish();
}

/// Runs a case of `tests/c/guest.c` with a file larger than the memory, on the plain directory and by leases.
/// Returns both outputs.
fn guest(case: &str) -> [String; 2] {
    let mount = mount(&format!("leased-{case}"), Side::Guarded);
    let (file, program) = (mount.src().join("file"), mount.aside().join("guest"));
    compile("guest", &program, &[]);
    std::fs::write(&file, vec![0; 40 << 20]).unwrap();
    let plain = Command::new(&program);
    let said = [plain, mount.command(&program)]
        .map(|mut command| process::run(command.arg(case).arg(&file), 120).expect_success());
    let served: u64 = mount.stats_of_runs().iter().map(|stat| stat.cache.preload.misses).sum();
    assert!(served > 100 || case == "interrupted", "{served} misses of the library's");
    mount.finish();
    said
}

/// Handlers have 8 KiB of stack, threads 16: the library's stack use must be small.
#[test]
fn reads_take_little_of_the_programs_stack() {
    let [plain, leased] = guest("stack").map(|bytes| bytes.trim().parse::<usize>().unwrap());
    // Without the optimizer each value has its own stack slot.
    let is_optimized = !product("terrace").components().any(|part| part.as_os_str() == "debug");
    let more = if is_optimized { 2 << 10 } else { 5 << 10 };
    assert!(leased <= plain + more, "{leased} bytes of stack, without the library {plain}");
}

#[test]
fn program_alone_has_its_descriptors() {
    guest("descriptors");
}

#[test]
fn threads_that_are_cancelled_at_any_instruction_end() {
    guest("cancelled");
}

#[test]
fn signals_interrupt_no_open_and_no_truncate() {
    guest("interrupted");
}
