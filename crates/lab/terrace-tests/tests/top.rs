//! `terrace top` on real mounts: lines without a terminal, the screen on one, the page in a real browser, and
//! its exit.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use terrace_testkit::wait::holds_within;
use terrace_tests::process::{self, Background, Outcome};
use terrace_tests::{Side, TestDir, TestMount, product, terrace};

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

    let mount = TestMount::new("top-gone", Side::Mount, "32MiB");
    fs::write(mount.src().join("data"), vec![7; 4 << 20]).unwrap();
    let mut command = top([mount.at()]);
    let out = fs::File::create(dir.path().join("out")).unwrap();
    let err = fs::File::create(dir.path().join("err")).unwrap();
    let mut watching = Background::new(command.stdin(Stdio::null()).stdout(out).stderr(err));
    let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
    assert_eq!(fs::read(mount.at().join("data")).unwrap().len(), 4 << 20);
    assert!(holds_within(Duration::from_secs(WAIT_SECONDS), || read("out").lines().count() >= 2));
    assert!(
        read("out").lines().all(|line| line.contains("DRAM") && line.contains("hit ratio")),
        "{}",
        read("out")
    );
    mount.umount();
    let status = watching.wait(Duration::from_secs(WAIT_SECONDS)).expect("it ends with the mount");
    assert_eq!(status.code(), Some(2), "{}", read("err"));
    let told = read("err");
    assert!(told.contains("serves nothing here") && told.lines().count() == 1, "{told}");
}

/// A terminal of 100 x 30, as both of its ends.
fn terminal() -> (fs::File, OwnedFd) {
    let (mut ours, mut its) = (-1, -1);
    let size = libc::winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: two descriptors are stored, the size is read; names and modes are null.
    let rc = unsafe {
        libc::openpty(&mut ours, &mut its, std::ptr::null_mut(), std::ptr::null(), std::ptr::from_ref(&size))
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: openpty returned both, and nothing else owns them.
    unsafe { (fs::File::from_raw_fd(ours), OwnedFd::from_raw_fd(its)) }
}

/// Runs the command on a terminal, and calls `end` once figures are on the screen. Returns the screen's text
/// and the exit code.
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
        // EIO: the other end is closed.
        while let Ok(n @ 1..) = screen.read(&mut some) {
            shown.lock().unwrap().extend_from_slice(&some[..n]);
        }
    });
    let text = || String::from_utf8_lossy(&all.lock().unwrap()).into_owned();
    assert!(holds_within(Duration::from_secs(WAIT_SECONDS), || text().contains("DRAM")), "{:?}", text());
    end(&mut ours, watching.id());
    let status = watching.wait(Duration::from_secs(WAIT_SECONDS)).expect("it ends");
    reading.join().unwrap();
    (text(), status.code())
}

/// Time limit of all waiting, also on a busy machine.
const WAIT_SECONDS: u64 = 60;

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

#[track_caller]
fn restored(screen: &str) {
    // The terminal is written word by word: each word is whole.
    assert!(screen.contains(ENTER) && screen.contains("DRAM"), "{screen:?}");
    assert_eq!(screen.matches(ENTER).count(), 1, "{screen:?}");
    assert!(screen.rfind(LEAVE) > screen.rfind("DRAM"), "{screen:?}");
}

#[test]
fn top_gives_the_terminal_back() {
    let mount = TestMount::new("top-screen", Side::Mount, "32MiB");
    let at = mount.at().to_str().unwrap();
    for key in ["q", "\u{3}"] {
        let (screen, code) = on_terminal(&[at], |keys, _| keys.write_all(key.as_bytes()).unwrap());
        restored(&screen);
        assert_eq!(code, Some(0), "{key:?}");
    }
    let (screen, code) = on_terminal(&[at], |_, pid| assert!(process::kill(pid, libc::SIGTERM)));
    restored(&screen);
    assert_eq!(code, Some(0));
    mount.finish();
}

/// The document of the page in a browser after a few intervals, or `None` without a browser (Debian's
/// chromium).
fn rendered(dir: &TestDir, url: &str) -> Option<String> {
    let profile = format!("--user-data-dir={}", dir.path().join("profile").display());
    let mut command = Command::new("chromium");
    command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000"]);
    command.args([&profile, "--dump-dom", url]).stderr(Stdio::null());
    let Ok(out) = command.output() else {
        terrace_testkit::skipped!("no chromium");
        return None;
    };
    assert!(out.status.success(), "{}", out.status);
    Some(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The content of the element with this id.
#[track_caller]
fn inside<'a>(dom: &'a str, id: &str, end: &str) -> &'a str {
    let (_, rest) = dom.split_once(&format!("id=\"{id}\"")).unwrap_or_else(|| panic!("no {id} in {dom}"));
    let (_, rest) = rest.split_once('>').unwrap();
    rest.split_once(end).unwrap_or_else(|| panic!("{id} does not end in {dom}")).0
}

#[test]
fn a_browser_shows_tiers_rates_memory_and_the_curve() {
    let (dir, mount) = (TestDir::new("top-browser"), TestMount::new("top-page", Side::Mount, "32MiB"));
    fs::write(mount.src().join("data"), vec![7; 4 << 20]).unwrap();
    process::run(terrace(&["stage", "in"]).arg(mount.at()), 60).expect_success();
    let out = dir.path().join("out");
    let mut command = top([mount.at().to_str().unwrap(), "--http", "127.0.0.1:0"]);
    let serving = Background::new(command.stdin(Stdio::null()).stdout(fs::File::create(&out).unwrap()));
    let told = || fs::read_to_string(&out).unwrap();
    assert!(holds_within(Duration::from_secs(WAIT_SECONDS), || told().contains(" until ")), "{}", told());
    let told = told();
    let url = told.split_once("live at ").unwrap().1.split_once(' ').unwrap().0;
    if let Some(dom) = rendered(&dir, url) {
        assert_eq!(inside(&dom, "trouble", "</p>"), "");
        for (id, unit) in
            [("ratio-all", "% since the start"), ("memory", "MiB"), ("memory-more", "of 32.0 MiB")]
        {
            let text = inside(&dom, id, "</div>");
            assert!(text.contains(unit), "{id}: {text}");
        }
        for rate in ["hits", "misses"] {
            let text = inside(&dom, rate, "</div>");
            assert!(text.replace(',', "").parse::<u64>().is_ok(), "{rate}: {text}");
        }
        let tiers = inside(&dom, "tiers", "</tbody>");
        assert!(tiers.contains("<td>dram</td><td>1,024</td>"), "the pages that were staged: {tiers}");
        assert!(tiers.contains("<td>compressed</td>"), "{tiers}");
        let curve = inside(&dom, "curve", "</svg>");
        assert!(curve.matches("<circle").count() >= 3 && curve.contains("MiB</text>"), "{curve}");
    }
    drop(serving);
    mount.finish();
}
