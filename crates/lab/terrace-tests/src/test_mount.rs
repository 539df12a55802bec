//! A test mount: a fresh directory of a test, its source, and the access path of the test's programs. Two of
//! the five sides have one terrace mount for the whole test.

use crate::busy::{self, Pressure, Work};
use crate::process::{self, Outcome};
use crate::test_dir::{TestDir, product, terrace};
use crate::{leftovers, rng};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use terrace_api::instance::Info;
use terrace_api::stats::StatReport;
use terrace_testkit::wait::holds_within;

/// Directory of the statistics left by commands under `terrace run`.
const STATS: &str = "stats";

/// The access path of a test's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The bare directory: the reference.
    Plain,
    /// A terrace mount, programs without the preload library.
    Mount,
    /// A terrace mount, programs with the preload library.
    Preload,
    /// The bare directory, each program under its own `terrace run --mount`.
    Run,
    /// The bare directory, each program under its own `terrace run`, by leases: the default for users.
    Leased,
    /// The bare directory, each program under its own `terrace run`, guarded by fanotify: not for users yet.
    Guarded,
}

impl Side {
    /// Whether one mount lasts for the whole test.
    fn has_mount(self) -> bool {
        matches!(self, Side::Mount | Side::Preload)
    }

    /// Whether each program runs under its own `terrace run`.
    fn runs(self) -> bool {
        matches!(self, Side::Run | Side::Leased | Side::Guarded)
    }
}

/// A test's directory, with a mount on the sides that have one.
#[derive(Debug)]
pub struct TestMount {
    side: Side,
    src: PathBuf,
    at: PathBuf,
    options: Vec<String>,
    /// Maximum number of the instance's descriptors; 0: that of the test.
    nofile: u64,
    finished: bool,
    /// The load that keeps the compressed tier of the mount busy, if wanted.
    /// A presser keeps the instance's tiers busy. Not on a source of the test, which may lack room for its file.
    presses: bool,
    pressure: Mutex<Option<Pressure>>,
    // Last field: removed after the mount is gone.
    dir: TestDir,
}

impl TestMount {
    /// A test mount with this much cache memory (`16MiB`); the minimum if the compressed tier is to be busy.
    #[track_caller]
    pub fn new(test: &str, side: Side, memory: &str) -> TestMount {
        let memory = if busy::wanted() { busy::MEMORY } else { memory };
        TestMount::with(test, side, &["--memory", memory])
    }

    /// A test mount with these options.
    #[track_caller]
    pub fn with(test: &str, side: Side, options: &[&str]) -> TestMount {
        TestMount::of(test, side, options, None, 0)
    }

    /// A test mount on an existing source, or with a limit on the instance's descriptors.
    #[track_caller]
    pub fn of(test: &str, side: Side, options: &[&str], src: Option<&Path>, nofile: u64) -> TestMount {
        // TERRACE_PLAIN=1 makes all sides plain directories, to show which failures do not depend on terrace.
        let side = if std::env::var_os("TERRACE_PLAIN").is_some() { Side::Plain } else { side };
        let dir = TestDir::new(&format!("{test}-{side:?}").to_lowercase());
        let presses = busy::wanted() && src.is_none();
        let src = src.map_or_else(|| dir.sub("src"), Path::to_owned);
        let at = if side.has_mount() { dir.sub("mnt") } else { src.clone() };
        let more = busy::options(dir.path(), options);
        let options = options.iter().map(|o| o.to_string()).chain(more).collect();
        if presses {
            busy::prepare(&src);
        }
        let pressure = Mutex::new(None);
        let mount = TestMount { side, src, at, options, nofile, finished: false, presses, pressure, dir };
        if side.has_mount() {
            mount.mount();
        }
        mount
    }

    /// The access path of this mount.
    pub fn side(&self) -> Side {
        self.side
    }

    /// The directory that is cached, as the source file system shows it.
    pub fn src(&self) -> &Path {
        &self.src
    }

    /// The directory in which programs work.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// A directory for the test's own files, never cached.
    pub fn aside(&self) -> PathBuf {
        self.dir.sub("aside")
    }

    /// The test's whole directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Mounts (again).
    #[track_caller]
    pub fn mount(&self) {
        let mut command = terrace(&["mount"]);
        if self.nofile > 0 {
            command = Command::new("prlimit");
            command.arg(format!("--nofile={}", self.nofile)).arg(product("terrace")).arg("mount");
        }
        command.arg(&self.src).arg(&self.at).args(&self.options);
        // Source and tier are on one disk here.
        command.env("TERRACE_TEST_TIER_ALWAYS_FASTER", "1");
        process::run(&mut command, 60).expect_success();
        assert!(self.mounted(), "terrace mount succeeded, but nothing is mounted on {}", self.at.display());
        if self.presses {
            *self.pressure.lock().expect("held for moments only") = None;
            let mut presser = busy::presser(&self.at);
            if self.side == Side::Preload {
                self.through_preload(&mut presser);
            }
            let pressure = Pressure::start(&mut presser, self.terraced(), || self.stat());
            *self.pressure.lock().expect("held for moments only") = Some(pressure);
        }
    }

    /// Whether the mount exists.
    pub fn mounted(&self) -> bool {
        leftovers::is_mounted(&self.at)
    }

    /// Runs `terrace CMD MNT ARGS...`.
    #[track_caller]
    pub fn terrace(&self, cmd: &str, args: &[&str]) -> Outcome {
        process::run(terrace(&[cmd]).arg(&self.at).args(args), 120)
    }

    /// A program in this mount's directory, on this mount's access path.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = match self.side {
            Side::Run | Side::Leased | Side::Guarded => {
                let mut run = terrace(&["run", "--on"]);
                run.envs((self.side == Side::Guarded).then_some(("TERRACE_TEST_GUARD", "1")));
                static COUNT: AtomicU32 = AtomicU32::new(0);
                let stats = self.dir.sub(STATS).join(COUNT.fetch_add(1, Ordering::Relaxed).to_string());
                run.arg(&self.src)
                    .args(&self.options)
                    .args((self.side == Side::Run).then_some("--mount"))
                    .arg("--stats")
                    .arg(stats)
                    .arg("--");
                run.env("TERRACE_LARGE_FILE", "0").env("TERRACE_TEST_TIER_ALWAYS_FASTER", "1");
                if self.presses {
                    busy::beside(&mut run, &self.src);
                }
                run.arg(program);
                run
            }
            _ => Command::new(program),
        };
        command.current_dir(&self.at);
        if self.side == Side::Preload {
            self.through_preload(&mut command);
        }
        command
    }

    /// [`TestMount::command`] as another user, with its own `terrace run`; None if the kernel allows no
    /// unprivileged namespaces.
    pub fn command_of(&self, user: &str, program: impl AsRef<std::ffi::OsStr>) -> Option<Command> {
        assert_eq!(self.side, Side::Run, "elsewhere root serves");
        let device = self.dir.path().join("fuse");
        if !process::may_unshare(user, &device) {
            return None;
        }
        let tier = busy::prepare_tier(self.dir.path());
        let chown =
            Command::new("chown").arg(user).arg(&self.src).arg(self.dir.sub(STATS)).args(tier).status();
        assert!(chown.is_ok_and(|status| status.success()), "the user {user} exists");
        let (mut command, run) = (process::as_user(user, &device), self.command(program));
        command.arg(run.get_program()).args(run.get_args());
        Some(command)
    }

    /// Sets the environment that `terrace run` would give a program.
    pub fn through_preload(&self, command: &mut Command) {
        let (place, _) = self.instance();
        let device =
            std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(&self.at).expect("the mount answers"));
        command.env("LD_PRELOAD", product("libterrace_preload.so"));
        // Makes readers of the tests' small files clients, too.
        command.env("TERRACE_LARGE_FILE", "0");
        command.env("TERRACE_SOCKET", place.join("preload.sock")).env("TERRACE_DEV", device.to_string());
    }

    /// Runs a shell script in this mount's directory, on its access path; it must succeed.
    #[track_caller]
    pub fn shell(&self, script: &str, seconds: u64) -> String {
        process::run(self.command("/bin/bash").arg("-euc").arg(script), seconds).expect_success()
    }

    /// The instance's runtime directory and info.json.
    #[track_caller]
    pub fn instance(&self) -> (PathBuf, Info) {
        let all = leftovers::instances();
        let mine = all.iter().find(|(_, info)| info.mnt == self.at);
        mine.cloned().unwrap_or_else(|| panic!("no instance serves {}: {all:?}", self.at.display()))
    }

    /// The process number of the supervisor.
    #[track_caller]
    pub fn supervisor(&self) -> i32 {
        self.instance().1.pid
    }

    /// The process number of the serving terraced; it changes with each restart.
    #[track_caller]
    pub fn terraced(&self) -> i32 {
        self.instance().1.terraced
    }

    /// Waits for the successor of a terraced. It is found as soon as it exists, before its recovery;
    /// [`TestMount::terraced`] reads info.json, which names it only when it serves.
    #[track_caller]
    pub fn next_terraced(&self, last: i32) -> i32 {
        let supervisor = self.supervisor();
        process::next_child(supervisor, last)
            .unwrap_or_else(|| panic!("no new terraced after 20 s (the last was {last})"))
    }

    /// Kills supervisor and terraced, in random order, and waits until no process of the instance lives,
    /// including a terraced that the supervisor was just starting.
    #[track_caller]
    pub fn kill_everything(&self, rng: &mut rng::Rng) {
        let (supervisor, terraced) = (self.supervisor(), self.terraced());
        let order = if rng.chance(50) { [supervisor, terraced] } else { [terraced, supervisor] };
        order.iter().for_each(|pid| {
            process::kill(*pid, libc::SIGKILL);
        });
        let gone = holds_within(Duration::from_secs(20), || {
            let living = leftovers::daemons(self.dir.path());
            living.iter().for_each(|pid| {
                process::kill(*pid, libc::SIGKILL);
            });
            living.is_empty()
        });
        assert!(gone, "something of the instance lives on");
    }

    /// Waits for the end of the instance after `terrace run` was killed with its command.
    #[track_caller]
    pub fn await_end_of_run(&self) {
        if self.side.runs() {
            let left = leftovers::find(self.dir.path());
            assert!(left.is_empty(), "terrace run left behind: {left:#?}");
        }
    }

    /// The output of `terrace stat --json`.
    #[track_caller]
    pub fn stat(&self) -> StatReport {
        self.terrace("stat", &["--json"]).json()
    }

    /// Drops clean pages, so that later reads come from the source.
    #[track_caller]
    pub fn drop_cache(&self) {
        if self.side.has_mount() {
            self.terrace("drop-caches", &[]).expect_success();
        }
    }

    /// Runs `terrace check`, which must find nothing.
    #[track_caller]
    pub fn check(&self) {
        if self.side.has_mount() {
            let outcome = self.terrace("check", &[]);
            assert!(outcome.status.success(), "the cache does not agree with itself: {outcome}");
        }
    }

    /// The statistics left by commands under `terrace run`. A killed one leaves none.
    #[track_caller]
    pub fn stats_of_runs(&self) -> Vec<StatReport> {
        let list = std::fs::read_dir(self.dir.sub(STATS)).expect("our own directory");
        let texts = list.filter_map(|entry| std::fs::read(entry.ok()?.path()).ok());
        texts.filter_map(|text| serde_json::from_slice(&text).ok()).collect()
    }

    /// Asserts that the compressed tier was busy, if enabled.
    #[track_caller]
    fn assert_tier_was_busy(&self) {
        if let Some(pressure) = self.pressure.lock().expect("held for moments only").take() {
            pressure.stop(self.terraced(), || self.stat());
        }
        if self.side.runs() && self.presses {
            self.stats_of_runs().iter().map(Work::of).fold(Work::default(), Work::and).assert_busy();
        }
    }

    /// Unmounts: afterwards the source has all data and nothing of the instance is left.
    #[track_caller]
    pub fn umount(&self) {
        self.assert_tier_was_busy();
        if self.side.has_mount() {
            self.terrace("umount", &[]).expect_success();
            assert!(!self.mounted(), "still mounted after terrace umount");
        }
        if self.side != Side::Plain {
            let left = leftovers::find(self.dir.path());
            assert!(left.is_empty(), "left behind: {left:#?}");
        }
    }

    /// The end of each test: checks the cache, unmounts, looks for leftovers.
    #[track_caller]
    pub fn finish(mut self) {
        self.check();
        self.umount();
        self.finished = true;
    }
}

impl Drop for TestMount {
    fn drop(&mut self) {
        drop(self.pressure.lock().map(|mut pressure| pressure.take()));
        if !self.finished && self.side != Side::Plain {
            if std::thread::panicking() {
                self.tell();
            }
            leftovers::clear(self.dir.path());
        }
    }
}

impl TestMount {
    /// Prints the end of the daemon's log after a failure; the kept directory has all of it.
    fn tell(&self) {
        for (place, info) in leftovers::instances() {
            if info.mnt == self.at {
                let kept = self.dir.path().join("terraced.log");
                let copied = std::fs::copy(place.join("terraced.log"), &kept);
                eprintln!("instance {info:?}, its log: {} ({copied:?} bytes)", kept.display());
                let log = std::fs::read_to_string(kept).unwrap_or_default();
                let lines: Vec<&str> = log.lines().rev().take(30).collect();
                lines.iter().rev().for_each(|l| eprintln!("  {l}"));
            }
        }
    }
}
