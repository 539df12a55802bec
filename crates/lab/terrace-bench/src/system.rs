//! The systems under test: starting one in a control group, running steps inside it, shutting it down.

use crate::cgroup::{Memory, OwnedGroup, Throttle};
use crate::meters::Meters;
use crate::steps::{self, Context, Outcome, Step, VERIFY};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use terrace_api::stats::StatReport;
use terrace_output::signals::interrupted;

/// The system that serves the directory.
#[derive(Clone, Debug, PartialEq)]
pub enum System {
    /// The file system itself: its page cache, or O_DIRECT if the load requests it.
    Kernel,
    /// `terrace run`.
    Terrace {
        /// `--memory`, in bytes; none: `auto`.
        memory: Option<u64>,
        /// False: `--no-preload`.
        preload: bool,
    },
    /// The plain pass-through FUSE of this crate.
    PassThrough {
        /// Number of its threads.
        threads: usize,
    },
    /// A system started by shell lines.
    Command {
        /// Shell lines that start it, inside the group.
        setup: Vec<String>,
        /// Shell lines that shut it down, also after a failure.
        teardown: Vec<String>,
        /// The directory that it serves.
        dir: PathBuf,
    },
}

/// Directories and programs.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Directory of the data: the one that terrace serves.
    pub(crate) data: PathBuf,
    /// Scratch directory, not below `data`.
    pub(crate) scratch: PathBuf,
    /// The terrace program.
    pub(crate) terrace: PathBuf,
    /// This program.
    pub(crate) bench: PathBuf,
    /// The program with foyer's cache.
    pub(crate) foyer: PathBuf,
    /// Further arguments of `terrace run`.
    pub(crate) terrace_args: Vec<String>,
    /// The file of the system's tier, if it has one.
    pub(crate) tier: Option<PathBuf>,
    /// Statistics of devices that only the system under test uses, by name.
    pub(crate) devices: BTreeMap<String, PathBuf>,
    /// Continue without control groups or the right to drop caches: a demonstration, not a measurement.
    pub(crate) lenient: bool,
    /// Give the measured group most of the processors.
    pub(crate) favour: bool,
    /// Throttle of the measured group on a device.
    pub(crate) throttle: Option<Throttle>,
    /// Suffix of the names of group and output directory, for systems that run side by side.
    pub(crate) suffix: String,
}

/// Results of one run.
#[derive(Debug)]
pub struct Run {
    /// One outcome for each step.
    pub(crate) outcomes: Vec<Outcome>,
    /// Final statistics.
    pub(crate) end: End,
}

/// Last statistics of a system that was shut down.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// Output of `terrace run --stats`.
    pub(crate) stats: Option<StatReport>,
    /// Maximum of the pinned bytes (sampled).
    pub(crate) pinned_max: u64,
    /// Maximum over the steps of the pinned bytes without the cache's memory at the end of the step. Without the
    /// verification, to which the cache gives way. None: no preload path has served.
    pub(crate) beside_max: Option<u64>,
    /// The group's counters at the end.
    pub(crate) memory: Option<Memory>,
}

impl Run {
    pub(crate) fn step(&self, name: &str) -> Result<&Outcome, String> {
        self.outcomes.iter().find(|o| o.name == name).ok_or_else(|| format!("no step {name}"))
    }
}

/// Runs `steps` on `system` in a fresh group with a memory limit.
pub fn run(places: &Places, system: &System, limit: Option<u64>, steps: &[Step]) -> Result<Run, String> {
    let mut running = RunningSystem::bring_up(places, system, limit)?;
    let outcomes = steps.iter().map(|step| running.step(step)).collect::<Result<Vec<_>, _>>()?;
    Ok(Run { outcomes, end: running.take_down()? })
}

/// Name of this process's group. One system at a time uses it, or, with a suffix, one of several side by
/// side.
pub(crate) fn group_name() -> String {
    format!("terrace-bench-{}", std::process::id())
}

fn make_group(places: &Places, limit: Option<u64>) -> Result<Option<OwnedGroup>, String> {
    let mut group = match OwnedGroup::create(&(group_name() + &places.suffix), limit) {
        Ok(group) => group,
        Err(_) if places.lenient => return Ok(None),
        Err(e) => return Err(format!("control group: {e}; run as root")),
    };
    if places.favour {
        group.favour();
    }
    if let Some(throttle) = &places.throttle {
        group.throttle(throttle).map_err(|e| format!("throttle: {e}"))?;
    }
    Ok(Some(group))
}

/// A running system, and a process inside it that runs steps. Dropping shuts the system down.
#[derive(Debug)]
pub(crate) struct RunningSystem {
    places: Places,
    group: Option<OwnedGroup>,
    out: PathBuf,
    pass_through: Option<PassThrough>,
    teardown: Vec<String>,
    inner: Option<Inner>,
    pinned_max: u64,
    /// The same of the current step.
    pinned_in_step: u64,
    beside_max: Option<u64>,
    /// Time of the SIGTERM after a caught signal. A measuring loop may run for long, but ends then.
    told_at: Option<Instant>,
}

/// The process that runs steps.
#[derive(Debug)]
struct Inner {
    child: Child,
    input: Option<ChildStdin>,
    replies: Receiver<io::Result<String>>,
}

impl RunningSystem {
    /// Starts the system in a fresh group, on cold caches.
    ///
    /// # Errors
    /// A missing permission, or a failure of the system.
    pub(crate) fn bring_up(
        places: &Places,
        system: &System,
        limit: Option<u64>,
    ) -> Result<RunningSystem, String> {
        let group = make_group(places, limit)?;
        let out = places.scratch.join(format!("run{}", places.suffix));
        let _ = fs::remove_dir_all(&out);
        fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
        match steps::drop_caches() {
            Err(_) if places.lenient => steps::drop_files(&places.data),
            result => result.map_err(|e| format!("drop_caches: {e}; run as root"))?,
        }
        let mut running = RunningSystem {
            places: places.clone(),
            group,
            out,
            pass_through: None,
            teardown: Vec::new(),
            inner: None,
            pinned_max: 0,
            pinned_in_step: 0,
            beside_max: None,
            told_at: None,
        };
        running.start(system)?;
        Ok(running)
    }

    fn start(&mut self, system: &System) -> Result<(), String> {
        let mut dir = self.places.data.clone();
        match system {
            System::PassThrough { threads } => {
                let mount = PassThrough::start(&self.places, *threads, self.group.as_ref())?;
                dir.clone_from(&mount.at);
                self.pass_through = Some(mount);
            }
            System::Command { setup, teardown, dir: served } => {
                self.teardown.clone_from(teardown);
                for line in setup {
                    wait(&mut self.shell(line)?).and_then(|code| succeeded(code, line))?;
                }
                dir.clone_from(served);
            }
            System::Kernel | System::Terrace { .. } => {}
        }
        // If there is a preload path, its counters are read.
        let has_preload = matches!(system, System::Terrace { preload: true, .. });
        let terrace = has_preload.then(|| self.places.terrace.clone());
        let meters = Meters { devices: self.places.devices.clone(), terrace, dir };
        let context = Context { meters, group: self.group.as_deref().cloned(), out: self.out.clone() };
        let mut command = command(&self.places, system, &self.stats_file());
        command.arg(&self.places.bench).arg("steps").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn_in(self.group.as_ref(), command)?;
        let (input, output) = (child.stdin.take(), child.stdout.take().ok_or("no pipe")?);
        let (sender, replies) = mpsc::channel();
        // Ends with the pipe, or when the receiver is dropped.
        std::thread::spawn(move || {
            let _ = BufReader::new(output).lines().try_for_each(|line| sender.send(line));
        });
        self.inner = Some(Inner { child, input, replies });
        self.tell(&serde_json::to_string(&context).map_err(|e| e.to_string())?)
    }

    fn stats_file(&self) -> PathBuf {
        self.out.join("stats.json")
    }

    /// Directory of the steps' files.
    pub(crate) fn out(&self) -> &Path {
        &self.out
    }

    fn tell(&mut self, line: &str) -> Result<(), String> {
        let inner = self.inner.as_mut().ok_or("the system was shut down already")?;
        let input = inner.input.as_mut().ok_or("the system was shut down already")?;
        input.write_all(format!("{line}\n").as_bytes()).map_err(|_| self.why_gone())
    }

    /// Runs a step inside; a failing one is an error.
    ///
    /// # Errors
    /// The failure of the step, or of the whole system.
    pub(crate) fn step(&mut self, step: &Step) -> Result<Outcome, String> {
        self.tell(&serde_json::to_string(step).map_err(|e| e.to_string())?)?;
        self.pinned_in_step = 0;
        let line = loop {
            let inner = self.inner.as_ref().ok_or("the system was shut down already")?;
            match inner.replies.recv_timeout(Duration::from_millis(50)) {
                Ok(Ok(line)) => break line,
                Err(RecvTimeoutError::Timeout) if interrupted() => tell(&inner.child, &mut self.told_at),
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => return Err(self.why_gone()),
            }
            self.sample();
        };
        self.sample();
        let outcome: Outcome = serde_json::from_str(&line).map_err(|e| e.to_string())?;
        let beside = outcome.preload.map(|cache| self.pinned_in_step.saturating_sub(cache.used_bytes));
        if step.name != VERIFY {
            self.beside_max = self.beside_max.max(beside);
        }
        match outcome.status {
            _ if interrupted() => Err("interrupted".into()),
            0 => Ok(outcome),
            code => Err(format!("exit code {code}{} of the step: {}", self.killed(), step.name)),
        }
    }

    fn sample(&mut self) {
        let pinned = self.group.as_ref().and_then(|g| g.memory()).map_or(0, |m| m.pinned);
        self.pinned_in_step = self.pinned_in_step.max(pinned);
        self.pinned_max = self.pinned_max.max(pinned);
    }

    fn killed(&self) -> String {
        match self.group.as_ref().and_then(|g| g.memory()).map_or(0, |m| m.oom_kills) {
            0 => String::new(),
            n => format!(" ({n} processes killed by the OOM killer)"),
        }
    }

    fn why_gone(&mut self) -> String {
        let status = self.inner.as_mut().and_then(|inner| inner.child.wait().ok());
        match status {
            _ if interrupted() => "interrupted".into(),
            Some(status) => format!("it ended with exit code {}{}", steps::exit_code(status), self.killed()),
            None => "the system is gone".into(),
        }
    }

    fn shell(&self, line: &str) -> Result<Child, String> {
        let mut command = Command::new("sh");
        command.args(["-c", line]).stdin(Stdio::null());
        spawn_in(self.group.as_ref(), command)
    }

    /// Shuts everything down; returns the final statistics.
    ///
    /// # Errors
    /// Processes that failed, or were killed by the OOM killer.
    pub(crate) fn take_down(mut self) -> Result<End, String> {
        self.sample();
        let ended = self.end_all();
        let memory = self.group.as_ref().and_then(|g| g.memory());
        if interrupted() {
            return Err("interrupted".into());
        }
        ended?;
        if let Some(n) = memory.map(|m| m.oom_kills).filter(|&n| n > 0) {
            return Err(format!("{n} processes killed by the OOM killer"));
        }
        let stats = fs::read(self.stats_file()).ok().and_then(|b| serde_json::from_slice(&b).ok());
        Ok(End { stats, pinned_max: self.pinned_max, beside_max: self.beside_max, memory })
    }

    /// Shuts down all parts, even after a failure; returns the first error.
    fn end_all(&mut self) -> Result<(), String> {
        let inner = match self.inner.take() {
            None => Ok(()),
            Some(mut inner) => {
                drop(inner.input.take());
                wait(&mut inner.child).and_then(|code| match code {
                    0 => Ok(()),
                    code => Err(format!("it ended with exit code {code}")),
                })
            }
        };
        drop(self.pass_through.take());
        let teardown = std::mem::take(&mut self.teardown);
        // Runs to its end even after a signal.
        let ended = teardown.iter().map(|line| {
            let status = self.shell(line)?.wait().map_err(|e| e.to_string())?;
            succeeded(steps::exit_code(status), line)
        });
        let ended = ended.fold(inner, Result::and);
        if let Some(group) = &self.group {
            group.end_all(&self.places.terrace);
        }
        ended
    }
}

impl Drop for RunningSystem {
    fn drop(&mut self) {
        let _ = self.end_all();
    }
}

fn succeeded(code: i32, line: &str) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("exit code {code} of: {line}")) }
}

/// Waits for a child; a caught signal terminates it.
fn wait(child: &mut Child) -> Result<i32, String> {
    let mut told_at = None;
    loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) => return Ok(steps::exit_code(status)),
            None if interrupted() => tell(child, &mut told_at),
            None => {}
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Prefix of the command under test.
fn command(places: &Places, system: &System, stats: &Path) -> Command {
    let mut argv: Vec<String> = Vec::new();
    if let System::Terrace { memory, preload } = system {
        argv = vec![
            places.terrace.display().to_string(),
            "run".into(),
            "--on".into(),
            places.data.display().to_string(),
        ];
        let memory = memory.map_or("auto".into(), |bytes| bytes.to_string());
        argv.extend(["--memory".into(), memory, "--stats".into(), stats.display().to_string()]);
        if !preload {
            argv.push("--no-preload".into());
        }
        argv.extend(places.terrace_args.iter().cloned());
        argv.push("--".into());
    }
    // Plain `env` is the neutral prefix: it executes its arguments, as `terrace run` does.
    let mut command = Command::new(argv.first().map_or("env", String::as_str));
    command.args(argv.iter().skip(1));
    command
}

/// SIGTERM first; SIGKILL after half a minute.
fn tell(child: &Child, told_at: &mut Option<Instant>) {
    let signal = match told_at {
        None => libc::SIGTERM,
        Some(at) if at.elapsed() > Duration::from_secs(30) => libc::SIGKILL,
        Some(_) => return,
    };
    told_at.get_or_insert_with(Instant::now);
    // SAFETY: a child that was not waited for yet: the number is still its own.
    unsafe { libc::kill(child.id() as i32, signal) };
}

/// Starts `command` inside the group.
fn spawn_in(group: Option<&OwnedGroup>, mut command: Command) -> Result<Child, String> {
    let files: Vec<std::ffi::CString> = group
        .map_or_else(Vec::new, |g| g.procs_files())
        .into_iter()
        .map(|f| std::ffi::CString::new(f.into_os_string().into_encoded_bytes()).expect("a path has no NUL"))
        .collect();
    let enter = move || {
        for file in &files {
            // SAFETY: open, write and close are safe between fork and exec; the strings were made before.
            unsafe {
                let fd = libc::open(file.as_ptr(), libc::O_WRONLY);
                if fd < 0 || libc::write(fd, c"0".as_ptr().cast(), 1) != 1 {
                    return Err(io::Error::last_os_error());
                }
                libc::close(fd);
            }
        }
        Ok(())
    };
    // SAFETY: `enter` allocates nothing and takes no lock.
    unsafe { command.pre_exec(enter) };
    command.spawn().map_err(|e| format!("{}: {e}", command.get_program().to_string_lossy()))
}

/// A running pass-through mount; unmounted when dropped.
#[derive(Debug)]
struct PassThrough {
    at: PathBuf,
    child: Child,
}

impl PassThrough {
    fn start(places: &Places, threads: usize, group: Option<&OwnedGroup>) -> Result<PassThrough, String> {
        let at = places.scratch.join("pass-through");
        fs::create_dir_all(&at).map_err(|e| format!("{}: {e}", at.display()))?;
        let mut command = Command::new(&places.bench);
        command.arg("passthrough").arg(&places.data).arg(&at).arg("--threads").arg(threads.to_string());
        let before = device(&at);
        let child = spawn_in(group, command)?;
        let mount = PassThrough { at, child };
        let start = Instant::now();
        while device(&mount.at) == before {
            if start.elapsed() > Duration::from_secs(10) {
                return Err("the pass-through mount did not come up".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(mount)
    }
}

fn device(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|m| m.dev())
}

impl Drop for PassThrough {
    fn drop(&mut self) {
        // SIGTERM makes it unmount itself.
        // SAFETY: our child, not waited for yet.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let _ = self.child.wait();
        let _ = fs::remove_dir(&self.at);
    }
}
