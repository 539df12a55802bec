//! `terrace top` on real mounts: lines without a terminal, the screen on one, and how it ends.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use terrace_tests::process::{self, Background, Outcome};
use terrace_tests::rig::{Rig, Side, TestDir, product};

fn top<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    // The parent of the tests may ignore signals.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,INT,QUIT,TERM"]).arg(product("terrace"));
    command.args(["top", "--interval", "0.2"]).args(args);
    command
}

#[track_caller]
fn refused(outcome: Outcome, what: &str) {
    assert_eq!(outcome.status.code(), Some(2), "{outcome}");
    assert!(outcome.stderr.starts_with("terrace: ") && outcome.stderr.contains(what), "{outcome}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome}");
}

#[test]
fn top_prints_lines_and_ends_with_the_mount() {
    let dir = TestDir::new("top-nothing");
    let plain = dir.sub("plain");
    refused(process::run(&mut top([&plain]), 60), "serves nothing here");
    refused(process::run(&mut top(["--interval", "0"]), 60), "--interval");

    let rig = Rig::new("top-gone", Side::Mount, "32MiB");
    fs::write(rig.src().join("data"), vec![7; 4 << 20]).unwrap();
    let mut command = top([rig.at()]);
    let out = fs::File::create(dir.path().join("out")).unwrap();
    let err = fs::File::create(dir.path().join("err")).unwrap();
    let mut watching = Background::new(command.stdin(Stdio::null()).stdout(out).stderr(err));
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    assert_eq!(fs::read(rig.at().join("data")).unwrap().len(), 4 << 20);
    assert!(process::wait_until(WAIT_SECONDS, || read("out").lines().count() >= 2));
    assert!(
        read("out").lines().all(|line| line.contains("DRAM") && line.contains("hit ratio")),
        "{}",
        read("out")
    );
    rig.umount();
    let status = watching.wait(Duration::from_secs(WAIT_SECONDS)).expect("it ends with the mount");
    assert_eq!(status.code(), Some(2), "{}", read("err"));
    let told = read("err");
    assert!(told.contains("serves nothing here") && told.lines().count() == 1, "{told}");
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

/// Text on the screen, after `end` was done to the watcher; its exit code. The end comes when figures are on the screen.
fn on_terminal(args: &[&str], end: impl FnOnce(&mut fs::File, i32)) -> (String, Option<i32>) {
    let (mut ours, its) = terminal();
    let mut command = top(args);
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
    assert!(process::wait_until(WAIT_SECONDS, || text().contains("DRAM")), "{:?}", text());
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
fn top_gives_the_terminal_back() {
    let rig = Rig::new("top-screen", Side::Mount, "32MiB");
    let at = rig.at().to_str().unwrap();
    for key in ["q", "\u{3}"] {
        let (screen, code) = on_terminal(&[at], |keys, _| keys.write_all(key.as_bytes()).unwrap());
        restored(&screen);
        assert_eq!(code, Some(0), "{key:?}");
    }
    let (screen, code) = on_terminal(&[at], |_, pid| assert!(process::kill(pid, libc::SIGTERM)));
    restored(&screen);
    assert_eq!(code, Some(0));
    rig.finish();
}
