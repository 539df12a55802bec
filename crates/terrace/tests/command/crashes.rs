//! Deaths of terraced, of the supervisor, and of both: restarts, dead mounts, and their removal by the next
//! command.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use terrace_api::instance::{Dirty, Info, Kind, SCHEMA};
use terrace_tests::product;

use crate::server::Server;
use crate::test_mount::{TestMount, alive, crash, kill, terrace, text, told, wait_until, with_a_limit};

fn restarts(test: &TestMount) -> u32 {
    test.stat().instance.restarts
}

#[test]
fn terraced_is_started_again_and_nobody_notices() {
    let Some(test) = TestMount::mounted() else { return };
    let mut file =
        fs::File::options().create_new(true).read(true).write(true).open(test.mnt.join("a")).unwrap();
    for round in 0..8u8 {
        file.write_all(&vec![round; 100_000]).unwrap();
        kill(test.processes().1, libc::SIGKILL);
        file.write_all(&vec![round; 100_000]).unwrap();
        fs::write(test.mnt.join(format!("new{round}")), [round]).unwrap();
        wait_until("told of", || restarts(&test) == u32::from(round) + 1);
    }
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut content = Vec::new();
    file.read_to_end(&mut content).unwrap();
    let expected: Vec<u8> = (0..8u8).flat_map(|round| vec![round; 200_000]).collect();
    assert!(content == expected);
    test.ask("check", &[]).fine();
    drop(file);
    test.ask("umount", &[]).fine();
    assert!(fs::read(test.src.join("a")).unwrap() == expected);
    test.nothing_is_left();
}

/// A stopped (SIGSTOP) process; continued on drop.
struct Stopped(i32);

impl Stopped {
    fn new(pid: i32) -> Stopped {
        kill(pid, libc::SIGSTOP);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.0, libc::SIGCONT);
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
    let Some(test) = TestMount::new() else { return };
    let server = Server::new(&test.src);
    server.faults.hold.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let mount = scope.spawn(|| test.mount(&[]));
        wait_until("terraced begins", || server.faults.held.load(Ordering::Relaxed) != 0);
        let thread = server.faults.held.load(Ordering::Relaxed);
        let (terraced, supervisor) = (status(thread, "Tgid:"), status(thread, "PPid:"));
        let stopped = Stopped::new(supervisor);
        server.faults.hold.store(false, Ordering::Relaxed);
        wait_until("it serves", || has_said_ready(terraced));
        kill(terraced, libc::SIGKILL);
        wait_until("it is dead", || !alive(terraced));
        drop(stopped);
        let mounted = mount.join().unwrap();
        assert_eq!(mounted.code, Some(0), "{}", mounted.err);
    });
    wait_until("the next one serves", || restarts(&test) == 1);
    fs::write(test.mnt.join("a"), "a").unwrap();
    test.ask("umount", &[]).fine();
    assert_eq!(fs::read(test.src.join("a")).unwrap(), b"a");
    drop(server);
    test.nothing_is_left();
}

/// Programs hold as many of terraced's descriptors as its limit allows. The reserve below the limit is enough
/// for the next terraced.
#[test]
fn a_full_table_of_descriptors_is_recovered() {
    let Some(test) = TestMount::new() else { return };
    fs::create_dir(test.src.join("d")).unwrap();
    let mut mount = test.mount_command(&[]);
    // SAFETY: plain system calls between fork and exec.
    unsafe { mount.pre_exec(|| limit_descriptors(256)) };
    told(mount).fine();
    let mut file = fs::File::create(test.mnt.join("a")).unwrap();
    file.write_all(&[7; 100_000]).unwrap();

    let (enough, held) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed)
                && let Ok(dir) = fs::File::open(test.mnt.join("d"))
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
        // Before its limit is lowered, the next terraced would open more, and no command would reach it.
        enough.store(true, Ordering::Relaxed);
        for round in 1..=3 {
            // The command also takes a descriptor.
            kill(test.processes().1, libc::SIGKILL);
            wait_until("the next one serves", || {
                test.ask("stat", &["--json"]).code == Some(0) && restarts(&test) == round
            });
            file.write_all(&[7; 1000]).unwrap();
        }
        held.lock().unwrap().clear();
    });
    held.into_inner().unwrap().clear();
    test.ask("check", &[]).fine();
    drop(file);
    test.ask("umount", &[]).fine();
    assert!(fs::read(test.src.join("a")).unwrap() == [7; 103_000]);
    test.nothing_is_left();
}

/// A start with too few descriptors is refused: terraced would hang.
#[test]
fn few_descriptors_are_refused() {
    let Some(test) = TestMount::new() else { return };
    for limit in [24, 32, 34, 50] {
        for by in [&["--no-preload", "--", "true"][..], &["--", "true"]] {
            let mut run = terrace(["run", "--memory", "32MiB", "--on"]);
            run.arg(&test.src).args(by).env("TERRACE_PRELOAD", product("libterrace_preload.so"));
            // SAFETY: plain system calls between fork and exec.
            unsafe { run.pre_exec(move || limit_descriptors(limit)) };
            told(run).refused(&["open files: the limit is", "ulimit -n"]);
        }
    }
    test.nothing_is_left();
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
    let Some(test) = TestMount::new() else { return };
    told(test.mount_command(&[]).env("TERRACE_TEST_NO_RESEND", "1")).fine();
    let mut file = fs::File::create(test.mnt.join("a")).unwrap();
    file.write_all(&[7; 100_000]).unwrap();
    // Separate processes, which can be killed if they hang; a hanging thread could not.
    let script = format!(
        "import errno, os\nfailed = 0\nwhile not os.path.exists({0:?}):\n  try: os.stat({1:?} + str(os.urandom(4).hex()))\n  \
         except FileNotFoundError: pass\n  except OSError as err:\n    assert err.errno == errno.ECONNABORTED, err\n    failed += 1\n\
         print(failed)",
        text(&test.file("end")),
        text(&test.mnt.join("none")),
    );
    let ask = || Command::new("python3").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut askers: Vec<_> = (0..3).map(|_| ask()).collect();
    for round in 1..=8 {
        kill(test.processes().1, libc::SIGKILL);
        wait_until("told of", || restarts(&test) == round);
    }
    fs::write(test.file("end"), "").unwrap();
    wait_until("nobody hangs", || askers.iter_mut().all(|asker| asker.try_wait().unwrap().is_some()));
    for asker in askers {
        let out = asker.wait_with_output().unwrap();
        assert!(out.status.success());
        println!("failed: {}", String::from_utf8_lossy(&out.stdout).trim());
    }
    file.write_all(&[8; 100_000]).unwrap();
    drop(file);
    test.ask("check", &[]).fine();
    test.ask("umount", &[]).fine();
    assert_eq!(fs::read(test.src.join("a")).unwrap(), [[7; 100_000], [8; 100_000]].concat());
    test.nothing_is_left();
}

#[test]
fn crashes_of_its_own_end_in_an_unmount_that_is_told() {
    let Some(test) = TestMount::new() else { return };
    let panic_at = test.file("panic");
    told(test.mount_command(&[]).env("TERRACE_TEST_PANIC_AT", &panic_at)).fine();
    let (supervisor, _) = test.processes();
    // Five crashes in ten seconds; on a busy machine some come too late to count.
    for round in 1..100 {
        let terraced = test.info().terraced;
        match round % 4 {
            0 => fs::write(&panic_at, "").unwrap(),
            1 => _ = kill(terraced, libc::SIGABRT),
            2 => crash(terraced, libc::SIGSEGV),
            _ => crash(terraced, libc::SIGBUS),
        }
        wait_until("restarted or given up", || !alive(supervisor) || test.info().restarts == round);
        if !alive(supervisor) {
            break;
        }
    }
    assert!(!test.is_mounted());
    let [dir] = &test.instances()[..] else { panic!("its directory stays, to tell") };
    let log = fs::read_to_string(dir.join("terraced.log")).unwrap();
    assert!(log.contains("5 times in 10 s: unmounted"), "{log}");
    let told = test.mount(&[]);
    assert_eq!(told.code, Some(0));
    assert!(told.err.contains("the previous instance"), "{}", told.err);
    test.finish();
}

/// A mount with a server that holds the connection but answers nothing, like a server with a thread that
/// hangs in the kernel.
#[test]
fn a_dead_mount_that_does_not_answer_is_cleared() {
    let Some(test) = TestMount::new() else { return };
    let device = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options =
        format!("fd={},rootmode=40755,user_id=0,group_id=0\0", std::os::fd::AsRawFd::as_raw_fd(&device));
    let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).unwrap();
    let hang = || {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", &test.mnt, "fuse.terrace", flags, options).unwrap();
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
        src: test.src.clone(),
        mnt: test.mnt.clone(),
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
    let mnt = format!("{}/", text(&test.mnt));
    let cleared = told(with_a_limit(&["mount", "--memory", "32MiB", text(&test.src), &mnt]));
    let _ = fs::remove_dir_all(&dir);
    assert_eq!(cleared.code, Some(0), "{}", cleared.err);
    assert!(cleared.err.contains("left no record"), "{}", cleared.err);
    test.finish();
}

/// Kills the supervisor first, so that it starts no other terraced, then terraced.
pub(crate) fn kill_all(test: &TestMount) {
    let (supervisor, terraced) = test.processes();
    kill(supervisor, libc::SIGKILL);
    kill(terraced, libc::SIGKILL);
    wait_until("both are dead", || !alive(supervisor) && !alive(terraced));
}

/// Time and content of the instance's record of unwritten data.
fn record(test: &TestMount) -> (SystemTime, Option<Dirty>) {
    let path = test.instances()[0].join("dirty.json");
    let held_until = fs::metadata(&path).and_then(|meta| meta.modified());
    let record = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
    (held_until.unwrap_or(SystemTime::UNIX_EPOCH), record)
}

#[test]
fn after_the_death_of_all_one_command_clears_mounts_and_tells() {
    let Some(test) = TestMount::mounted() else { return };
    let mut synced = fs::File::create(test.mnt.join("synced")).unwrap();
    synced.write_all(b"acknowledged").unwrap();
    synced.sync_all().unwrap();
    // A separate process: each child forked by another test closes copies of this process's descriptors,
    // which writes back.
    let script = format!("exec > '{}'; printf %050000d 7; read end", text(&test.mnt.join("unwritten file")));
    let mut writer = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
    wait_until("written", || {
        fs::metadata(test.mnt.join("unwritten file")).is_ok_and(|meta| meta.len() == 50_000)
    });
    wait_until("recorded", || record(&test).1.is_some_and(|dirty| dirty.bytes == 53_248));
    kill_all(&test);
    let error = || fs::read_dir(&test.mnt).err().and_then(|err| err.raw_os_error());
    wait_until("the kernel has noticed", || error() == Some(libc::ENOTCONN));
    test.ask("stat", &[])
        .refused(&["the daemon and the supervisor of this mount are dead", "terrace umount"]);

    let told = test.mount(&[]);
    assert_eq!(told.code, Some(0), "{}", told.err);
    assert!(told.err.contains("up to 53248 bytes (52.0 KiB) unwritten in unwritten file"), "{}", told.err);
    assert!(told.err.contains("fsync"), "{}", told.err);
    assert_eq!(told.err.lines().count(), 1);
    assert_eq!(fs::read(test.mnt.join("synced")).unwrap(), b"acknowledged");
    drop(synced);
    writer.kill().unwrap();
    writer.wait().unwrap();
    test.finish();
}

#[test]
fn a_dead_mount_with_everything_written_is_told_so() {
    let Some(test) = TestMount::mounted() else { return };
    fs::write(test.mnt.join("a"), "b").unwrap();
    test.ask("sync", &[]).fine();
    let flushed = SystemTime::now();
    wait_until("recorded", || {
        let (held_until, record) = record(&test);
        held_until > flushed && record.is_some_and(|dirty| dirty.bytes == 0)
    });
    kill_all(&test);
    let told = test.ask("umount", &[]);
    assert_eq!(told.code, Some(0));
    assert!(told.err.contains("nothing was unwritten at its last record"), "{}", told.err);
    test.nothing_is_left();
    assert_eq!(fs::read(test.src.join("a")).unwrap(), b"b");
}

#[test]
fn without_its_supervisor_terraced_serves_on_and_cleans_up() {
    let Some(test) = TestMount::mounted() else { return };
    let (supervisor, terraced) = test.processes();
    kill(supervisor, libc::SIGKILL);
    wait_until("the supervisor is dead", || !alive(supervisor));
    fs::write(test.mnt.join("a"), "b").unwrap();
    assert!(alive(terraced));
    test.mount(&[]).refused(&["already serves"]);
    let page = test.ask("stat", &[]).fine().out;
    assert!(page.contains("supervisor") && page.contains("`terrace umount` it"), "{page}");
    test.finish();
    assert_eq!(fs::read(test.src.join("a")).unwrap(), b"b");
}

#[test]
fn a_dead_run_is_swept_by_the_next_command() {
    let Some(test) = TestMount::new() else { return };
    let ready = test.file("ready");
    let mut child = test.run(&format!("touch {}; exec sleep 120", text(&ready))).spawn().unwrap();
    wait_until("the command runs", || ready.exists() && test.instances().len() == 1);
    let info = test.info();
    // The wrapped command is the child of `run`.
    let sleep = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    let command =
        sleep.split_whitespace().map(|pid| pid.parse::<i32>().unwrap()).find(|pid| *pid != info.pid);
    for pid in [info.pid, info.terraced, child.id() as i32, command.unwrap()] {
        kill(pid, libc::SIGKILL);
    }
    child.wait().unwrap();
    wait_until("they are dead", || !alive(info.pid) && !alive(info.terraced));
    // The directory may be swept already: every command sweeps.
    assert!(test.run("true").status().unwrap().success());
    test.nothing_is_left();
}
