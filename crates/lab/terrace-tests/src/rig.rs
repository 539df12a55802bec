//! A test mount: a fresh test directory, on two of the three sides with a terrace mount of it.

use crate::busy::{self, Pressure, Work};
use crate::process::{self, DeadlySignals, Outcome};
use crate::{leftovers, rng};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use terrace_api::instance::Info;
use terrace_api::stats::StatReport;

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
}

impl Side {
    /// Whether one mount lasts for the whole test.
    fn has_mount(self) -> bool {
        matches!(self, Side::Mount | Side::Preload)
    }

    /// Whether each program runs under its own `terrace run`.
    fn runs(self) -> bool {
        matches!(self, Side::Run | Side::Leased)
    }
}

/// The top of the source tree.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).expect("crates/lab/terrace-tests").to_owned()
}

/// Path of a file of the product; panics with the cure if it is missing.
#[track_caller]
pub fn product(name: &str) -> PathBuf {
    let dir =
        std::env::var_os("TERRACE_BIN_DIR").map_or_else(|| workspace().join("target/release"), PathBuf::from);
    let path = dir.join(name);
    assert!(path.exists(), "{} is missing: run `make build` first, or set TERRACE_BIN_DIR", path.display());
    if is_for_all(&dir) { path } else { copies(&dir).join(name) }
}

/// Copies of the product in a place that every user can execute and LD_PRELOAD can name, made once for each
/// build.
fn copies(from: &Path) -> &'static Path {
    static COPIES: OnceLock<PathBuf> = OnceLock::new();
    COPIES.get_or_init(|| {
        let to = base_dir().join(format!("product-{:x}", rng::hash(from.as_os_str().as_encoded_bytes())));
        std::fs::create_dir_all(&to).expect("a directory for copies of the product");
        for name in ["terrace", "libterrace_preload.so", "terrace-bench", "terrace-sim"] {
            let (source, copy) = (from.join(name), to.join(name));
            let age = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
            if !source.exists() || age(&source) == age(&copy) {
                continue;
            }
            // Another test may be executing the old copy, so it is replaced by a rename.
            let new = to.join(format!("{name}.{}", std::process::id()));
            let copied = std::fs::copy(&source, &new)
                .and_then(|_| std::fs::File::open(&new)?.set_modified(age(&source).expect("it is there")))
                .and_then(|()| std::fs::rename(&new, &copy));
            copied.unwrap_or_else(|why| panic!("{}: {why}", copy.display()));
        }
        to
    })
}

/// Whether a place is reachable by every user and contains no characters special to shells, LD_PRELOAD and
/// /proc/mounts; on a disk, and not where tests mount file systems. A clone may be anywhere: otherwise
/// `/var/tmp` is used.
fn is_for_all(dir: &Path) -> bool {
    let reached =
        |p: &Path| std::fs::metadata(p).is_ok_and(|m| std::os::unix::fs::MetadataExt::mode(&m) & 0o001 != 0);
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/._+-".contains(b);
    dir.as_os_str().as_encoded_bytes().iter().all(plain)
        && !["/tmp", "/run", "/dev"].iter().any(|covered| dir.starts_with(covered))
        && dir.ancestors().filter(|p| !p.as_os_str().is_empty()).all(reached)
        && !is_memory(dir)
}

/// Whether the directory is on a tmpfs, which cannot bypass the page cache.
fn is_memory(dir: &Path) -> bool {
    let path = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes()).expect("no NUL in a path");
    // SAFETY: statfs is plain data, and all zeros is one; the path is NUL-terminated.
    unsafe {
        let mut told: libc::statfs = std::mem::zeroed();
        libc::statfs(path.as_ptr(), &raw mut told) == 0 && told.f_type == libc::TMPFS_MAGIC
    }
}

/// A fresh directory, removed at the end of a successful test.
#[derive(Debug)]
pub struct TestDir(PathBuf);

impl TestDir {
    /// Makes it; `test` becomes part of its name.
    pub fn new(test: &str) -> TestDir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        // An absolute name selects the place: some programs accept only short paths.
        let path = base_dir().join(format!("{test}-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory for the test");
        TestDir(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a subdirectory.
    pub fn sub(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(&path).expect("a directory for the test");
        path
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            leftovers::clear(&self.0);
        }
        if std::thread::panicking() || std::env::var_os("TERRACE_KEEP").is_some() {
            eprintln!("kept for inspection: {}", self.0.display());
            return;
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A small ext4 on a loop device, mounted in its own directory: it can be filled without using other space.
#[derive(Debug)]
pub struct SmallDisk {
    at: PathBuf,
    // Last field: removed after the disk is unmounted.
    _dir: TestDir,
}

impl SmallDisk {
    /// Makes one of `mib` MiB. None, with a message, without root or without loop devices.
    #[track_caller]
    pub fn new(test: &str, mib: u64) -> Option<SmallDisk> {
        if !crate::is_root() {
            return None;
        }
        let dir = TestDir::new(&format!("{test}-disk"));
        let (image, at) = (dir.path().join("image"), dir.sub("disk"));
        std::fs::File::create(&image).and_then(|f| f.set_len(mib << 20)).expect("an image");
        process::run(Command::new("mkfs.ext4").args(["-q", "-m", "0"]).arg(&image), 120).expect_success();
        let mounted = process::run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at), 120);
        if !mounted.status.success() {
            terrace_testkit::skipped!("no loop device here: {}", mounted.stderr.trim());
            return None;
        }
        Some(SmallDisk { at, _dir: dir })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.at).status().is_ok_and(|status| status.success());
        if !unmounted {
            leftovers::clear(&self.at);
        }
    }
}

/// Test data are beside the build, if that place is suitable.
fn base_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("TERRACE_TEST_DIR") {
        return dir.into();
    }
    let near = workspace().join("target/test-data");
    std::fs::create_dir_all(&near).expect("target can be written");
    if is_for_all(&near) {
        return near;
    }
    // SAFETY: no arguments.
    let user = unsafe { libc::geteuid() };
    format!("/var/tmp/terrace-tests-{user}").into()
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
        let src = src.map_or_else(|| dir.sub("src"), Path::to_owned);
        let at = if side.has_mount() { dir.sub("mnt") } else { src.clone() };
        let more = busy::options(dir.path(), options);
        let options = options.iter().map(|o| o.to_string()).chain(more).collect();
        if busy::wanted() {
            busy::prepare(&src);
        }
        let rig =
            TestMount { side, src, at, options, nofile, finished: false, pressure: Mutex::new(None), dir };
        if side.has_mount() {
            rig.mount();
        }
        rig
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
        let mut command = Command::new(product("terrace"));
        if self.nofile > 0 {
            command = Command::new("prlimit");
            command.arg(format!("--nofile={}", self.nofile)).arg(product("terrace"));
        }
        command.arg("mount").arg(&self.src).arg(&self.at).args(&self.options);
        // Source and tier are on one disk here.
        command.env("TERRACE_TEST_TIER_ALWAYS_FASTER", "1");
        process::run(&mut command, 60).expect_success();
        assert!(self.mounted(), "terrace mount succeeded, but nothing is mounted on {}", self.at.display());
        if busy::wanted() {
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
        let mounts = leftovers::table_of_mounts();
        let at = self.at.to_str().expect("a UTF-8 path");
        mounts.lines().any(|l| l.split(' ').nth(4) == Some(at))
    }

    /// Runs `terrace CMD MNT ARGS...`.
    #[track_caller]
    pub fn terrace(&self, cmd: &str, args: &[&str]) -> Outcome {
        process::run(Command::new(product("terrace")).arg(cmd).arg(&self.at).args(args), 120)
    }

    /// A program in this mount's directory, on this mount's access path.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = match self.side {
            Side::Run | Side::Leased => {
                let mut run = Command::new(product("terrace"));
                static COUNT: AtomicU32 = AtomicU32::new(0);
                let stats = self.dir.sub(STATS).join(COUNT.fetch_add(1, Ordering::Relaxed).to_string());
                run.args(["run", "--on"])
                    .arg(&self.src)
                    .args(&self.options)
                    .args((self.side == Side::Run).then_some("--mount"))
                    .arg("--stats")
                    .arg(stats)
                    .arg("--");
                run.env("TERRACE_LARGE_FILE", "0").env("TERRACE_TEST_TIER_ALWAYS_FASTER", "1");
                if busy::wanted() {
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
        next_child(supervisor, last)
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
        let gone = process::wait_until(20, || {
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
        let text = self.terrace("stat", &["--json"]).expect_success();
        serde_json::from_str(&text).unwrap_or_else(|why| panic!("terrace stat --json: {why}: {text}"))
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
        if self.side.runs() && busy::wanted() {
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

/// Disturbs a live mount from another thread until dropped: drops, flushes, resizes, and kills if selected.
#[derive(Debug)]
pub struct Chaos {
    stop: std::sync::mpsc::Sender<()>,
    thread: Option<std::thread::JoinHandle<u32>>,
    /// A plain directory has nothing to disturb.
    idle: bool,
}

/// The action of [`Chaos`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `terrace drop-caches`, `sync` and `resize`.
    Commands,
    /// kill -9 of terraced, and sometimes of its successor during recovery.
    Kill,
    /// The same with all fatal signals.
    Signals,
}

impl Chaos {
    /// Starts it: one disturbance about every `pause_ms`.
    pub fn start(rig: &TestMount, trouble: Fault, seed: u64, pause_ms: u64) -> Chaos {
        let (stop, stopped) = std::sync::mpsc::channel();
        let at = rig.at().to_owned();
        let idle = rig.side() == Side::Plain;
        let mut rng = rng::Rng::new(seed);
        let thread = std::thread::spawn(move || {
            let (mut done, mut signals) = (0, DeadlySignals::default());
            loop {
                let pause = std::time::Duration::from_millis(pause_ms / 2 + rng.below(pause_ms));
                if stopped.recv_timeout(pause) != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                    return done;
                }
                done += u32::from(!idle && disturb(&at, trouble, &mut signals, &mut rng));
            }
        });
        Chaos { stop, thread: Some(thread), idle }
    }

    /// Ends it and returns the number of disturbances. None would make the test meaningless.
    #[track_caller]
    pub fn stop(mut self) -> u32 {
        let _ = self.stop.send(());
        let done = self.thread.take().expect("stopped once").join().expect("the troublemaker itself is well");
        assert!(self.idle || done > 0, "nothing was disturbed: the test was too short");
        done
    }
}

impl Drop for Chaos {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn disturb(at: &Path, trouble: Fault, signals: &mut DeadlySignals, rng: &mut rng::Rng) -> bool {
    if trouble != Fault::Commands {
        return kill_terraced(at, trouble, signals, rng);
    }
    let mut command = Command::new(product("terrace"));
    match rng.below(5) {
        0..=1 => command.arg("drop-caches").arg(at),
        2 => command.arg("sync").arg(at),
        3 => command.arg("resize").arg(at).arg("16MiB"),
        _ => command.arg("resize").arg(at).arg("24MiB"),
    };
    process::run(&mut command, 60).expect_success();
    true
}

/// The supervisor and the serving terraced, by info.json.
fn processes(at: &Path) -> Option<(i32, i32)> {
    let mine = leftovers::instances().into_iter().find(|(_, info)| info.mnt == at);
    mine.map(|(_, info)| (info.pid, info.terraced))
}

/// Kills the serving terraced; sometimes also its successor, a moment after its start. Not always: there must
/// be progress.
fn kill_terraced(at: &Path, trouble: Fault, signals: &mut DeadlySignals, rng: &mut rng::Rng) -> bool {
    let mut signal = |rng: &mut rng::Rng| match trouble {
        Fault::Signals => signals.pick(rng),
        _ => libc::SIGKILL,
    };
    let Some((supervisor, first)) = processes(at) else { return false };
    let killed = process::kill(first, signal(rng));
    if killed
        && rng.chance(20)
        && let Some(second) = next_child(supervisor, first)
    {
        std::thread::sleep(std::time::Duration::from_micros(rng.below(6000)));
        process::kill(second, signal(rng));
    }
    killed
}

/// The running child of a supervisor that is not `last`; waits up to 20 s for it. (The supervisor reaps the
/// last one before it starts a new one.)
fn next_child(supervisor: i32, last: i32) -> Option<i32> {
    let mut found = None;
    process::wait_closely(20, || {
        found = process::children(supervisor).into_iter().find(|pid| *pid != last);
        found.is_some()
    });
    found
}
