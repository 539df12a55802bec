//! Fixture of the command's tests: a source, a mount point, and the command. At its end nothing of terrace
//! may be left.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};
use serde::de::DeserializeOwned;
use terrace_api::instance::Info;
use terrace_api::stats::StatReport;
use terrace_testkit::command::without_settings;
pub(crate) use terrace_testkit::command::{Outcome, told};
use terrace_testkit::wait::holds_within;
pub(crate) use terrace_testkit::wait::wait_until;
pub(crate) use terrace_tests::process::{alive, crash, kill};
use terrace_tests::{TestDir, leftovers};

pub(crate) const TERRACE: &str = env!("CARGO_BIN_EXE_terrace");

/// A fresh pair of directories. At the end, terrace must have left nothing on them.
pub(crate) struct TestMount {
    dir: TestDir,
    pub src: PathBuf,
    pub mnt: PathBuf,
}

/// The command, with the environment of a user without any settings.
pub(crate) fn terrace<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(TERRACE);
    command.args(args);
    without_settings(command)
}

impl TestMount {
    /// None, with a message: this machine permits no mounts.
    #[track_caller]
    pub(crate) fn new() -> Option<TestMount> {
        terrace_testkit::can_mount().then(TestMount::dirs)
    }

    /// [`TestMount::new`], mounted.
    #[track_caller]
    pub(crate) fn mounted() -> Option<TestMount> {
        let test = TestMount::new()?;
        test.mount(&[]).fine();
        Some(test)
    }

    /// The directories alone: without a mount, or beside another test mount.
    pub(crate) fn dirs() -> TestMount {
        let dir = TestDir::new("cmd");
        let [src, mnt] = ["src", "mnt"].map(|name| dir.sub(name).canonicalize().unwrap());
        TestMount { dir, src, mnt }
    }

    /// A test mount with a source of 1 MiB.
    #[track_caller]
    pub(crate) fn with_small_source() -> Option<TestMount> {
        let mut test = TestMount::new()?;
        let disk = test.dir.sub("disk").canonicalize().unwrap();
        rustix::mount::mount("none", &disk, "tmpfs", MountFlags::empty(), c"size=1m").unwrap();
        test.src = disk.join("src");
        fs::create_dir(&test.src).unwrap();
        Some(test)
    }

    /// A test mount for the user 65534, and a script for `unshare -m`. The script defines `user COMMAND...` to
    /// run as that user, `$program` for terrace and `$runtime` for a directory. None: this machine has no
    /// fusermount3.
    pub(crate) fn for_user() -> Option<(TestMount, String)> {
        let test = TestMount::new()?;
        if Command::new("fusermount3").arg("-V").output().is_err() {
            terrace_testkit::skipped!("needs fusermount3");
            return None;
        }
        fs::set_permissions(test.file("."), fs::Permissions::from_mode(0o755)).unwrap();
        let (runtime, program) = (test.file("runtime"), test.file("terrace"));
        fs::create_dir(&runtime).unwrap();
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
        for dir in [&test.src, &test.mnt, &runtime] {
            std::os::unix::fs::chown(dir, Some(65534), Some(65534)).unwrap();
        }
        fs::copy(TERRACE, &program).unwrap();
        let begin = format!(
            "runtime={} program={}; mknod -m 666 {fuse} c 10 229 && mount --bind {fuse} /dev/fuse && cd / || exit 9
             user() {{ setpriv --reuid 65534 --regid 65534 --clear-groups env -u XDG_RUNTIME_DIR \"$@\"; }}\n",
            text(&runtime),
            text(&program),
            fuse = text(&test.file("fuse")),
        );
        Some((test, begin))
    }

    /// A file outside source and mount point.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.src.parent().unwrap().join(name)
    }

    /// `terrace mount SRC MNT MORE...`
    pub(crate) fn mount(&self, more: &[&str]) -> Outcome {
        told(self.mount_command(more))
    }

    /// The command of [`TestMount::mount`].
    pub(crate) fn mount_command(&self, more: &[&str]) -> Command {
        let mut command = terrace(["mount", "--memory", "32MiB"]);
        command.args([&self.src, &self.mnt]).args(more);
        command
    }

    /// `terrace VERB MNT MORE...`
    pub(crate) fn ask(&self, verb: &str, more: &[&str]) -> Outcome {
        let told = told(terrace([verb]).arg(&self.mnt).args(more));
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
        self.run_with(&["--no-preload"], script)
    }

    /// [`TestMount::run`] with these options.
    pub(crate) fn run_with(&self, options: &[&str], script: &str) -> Command {
        let mut command = Command::new("env");
        command.args([DEFAULT_SIGNALS, TERRACE, "run", "--memory", "32MiB"]).args(options);
        command.arg("--on").arg(&self.src).args(["--", "sh", "-c", script]);
        without_settings(command)
    }

    pub(crate) fn stat(&self) -> StatReport {
        json(self.ask("stat", &["--json"]))
    }

    /// Process ids of supervisor and terraced.
    pub(crate) fn processes(&self) -> (i32, i32) {
        let instance = self.stat().instance;
        (instance.pid, instance.terraced)
    }

    /// Directories of instances that serve `mnt` or the source.
    pub(crate) fn instances(&self) -> Vec<PathBuf> {
        self.records().map(|(dir, _)| dir).collect()
    }

    /// The record of the only instance of the test mount, without a request to its daemon.
    #[track_caller]
    pub(crate) fn info(&self) -> Info {
        self.records().next().expect("an instance").1
    }

    fn records(&self) -> impl Iterator<Item = (PathBuf, Info)> {
        leftovers::instances().into_iter().filter(|(_, info)| info.src == self.src)
    }

    pub(crate) fn is_mounted(&self) -> bool {
        [&self.src, &self.mnt].into_iter().any(|dir| leftovers::is_mounted(dir))
    }

    /// Unmounts, and waits until nothing is left.
    #[track_caller]
    pub(crate) fn finish(&self) {
        self.ask("umount", &[]).fine();
        self.nothing_is_left();
    }

    /// Waits until all processes and mounts are gone.
    #[track_caller]
    pub(crate) fn nothing_is_left(&self) {
        wait_until("nothing is left", || !self.is_mounted() && self.instances().is_empty());
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        // The mount table has names without symbolic links.
        let dir = self.dir.path().canonicalize().expect("the directory of the test");
        let mut remaining = leftovers::clear(&dir);
        // The mount point of a test may lie elsewhere.
        if leftovers::is_mounted(&self.mnt)
            && let Err(err) = rustix::mount::unmount(&self.mnt, UnmountFlags::FORCE | UnmountFlags::DETACH)
        {
            remaining.push(format!("{}: {err}", self.mnt.display()));
        }
        assert!(remaining.is_empty() || std::thread::panicking(), "not unmounted: {remaining:?}");
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

/// Option of env(1).
pub(crate) const DEFAULT_SIGNALS: &str = "--default-signal=HUP,INT,QUIT";

/// Does a single-threaded process sleep in a timed wait?
pub(crate) fn sleeps(pid: u32) -> bool {
    let call = terrace_system::proc::text(pid, "syscall").unwrap_or_default();
    call.split(' ').next() == Some(&libc::SYS_clock_nanosleep.to_string())
}

fn is_locked(lock: &Path) -> bool {
    let shared = rustix::fs::FlockOperation::NonBlockingLockShared;
    fs::File::open(lock).is_ok_and(|lock| rustix::fs::flock(&lock, shared).is_err())
}

/// A command in a mount namespace of its own.
pub(crate) fn apart(command: &[&str]) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "--propagation", "private"]).args(command).env("XDG_CONFIG_HOME", "/nonexistent");
    unshare
}

/// The command with a time limit, for one that may hang.
pub(crate) fn with_a_limit(args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "300", TERRACE]).args(args).env("XDG_CONFIG_HOME", "/nonexistent");
    command
}

/// Runs a bash script to its end in a mount namespace of its own.
pub(crate) fn told_apart(script: &str) -> Outcome {
    told(apart(&["bash", "-c", script]))
}

/// The JSON that a command prints.
#[track_caller]
pub(crate) fn json<T: DeserializeOwned>(told: Outcome) -> T {
    serde_json::from_str(&told.fine().out).unwrap()
}

/// A path as an argument.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
