//! `terrace run`: the command's mount, status, streams and signals, and reports of an instance that ended
//! before it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use terrace_api::stats::StatReport;
use terrace_testkit::can_mount;

use crate::test_mount::{
    DEFAULT_SIGNALS, Outcome, TERRACE, TestMount, alive, apart, kill, terrace, text, told, wait_until,
};

#[test]
fn the_command_sees_the_mount_and_nobody_else_does() {
    let Some(test) = TestMount::new() else { return };
    fs::write(test.src.join("a"), "from the source").unwrap();
    let script = format!(
        "cd {0}; cat a; stat -f -c ' %T' .; grep -c '{0} .*fuse.terrace' /proc/self/mountinfo; echo out > b",
        text(&test.src)
    );
    assert_eq!(told(test.run(&script)).out, "from the source fuseblk\n1\n");
    assert!(!test.is_mounted());
    assert_eq!(fs::read(test.src.join("b")).unwrap(), b"out\n");
    test.nothing_is_left();
}

/// Changes by a user that is neither owner nor in the group: set-id bits are cleared under `run` as without
/// it.
#[test]
fn set_id_bits_go_under_run_as_without() {
    let Some(test) = TestMount::new() else { return };
    let script = "for change in 'dd if=/dev/zero of=f bs=4k count=1 conv=notrunc status=none' 'truncate -s 100 f' \
                  'fallocate -l 64k f' 'fallocate -p -l 4k f' 'dd if=/dev/zero of=f count=1 status=none'; do \
                  for mode in 6777 6767 2767 4666; do dd if=/dev/zero of=f bs=64k count=3 status=none; chmod $mode f; \
                  setpriv --reuid 4242 --regid 4242 --clear-groups $change || exit 9; stat -c %a f; rm f; done; done";
    // A command of another user must reach its working directory.
    fs::set_permissions(&test.src, fs::Permissions::from_mode(0o777)).unwrap();
    let plain = told(Command::new("sh").args(["-c", script]).current_dir(&test.src)).fine().out;
    assert_eq!(told(test.run(script).current_dir(&test.src)).fine().out, plain);
    test.nothing_is_left();
}

#[test]
fn its_status_is_the_commands() {
    let Some(test) = TestMount::new() else { return };
    for code in [0, 1, 2, 42, 255] {
        assert_eq!(test.run(&format!("exit {code}")).status().unwrap().code(), Some(code));
    }
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV] {
        let status = test.run(&format!("kill -{signal} $$")).status().unwrap();
        assert_eq!(status.signal(), Some(signal));
    }
    test.nothing_is_left();
}

#[test]
fn its_streams_directory_and_environment_are_the_commands() {
    let Some(test) = TestMount::new() else { return };
    fs::create_dir(test.src.join("sub")).unwrap();
    let mut command = test.run("pwd; stat -f -c %T .; cat; echo to stderr >&2; ps -o pgid= -p $$");
    command.current_dir(test.src.join("sub")).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through stdin\n").unwrap();
    let out = child.wait_with_output().unwrap();
    let lines: Vec<String> = String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(lines[..3], [text(&test.src.join("sub")), "fuseblk", "through stdin"]);
    let group = rustix::process::getpgid(None).unwrap().as_raw_pid();
    assert_eq!(lines[3].trim(), group.to_string(), "the caller's process group");
    assert_eq!(out.stderr, b"to stderr\n");

    // Any library will do to check the environment.
    let library = test.file("library with space.so");
    fs::copy("/lib/x86_64-linux-gnu/libutil.so.1", &library).unwrap();
    let script = "test -S $TERRACE_SOCKET && test -e ${LD_PRELOAD%%:*} && echo $LD_PRELOAD";
    let mut command =
        terrace(["run", "--memory", "32MiB", "--on", text(&test.src), "--", "sh", "-c", script]);
    let told = told(command.env("TERRACE_PRELOAD", &library).env("LD_PRELOAD", "libutil.so.1")).fine();
    assert!(told.out.trim().ends_with("/libterrace_preload.so:libutil.so.1"), "{}", told.out);
    test.nothing_is_left();
}

#[test]
fn signals_go_to_the_command() {
    let Some(test) = TestMount::new() else { return };
    let ready = test.file("ready");
    let script = format!(
        "trap 'exit 7' TERM; trap 'exit 8' HUP; trap 'exit 9' INT; trap 'exit 10' QUIT; touch {}; \
         while :; do sleep 0.05; done",
        text(&ready)
    );
    for (signal, code) in [(libc::SIGTERM, 7), (libc::SIGHUP, 8), (libc::SIGINT, 9), (libc::SIGQUIT, 10)] {
        let mut child = test.run(&script).spawn().unwrap();
        wait_until("the command runs", || ready.exists());
        kill(child.id() as i32, signal);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        fs::remove_file(&ready).unwrap();
    }
    test.nothing_is_left();
}

/// The terminal sends its signals to all foreground processes: the command gets one, and `run` survives it.
#[test]
fn signals_of_the_terminal_arrive_once() {
    let Some(test) = TestMount::new() else { return };
    let (ready, count) = (test.file("ready"), test.file("count"));
    let script = format!(
        "trap 'echo x >> {1}' INT; touch {0}; while ! test -e {0}.end; do sleep 0.05; done; exit 5",
        text(&ready),
        text(&count)
    );
    let (master, slave) = pseudo_terminal();
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait", "env", DEFAULT_SIGNALS, TERRACE]);
    command.args(["run", "--memory", "32MiB", "--no-preload", "--on"]).arg(&test.src);
    command.args(["--", "sh", "-c", &script]).stdin(slave).current_dir("/");
    let mut child = command.spawn().unwrap();
    wait_until("the command runs", || ready.exists());
    rustix::io::write(&master, b"\x03").unwrap();
    wait_until("it arrives", || count.exists());
    // A second signal, forwarded by `run`, would have arrived before the loop sees this file.
    fs::write(test.file("ready.end"), "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert_eq!(fs::read_to_string(&count).unwrap(), "x\n");
    test.nothing_is_left();
}

fn pseudo_terminal() -> (OwnedFd, OwnedFd) {
    let (mut master, mut slave) = (-1, -1);
    let null = std::ptr::null_mut();
    // SAFETY: the call writes only the two numbers; name, settings and size are null.
    unsafe {
        assert_eq!(libc::openpty(&mut master, &mut slave, null, null.cast(), null.cast()), 0);
        (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
    }
}

/// Supervisor and terraced of the only instance of the test mount.
fn processes_of_run(test: &TestMount) -> [i32; 2] {
    wait_until("it has said of itself", || test.instances().len() == 1);
    let info = test.info();
    [info.pid, info.terraced]
}

/// A command that waits for a file before it ends with success.
fn waiting(test: &TestMount) -> (std::process::Child, std::path::PathBuf) {
    let (ready, end) = (test.file("ready"), test.file("end"));
    let script = format!("touch {}; while ! test -e {}; do sleep 0.02; done", text(&ready), text(&end));
    let child = test.run(&script).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("the command runs", || ready.exists());
    (child, end)
}

/// A command that has written data to `f`: they are recorded, and not yet in the source. It ends after a
/// line, or at end of input.
fn with_unwritten_data(test: &TestMount) -> std::process::Child {
    // A single process that closes no file: a close writes back.
    let file = test.src.join("f");
    let script = format!("exec > {}; printf %050000d 7; read end; exit 0", text(&file));
    let child = test.run(&script).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("written", || fs::metadata(&file).is_ok_and(|meta| meta.len() == 50_000));
    let record = test.instances()[0].join("dirty.json");
    wait_until("recorded", || fs::read_to_string(&record).is_ok_and(|record| record.contains("\"f\"")));
    child
}

#[test]
fn the_death_of_its_instance_is_a_failure() {
    let Some(test) = TestMount::new() else { return };
    let mut child = with_unwritten_data(&test);
    for pid in processes_of_run(&test) {
        kill(pid, libc::SIGKILL);
    }
    child.stdin.take().unwrap().write_all(b"end\n").unwrap();
    let told = Outcome::from(child.wait_with_output().unwrap());
    told.refused(&["died before the command ended", "unwritten in f", "fsync"]);
    test.nothing_is_left();
}

/// The reporting process is dead too: the next run on the same directory reports the loss.
#[test]
fn next_run_reports_loss_of_run_that_died_with_its_command() {
    let Some(test) = TestMount::new() else { return };
    let mut child = with_unwritten_data(&test);
    let processes = processes_of_run(&test);
    kill(child.id() as i32, libc::SIGKILL);
    for pid in processes {
        kill(pid, libc::SIGKILL);
    }
    wait_until("they are dead", || !processes.iter().any(|pid| alive(*pid)));
    // The command ends as well: this process held the only other end of its input.
    drop(child.stdin.take());
    child.wait().unwrap();
    let next = Outcome::from(test.run("true").output().unwrap());
    assert_eq!(next.code, Some(0), "{}", next.err);
    assert!(next.err.contains("unwritten in f") && next.err.lines().count() == 1, "{}", next.err);
    test.run("true").output().map(Outcome::from).unwrap().fine();
    test.nothing_is_left();
}

#[test]
fn an_instance_that_gave_up_is_a_failure() {
    let Some(test) = TestMount::new() else { return };
    let (mut child, end) = waiting(&test);
    let [supervisor, _] = processes_of_run(&test);
    let mounts = format!("/proc/{}/mountinfo", child.id());
    let src = text(&test.src).to_owned();
    // Mounts of other tests also appear in this namespace.
    let is_mounted = move || {
        String::from_utf8_lossy(&fs::read(&mounts).unwrap())
            .lines()
            .any(|mount| mount.contains("fuse.terrace") && mount.contains(&src))
    };
    assert!(is_mounted());
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let first_words = std::thread::spawn(move || {
        let mut line = String::new();
        err.read_line(&mut line).unwrap();
        (line, is_mounted(), err)
    });
    for round in 1..100 {
        let [_, terraced] = processes_of_run(&test);
        kill(terraced, libc::SIGABRT);
        wait_until("restarted or given up", || !alive(supervisor) || processes_of_run(&test)[1] != terraced);
        if !alive(supervisor) {
            break;
        }
        assert!(round < 99);
    }
    let (gone, was_mounted, mut err) = first_words.join().unwrap();
    assert!(gone.contains("5 times in 10 s: unmounted"), "{gone}");
    assert!(!was_mounted, "what is told has happened");
    fs::write(end, "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(2));
    let mut rest = String::new();
    err.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("died before the command ended") && rest.lines().count() == 1, "{rest}");
    test.nothing_is_left();
}

/// A user stops the instance in order: no loss and no failure.
#[test]
fn instance_stopped_before_its_command_has_not_failed() {
    let Some(test) = TestMount::new() else { return };
    let (child, end) = waiting(&test);
    let [supervisor, _] = processes_of_run(&test);
    kill(supervisor, libc::SIGTERM);
    wait_until("it ends", || !alive(supervisor));
    fs::write(end, "").unwrap();
    Outcome::from(child.wait_with_output().unwrap()).fine();
    test.nothing_is_left();
}

/// Even if that happens right at the start of the command.
#[test]
fn killed_itself_it_ends_with_its_command() {
    let Some(test) = TestMount::new() else { return };
    let (at, go) = (text(&test.src), test.file("go"));
    let script = format!(
        "kill -KILL $PPID; while ! test -e {}; do sleep 0.02; done; cd {at}; echo late > late; stat -f -c %T . > type",
        text(&go)
    );
    let killed = test.run(&script).status().unwrap();
    assert_eq!(killed.signal(), Some(libc::SIGKILL));
    assert_eq!(test.instances().len(), 1, "the command is still served");
    fs::write(go, "").unwrap();
    test.nothing_is_left();
    assert_eq!(fs::read(test.src.join("late")).unwrap(), b"late\n");
    assert_eq!(fs::read(test.src.join("type")).unwrap(), b"fuseblk\n");
}

#[test]
fn processes_left_by_the_command_keep_their_files() {
    let Some(test) = TestMount::new() else { return };
    let (path, go) = (test.src.join("daemon"), test.file("go"));
    let script = format!(
        "(exec > {}; while ! test -e {}; do sleep 0.02; done; echo after the end) &",
        text(&path),
        text(&go)
    );
    // `run` ends with its command: a process left running by the command waits for us.
    assert!(test.run(&script).status().unwrap().success());
    fs::write(go, "").unwrap();
    test.nothing_is_left();
    wait_until("the background writer ends", || fs::read(&path).unwrap() == b"after the end\n");
}

/// The runtime directory lies below the served one, where a socket could not be reached.
#[test]
fn on_the_runtime_directory_itself() {
    if !can_mount() {
        return;
    }
    // In a mount namespace, to spare this machine's /run. The covered directory may contain the program.
    let script = "mount -t tmpfs none /run && cp \"$0\" /run/terrace && mount -t tmpfs none /tmp && \
                  mv /run/terrace /tmp/terrace && exec /tmp/terrace \"$@\"";
    let mut command = apart(&["sh", "-c", script, TERRACE, "run", "--memory", "32MiB", "--on", "/run", "--"]);
    command.current_dir("/");
    command.args(["sh", "-c", "test -S $TERRACE_SOCKET && echo $TERRACE_SOCKET"]);
    command.env("TERRACE_PRELOAD", "/lib/x86_64-linux-gnu/libutil.so.1");
    assert!(told(command).fine().out.starts_with("/tmp/terrace-0/"));
}

/// The source refuses data: they are lost, and `run` reports it even if the command succeeded.
#[test]
fn data_that_cannot_be_written_is_told() {
    let Some(test) = TestMount::new() else { return };
    let at = text(&test.src);
    // The first process makes a small source of its own; the file's creation reserves no space.
    let script = format!(
        "mount -t tmpfs -o size=1m none {at} && exec \"$0\" run --memory 32MiB --no-preload --on {at} -- \
         sh -c 'head -c 3000000 /dev/zero > {at}/f; true'"
    );
    let told = told(apart(&["sh", "-c", &script, TERRACE]).current_dir("/"));
    assert_eq!(told.code, Some(2), "{}", told.err);
    let line = told.err.lines().last().unwrap();
    assert!(line.starts_with("terrace: ") && line.contains("unwritten in f: lost"), "{line}");
    test.nothing_is_left();
}

#[test]
fn statistics_at_the_end() {
    let Some(test) = TestMount::new() else { return };
    let file = test.file("stats.json");
    let mut command = terrace(["run", "--no-preload", "--stats", text(&file), "--on", text(&test.src), "--"]);
    // The final statistics come from a restarted daemon. Kernels before 6.9 fail requests under way at the
    // crash.
    let script = format!(
        "kill -9 $(\"$0\" stat --json {0} | sed -E 's/.*\"terraced\":([0-9]+).*/\\1/'); \
         until echo data > {0}/x; do sleep 0.1; done; \
         until \"$0\" stat --json {0} | grep -q '\"restarts\":1'; do sleep 0.1; done; exit 3",
        text(&test.src)
    );
    // The next daemon may serve before the supervisor has counted the restart.
    command.args(["sh", "-c", &script, TERRACE]);
    assert_eq!(told(command).code, Some(3));
    let stat: StatReport = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(stat.instance.restarts, 1);
    assert_eq!(stat.cache.fuse.writes, 1);
    assert_eq!(stat.cache.writeback.dirty, 0);
    test.nothing_is_left();
}

/// Without privilege: a user namespace, and /dev/fuse open to all users, as udev makes it.
#[test]
fn as_an_ordinary_user() {
    let Some(test) = TestMount::new() else { return };
    let mut probe = Command::new("setpriv");
    probe.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "unshare", "-Um", "true"]);
    if !told(probe).err.is_empty() {
        terrace_testkit::skipped!("this machine lets ordinary users make no namespace");
        return;
    }
    let (dir, device) = (test.file("."), test.file("fuse"));
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&test.src, Some(65534), Some(65534)).unwrap();
    let program = test.file("terrace");
    fs::copy(TERRACE, &program).unwrap();
    let script = format!(
        "mknod -m 666 {0} c 10 229 && mount --bind {0} /dev/fuse && cd / && \
         exec setpriv --reuid 65534 --regid 65534 --clear-groups env -u XDG_RUNTIME_DIR {1} run --no-preload \
         --memory 32MiB --on {2} -- sh -c 'id -u; stat -f -c %T {2}; echo mine > {2}/a; ls -ln {2}/a; \
         grep CapEff /proc/self/status'",
        text(&device),
        text(&program),
        text(&test.src)
    );
    let out = told(apart(&["sh", "-c", &script])).fine().out;
    assert!(out.starts_with("65534\nfuseblk\n-rw-"), "{out}");
    assert!(out.contains(" 65534 65534 5 "), "{out}");
    assert!(out.contains("CapEff:\t0000000000000000"), "{out}");
    assert_eq!(fs::read(test.src.join("a")).unwrap(), b"mine\n");
    test.nothing_is_left();
}

/// Where mounts are private, the namespace of a `run` has copies of all mounts, and an unmount elsewhere does
/// not reach them.
#[test]
fn umount_ends_a_mount_that_an_unrelated_run_has_copied() {
    let Some(test) = TestMount::new() else { return };
    let other = TestMount::dirs();
    let script = format!(
        "set -e; t='{0}'; \"$t\" mount '{1}' '{2}' --memory 16MiB; echo data > '{2}/f'
         \"$t\" run --no-preload --memory 16MiB --on '{3}' -- sh -c \"touch '{4}'; read end\" < '{5}' & run=$!
         exec 9> '{5}'; while [ ! -e '{4}' ]; do sleep 0.05; done
         grep -q ' {2} ' /proc/$run/mountinfo; \"$t\" umount '{2}'; ! grep -q ' {2} ' /proc/$run/mountinfo
         echo >&9; wait $run",
        TERRACE,
        text(&test.src),
        text(&test.mnt),
        text(&other.src),
        text(&other.file("begun")),
        text(&other.file("end")),
    );
    in_a_private_namespace(&other, &script).fine();
    assert_eq!(fs::read(test.src.join("f")).unwrap(), b"data\n");
    test.nothing_is_left();
    other.nothing_is_left();
}

/// Runs a shell script in a mount namespace of its own, with the pipe `end` of a test mount.
fn in_a_private_namespace(test: &TestMount, script: &str) -> Outcome {
    let mut private = Command::new("sh");
    private.args(["-c", "mkfifo \"$1\" && exec unshare --mount --propagation private sh -c \"$2\"", "sh"]);
    private.args([text(&test.file("end")), script]).env("XDG_CONFIG_HOME", "/nonexistent");
    told(private)
}

/// `umount` leaves a mount that the command of such a `run` has made over its copy.
#[test]
fn umount_leaves_what_a_command_has_mounted_over_a_copy() {
    let Some(test) = TestMount::new() else { return };
    let other = TestMount::dirs();
    let script = format!(
        "set -e; t='{0}'; \"$t\" mount '{1}' '{2}' --memory 16MiB
         \"$t\" run --no-preload --memory 16MiB --on '{3}' -- sh -c \"mount -t tmpfs none '{2}'; echo kept > '{2}/k'; touch '{4}'
           read end; cat '{2}/k'\" < '{5}' & run=$!
         exec 9> '{5}'; while [ ! -e '{4}' ]; do sleep 0.05; done
         \"$t\" umount '{2}'; echo >&9; wait $run",
        TERRACE,
        text(&test.src),
        text(&test.mnt),
        text(&other.src),
        text(&other.file("begun")),
        text(&other.file("end")),
    );
    let told = in_a_private_namespace(&other, &script);
    assert_eq!((told.code, told.out.as_str()), (Some(0), "kept\n"), "{}", told.err);
    assert!(told.whole_err.contains("all data are written; its daemon still serves"), "{}", told.whole_err);
    test.nothing_is_left();
    other.nothing_is_left();
}
