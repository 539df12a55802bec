//! Runs programs with a time limit, and finds and ends processes by id.

use serde::de::DeserializeOwned;
use std::borrow::BorrowMut;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use terrace_system::proc;
use terrace_testkit::wait::{asking_every, wait_until};

/// Path of a program of this crate, beside the running test.
pub fn helper(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this program");
    let found = test.ancestors().skip(1).take(2).map(|dir| dir.join(name)).find(|p| p.exists());
    found.unwrap_or_else(|| panic!("{name} is not built: run the tests through cargo"))
}

/// Result of a program: its status and output.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// The command, for messages.
    pub(crate) what: String,
}

impl Outcome {
    /// The output of a program that must succeed.
    #[track_caller]
    pub fn expect_success(self) -> String {
        assert!(self.status.success(), "{self}");
        self.stdout
    }

    /// The JSON that a program prints; it must succeed.
    #[track_caller]
    pub fn json<T: DeserializeOwned>(self) -> T {
        let text = self.expect_success();
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"))
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let status = match self.status.signal() {
            Some(signal) => format!("signal {signal}"),
            None => format!("exit {:?}", self.status.code()),
        };
        write!(
            f,
            "{} -> {status}\n--- stdout\n{}\n--- stderr\n{}",
            self.what,
            tail(&self.stdout),
            tail(&self.stderr)
        )
    }
}

fn tail(text: &str) -> &str {
    let mut from = text.len().saturating_sub(8000);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    &text[from..]
}

/// Runs a program to its end. After `seconds` it and its process group are killed, and the test fails.
#[track_caller]
pub fn run(mut command: impl BorrowMut<Command>, seconds: u64) -> Outcome {
    let command = command.borrow_mut();
    let (mut out, mut err) = (scratch(), scratch());
    command.stdin(Stdio::null()).process_group(0);
    command.stdout(out.try_clone().expect("a descriptor")).stderr(err.try_clone().expect("a descriptor"));
    let what = format!("{command:?}");
    let mut child = Background::new(command);
    let Some(status) = child.wait(Duration::from_secs(seconds)) else {
        let held = tell_hang(child.id());
        child.kill();
        panic!(
            "{what}: still running after {seconds} s\n{held}--- stdout\n{}\n--- stderr\n{}",
            read(&mut out),
            read(&mut err)
        );
    };
    Outcome { status, stdout: read(&mut out), stderr: read(&mut err), what }
}

/// The kernel stacks of the threads of a hanging process group.
fn tell_hang(group: i32) -> String {
    let mut out = String::new();
    for pid in proc::pids() {
        // SAFETY: plain integers.
        if unsafe { libc::getpgid(pid) } != group {
            continue;
        }
        let read = |what: &str| proc::text(pid, what).unwrap_or_default();
        out += &format!(
            "pid {pid} {} state {} in {}\n{}",
            read("comm").trim(),
            state(pid),
            read("wchan"),
            read("stack")
        );
    }
    out
}

fn scratch() -> std::fs::File {
    // SAFETY: memfd_create returns a new descriptor, owned by the File from here on.
    unsafe {
        let fd = libc::memfd_create(c"test-output".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
        std::os::fd::FromRawFd::from_raw_fd(fd)
    }
}

fn read(file: &mut std::fs::File) -> String {
    let mut all = Vec::new();
    file.rewind().expect("memory can be rewound");
    file.read_to_end(&mut all).expect("memory can be read");
    String::from_utf8_lossy(&all).into_owned()
}

/// A running program in its own process group; both are killed when dropped.
#[derive(Debug)]
pub struct Background {
    child: Child,
    status: Option<ExitStatus>,
}

impl Background {
    /// Starts it.
    #[track_caller]
    pub fn new(command: &mut Command) -> Background {
        command.process_group(0);
        let child = command.spawn().unwrap_or_else(|why| panic!("{command:?}: {why}"));
        Background { child, status: None }
    }

    /// Process id, which is also that of the group.
    pub fn id(&self) -> i32 {
        self.child.id() as i32
    }

    /// Waits for its end, at most `at_most`.
    pub fn wait(&mut self, at_most: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + at_most;
        let mut pause = 1;
        while self.status.is_none() {
            self.status = self.child.try_wait().expect("a child can be waited for");
            if self.status.is_some() || Instant::now() > end {
                break;
            }
            std::thread::sleep(Duration::from_millis(pause));
            pause = (pause * 2).min(20);
        }
        self.status
    }

    /// Kills the program and all in its group, and reaps it.
    pub fn kill(&mut self) {
        if self.status.is_none() {
            kill(-self.id(), libc::SIGKILL);
            // A program in uninterruptible sleep cannot be killed: report it instead of hanging.
            if self.wait(Duration::from_secs(60)).is_none() {
                eprintln!("process {} cannot be killed:\n{}", self.id(), tell_hang(self.id()));
            }
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command prefix for another user, to be completed with the program. It makes a mount namespace in which
/// /dev/fuse is open to all users, as udev sets it. `device` is the place of its node.
pub fn as_user(user: &str, device: &std::path::Path) -> Command {
    let script = "[ -e \"$0\" ] || mknod -m 666 \"$0\" c 10 229; mount --bind \"$0\" /dev/fuse; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-euc", script]).arg(device).arg("setpriv");
    command.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).arg("--clear-groups");
    command.current_dir("/");
    command
}

/// Whether the kernel allows unprivileged namespaces, in which a user's `terrace run` mounts. Otherwise tests
/// are skipped with a message. `device` as for [`as_user`].
#[track_caller]
pub fn may_unshare(user: &str, device: &std::path::Path) -> bool {
    run(as_user(user, device).arg("true"), 60).expect_success();
    let tried = run(as_user(user, device).args(["unshare", "-Urm", "true"]), 60);
    if !tried.status.success() {
        println!("left out: {}", tried.stderr.trim());
    }
    tried.status.success()
}

/// Sends a signal; true if the process existed.
pub fn kill(pid: i32, signal: i32) -> bool {
    assert!(pid.abs() > 1, "a process of a test");
    // SAFETY: plain integers.
    unsafe { libc::kill(pid, signal) == 0 }
}

/// Sends a signal until the process is dying. Rust's handlers for SIGSEGV and SIGBUS return once without a
/// bad address, so that the fault can recur.
#[track_caller]
pub fn crash(pid: i32, signal: i32) {
    wait_until("it takes the signal", || {
        kill(pid, signal);
        std::thread::sleep(Duration::from_millis(20));
        is_ending(pid)
    });
}

/// Whether a process is gone or dying: a zombie, or one with PF_EXITING, PF_POSTCOREDUMP, PF_SIGNALED or
/// PF_DUMPCORE (include/linux/sched.h).
fn is_ending(pid: i32) -> bool {
    const PF_SIGNALED: u32 = 0x400;
    let Ok(stat) = proc::text(pid, "stat") else { return true };
    proc::is_ending(&stat) || proc::task_flags(&stat) & PF_SIGNALED != 0
}

/// Signals that end terraced like a kill, an abort or a memory fault. `TERRACE_SIGNAL` selects a single one.
#[derive(Debug, Default)]
pub struct DeadlySignals {
    crashed: Option<Instant>,
}

impl DeadlySignals {
    /// Minimum time between two crashes: a mount is given up after five of them in ten seconds.
    const CRASH_EVERY: Duration = Duration::from_secs(3);

    /// Picks the next signal.
    pub fn pick(&mut self, rng: &mut crate::rng::Rng) -> i32 {
        if let Ok(text) = std::env::var("TERRACE_SIGNAL") {
            return text.parse().expect("TERRACE_SIGNAL is a number");
        }
        let signal = *rng.pick(&[libc::SIGKILL, libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS]);
        if signal == libc::SIGKILL || self.crashed.is_some_and(|then| then.elapsed() < Self::CRASH_EVERY) {
            return libc::SIGKILL;
        }
        self.crashed = Some(Instant::now());
        signal
    }
}

/// State letter of a process, or `-` if it does not exist.
pub(crate) fn state(pid: i32) -> char {
    proc::stat(pid).map_or('-', |stat| stat.state)
}

/// The running children of a process.
pub(crate) fn children(of: i32) -> Vec<i32> {
    let is_child = |pid: &i32| proc::stat(pid).is_some_and(|stat| stat.parent == of);
    proc::pids().filter(|pid| is_child(pid) && alive(*pid)).collect()
}

/// Whether a process runs: a zombie does not.
pub fn alive(pid: i32) -> bool {
    !matches!(state(pid), '-' | 'Z' | 'X')
}

/// The running child of a supervisor that is not `last`; waits up to 20 s for it. (The supervisor reaps the
/// last one before it starts a new one.)
pub fn next_child(supervisor: i32, last: i32) -> Option<i32> {
    let mut found = None;
    // A restart takes a millisecond or two.
    asking_every(Duration::from_micros(200), Duration::from_secs(20), || {
        found = children(supervisor).into_iter().find(|pid| *pid != last);
        found.is_some()
    });
    found
}
