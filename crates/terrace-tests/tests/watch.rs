//! `terrace-bench watch` on real mounts: lines without a terminal, the screen on one, and how it ends.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use terrace_tests::process::{self, Background, Outcome};
use terrace_tests::rig::{Rig, Side, TestDir, product};

fn watch<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    // Whoever starts the tests may ignore signals.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM"]).arg(product("terrace-bench"));
    command.args(["watch", "--interval", "0.2", "--terrace"]).arg(product("terrace")).args(args);
    command
}

#[track_caller]
fn refused(outcome: Outcome, what: &str) {
    assert_eq!(outcome.status.code(), Some(2), "{outcome}");
    assert!(outcome.stderr.starts_with("terrace-bench: ") && outcome.stderr.contains(what), "{outcome}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome}");
}

/// Runs a watcher whose command ends when `enough` exists, which is made when the watcher has printed so many lines of figures.
/// What it printed in all, on both streams, and how it ended.
fn until_lines(
    count: usize,
    command: &mut Command,
    aside: &Path,
    enough: &Path,
) -> (String, String, ExitStatus) {
    let (out, err) = (aside.join("out"), aside.join("err"));
    command.stdin(Stdio::null());
    command.stdout(fs::File::create(&out).unwrap()).stderr(fs::File::create(&err).unwrap());
    let mut watching = Background::new(command);
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let figures = || read(&out).lines().filter(|line| line.contains("DRAM")).count();
    let told = process::wait_until(WAIT_SECONDS, || figures() >= count);
    fs::write(enough, "").unwrap();
    let status = watching.wait(Duration::from_secs(WAIT_SECONDS)).expect("it ends with its command");
    assert!(told, "{status}: {}\n{}", read(&out), read(&err));
    (read(&out), read(&err), status)
}

#[test]
fn a_command_on_a_mount_is_told_line_by_line() {
    let rig = Rig::new("watch-lines", Side::Mount, "32MiB");
    fs::write(rig.src().join("data"), vec![7; 4 << 20]).unwrap();
    let script = "for i in 1 2 3 4 5 6; do cat data | wc -c; done; until [ -e \"$0\" ]; do sleep 0.05; done; \
                  echo told >&2; exit 7";
    let (at, enough) = (rig.at().to_str().unwrap(), rig.aside().join("enough"));
    let mut command = watch([at, "--", "sh", "-c", script, enough.to_str().unwrap()]);
    let (stdout, stderr, status) = until_lines(4, command.current_dir(rig.at()), &rig.aside(), &enough);
    assert_eq!((status.code(), stderr.as_str()), (Some(7), "told\n"), "{stdout}");
    let (lines, output): (Vec<&str>, Vec<&str>) = stdout.lines().partition(|line| line.contains(" s  "));
    assert_eq!(output, ["4194304"; 6], "after the lines, and whole: {stdout}");
    assert!(stdout.ends_with("4194304\n") && lines.len() >= 4, "{stdout}");
    assert!(lines.iter().all(|line| line.contains("DRAM") && line.contains("misses/s")), "{stdout}");
    assert!(rig.mounted(), "the mount is not the command's");
    rig.finish();
}

/// Nothing is served there: `terrace run` serves it for the command.
#[test]
fn a_plain_directory_is_served_for_the_command() {
    let dir = TestDir::new("watch-run");
    let src = dir.sub("src");
    fs::write(src.join("data"), vec![7; 4 << 20]).unwrap();
    let enough = dir.path().join("enough");
    let wait = "until [ -e \"$0\" ]; do cat data > /dev/null; sleep 0.05; done";
    let script = format!("{wait}; grep -c \"$PWD fuse.terrace\" /proc/self/mounts");
    let options = ["--terrace-arg=--memory=32MiB", src.to_str().unwrap(), "--", "sh", "-c", &script];
    let mut command = watch(options);
    command.arg(&enough).current_dir(&src);
    let (stdout, stderr, status) = until_lines(2, &mut command, dir.path(), &enough);
    assert!(status.success() && stderr.is_empty(), "{stdout}\n{stderr}");
    assert!(stdout.ends_with("\n1\n"), "{stdout}");
    assert!(stdout.lines().any(|line| line.contains("DRAM")), "{stdout}");
    // By itself it finds the instance that the command starts.
    fs::remove_file(&enough).unwrap();
    let mut command = watch(["--"]);
    command.arg(product("terrace")).args(["run", "--memory=32MiB", "--on"]).arg(&src);
    command.args(["--", "sh", "-c", &format!("cat data | wc -c; {wait}")]).arg(&enough).current_dir(&src);
    let (stdout, stderr, status) = until_lines(1, &mut command, dir.path(), &enough);
    assert!(status.success() && stderr.is_empty(), "{stdout}\n{stderr}");
    assert!(stdout.ends_with("\n4194304\n") && stdout.contains("DRAM"), "{stdout}");
}

#[test]
fn what_is_not_there_or_goes_is_one_sentence() {
    let dir = TestDir::new("watch-nothing");
    let plain = dir.sub("plain");
    refused(process::run(&mut watch([&plain]), 60), "serves nothing here");
    refused(process::run(&mut watch(["--", "/nonexistent/program"]), 60), "name a program in PATH");
    refused(process::run(&mut watch(["--interval", "0"]), 60), "--interval");

    let rig = Rig::new("watch-gone", Side::Mount, "32MiB");
    let mut command = watch([rig.at()]);
    let out = fs::File::create(dir.path().join("out")).unwrap();
    let err = fs::File::create(dir.path().join("err")).unwrap();
    let mut watching = Background::new(command.stdin(Stdio::null()).stdout(out).stderr(err));
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(process::wait_until(WAIT_SECONDS, || read("out").lines().count() >= 2));
    rig.umount();
    let status = watching.wait(Duration::from_secs(WAIT_SECONDS)).expect("it ends with the mount");
    assert_eq!(status.code(), Some(2), "{}", read("err"));
    assert!(
        read("err").contains("serves nothing here") && read("err").lines().count() == 1,
        "{}",
        read("err")
    );
}

/// A terminal of 100 x 30; its other end.
fn terminal() -> (fs::File, OwnedFd) {
    let (mut ours, mut its) = (-1, -1);
    let size = libc::winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: two descriptors are stored, the size is read; names and modes are not asked for.
    let rc = unsafe {
        libc::openpty(&mut ours, &mut its, std::ptr::null_mut(), std::ptr::null(), std::ptr::from_ref(&size))
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: openpty made them for us.
    unsafe { (fs::File::from_raw_fd(ours), OwnedFd::from_raw_fd(its)) }
}

/// What came to the screen, once `end` was done to the watcher; its exit code. The end comes when figures are on the screen and
/// `ready` says so.
fn on_terminal(
    args: &[&str],
    ready: impl Fn() -> bool,
    end: impl FnOnce(&mut fs::File, i32),
) -> (String, Option<i32>) {
    let (mut ours, its) = terminal();
    let mut command = watch(args);
    command.stdin(its.try_clone().unwrap()).stdout(its.try_clone().unwrap()).stderr(its.try_clone().unwrap());
    command.env("TERM", "xterm-256color").process_group(0);
    let mut watching = Background::new(&mut command);
    drop((command, its));
    let mut screen = ours.try_clone().unwrap();
    let all = Arc::new(Mutex::new(Vec::new()));
    let shown = all.clone();
    let reading = std::thread::spawn(move || {
        let mut some = [0; 4096];
        // EIO: nobody has the terminal any more.
        while let Ok(n @ 1..) = screen.read(&mut some) {
            shown.lock().unwrap().extend_from_slice(&some[..n]);
        }
    });
    let text = || String::from_utf8_lossy(&all.lock().unwrap()).into_owned();
    assert!(process::wait_until(WAIT_SECONDS, || text().contains("DRAM") && ready()), "{:?}", text());
    end(&mut ours, watching.id());
    let status = watching.wait(Duration::from_secs(WAIT_SECONDS)).expect("it ends");
    reading.join().unwrap();
    (text(), status.code())
}

/// The limit of all waiting, also on a busy machine.
const WAIT_SECONDS: u64 = 60;

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

#[track_caller]
fn restored(screen: &str) {
    // The terminal is written to word by word: a word is whole.
    assert!(screen.contains(ENTER) && screen.contains("DRAM"), "{screen:?}");
    assert_eq!(screen.matches(ENTER).count(), 1, "{screen:?}");
    assert!(screen.rfind(LEAVE) > screen.rfind("DRAM"), "{screen:?}");
}

#[test]
fn the_terminal_is_given_back() {
    let rig = Rig::new("watch-screen", Side::Mount, "32MiB");
    let at = rig.at().to_str().unwrap();
    for key in ["q", "\u{3}"] {
        let (screen, code) = on_terminal(&[at], || true, |keys, _| keys.write_all(key.as_bytes()).unwrap());
        restored(&screen);
        assert_eq!(code, Some(0), "{key:?}");
    }
    let (screen, code) = on_terminal(&[at], || true, |_, pid| assert!(process::kill(pid, libc::SIGTERM)));
    restored(&screen);
    assert_eq!(code, Some(0));
    // A command: told to end by q, and what it printed comes after the screen.
    let trapped = rig.aside().join("trapped");
    let script =
        format!("echo printed; trap 'exit 9' TERM; touch {}; while :; do sleep 0.1; done", trapped.display());
    let command = [at, "--", "sh", "-c", &script];
    let (screen, code) = on_terminal(&command, || trapped.exists(), |keys, _| keys.write_all(b"q").unwrap());
    restored(&screen);
    assert_eq!(code, Some(9), "{screen:?}");
    assert!(screen.rfind("printed\r\n") > screen.rfind(LEAVE), "{screen:?}");
    rig.finish();
}
