//! Deaths of terraced, of the supervisor, and of both.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use terrace_api::instance::{Dirty, Info, Kind, SCHEMA};

use crate::server::Server;
use crate::stage::{TestMount, crash, kill, library, possible, runs, terrace, text, told, wait_until};

fn restarts(stage: &TestMount) -> u32 {
    stage.stat().instance.restarts
}

#[test]
fn terraced_is_started_again_and_nobody_notices() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    stage.mount(&[]).fine();
    let mut file =
        fs::File::options().create_new(true).read(true).write(true).open(stage.mnt.join("a")).unwrap();
    for round in 0..8u8 {
        file.write_all(&vec![round; 100_000]).unwrap();
        kill(stage.processes().1, Signal::KILL);
        file.write_all(&vec![round; 100_000]).unwrap();
        fs::write(stage.mnt.join(format!("new{round}")), [round]).unwrap();
        wait_until("told of", || restarts(&stage) == u32::from(round) + 1);
    }
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut content = Vec::new();
    file.read_to_end(&mut content).unwrap();
    let expected: Vec<u8> = (0..8u8).flat_map(|round| vec![round; 200_000]).collect();
    assert!(content == expected);
    stage.ask("check", &[]).fine();
    drop(file);
    stage.ask("umount", &[]).fine();
    assert!(fs::read(stage.src.join("a")).unwrap() == expected);
    stage.nothing_is_left();
}

/// A stopped (SIGSTOP) process; continued on drop.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Stopped {
        kill(pid, Signal::STOP);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.0, Signal::CONT);
    }
}

/// A number from /proc/ID/status of a process or thread.
fn status(id: u32, name: &str) -> i32 {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
}

/// Has terraced reported that it serves, and does it wait for the supervisor's answer?
fn has_said_ready(terraced: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{terraced}/task")).into_iter().flatten().flatten();
    let read = |path: std::path::PathBuf| fs::read_to_string(path).unwrap_or_default();
    let reads = format!("{} ", libc::SYS_read);
    threads.map(|thread| thread.path()).any(|thread| {
        read(thread.join("comm")) == "ready\n" && read(thread.join("syscall")).starts_with(&reads)
    })
}

/// The next terraced closes descriptors that it takes for orphans. The waiting command gets its message
/// before that.
#[test]
fn terraced_that_dies_at_its_start_is_started_again() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    let server = Server::new(&stage.src);
    server.faults.hold.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let mount = scope.spawn(|| stage.mount(&[]));
        wait_until("terraced begins", || server.faults.held.load(Ordering::Relaxed) != 0);
        let thread = server.faults.held.load(Ordering::Relaxed);
        let (terraced, supervisor) = (status(thread, "Tgid:"), status(thread, "PPid:"));
        let stopped = Stopped::new(supervisor);
        server.faults.hold.store(false, Ordering::Relaxed);
        wait_until("it serves", || has_said_ready(terraced));
        kill(terraced, Signal::KILL);
        wait_until("it is dead", || !runs(terraced));
        drop(stopped);
        let mounted = mount.join().unwrap();
        assert_eq!(mounted.code, Some(0), "{}", mounted.err);
    });
    wait_until("the next one serves", || restarts(&stage) == 1);
    fs::write(stage.mnt.join("a"), "a").unwrap();
    stage.ask("umount", &[]).fine();
    assert_eq!(fs::read(stage.src.join("a")).unwrap(), b"a");
    drop(server);
    stage.nothing_is_left();
}

/// Programs hold as many of terraced's descriptors as its limit allows. The reserve below the limit is enough
/// for the next terraced.
#[test]
fn a_full_table_of_descriptors_is_recovered() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    fs::create_dir(stage.src.join("d")).unwrap();
    let mut mount = terrace(["mount", "--memory", "32MiB"]);
    mount.args([&stage.src, &stage.mnt]);
    // SAFETY: plain system calls between fork and exec.
    unsafe { mount.pre_exec(|| limit_descriptors(256)) };
    told(mount).fine();
    let mut file = fs::File::create(stage.mnt.join("a")).unwrap();
    file.write_all(&[7; 100_000]).unwrap();

    let (enough, held) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed)
                && let Ok(dir) = fs::File::open(stage.mnt.join("d"))
            {
                held.lock().unwrap().push(dir);
            }
        });
        let mut before = 0;
        wait_until("no more can be opened", || {
            std::thread::sleep(Duration::from_secs(1));
            let now = held.lock().unwrap().len();
            now > 100 && std::mem::replace(&mut before, now) == now
        });
        for round in 1..=3 {
            // The command also takes a descriptor.
            kill(stage.processes().1, Signal::KILL);
            wait_until("the next one serves", || {
                stage.ask("stat", &["--json"]).code == Some(0) && restarts(&stage) == round
            });
            file.write_all(&[7; 1000]).unwrap();
        }
        enough.store(true, Ordering::Relaxed);
        held.lock().unwrap().clear();
    });
    held.into_inner().unwrap().clear();
    stage.ask("check", &[]).fine();
    drop(file);
    stage.ask("umount", &[]).fine();
    assert!(fs::read(stage.src.join("a")).unwrap() == [7; 103_000]);
    stage.nothing_is_left();
}

/// A start with too few descriptors is refused: terraced would hang.
#[test]
fn few_descriptors_are_refused() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    for limit in [24, 32, 34, 50] {
        for by in [&["--no-preload", "--", "true"][..], &["--", "true"]] {
            let mut run = terrace(["run", "--memory", "32MiB", "--on"]);
            run.arg(&stage.src).args(by).env("TERRACE_PRELOAD", library());
            // SAFETY: plain system calls between fork and exec.
            unsafe { run.pre_exec(move || limit_descriptors(limit)) };
            told(run).refused(&["open files: the limit is", "ulimit -n"]);
        }
    }
    stage.nothing_is_left();
}

/// Lowers the limit for this process and its children, which cannot raise it again.
fn limit_descriptors(limit: u64) -> std::io::Result<()> {
    const CAP_SYS_RESOURCE: libc::c_ulong = 24;
    // SAFETY: drops a capability from the bounding set of this process.
    if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_SYS_RESOURCE, 0, 0, 0) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    let both = rustix::process::Rlimit { current: Some(limit), maximum: Some(limit) };
    Ok(rustix::process::setrlimit(rustix::process::Resource::Nofile, both)?)
}

/// Guarantee on kernels before 6.9: requests under way at the crash fail, all others go on.
#[test]
fn kernel_without_resend_fails_only_requests_under_way() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    let mut command = terrace(["mount", "--memory", "32MiB"]);
    told({
        command.args([&stage.src, &stage.mnt]).env("TERRACE_TEST_NO_RESEND", "1");
        command
    })
    .fine();
    let mut file = fs::File::create(stage.mnt.join("a")).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    // Separate processes, which can be killed if they hang; a hanging thread could not.
    let script = format!(
        "import errno, os\nfailed = 0\nwhile not os.path.exists({0:?}):\n  try: os.stat({1:?} + str(os.urandom(4).hex()))\n  \
         except FileNotFoundError: pass\n  except OSError as err:\n    assert err.errno == errno.ECONNABORTED, err\n    failed += 1\n\
         print(failed)",
        text(&stage.file("end")),
        text(&stage.mnt.join("none")),
    );
    let ask = || Command::new("python3").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut askers: Vec<_> = (0..3).map(|_| ask()).collect();
    for round in 1..=8 {
        kill(stage.processes().1, Signal::KILL);
        wait_until("told of", || restarts(&stage) == round);
    }
    fs::write(stage.file("end"), "").unwrap();
    wait_until("nobody hangs", || askers.iter_mut().all(|asker| asker.try_wait().unwrap().is_some()));
    for asker in askers {
        let out = asker.wait_with_output().unwrap();
        assert!(out.status.success());
        println!("failed: {}", String::from_utf8_lossy(&out.stdout).trim());
    }
    file.write_all(&[8; 100_000]).unwrap();
    drop(file);
    stage.ask("check", &[]).fine();
    stage.ask("umount", &[]).fine();
    assert_eq!(fs::read(stage.src.join("a")).unwrap(), [[7; 100_000], [8; 100_000]].concat());
    stage.nothing_is_left();
}

#[test]
fn crashes_of_its_own_end_in_an_unmount_that_is_told() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    let panic_at = stage.file("panic");
    let mut command = terrace(["mount", "--memory", "32MiB"]);
    command.args([&stage.src, &stage.mnt]).env("TERRACE_TEST_PANIC_AT", &panic_at);
    told(command).fine();
    let (supervisor, _) = stage.processes();
    // Five crashes in ten seconds; on a busy machine some come too late to count.
    for round in 1..100 {
        let terraced = stage.info().terraced;
        match round % 4 {
            0 => fs::write(&panic_at, "").unwrap(),
            1 => kill(terraced, Signal::ABORT),
            2 => crash(terraced, Signal::SEGV),
            _ => crash(terraced, Signal::BUS),
        }
        wait_until("restarted or given up", || !runs(supervisor) || stage.info().restarts == round);
        if !runs(supervisor) {
            break;
        }
    }
    assert!(!stage.is_mounted());
    let [dir] = &stage.instances()[..] else { panic!("its directory stays, to tell") };
    let log = fs::read_to_string(dir.join("terraced.log")).unwrap();
    assert!(log.contains("5 times in 10 s: unmounted"), "{log}");
    let told = stage.mount(&[]);
    assert_eq!(told.code, Some(0));
    assert!(told.err.contains("the previous instance"), "{}", told.err);
    stage.ask("umount", &[]).fine();
    stage.nothing_is_left();
}

/// A mount with a server that holds the connection but answers nothing, like a server with a thread that
/// hangs in the kernel.
#[test]
fn a_dead_mount_that_does_not_answer_is_cleared() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    let device = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options =
        format!("fd={},rootmode=40755,user_id=0,group_id=0\0", std::os::fd::AsRawFd::as_raw_fd(&device));
    let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).unwrap();
    let hang = || {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", &stage.mnt, "fuse.terrace", flags, options).unwrap();
    };
    hang();
    // The record of a dead instance; no process has this id.
    let dir = std::path::PathBuf::from(format!("/run/terrace/{}.dead{}", i32::MAX, std::process::id()));
    let info = Info {
        schema: SCHEMA.to_owned(),
        pid: i32::MAX,
        terraced: i32::MAX,
        pid_namespace: "".into(),
        restarts: 0,
        last_death: None,
        kind: Kind::Mount,
        src: stage.src.clone(),
        mnt: stage.mnt.clone(),
        device: None,
        claim: None,
        memory_bytes: 0,
        policy: "lru".to_owned(),
        tiers: Vec::new(),
        metrics: None,
        version: "0".to_owned(),
    };
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("info.json"), serde_json::to_vec(&info).unwrap()).unwrap();
    fs::write(dir.join("lock"), "").unwrap();
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "300", env!("CARGO_BIN_EXE_terrace"), "mount", "--memory", "32MiB"]);
    command.arg(&stage.src).arg(format!("{}/", text(&stage.mnt))).env("XDG_CONFIG_HOME", "/nonexistent");
    let cleared = told(command);
    let _ = fs::remove_dir_all(&dir);
    assert_eq!(cleared.code, Some(0), "{}", cleared.err);
    assert!(cleared.err.contains("left no record"), "{}", cleared.err);
    stage.ask("umount", &[]).fine();
    stage.nothing_is_left();
}

/// Kills the supervisor first, so that it starts no other terraced, then terraced.
pub(crate) fn kill_all(stage: &TestMount) {
    let (supervisor, terraced) = stage.processes();
    kill(supervisor, Signal::KILL);
    kill(terraced, Signal::KILL);
    wait_until("both are dead", || !runs(supervisor) && !runs(terraced));
}

/// Time and content of the instance's record of unwritten data.
fn record(stage: &TestMount) -> (SystemTime, Option<Dirty>) {
    let path = stage.instances()[0].join("dirty.json");
    let held_until = fs::metadata(&path).and_then(|meta| meta.modified());
    let record = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
    (held_until.unwrap_or(SystemTime::UNIX_EPOCH), record)
}

#[test]
fn after_the_death_of_all_one_command_clears_mounts_and_tells() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    stage.mount(&[]).fine();
    let mut synced = fs::File::create(stage.mnt.join("synced")).unwrap();
    synced.write_all(b"acknowledged").unwrap();
    synced.sync_all().unwrap();
    // A separate process: each child forked by another test closes copies of this process's descriptors,
    // which writes back.
    let script = format!("exec > '{}'; printf %050000d 7; read end", text(&stage.mnt.join("unwritten file")));
    let mut writer = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
    wait_until("written", || {
        fs::metadata(stage.mnt.join("unwritten file")).is_ok_and(|meta| meta.len() == 50_000)
    });
    wait_until("recorded", || record(&stage).1.is_some_and(|dirty| dirty.bytes == 53_248));
    kill_all(&stage);
    let error = || fs::read_dir(&stage.mnt).err().and_then(|err| err.raw_os_error());
    wait_until("the kernel has noticed", || error() == Some(libc::ENOTCONN));
    stage.ask("stat", &[]).refused(&["its daemon died, with its supervisor", "terrace umount"]);

    let told = stage.mount(&[]);
    assert_eq!(told.code, Some(0), "{}", told.err);
    assert!(told.err.contains("up to 53248 bytes (52.0 KiB) unwritten in unwritten file"), "{}", told.err);
    assert!(told.err.contains("fsync"), "{}", told.err);
    assert_eq!(told.err.lines().count(), 1);
    assert_eq!(fs::read(stage.mnt.join("synced")).unwrap(), b"acknowledged");
    drop(synced);
    writer.kill().unwrap();
    writer.wait().unwrap();
    stage.ask("umount", &[]).fine();
    stage.nothing_is_left();
}

#[test]
fn a_dead_mount_with_everything_written_is_told_so() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    stage.mount(&[]).fine();
    fs::write(stage.mnt.join("a"), "b").unwrap();
    stage.ask("sync", &[]).fine();
    let flushed = SystemTime::now();
    wait_until("recorded", || {
        let (held_until, record) = record(&stage);
        held_until > flushed && record.is_some_and(|dirty| dirty.bytes == 0)
    });
    kill_all(&stage);
    let told = stage.ask("umount", &[]);
    assert_eq!(told.code, Some(0));
    assert!(told.err.contains("nothing was unwritten at its last record"), "{}", told.err);
    stage.nothing_is_left();
    assert_eq!(fs::read(stage.src.join("a")).unwrap(), b"b");
}

#[test]
fn without_its_supervisor_terraced_serves_on_and_cleans_up() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    stage.mount(&[]).fine();
    let (supervisor, terraced) = stage.processes();
    kill(supervisor, Signal::KILL);
    wait_until("the supervisor is dead", || !runs(supervisor));
    fs::write(stage.mnt.join("a"), "b").unwrap();
    assert!(runs(terraced));
    stage.mount(&[]).refused(&["already serves"]);
    let page = stage.ask("stat", &[]).fine().out;
    assert!(page.contains("supervisor") && page.contains("`terrace umount` it"), "{page}");
    stage.ask("umount", &[]).fine();
    stage.nothing_is_left();
    assert_eq!(fs::read(stage.src.join("a")).unwrap(), b"b");
}

#[test]
fn a_dead_run_is_swept_by_the_next_command() {
    if !possible() {
        return;
    }
    let stage = TestMount::new();
    let ready = stage.file("ready");
    let mut child = stage.run(&format!("touch {}; exec sleep 120", text(&ready))).spawn().unwrap();
    wait_until("the command runs", || ready.exists() && stage.instances().len() == 1);
    let info = stage.info();
    // The wrapped command is the child of `run`.
    let sleep = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    let command =
        sleep.split_whitespace().map(|pid| pid.parse::<i32>().unwrap()).find(|pid| *pid != info.pid);
    for pid in [info.pid, info.terraced, child.id() as i32, command.unwrap()] {
        kill(pid, Signal::KILL);
    }
    child.wait().unwrap();
    wait_until("they are dead", || !runs(info.pid) && !runs(info.terraced));
    // The directory may be swept already: every command sweeps.
    assert!(stage.run("true").status().unwrap().success());
    stage.nothing_is_left();
}
