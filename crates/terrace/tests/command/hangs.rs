//! Deaths of a terraced with a thread that hangs in the kernel, in a notification that only a terraced could
//! complete.
//!
//! Each test has one answering thread. A lease on a source file blocks it in an open, so all later requests
//! stay unanswered.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use terrace_api::instance::Info;
use terrace_system::proc;
use terrace_testkit::wait::holds_within;

use crate::test_mount::{TestMount, alive, crash, kill, text, told, wait_until, with_a_limit};

/// Attempts to make a thread hang; one fails if the daemon's threads run in another order.
const ATTEMPTS: usize = 40;
/// Files that the kernel knows, so that negative dentries exceed `limits.inodes_max` below.
const FILES: usize = 500;

/// A Python program that prints a line when it is ready, and starts on a line of input.
struct Program {
    child: Child,
}

impl Program {
    /// `prepare` runs before that line, `act` after it.
    fn new(prepare: &str, act: &str, paths: &[&Path]) -> Program {
        let script = format!(
            "import fcntl, os, signal, sys\npaths = sys.argv[1:]\n{prepare}\nprint('ready', flush=True)\nsys.stdin.readline()\n{act}"
        );
        let mut command = Command::new("python3");
        command.args(["-c", &script]).args(paths).current_dir("/");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Program { child }
    }

    /// Holds a lease on a file until [`Program::go`].
    fn with_lease(path: &Path) -> Program {
        let prepare = "signal.signal(signal.SIGIO, signal.SIG_IGN)\nfd = os.open(paths[0], os.O_RDWR)\n\
                       fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)";
        Program::new(prepare, "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)", &[path])
    }

    fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    }

    fn go_and_wait_in(&mut self, function: &str) {
        self.go();
        let pid = self.child.id();
        wait_until(function, || {
            proc::text(pid, "stack").is_ok_and(|stack| stack.contains(function)) || self.has_ended()
        });
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Not waited for: a hanging process cannot be killed.
        let _ = self.child.kill();
    }
}

/// A mount with one answering thread, which can be blocked.
struct Held {
    test: TestMount,
    leased: PathBuf,
    panic_at: PathBuf,
}

impl Held {
    fn mounted(environment: &[(&str, &str)]) -> Option<Held> {
        let test = TestMount::new()?;
        if !can_see_stacks() {
            return None;
        }
        let config = test.file("terrace.toml");
        fs::write(&config, "[fuse]\nthreads = 1\n[limits]\ninodes_max = 1024\n").unwrap();
        fs::create_dir(test.src.join("dir")).unwrap();
        (0..FILES).for_each(|n| fs::write(test.src.join(format!("dir/f{n}")), [1; 4096]).unwrap());
        fs::write(test.src.join("leased"), "leased").unwrap();
        let (leased, panic_at) = (test.src.join("leased"), test.file("panic"));
        let mut command = test.mount_command(&["--config", text(&config)]);
        told(command.env("TERRACE_TEST_PANIC_AT", &panic_at).envs(environment.iter().copied())).fine();
        Some(Held { test, leased, panic_at })
    }

    /// Opens the leased file.
    fn opener(&self) -> Program {
        let open = "try: open(paths[0], 'r+')\nexcept OSError as err: print(err)";
        // The name is looked up before, so that the open is the first request.
        Program::new("os.stat(paths[0])", open, &[&self.test.mnt.join("leased")])
    }

    /// The record in info.json: a request to terraced would need an answer.
    fn info(&self) -> Info {
        self.test.info()
    }

    fn terraced(&self) -> i32 {
        self.info().terraced
    }

    /// Does a thread of terraced hang in this kernel function within a time limit?
    fn hangs_in(&self, function: &str) -> bool {
        holds_within(Duration::from_secs(3), || {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.terraced())).into_iter().flatten();
            let mut stacks =
                tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("stack")).ok());
            stacks.any(|stack| stack.lines().next().is_some_and(|top| top.contains(function)))
        })
    }
}

/// Are kernel stacks readable? They show where a thread hangs.
fn can_see_stacks() -> bool {
    let seen = fs::read_to_string("/proc/self/stack").is_ok_and(|stack| !stack.is_empty());
    if !seen {
        terrace_testkit::skipped!("/proc/PID/stack cannot be read here");
    }
    seen
}

/// A hang, for example in a directory's lock: the waiting programs, and the lease that ends it.
struct Hang {
    lease: Program,
    programs: Vec<Program>,
}

impl Hang {
    fn end(&mut self, what: &str) {
        self.lease.go();
        let mut ended = |program: &mut Program| program.has_ended();
        wait_until(what, || self.programs.iter_mut().all(&mut ended));
    }
}

/// The thread that makes the kernel forget names waits for a directory in which a program creates a file.
fn hang_in_a_directory(held: &Held) -> Hang {
    let dir = held.test.mnt.join("dir");
    for attempt in 0..ATTEMPTS {
        let lease = Program::with_lease(&held.leased);
        let mut opener = held.opener();
        let new = dir.join(format!("new{attempt}-{}", held.terraced()));
        let mut maker = Program::new("", "open(paths[0], 'x')", &[&new]);
        fs::read_dir(&dir).unwrap().for_each(|entry| drop(entry.unwrap().metadata()));
        (0..8).for_each(|n| assert!(!dir.join(format!("vain{attempt}-{n}")).exists()));
        opener.go_and_wait_in("request_wait_answer");
        maker.go_and_wait_in("request_wait_answer");
        let mut hang = Hang { lease, programs: vec![maker, opener] };
        if held.hangs_in("fuse_reverse_inval_entry") {
            return hang;
        }
        hang.end("nothing hangs");
    }
    panic!("no thread came to hang in {ATTEMPTS} attempts");
}

#[test]
fn death_with_a_waiting_thread_restarts_terraced() {
    let Some(held) = Held::mounted(&[]) else { return };
    // Five crashes in ten seconds would be too many.
    let deaths = [Some(libc::SIGABRT), Some(libc::SIGSEGV), Some(libc::SIGBUS), Some(libc::SIGKILL), None];
    for (number, death) in deaths.into_iter().enumerate() {
        let mut hang = hang_in_a_directory(&held);
        println!("{death:?}");
        let terraced = held.terraced();
        match death {
            Some(signal) => crash(terraced, signal),
            None => fs::write(&held.panic_at, "").unwrap(),
        }
        wait_until("another terraced", || held.info().restarts == number as u32 + 1);
        hang.end("programs go on");
    }
    let log = fs::read_to_string(held.test.instances()[0].join("terraced.log")).unwrap();
    assert!(log.contains("was killed by signal 6, and hangs"), "{log}");
    held.test.ask("check", &[]).fine();
    held.test.ask("umount", &[]).fine();
    held.test.nothing_is_left();
}

// Each program is prepared so that its action is a single request.
const PREPARE_WRITE: &str = "fd = os.open(paths[0], os.O_RDWR)\nos.pwrite(fd, b'first', 0)";
const WRITE: &str = "try: os.pwrite(fd, b'w' * 4096, 0)\nexcept OSError as err: print(err)";
const PREPARE_READ: &str = "import ctypes
map = ctypes.CDLL(None).mmap
map.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
map.restype = ctypes.c_void_p
fd = os.open(paths[0], os.O_RDONLY)
past = os.open(paths[0], os.O_RDWR | os.O_DIRECT)";
/// The write leaves its page in the page cache. Mapping (read-only, shared) the file opened with O_DIRECT
/// drops the page, so the read needs a request.
const READ: &str = "map(None, 4096, 1, 1, past, 0)
try: os.pread(fd, 4096, 0)
except OSError as err: print(err)";

/// For a while after a crash, every write is answered late (`terrace-fs/src/fuse/late.rs`) and its pages are
/// dropped. The drop waits for a read that holds a page's lock.
fn hang_in_a_page(held: &Held) -> Hang {
    let test = &held.test;
    for attempt in 0..ATTEMPTS {
        let restarts = held.info().restarts;
        let file = test.mnt.join(format!("dir/f{attempt}"));
        let lease = Program::with_lease(&held.leased);
        let mut writer = Program::new(PREPARE_WRITE, WRITE, &[&file]);
        let mut reader = Program::new(PREPARE_READ, READ, &[&file]);
        let mut opener = held.opener();
        // The time is a few seconds: no program is started in it.
        kill(held.terraced(), libc::SIGKILL);
        wait_until("restarted", || held.info().restarts > restarts);
        kill(held.terraced(), libc::SIGSTOP);
        writer.go_and_wait_in("request_wait_answer");
        opener.go_and_wait_in("request_wait_answer");
        reader.go_and_wait_in("folio");
        kill(held.terraced(), libc::SIGCONT);
        let mut hang = Hang { lease, programs: vec![writer, reader, opener] };
        if held.hangs_in("folio_lock") {
            return hang;
        }
        hang.end("nothing hangs");
    }
    panic!("no thread came to hang in {ATTEMPTS} attempts");
}

/// Process id of the aborter.
fn aborter_of(mnt: &Path) -> Option<i32> {
    let read = |pid: i32, name: &str| proc::text(pid, name).unwrap_or_default();
    proc::pids().find(|pid| {
        read(*pid, "comm") == "fuse-aborter\n"
            && read(*pid, "cmdline").split('\0').any(|word| word == text(mnt))
    })
}

fn kill_supervisor_and_terraced(held: &Held) {
    let (supervisor, terraced) = (held.info().pid, held.terraced());
    kill(supervisor, libc::SIGKILL);
    kill(terraced, libc::SIGKILL);
    wait_until("the supervisor is dead", || !alive(supervisor));
}

fn death_of_all(environment: &[(&str, &str)]) {
    let Some(held) = Held::mounted(environment) else { return };
    let mut hang = hang_in_a_page(&held);
    kill_supervisor_and_terraced(&held);
    hang.end("no program hangs");
    wait_until("the connection is over", || {
        fs::metadata(&held.test.mnt).is_err_and(|err| err.raw_os_error() == Some(libc::ENOTCONN))
    });
    wait_until("so is the aborter", || aborter_of(&held.test.mnt).is_none());
    let told = held.test.ask("umount", &[]);
    assert!(told.code == Some(0) && told.err.contains("died"), "{}", told.err);
    held.test.nothing_is_left();
}

#[test]
fn death_of_all_with_a_waiting_thread_fails_requests() {
    death_of_all(&[]);
}

/// As for an ordinary user if the kernel's directory of connections is not mounted.
#[test]
fn death_of_all_without_abort_fails_requests() {
    death_of_all(&[("TERRACE_TEST_NO_ABORT", "1")]);
}

/// The aborter must not keep the connection of a failed start: no process answers on it.
#[test]
fn start_that_fails_leaves_no_mount_without_abort() {
    let Some(test) = TestMount::new() else { return };
    let panic_at = test.file("panic");
    fs::write(&panic_at, "").unwrap();
    let mut command = with_a_limit(&["mount", "--memory", "32MiB", text(&test.src), text(&test.mnt)]);
    command.env("TERRACE_TEST_PANIC_AT", &panic_at).env("TERRACE_TEST_NO_ABORT", "1");
    told(command).refused(&["before it served"]);
    test.nothing_is_left();
}

/// With the aborter dead too, the next command ends the hanging processes.
#[test]
fn umount_ends_what_hangs_of_a_dead_instance() {
    let Some(held) = Held::mounted(&[]) else { return };
    let mut hang = hang_in_a_page(&held);
    kill(aborter_of(&held.test.mnt).expect("there is one"), libc::SIGKILL);
    kill_supervisor_and_terraced(&held);
    let told = told(with_a_limit(&["umount", text(&held.test.mnt)]));
    assert!(told.code == Some(0) && told.err.contains("died"), "{}", told.err);
    hang.end("no program hangs");
    held.test.nothing_is_left();
}
