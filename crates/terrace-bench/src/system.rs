//! The systems under test and one run of a plan on one of them.

use crate::cgroup::{Group, Memory, OwnedGroup, Throttle};
use crate::steps::{self, Outcome, Plan, Step};
use serde_json::Value;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What serves the directory.
#[derive(Clone, Debug, PartialEq)]
pub enum System {
    /// The file system itself: its page cache, or O_DIRECT where the load says so.
    Kernel,
    /// `terrace run`.
    Terrace {
        /// `--memory`, in bytes.
        memory: u64,
        /// Without it, `--no-fast-door`.
        fast_door: bool,
    },
    /// The plain pass-through FUSE of this crate.
    PassThrough {
        /// Its threads.
        threads: usize,
    },
    /// Whatever shell lines bring up.
    Command {
        /// These, inside the group.
        setup: Vec<String>,
        /// And these take it down, also after a failure.
        teardown: Vec<String>,
        /// What it serves.
        dir: PathBuf,
    },
    /// One that a suite has brought up and measures itself: not for [`run`].
    Standing {
        /// Its name.
        name: &'static str,
    },
}

impl System {
    /// The name in tables and raw results.
    pub fn name(&self) -> &'static str {
        match self {
            System::Kernel => "kernel",
            System::Terrace { fast_door: true, .. } => "terrace",
            System::Terrace { fast_door: false, .. } => "terrace-main-door",
            System::PassThrough { .. } => "pass-through",
            System::Command { .. } => "command",
            System::Standing { name } => name,
        }
    }
}

/// Where things are.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Directory with the data: the one that terrace takes over.
    pub data: PathBuf,
    /// Scratch directory, not below `data`.
    pub scratch: PathBuf,
    /// The product.
    pub terrace: PathBuf,
    /// This program.
    pub bench: PathBuf,
    /// Further arguments of `terrace run`.
    pub terrace_args: Vec<String>,
    /// Go on without control groups or the right to drop caches: a demonstration, not a measurement.
    pub lenient: bool,
    /// Give the measured group most of the processors.
    pub favour: bool,
    /// Hold the measured group back on a device.
    pub throttle: Option<Throttle>,
}

/// What one run gave.
#[derive(Debug)]
pub struct Run {
    /// One for each step.
    pub outcomes: Vec<Outcome>,
    /// What `terrace run --stats` wrote.
    pub stats: Option<Value>,
    /// Most bytes that could not be given back at any time (sampled).
    pub pinned_max: u64,
    /// The group's counters at the end.
    pub memory: Option<Memory>,
}

impl Run {
    /// The outcome of the step of this name.
    pub fn step(&self, name: &str) -> Result<&Outcome, String> {
        self.outcomes.iter().find(|o| o.name == name).ok_or_else(|| format!("no step {name}"))
    }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_signal(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From here on ^C and SIGTERM end the current run in order: children told, mounts and groups gone.
pub fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = note_signal as extern "C" fn(libc::c_int);
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// As if a signal had been caught.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Was a signal caught?
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Runs `steps` on `system` in a fresh group with this memory limit. `steps` is told the group, for loads that read its meters.
pub fn run(
    places: &Places,
    system: &System,
    limit: Option<u64>,
    steps: impl FnOnce(Option<&Group>) -> Vec<Step>,
) -> Result<Run, String> {
    if let System::Standing { name } = system {
        return Err(format!("{name} is not brought up for a single run"));
    }
    let group = make_group(places, limit)?;
    let group = group.as_ref();
    let out = places.scratch.join("run");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    match steps::drop_caches() {
        Err(_) if places.lenient => steps::drop_files(&places.data),
        result => result.map_err(|e| format!("drop_caches: {e}; run as root"))?,
    }

    let pass_through = match system {
        System::PassThrough { threads } => Some(PassThrough::start(places, *threads, group)?),
        _ => None,
    };
    let mut commands = Commands::bring_up(system, group)?;
    let dir = match system {
        System::Command { dir, .. } => dir,
        _ => pass_through.as_ref().map_or(&places.data, |p| &p.at),
    };
    let dir = dir.clone();
    let plan = Plan {
        dir,
        terrace: matches!(system, System::Terrace { .. }).then(|| places.terrace.clone()),
        group: group.map(|g| (**g).clone()),
        steps: steps(group.map(|g| &**g)),
        out: out.clone(),
    };
    let plan_file = out.join("plan.json");
    fs::write(&plan_file, serde_json::to_vec(&plan).unwrap())
        .map_err(|e| format!("{}: {e}", plan_file.display()))?;

    let stats_file = out.join("stats.json");
    let mut command = command(places, system, &stats_file);
    command.arg(&places.bench).arg("steps").arg(&plan_file);
    let mut pinned_max = 0;
    let status = run_in(group, command, || {
        pinned_max = pinned_max.max(group.and_then(|g| g.memory()).map_or(0, |m| m.pinned));
    });
    drop(pass_through);
    let taken_down = commands.take_down();
    if let Some(group) = group {
        group.end_all(&places.terrace);
    }

    let outcomes: Vec<Outcome> = fs::read(out.join("results.json"))
        .ok()
        .and_then(|b| serde_json::from_slice(&b).ok())
        .unwrap_or_default();
    let memory = group.and_then(|g| g.memory());
    match status? {
        _ if interrupted() => return Err("interrupted".into()),
        0 => taken_down?,
        code => {
            let step = outcomes.last().map_or("none", |o| o.name.as_str());
            let killed = memory.map_or(0, |m| m.oom_kills);
            let why = if killed > 0 {
                format!(", {killed} processes killed for want of memory")
            } else {
                String::new()
            };
            return Err(format!("exit code {code}, last step: {step}{why}"));
        }
    }
    if let Some(n) = memory.map(|m| m.oom_kills).filter(|&n| n > 0) {
        return Err(format!("{n} processes killed for want of memory"));
    }
    let stats = fs::read(&stats_file).ok().and_then(|b| serde_json::from_slice(&b).ok());
    Ok(Run { outcomes, stats, pinned_max, memory })
}

/// The group of this process's runs. One run at a time has it.
pub fn group_name() -> String {
    format!("terrace-bench-{}", std::process::id())
}

fn make_group(places: &Places, limit: Option<u64>) -> Result<Option<OwnedGroup>, String> {
    let mut group = match OwnedGroup::create(&group_name(), limit) {
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

/// What to put before the command under test.
fn command(places: &Places, system: &System, stats: &Path) -> Command {
    let mut argv: Vec<String> = Vec::new();
    if let System::Terrace { memory, fast_door } = system {
        argv = vec![
            places.terrace.display().to_string(),
            "run".into(),
            "--on".into(),
            places.data.display().to_string(),
        ];
        argv.extend(["--memory".into(), memory.to_string(), "--stats".into(), stats.display().to_string()]);
        if !fast_door {
            argv.push("--no-fast-door".into());
        }
        argv.extend(places.terrace_args.iter().cloned());
        argv.push("--".into());
    }
    // `env` alone is the neutral prefix: it executes what follows, as `terrace run` does.
    let mut command = Command::new(argv.first().map_or("env", String::as_str));
    command.args(argv.iter().skip(1)).stdin(Stdio::null());
    command
}

/// Starts `command` inside the group, waits for it, calls `sample` now and then.
fn run_in(group: Option<&OwnedGroup>, command: Command, mut sample: impl FnMut()) -> Result<i32, String> {
    let mut child = spawn_in(group, command)?;
    let mut told_at: Option<Instant> = None;
    loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            Some(status) => return Ok(steps::exit_code(status)),
            None if interrupted() => tell(&child, &mut told_at),
            None => {}
        }
        sample();
        std::thread::sleep(Duration::from_millis(50));
    }
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
pub(crate) fn spawn_in(group: Option<&OwnedGroup>, mut command: Command) -> Result<Child, String> {
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

/// What shell lines have brought up; taken down when dropped.
struct Commands<'a> {
    teardown: &'a [String],
    group: Option<&'a OwnedGroup>,
}

impl<'a> Commands<'a> {
    fn bring_up(system: &'a System, group: Option<&'a OwnedGroup>) -> Result<Commands<'a>, String> {
        let System::Command { setup, teardown, .. } = system else {
            return Ok(Commands { teardown: &[], group });
        };
        let commands = Commands { teardown, group };
        setup.iter().try_for_each(|line| commands.run(line)).map(|()| commands)
    }

    fn run(&self, line: &str) -> Result<(), String> {
        let mut command = Command::new("sh");
        command.args(["-c", line]).stdin(Stdio::null());
        match run_in(self.group, command, || {})? {
            0 => Ok(()),
            code => Err(format!("exit code {code} of: {line}")),
        }
    }

    /// All of them, whatever one says; the first that failed is told.
    fn take_down(&mut self) -> Result<(), String> {
        let teardown = std::mem::take(&mut self.teardown);
        teardown.iter().map(|line| self.run(line)).fold(Ok(()), Result::and)
    }
}

impl Drop for Commands<'_> {
    fn drop(&mut self) {
        let _ = self.take_down();
    }
}

/// A running pass-through mount; unmounted when dropped.
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
        // SIGTERM lets it unmount itself.
        // SAFETY: our child, not waited for yet.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let _ = self.child.wait();
        let _ = fs::remove_dir(&self.at);
    }
}
