//! `terrace run`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::stage::{Stage, kill, possible, terrace, text, told, wait_until};

#[test]
fn the_command_sees_the_mount_and_nobody_else_does() {
    if !possible() {
        return;
    }
    let stage = Stage::new();
    fs::write(stage.src.join("a"), "from the source").unwrap();
    let script = format!(
        "cd {0}; cat a; stat -f -c ' %T' .; grep -c '{0} .*fuse.terrace' /proc/self/mountinfo; echo out > b",
        text(&stage.src)
    );
    let mut command = stage.run(&script);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let out = child.wait_with_output().unwrap();
    let out = String::from_utf8(out.stdout).unwrap();
    assert_eq!(out, "from the source fuseblk\n1\n");
    assert!(!stage.is_mounted());
    assert_eq!(fs::read(stage.src.join("b")).unwrap(), b"out\n");
    stage.nothing_is_left();
}

#[test]
fn its_status_is_the_commands() {
    if !possible() {
        return;
    }
    let stage = Stage::new();
    for code in [0, 1, 2, 42, 255] {
        assert_eq!(stage.run(&format!("exit {code}")).status().unwrap().code(), Some(code));
    }
    for signal in [libc::SIGKILL, libc::SIGTERM, libc::SIGSEGV] {
        let status = stage.run(&format!("kill -{signal} $$")).status().unwrap();
        assert_eq!(status.signal(), Some(signal));
    }
    stage.nothing_is_left();
}

#[test]
fn its_streams_directory_and_environment_are_the_commands() {
    if !possible() {
        return;
    }
    let stage = Stage::new();
    fs::create_dir(stage.src.join("sub")).unwrap();
    let mut command = stage.run("pwd; stat -f -c %T .; cat; echo to stderr >&2; ps -o pgid= -p $$");
    command.current_dir(stage.src.join("sub"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through stdin\n").unwrap();
    let out = child.wait_with_output().unwrap();
    let lines: Vec<String> = String::from_utf8(out.stdout).unwrap().lines().map(str::to_owned).collect();
    assert_eq!(lines[..3], [text(&stage.src.join("sub")), "fuseblk", "through stdin"]);
    let group = rustix::process::getpgid(None).unwrap().as_raw_pid();
    assert_eq!(lines[3].trim(), group.to_string(), "the caller's process group");
    assert_eq!(out.stderr, b"to stderr\n");

    // Any library serves to see what the environment would be.
    let library = stage.file("library with space.so");
    fs::copy("/lib/x86_64-linux-gnu/libutil.so.1", &library).unwrap();
    let mut command = terrace(["run", "--memory", "32MiB", "--on", text(&stage.src), "--"]);
    command.args(["sh", "-c", "test -S $TERRACE_SOCKET && test -e ${LD_PRELOAD%%:*} && echo $LD_PRELOAD"]);
    command.env("TERRACE_PRELOAD", &library).env("LD_PRELOAD", "libutil.so.1");
    let told = told(command).fine();
    assert!(told.out.trim().ends_with("/libterrace_preload.so:libutil.so.1"), "{}", told.out);
    stage.nothing_is_left();
}

#[test]
fn signals_go_to_the_command() {
    if !possible() {
        return;
    }
    let stage = Stage::new();
    let ready = stage.file("ready");
    let script = format!(
        "trap 'exit 7' TERM; trap 'exit 8' HUP; touch {}; while :; do sleep 0.05; done",
        text(&ready)
    );
    for (signal, code) in [(Signal::TERM, 7), (Signal::HUP, 8)] {
        let mut child = stage.run(&script).spawn().unwrap();
        wait_until("the command runs", || ready.exists());
        // Those of the terminal reach the command by themselves, and must not end us before it.
        kill(child.id() as i32, Signal::INT);
        kill(child.id() as i32, Signal::QUIT);
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(child.try_wait().unwrap().is_none());
        kill(child.id() as i32, signal);
        assert_eq!(child.wait().unwrap().code(), Some(code));
        fs::remove_file(&ready).unwrap();
    }
    stage.nothing_is_left();
}

#[test]
fn killed_itself_it_ends_with_its_command() {
    if !possible() {
        return;
    }
    let stage = Stage::new();
    let ready = stage.file("ready");
    let script = format!(
        "touch {}; sleep 0.7; cd {}; echo late > late; stat -f -c %T . > type",
        text(&ready),
        text(&stage.src)
    );
    let mut child = stage.run(&script).spawn().unwrap();
    wait_until("the command runs", || ready.exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(stage.instances().len(), 1, "the command is still served");
    stage.nothing_is_left();
    assert_eq!(fs::read(stage.src.join("late")).unwrap(), b"late\n");
    assert_eq!(fs::read(stage.src.join("type")).unwrap(), b"fuseblk\n");
}

#[test]
fn what_the_command_left_running_keeps_its_files() {
    if !possible() {
        return;
    }
    let stage = Stage::new();
    let path = stage.src.join("daemon");
    let script = format!("(exec > {}; sleep 0.7; echo after the end) &", text(&path));
    let start = std::time::Instant::now();
    assert!(stage.run(&script).status().unwrap().success());
    assert!(start.elapsed().as_millis() < 650, "the end of the command is the end of run");
    stage.nothing_is_left();
    wait_until("the background writer ends", || fs::read(&path).unwrap() == b"after the end\n");
}

/// The runtime directory lies below what is served: a socket could not be reached there.
#[test]
fn on_the_runtime_directory_itself() {
    if !possible() {
        return;
    }
    let mut command = terrace(["run", "--memory", "32MiB", "--on", "/run", "--"]);
    command.args(["sh", "-c", "test -S $TERRACE_SOCKET && echo $TERRACE_SOCKET"]);
    command.env("TERRACE_PRELOAD", "/lib/x86_64-linux-gnu/libutil.so.1");
    assert!(told(command).fine().out.starts_with("/tmp/terrace-0/"));
}

/// A source that takes no more: the data is lost, and that is told, though the command itself may have succeeded.
#[test]
fn data_that_cannot_be_written_is_told() {
    if !possible() {
        return;
    }
    let stage = Stage::new();
    let at = text(&stage.src);
    // The first process sets up a small source of its own; the file is made without room being reserved for it.
    let script = format!(
        "mount -t tmpfs -o size=1m none {at} && exec {} run --memory 32MiB --no-fast-door --on {at} -- \
         sh -c 'head -c 3000000 /dev/zero > {at}/f; true'",
        env!("CARGO_BIN_EXE_terrace")
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]).current_dir("/");
    let told = told(command);
    assert_eq!(told.code, Some(2), "{}", told.err);
    let line = told.err.lines().last().unwrap();
    assert!(line.starts_with("terrace: ") && line.contains("unwritten in f: lost"), "{line}");
    stage.nothing_is_left();
}

#[test]
fn statistics_at_the_end() {
    if !possible() {
        return;
    }
    let stage = Stage::new();
    let file = stage.file("stats.json");
    let mut command =
        terrace(["run", "--no-fast-door", "--stats", text(&file), "--on", text(&stage.src), "--"]);
    command.args(["sh", "-c", &format!("echo data > {}/x; exit 3", text(&stage.src))]);
    assert_eq!(told(command).code, Some(3));
    let stats: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(stats["schema"], "terrace.stat.v1");
    assert_eq!(stats["main_door"]["writes"], 1);
    assert_eq!(stats["writeback"]["dirty"], 0);
    stage.nothing_is_left();
}

/// Without privilege: a user namespace, /dev/fuse open to everybody as udev makes it.
#[test]
fn as_an_ordinary_user() {
    if !possible() {
        return;
    }
    let stage = Stage::new();
    let (dir, device) = (stage.file("."), stage.file("fuse"));
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&stage.src, Some(65534), Some(65534)).unwrap();
    let program = stage.file("terrace");
    fs::copy(env!("CARGO_BIN_EXE_terrace"), &program).unwrap();
    let script = format!(
        "mknod -m 666 {0} c 10 229 && mount --bind {0} /dev/fuse && cd / && \
         exec setpriv --reuid 65534 --regid 65534 --clear-groups env -u XDG_RUNTIME_DIR {1} run --no-fast-door \
         --memory 32MiB --on {2} -- sh -c 'id -u; stat -f -c %T {2}; echo mine > {2}/a; ls -ln {2}/a; \
         grep CapEff /proc/self/status'",
        text(&device),
        text(&program),
        text(&stage.src)
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script]);
    let told = told(command);
    if told.err.contains("private mount namespace") || told.err.contains("Permission denied") {
        eprintln!("skipped: this machine lets ordinary users make no namespace: {}", told.err);
        return;
    }
    let out = told.fine().out;
    assert!(out.starts_with("65534\nfuseblk\n-rw-"), "{out}");
    assert!(out.contains(" 65534 65534 5 "), "{out}");
    assert!(out.contains("CapEff:\t0000000000000000"), "{out}");
    assert_eq!(fs::read(stage.src.join("a")).unwrap(), b"mine\n");
    stage.nothing_is_left();
}
