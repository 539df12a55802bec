//! A test mount: a source, a mount point, and the command under test.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use terrace_api::instance::Info;
use terrace_api::stats::StatReport;
use terrace_system::{mounts, proc};
use terrace_testkit::wait::holds_within;
pub(crate) use terrace_testkit::wait::wait_until;

/// A fresh pair of directories. At the end, terrace must have left nothing on them.
pub(crate) struct TestMount {
    _dir: tempfile::TempDir,
    pub src: PathBuf,
    pub mnt: PathBuf,
}

/// Does this machine permit mounts?
pub(crate) fn possible() -> bool {
    let root = rustix::process::geteuid().is_root();
    let fuse = fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !(root && fuse) {
        assert!(
            std::env::var_os("TERRACE_REQUIRE_ROOT").is_none(),
            "TERRACE_REQUIRE_ROOT is set, but this is not root with FUSE"
        );
        terrace_testkit::skipped!("needs root and /dev/fuse");
    }
    root && fuse
}

/// The command, with the environment of a user without any settings.
pub(crate) fn terrace<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.args(args);
    as_a_new_user(command)
}

/// The preload library, which cargo does not build for tests of this crate.
#[track_caller]
pub(crate) fn library() -> PathBuf {
    let built = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release");
    let dir = std::env::var_os("TERRACE_BIN_DIR").map_or_else(built, PathBuf::from);
    let path = dir.join("libterrace_preload.so");
    assert!(path.exists(), "{} is missing: run `make build` first, or set TERRACE_BIN_DIR", path.display());
    path
}

fn as_a_new_user(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TERRACE_") {
            command.env_remove(name);
        }
    }
    command.env("XDG_CONFIG_HOME", "/nonexistent").current_dir("/");
    command
}

/// Output and status of a command.
pub(crate) struct Outcome {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
    /// Standard error with the lines about mount namespaces of other tests.
    pub whole_err: String,
}

impl From<Output> for Outcome {
    fn from(output: Output) -> Outcome {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        // Parallel tests may make mount namespaces: `umount` then names their processes.
        let sees =
            |line: &&str| line.contains(": unmounted here") || line.contains(": waiting for the unmount");
        let whole_err = text(output.stderr);
        let err = whole_err.split_inclusive('\n').filter(|line| !sees(line)).collect();
        Outcome { code: output.status.code(), out: text(output.stdout), err, whole_err }
    }
}

/// Runs a command to its end.
pub(crate) fn told(mut command: Command) -> Outcome {
    command.output().expect("it starts").into()
}

impl Outcome {
    /// Asserts exit code 0 and no error output.
    #[track_caller]
    pub(crate) fn fine(self) -> Outcome {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""), "{}", self.out);
        self
    }

    /// Asserts exit code 2 and one line with all of `parts`.
    #[track_caller]
    pub(crate) fn refused(self, parts: &[&str]) {
        self.refused_with(2, parts);
    }

    #[track_caller]
    pub(crate) fn refused_with(self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.err);
        assert_eq!(self.err.lines().count(), 1, "{}", self.err);
        assert!(self.err.starts_with("terrace: "), "{}", self.err);
        // what: why; cure
        assert!(self.err.contains("; "), "{}", self.err);
        for part in parts {
            assert!(self.err.contains(part), "`{part}` is not in: {}", self.err);
        }
    }
}

/// Directory for test mounts: next to the build if possible. Not if another user cannot reach it, if its path
/// needs quoting in a shell or the mount table, or if a test mounts something over it.
fn place() -> &'static Path {
    let near = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let reached = |p: &Path| fs::metadata(p).is_ok_and(|m| m.permissions().mode() & 0o001 != 0);
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/._+-".contains(b);
    let covered = ["/tmp", "/run", "/dev"].iter().any(|dir| near.starts_with(dir));
    let is_plain = near.as_os_str().as_encoded_bytes().iter().all(plain);
    if is_plain && !covered && near.ancestors().all(reached) { near } else { Path::new("/var/tmp") }
}

impl TestMount {
    pub(crate) fn new() -> TestMount {
        let dir = tempfile::tempdir_in(place()).unwrap();
        let path = dir.path().canonicalize().unwrap();
        let (src, mnt) = (path.join("src"), path.join("mnt"));
        fs::create_dir(&src).unwrap();
        fs::create_dir(&mnt).unwrap();
        TestMount { _dir: dir, src, mnt }
    }

    /// A test mount with a source of 1 MiB.
    pub(crate) fn with_small_source() -> TestMount {
        let mut stage = TestMount::new();
        let disk = stage.file("disk");
        fs::create_dir(&disk).unwrap();
        rustix::mount::mount("none", &disk, "tmpfs", rustix::mount::MountFlags::empty(), c"size=1m").unwrap();
        stage.src = disk.join("src");
        fs::create_dir(&stage.src).unwrap();
        stage
    }

    /// A test mount for the user 65534, and a script for `unshare -m`. The script defines `user COMMAND...` to
    /// run as that user, `$program` for terrace and `$runtime` for a directory. None: this machine has no
    /// fusermount3.
    pub(crate) fn for_user() -> Option<(TestMount, String)> {
        if !possible() || Command::new("fusermount3").arg("-V").output().is_err() {
            terrace_testkit::skipped!("needs fusermount3");
            return None;
        }
        let stage = TestMount::new();
        fs::set_permissions(stage.file("."), fs::Permissions::from_mode(0o755)).unwrap();
        let (runtime, program) = (stage.file("runtime"), stage.file("terrace"));
        fs::create_dir(&runtime).unwrap();
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
        for dir in [&stage.src, &stage.mnt, &runtime] {
            std::os::unix::fs::chown(dir, Some(65534), Some(65534)).unwrap();
        }
        fs::copy(env!("CARGO_BIN_EXE_terrace"), &program).unwrap();
        let begin = format!(
            "runtime={} program={}; mknod -m 666 {fuse} c 10 229 && mount --bind {fuse} /dev/fuse && cd / || exit 9
             user() {{ setpriv --reuid 65534 --regid 65534 --clear-groups env -u XDG_RUNTIME_DIR \"$@\"; }}\n",
            text(&runtime),
            text(&program),
            fuse = text(&stage.file("fuse")),
        );
        Some((stage, begin))
    }

    /// A file of the stage outside source and mount point.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.src.parent().unwrap().join(name)
    }

    /// `terrace mount SRC MNT MORE...`
    pub(crate) fn mount(&self, more: &[&str]) -> Outcome {
        let mut command = terrace(["mount"]);
        command.args([&self.src, &self.mnt]).args(["--memory", "32MiB"]).args(more);
        told(command)
    }

    /// `terrace VERB MNT MORE...`
    pub(crate) fn ask(&self, verb: &str, more: &[&str]) -> Outcome {
        let mut command = terrace([verb]);
        command.arg(&self.mnt).args(more);
        let told = told(command);
        // The daemon lives on while the mount namespace of another test has the mount.
        if verb == "umount" && told.code == Some(0) {
            let ended = |dir: &PathBuf| !is_locked(&dir.join("lock"));
            holds_within(Duration::from_secs(60), || self.instances().iter().all(ended));
        }
        told
    }

    /// `terrace run --on SRC -- sh -c SCRIPT`, without the preload path. Resets ignored signals: a shell
    /// ignores some for its background jobs, and the command could not trap these.
    pub(crate) fn run(&self, script: &str) -> Command {
        let mut command = Command::new("env");
        command.args([DEFAULT_SIGNALS, env!("CARGO_BIN_EXE_terrace")]);
        command.args(["run", "--memory", "32MiB", "--no-preload", "--on"]);
        command.arg(&self.src).args(["--", "sh", "-c", script]);
        as_a_new_user(command)
    }

    pub(crate) fn stat(&self) -> StatReport {
        serde_json::from_str(&self.ask("stat", &["--json"]).fine().out).unwrap()
    }

    /// Process ids of supervisor and terraced.
    pub(crate) fn processes(&self) -> (i32, i32) {
        let instance = self.stat().instance;
        (instance.pid, instance.terraced)
    }

    /// Directories of instances that serve `mnt` or the source.
    pub(crate) fn instances(&self) -> Vec<PathBuf> {
        let dirs = fs::read_dir("/run/terrace").into_iter().flatten().flatten().map(|entry| entry.path());
        let ours = |dir: &PathBuf| {
            let info = fs::read(dir.join("info.json")).unwrap_or_default();
            serde_json::from_slice(&info).is_ok_and(|info: Info| info.src == self.src)
        };
        dirs.filter(ours).collect()
    }

    /// The record of the only instance of the test mount, without a request to its daemon.
    #[track_caller]
    pub(crate) fn info(&self) -> Info {
        serde_json::from_slice(&fs::read(self.instances()[0].join("info.json")).unwrap()).unwrap()
    }

    pub(crate) fn is_mounted(&self) -> bool {
        [&self.src, &self.mnt].into_iter().any(|dir| mounts::at(dir).is_some())
    }

    /// Waits until all processes and mounts are gone.
    #[track_caller]
    pub(crate) fn nothing_is_left(&self) {
        wait_until("nothing is left", || !self.is_mounted() && self.instances().is_empty());
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        let flags = rustix::mount::UnmountFlags::FORCE | rustix::mount::UnmountFlags::DETACH;
        for _ in 0..8 {
            if !self.is_mounted() {
                break;
            }
            let _ = rustix::mount::unmount(&self.mnt, flags);
            let _ = rustix::mount::unmount(&self.src, flags);
        }
        let _ = rustix::mount::unmount(self._dir.path().join("disk"), flags);
    }
}

/// Writes a file in a separate process; false: it failed. Each child that a parallel test starts holds this
/// process's descriptors a little longer, and a mount with open files cannot be unmounted.
pub(crate) fn write_apart(path: &Path, content: &[u8]) -> bool {
    let mut writer = Command::new("dd");
    writer.arg(format!("of={}", text(path))).args(["bs=64K", "status=none"]);
    let mut writer = writer.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let given = writer.stdin.take().unwrap().write_all(content);
    writer.wait().unwrap().success() && given.is_ok()
}

pub(crate) fn kill(pid: i32, signal: rustix::process::Signal) {
    let _ = rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal);
}

/// Sends a signal until the process is dying. Rust's handlers for SIGSEGV and SIGBUS return once without a
/// bad address, so that the fault can recur.
pub(crate) fn crash(pid: i32, signal: rustix::process::Signal) {
    wait_until("it takes the signal", || {
        kill(pid, signal);
        std::thread::sleep(Duration::from_millis(20));
        is_ending(pid)
    });
}

/// Is a process gone or dying?
fn is_ending(pid: i32) -> bool {
    const PF_SIGNALED: u32 = 0x400;
    let Ok(stat) = proc::text(pid, "stat") else { return true };
    proc::is_ending(&stat) || proc::task_flags(&stat) & PF_SIGNALED != 0
}

/// Option of env(1).
pub(crate) const DEFAULT_SIGNALS: &str = "--default-signal=HUP,INT,QUIT";

/// Does a process exist that is not a zombie?
pub(crate) fn runs(pid: i32) -> bool {
    proc::stat(pid).is_some_and(|stat| stat.state != 'Z')
}

/// Does a single-threaded process sleep in a timed wait?
pub(crate) fn sleeps(pid: u32) -> bool {
    let call = proc::text(pid, "syscall").unwrap_or_default();
    call.split(' ').next() == Some(&libc::SYS_clock_nanosleep.to_string())
}

fn is_locked(lock: &Path) -> bool {
    let shared = rustix::fs::FlockOperation::NonBlockingLockShared;
    fs::File::open(lock).is_ok_and(|lock| rustix::fs::flock(&lock, shared).is_err())
}

/// Runs a bash script to its end in a mount namespace of its own.
pub(crate) fn told_apart(script: &str) -> Outcome {
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-c", script]);
    command.env("XDG_CONFIG_HOME", "/nonexistent");
    told(command)
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
